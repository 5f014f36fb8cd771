"""How the rules classify messages: speech acts, labels, objectives, requests for tools."""

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.gateway.rules.classification import MAX_OBJECTIVE_CHARS, classify
from kitchener.gateway.rules.relation import RecentTurn
from kitchener.gateway.rules.tool_choice import choose_tool
from kitchener.gateway.rules.vocabulary import lower_words
from kitchener.records.prompt import ToolSpec
from tests.gateway.rules.test_relation import HOTEL, TEXT, TURN
from tests.gateway.shared.gateway_kit import schema_of

STRING = {"type": "string"}


def takes(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


TOOLS = (
    ToolSpec("list_packages", "List the installed Python packages", takes()),
    ToolSpec("read_file", "Read a text file", takes("path", path=STRING)),
    ToolSpec("get_weather", "Current weather of a city", takes("city", city=STRING)),
    ToolSpec("addNumbers", "Add two numbers", takes("a", a={"type": "number"})),
    ToolSpec("copy_file", "Copy a file", takes("source", "to", source=STRING, to=STRING)),
)


@pytest.mark.parametrize(
    ("message", "act"),
    [
        ("hello", "greeting"),
        ("Good morning!", "greeting"),
        ("hi, how are you?", "greeting"),
        ("Hi, can you list the packages?", "command"),
        ("thanks a lot!", "thanks"),
        ("that's all, thanks", "thanks"),
        ("thanks, which flights are there?", "question"),
        ("bye", "farewell"),
        ("See you tomorrow", "farewell"),
        ("What is the capital of France?", "question"),
        ("is it raining", "question"),
        ("you like tea?", "question"),
        ("List the packages", "command"),
        ("please read notes.txt", "command"),
        ("I need a flight to Oslo", "command"),
        ("could you tell me where the station is", "question"),
        ("My dog is called Rex.", "statement"),
        ("Sounds great, can you find me a room?", "command"),
        ("I fly home on Monday. Could you please find me a hotel?", "command"),
        ("Yes, play it in the kitchen", "command"),
        ("Thanks! What does it cost?", "question"),
        ("", "statement"),
    ],
)
def test_speech_acts(message: str, act: str) -> None:
    assert classify(message)["speech_act"] == act


def test_labels_come_from_a_table_of_words_and_objectives_without_politeness() -> None:
    answer = classify("Hello, could you please plan a trip to Rome with cheap hotels?")
    assert answer["labels"] == {"domain": "travel", "task": "planning"}
    assert answer["candidate_objective"] == "plan a trip to Rome with cheap hotels"
    assert classify("hello")["labels"] == {}
    assert "candidate_objective" not in classify("hello")
    assert len(classify("please explain " + "why " * 50 + "trains run")["candidate_objective"]) <= 121


def test_a_vocabulary_bounds_the_labels_and_its_own_words_count() -> None:
    message = "Deploy the kubernetes cluster and book a hotel"
    vocabulary = {"domain": ["kubernetes", "travel_booking"], "task": ["planning"]}
    assert classify(message, labels_vocabulary=vocabulary)["labels"] == {"domain": "kubernetes"}
    assert classify(message, labels_vocabulary={})["labels"]["domain"] == "software"


@pytest.mark.parametrize(
    ("message", "relation"),
    [
        ("And which hotels are near the station?", "continue"),
        ("make it cheaper", "continue"),
        ("Yes", "continue"),
        ("By the way, what is a monad?", "switch"),
        ("Now I want to talk about dinner", "switch"),
        ("Write a unit test for the parser function", "switch"),
        ("That's all, thank you", "close"),
        ("never mind", "close"),
        ("bye", "close"),
        ("hello", "unclear"),
        ("thanks", "continue"),
    ],
)
def test_relation_to_the_active_objective(message: str, relation: str) -> None:
    recent: list[RecentTurn] = [{"user": "I want to go to Oslo", "assistant": "Which hotel do you like?"}]
    found = classify(message, active_objective="plan a trip to Oslo", recent_turns=recent)
    assert found["intent_relation"] == relation


def test_without_an_objective_a_request_begins_one() -> None:
    assert classify("plan a trip")["intent_relation"] == "switch"
    assert classify("hello", active_objective=None)["intent_relation"] == "unclear"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("which packages are installed?", ("list_packages", {})),
        ("List packages", ("list_packages", {})),
        ("read the file notes.txt", ("read_file", {"path": "notes.txt"})),
        ("please read this file: /etc/hosts", ("read_file", {"path": "/etc/hosts"})),
        ('read the file "my notes"', ("read_file", {"path": "my notes"})),
        ("what is the weather in Paris?", ("get_weather", {"city": "Paris"})),
        ("copy the file 'a b' to 'c'", ("copy_file", {"source": "a b", "to": "c"})),
        ("what is the weather like?", None),
        ("read the file", None),
        ("copy the file a.txt", None),
        ("delete the file a.txt", None),
        ("could you please delete the file a.txt?", None),
        ("show me the file a.txt", ("read_file", {"path": "a.txt"})),
        ("add the numbers 2 and 3", None),
        ("tell me a story", None),
    ],
)
def test_a_tool_is_requested_only_if_the_message_plainly_asks_and_gives_its_arguments(
    message: str, expected: tuple[str, dict[str, Any]] | None
) -> None:
    """Nothing is made up: without a text for a required argument, or where that is a number, there is no request."""
    answer = classify(message, tools=TOOLS)
    wanted = None if expected is None else {"tool_id": expected[0], "arguments": expected[1]}
    assert answer.get("tool_request") == wanted


