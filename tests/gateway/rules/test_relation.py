"""How the rules relate a message to the active objective: one clear case for each rule, and that it never fails."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.gateway.rules.relation import ObjectiveRelation, RecentTurn, question_of, relation, requested

HOTEL = "find a hotel in Oslo"
FOUND = "There is the Fjord Hotel with 3 stars."


def after(reply: str, message: str, objective: str = HOTEL, user: str = "Find a hotel in Oslo") -> ObjectiveRelation:
    """What the message is after that reply."""
    return relation(message, [{"user": user, "assistant": reply}], objective)


CONTINUES = [
    ("For which dates?", "From the 14th to the 16th.", "answers the question"),
    ("For which dates?", "I want to arrive on Monday by bus.", "answers the question"),
    ("Two rooms for Monday, is that correct?", "Yes, that's it.", "gives a short reply"),
    ("Shall I reserve a room for the 4th?", "No, for the 5th.", "answers the question"),
    (FOUND, "Does it have a sauna?", "refers back"),
    (FOUND, "Are there other hotels in Oslo?", "repeats an earlier word"),
    (FOUND, "Can you also tell me the address?", "gives a short reply"),
    (FOUND, "Sounds good.", "gives a short reply"),
    (FOUND, "ok", "gives a short reply"),
    (FOUND, "Thank you", "gives a short reply"),
    (FOUND, "Thank you for all your help", "thanks for a step"),
    (FOUND, "Find me another hotel", "repeats an earlier word"),
    ("What else can I do for you?", "Does that hotel have a sauna?", "repeats an earlier word"),
    (FOUND, "How about something else?", "gives a short reply"),
    (FOUND, "I'd like to see another one in the centre", "refers back"),
    ("There are 9 hotels.", "Show me other hotels, please", "repeats an earlier word"),
    ("How about the Fjord Hotel?", "Can you look for others", "answers the question"),
    ("You will arrive today?", "Yes, that's it.", "gives a short reply"),
    ("Would you like breakfast?", "No, thanks.", "gives a short reply"),
    (FOUND, "Thanks for helping me to book it", "thanks for a step"),
]
SWITCHES = [
    (FOUND, "By the way, what is a monad?", "announces another matter"),
    (FOUND, "Great. I also need a train to Bergen.", "announces another matter"),
    (FOUND, "Thanks! What's the weather like there?", "requests another topic"),
    (FOUND, "Not that one. Find me some news instead", "requests another topic"),
    ("For which dates?", "Write a test for the parser", "requests another topic"),
    ("For which dates?", "What is the forecast for Monday?", "requests another topic"),
    (FOUND, "Sounds good, please book it for two nights", "requests a transaction after a search"),
    (FOUND, "I'd like to make a reservation there", "requests a transaction after a search"),
    ("Shall I reserve a room?", "Yes, please", "accepts an offer"),
    ("Would you like to make a reservation?", "Sure, for two nights", "accepts an offer"),
    (FOUND, "Let's go back to the translation", "goes back to something earlier"),
    (FOUND, "Where were we?", "goes back to something earlier"),
    (FOUND, "Explain an unrelated theorem about primes", "announces another matter"),
    (FOUND, "Explain a theorem about primes", "requests a new thing"),
    (FOUND, "Great, find me a plumber", "requests a new thing"),
    ("What about the Fjord Hotel?", "Good. Please check my horoscope", "requests a new thing"),
]
CLOSES = [
    (FOUND, "Thanks, that's all.", "says that nothing more is wanted"),
    (FOUND, "I don't need anything else", "says that nothing more is wanted"),
    (FOUND, "never mind", "says that nothing more is wanted"),
    (FOUND, "Goodbye!", "says that nothing more is wanted"),
    ("Is there anything else I can help you with?", "No", "wants nothing else"),
    ("Is there anything else I can help you with?", "not right now", "wants nothing else"),
    ("What else can I do?", "You were a great help, thanks", "only thanks when asked what else"),
    ("Shall I reserve a room?", "No, I don't want to book it.", "declines an offer"),
    ("Shall I reserve a room?", "Not just yet", "declines an offer"),
    ("Would you be needing anything else?", "No, thank you.", "wants nothing else"),
    ("Can I help you further?", "Nope", "wants nothing else"),
    ("Do you still need me?", "I don't think so", "wants nothing else"),
    ("Will that be all?", "Yes", "says that nothing more is wanted"),
    (FOUND, "I shall look at the prices once more tonight at home. That was all I wanted.", "says that nothing more is wanted"),
    (FOUND, "Thanks, later!", "says that nothing more is wanted"),
]
UNCLEAR = [
    (FOUND, "Good morning!", "only greets"),
    (FOUND, "clouds drift slowly over mountains", "no sign"),
    ("Anything else?", "I want to complain loudly about noise", "no sign"),
]


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


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("No, thank you", "close"),
        ("What is its address?", "continue"),
        ("And then?", "continue"),
        ("find a plumber", "switch"),
        ("ok", "unclear"),
    ],
)
def test_after_an_objective_was_closed_a_reply_closes_and_a_back_reference_continues(message: str, name: str) -> None:
    assert after("Anything else?", message, objective="").name == name


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


@pytest.mark.parametrize(
    ("text", "topics", "is_transaction"),
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
def test_what_a_text_requests(text: str, topics: tuple[str, ...], is_transaction: bool) -> None:
    assert requested(text)[:2] == (topics, is_transaction)


@pytest.mark.parametrize(
    ("reply", "question", "offered"),
    [
        ("what else can i do for you", "what else", ""),
        ("do you need any further help?", "what else", ""),
        ("two seats on monday, right? please confirm.", "confirm", ""),
        ("when do you leave?", "detail", ""),
        ("in which city?", "detail", ""),
        ("what about friday?", "proposal", ""),
        ("would you be needing anything else?", "what else", ""),
        ("may i assist you further?", "what else", ""),
        ("is that all?", "that is all", ""),
        ("is that all right?", "confirm", ""),
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
    assert question_of(reply) == (question, offered)


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
TURN = st.fixed_dictionaries({"user": TEXT, "assistant": TEXT})


@given(message=TEXT, turns=st.lists(TURN, max_size=5), objective=TEXT | st.none())
def test_any_text_gets_one_relation_always_the_same(message: str, turns: list[RecentTurn], objective: str | None) -> None:
    found = relation(message, turns, objective)
    assert found.name in ("continue", "switch", "close", "unclear")
    assert 0 <= found.confidence <= 1
    assert found.reason
    assert relation(message, turns, objective) == found


def test_a_very_long_message_is_read_at_its_end() -> None:
    assert relation("word " * 100_000 + "find me a train", [{"user": "hi", "assistant": FOUND}], HOTEL).name == "switch"
