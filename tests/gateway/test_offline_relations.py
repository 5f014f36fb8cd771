"""How the built-in model relates a message to the active objective: one clear case for each rule, and that it never fails."""

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.gateway.providers.offline import cues
from kitchener.gateway.providers.offline.message import MAX_OBJECTIVE_CHARS, classify
from kitchener.gateway.providers.offline.relations import Relation, asked, relation, wants
from tests.gateway.test_offline import schema_of

HOTEL = "find a hotel in Oslo"
FOUND = "There is the Fjord Hotel with 3 stars."


def after(reply: str, message: str, objective: str = HOTEL, user: str = "Find a hotel in Oslo") -> Relation:
    """What the message is after that reply."""
    return relation(message, [{"user": user, "assistant": reply}], objective)


CONTINUES = [
    ("For which dates?", "From the 14th to the 16th.", "answers the question"),
    ("For which dates?", "I want to arrive on Monday by bus.", "answers the question"),
    ("Two rooms for Monday, is that correct?", "Yes, that's it.", "a short reply"),
    ("Shall I reserve a room for the 4th?", "No, for the 5th.", "answers the question"),
    (FOUND, "Does it have a sauna?", "refers back"),
    (FOUND, "Are there other hotels in Oslo?", "speaks of the same"),
    (FOUND, "Can you also tell me the address?", "a short reply"),
    (FOUND, "Sounds good.", "a short reply"),
    (FOUND, "ok", "a short reply"),
    (FOUND, "Thank you", "a short reply"),
    (FOUND, "Thank you for all your help", "thanks for a step"),
    (FOUND, "Find me another hotel", "speaks of the same"),
    ("What else can I do for you?", "Does that hotel have a sauna?", "speaks of the same"),
]
SWITCHES = [
    (FOUND, "By the way, what is a monad?", "announces another matter"),
    (FOUND, "Great. I also need a train to Bergen.", "announces another matter"),
    (FOUND, "Thanks! What's the weather like there?", "asks for another thing"),
    (FOUND, "Not that one. Find me some news instead", "asks for another thing"),
    ("For which dates?", "Write a test for the parser", "asks for another thing"),
    ("For which dates?", "What is the forecast for Monday?", "asks for another thing"),
    (FOUND, "Sounds good, please book it for two nights", "asks to act on what was looked for"),
    (FOUND, "I'd like to make a reservation there", "asks to act on what was looked for"),
    ("Shall I reserve a room?", "Yes, please", "takes up what was offered"),
    ("Would you like to make a reservation?", "Sure, for two nights", "takes up what was offered"),
    (FOUND, "Let's go back to the translation", "goes back to something earlier"),
    (FOUND, "Where were we?", "goes back to something earlier"),
    ("Anything else?", "I want to complain loudly about noise", "names what else is wanted"),
    (FOUND, "Explain an unrelated theorem about primes", "announces another matter"),
    (FOUND, "Explain a theorem about primes", "asks for something new"),
]
CLOSES = [
    (FOUND, "Thanks, that's all.", "says that nothing more is wanted"),
    (FOUND, "I don't need anything else", "says that nothing more is wanted"),
    (FOUND, "never mind", "says that nothing more is wanted"),
    (FOUND, "Goodbye!", "says that nothing more is wanted"),
    ("Is there anything else I can help you with?", "No", "wants nothing else"),
    ("Is there anything else I can help you with?", "not right now", "wants nothing else"),
    ("What else can I do?", "You were a great help, thanks", "only thanks when asked what else"),
    ("Shall I reserve a room?", "No, I don't want to book it.", "declines what was offered"),
]
UNCLEAR = [(FOUND, "Good morning!", "only greets"), (FOUND, "clouds drift slowly over mountains", "no sign")]


@pytest.mark.parametrize(
    ("reply", "message", "reason", "name"),
    [
        (*case, name)
        for name, cases in (("continue", CONTINUES), ("switch", SWITCHES), ("close", CLOSES), ("unclear", UNCLEAR))
        for case in cases
    ],
)
def test_each_rule_decides_its_clear_case(reply: str, message: str, reason: str, name: str) -> None:
    found = after(reply, message)
    assert (found.name, found.reason) == (name, reason)
    assert found.confidence >= 0.6 or name == "unclear"


@pytest.mark.parametrize(
    ("message", "name"),
    [("find a hotel", "switch"), ("good morning", "unclear"), ("ok", "unclear"), ("that's all, bye", "close")],
)
def test_without_an_objective_a_goal_begins_one_and_leave_taking_closes(message: str, name: str) -> None:
    assert relation(message).name == name


def test_what_is_being_done_already_is_not_another_goal() -> None:
    assert after("Shall I reserve a room?", "Yes, please", "reserve a room (find a hotel in Oslo)").name == "continue"
    assert after(FOUND, "Book it for two nights", "book a hotel in Oslo").name == "continue"


def test_a_closing_phrase_inside_a_request_closes_nothing() -> None:
    for message in ("Write a poem about saying goodbye", "That's all on hotels. Now find me a train, please"):
        assert after(FOUND, message).name == "switch"


def test_an_umbrella_objective_is_narrowed_and_not_left() -> None:
    """What the assistant spoke of belongs to the objective where that itself names no thing of its own."""
    trip = "plan something for the weekend in Oslo"
    assert after("Would you like a hotel or a museum?", "Find me a hotel", trip).name != "switch"
    assert after("It is a fine city.", "Find me a dentist", trip).name == "switch"