def test_a_statement_asks_for_no_tool() -> None:
    assert "tool_request" not in classify("My packages are installed.", tools=TOOLS)


@given(message=st.text(max_size=200), objective=st.none() | st.text(max_size=50), with_tools=st.booleans())
def test_any_message_gets_a_classification_by_the_contract(message: str, objective: str | None, with_tools: bool) -> None:
    answer = classify(message, active_objective=objective, tools=TOOLS if with_tools else ())
    jsonschema_rs.validate(schema_of("PRC-CLASSIFY-001"), answer)


@given(message=st.text(alphabet=st.sampled_from("ab ./'\"`?-listread_filepackages"), max_size=80))
def test_what_a_tool_is_asked_for_was_in_the_message(message: str) -> None:
    found = choose_tool(message, lower_words(message), TOOLS)
    if found is not None:
        assert all(value in message for value in found["arguments"].values())


def test_an_accepted_offer_becomes_the_objective_and_says_of_what() -> None:
    offer = "The Fjord Hotel is nice. Shall I reserve a room there?"
    recent: list[RecentTurn] = [{"user": "Find a hotel in Oslo", "assistant": offer}]
    answer = classify("Yes, please", active_objective=HOTEL, recent_turns=recent)
    assert answer["candidate_objective"] == "reserve a room there (find a hotel in Oslo)"
    again = classify("Yes", active_objective=answer["candidate_objective"], recent_turns=recent)
    assert again["intent_relation"] == "continue"


def test_an_objective_begins_where_something_is_asked_for() -> None:
    found = classify("That is fine. Can you get me a cab to the station?", active_objective=HOTEL)
    assert found["candidate_objective"] == "get me a cab to the station"
    long = classify("Book " + "very " * 60 + "good seats", active_objective=HOTEL * 20)
    assert len(long["candidate_objective"]) <= MAX_OBJECTIVE_CHARS


def test_going_back_names_the_objective_before_if_its_id_is_known() -> None:
    message = "Back to the flight we discussed earlier"
    assert "intent" not in classify(message, active_objective=HOTEL)
    answer = classify(message, active_objective=HOTEL, prior_intent_id="INT-1")
    assert answer["intent_relation"] == "switch"
    assert answer["intent"] == {"action": "supersede", "prior_intent_id": "INT-1"}
    jsonschema_rs.validate(schema_of("PRC-CLASSIFY-001"), answer)


def test_a_closed_matter_states_no_objective() -> None:
    assert "candidate_objective" not in classify("No, that was all.", active_objective=HOTEL)


@given(message=TEXT, turns=st.lists(TURN, max_size=5), objective=TEXT | st.none(), prior=st.none() | st.just("INT-1"))
def test_any_classification_follows_the_contract(
    message: str, turns: list[RecentTurn], objective: str | None, prior: str | None
) -> None:
    answer = classify(message, active_objective=objective, recent_turns=turns, prior_intent_id=prior)
    jsonschema_rs.validate(schema_of("PRC-CLASSIFY-001"), answer)
    assert len(answer.get("candidate_objective", "")) <= MAX_OBJECTIVE_CHARS
    assert classify(message, active_objective=objective, recent_turns=turns, prior_intent_id=prior) == answer