def test_the_offer_that_was_taken_up_becomes_the_objective_and_says_of_what() -> None:
    recent = [{"user": "Find a hotel in Oslo", "assistant": "The Fjord Hotel is nice. Shall I reserve a room there?"}]
    answer = classify({"user_message": "Yes, please", "active_objective": HOTEL, "recent_turns": recent})
    assert answer["candidate_objective"] == "reserve a room there (find a hotel in Oslo)"
    again = classify({"user_message": "Yes", "active_objective": answer["candidate_objective"], "recent_turns": recent})
    assert again["intent_relation"] == "continue"


def test_an_objective_begins_where_something_is_asked_for() -> None:
    variables = {"user_message": "That is fine. Can you get me a cab to the station?", "active_objective": HOTEL}
    assert classify(variables)["candidate_objective"] == "get me a cab to the station"
    long = classify({"user_message": "Book " + "very " * 60 + "good seats", "active_objective": HOTEL * 20})
    assert len(long["candidate_objective"]) <= MAX_OBJECTIVE_CHARS


def test_going_back_names_the_objective_before_if_its_id_is_known() -> None:
    variables = {"user_message": "Back to the flight we discussed earlier", "active_objective": HOTEL}
    assert "intent" not in classify(variables)
    answer = classify({**variables, "prior_intent_id": "INT-1"})
    assert answer["intent_relation"] == "switch"
    assert answer["intent"] == {"action": "supersede", "prior_intent_id": "INT-1"}
    jsonschema_rs.validate(schema_of("PRC-CLASSIFY-001"), answer)


def test_a_closed_matter_states_no_objective() -> None:
    assert "candidate_objective" not in classify({"user_message": "No, that was all.", "active_objective": HOTEL})


@pytest.mark.parametrize(
    ("text", "things", "acts"),
    [
        ("i need a ride to the restaurant", ("ride",), False),
        ("what are good music events?", ("event",), False),
        ("a quiet place near the museum", (), False),
        ("i don't want a hotel. find a bus", ("bus",), False),
        ("please book it", (), True),
        ("i like that book", (), False),
        ("i want to listen to it", ("music",), True),
        ("i want to listen to a song", ("music",), False),
        ("find me a booking site", (), False),
    ],
)
def test_what_a_text_asks_for(text: str, things: tuple[str, ...], acts: bool) -> None:
    assert wants(text)[:2] == (things, acts)


@pytest.mark.parametrize(
    ("reply", "question", "offered"),
    [
        ("what else can i do for you", "what else", ""),
        ("do you need any further help?", "what else", ""),
        ("two seats on monday, right? please confirm.", "confirm", ""),
        ("when do you leave?", "detail", ""),
        ("in which city?", "detail", ""),
        ("it is nice. do you want me to buy tickets?", "offer", "buy tickets"),
        ("would you like tickets?", "offer", "get tickets"),
        ("would you like to watch it now?", "offer", "watch it now"),
        ("do you want to hear more?", "offer", ""),
        ("does the fjord hotel suit you?", "proposal", ""),
        ("it costs 3 euros.", "none", ""),
        ("", "none", ""),
    ],
)
def test_what_a_reply_asks(reply: str, question: str, offered: str) -> None:
    assert asked(reply) == (question, offered)


def test_every_announcement_has_one_of_the_words_it_is_looked_up_by() -> None:
    for text in (
        "about something else", "need something else", "another question", "new topic", "other matter",
        "by the way", "btw", "on another note", "changing the subject", "change topic", "moving on", "while you're at it",
        "unrelated", "separately", "let's switch", "let us go back", "before i forget", "first of all", "instead of that",
        "also please", "now find", "next, i", "we also need", "i'm also", "could you also", "back to the", "going back to my",
        "returning to our", "return to the", "where were we", "mentioned before", "asked about earlier", "previous task",
    ):  # fmt: skip
        assert cues.OPENERS.search(text) or cues.RETURNS.search(text), text
        assert not cues.ANNOUNCING_WORDS.isdisjoint(text.replace(",", "").split()), text


PHRASES = st.sampled_from(
    [
        "book it",
        "a hotel",
        "yes",
        "no",
        "thanks",
        "that's all",
        "by the way",
        "back to the",
        "find",
        "?",
        ". ",
        ", ",
        "not",
        "’",
        "\n",
    ]
)
TEXT = st.text(max_size=60) | st.lists(PHRASES, max_size=12).map(" ".join)
TURN = st.fixed_dictionaries({}, optional={"user": TEXT | st.none(), "assistant": TEXT | st.none()}) | st.none()


@given(message=TEXT, turns=st.lists(TURN, max_size=5), objective=TEXT | st.none())
def test_any_text_gets_one_relation_always_the_same(message: str, turns: list[Any], objective: str | None) -> None:
    found = relation(message, turns, objective)
    assert found.name in ("continue", "switch", "close", "unclear")
    assert 0 <= found.confidence <= 1
    assert found.reason
    wants.cache_clear()
    asked.cache_clear()
    assert relation(message, turns, objective) == found


@given(message=TEXT, turns=st.lists(TURN, max_size=5), objective=TEXT | st.none(), prior=st.none() | st.just("INT-1"))
def test_any_classification_follows_the_contract(
    message: str, turns: list[Any], objective: str | None, prior: str | None
) -> None:
    variables = {
        "user_message": message,
        "active_objective": objective,
        "recent_turns": turns,
        "prior_intent_id": prior,
    }
    answer = classify(variables)
    jsonschema_rs.validate(schema_of("PRC-CLASSIFY-001"), answer)
    assert len(answer.get("candidate_objective", "")) <= MAX_OBJECTIVE_CHARS
    assert classify(variables) == answer


def test_a_very_long_message_is_read_at_its_end() -> None:
    assert relation("word " * 100_000 + "find me a train", [{"user": "hi", "assistant": FOUND}], HOTEL).name == "switch"
