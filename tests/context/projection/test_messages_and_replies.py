"""A turn's message and reply are items of their own, a long one is an excerpt, and turns stand under their dates."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.context import ContextState, Item, Projection, Projector, Ruleset, evidence_item, fold, render, resolve_active
from kitchener.context.fold.excerpts import asked_terms, excerpted
from kitchener.context.fold.items import LINE
from tests.context.history import ESTIMATE, SESSION, WORD_RANK, History, entry_ref, hidden, shown
from tests.shared.property_examples import examples

SPLIT = Ruleset(excerpt_tokens=40, token_estimator="utf8/3")
TODAY = "2026-02-20T09:00:00.000000+00:00"
FILLER = "The weather was grey and nothing happened on that long day. "


def talk(*replies: str) -> ContextState:
    history = History()
    history.declare("INT-1")
    for number, reply in enumerate(replies, 1):
        history.add("TURN_STARTED", f"T-{number}", user_message=f"question {number}", session_id=SESSION)
        history.add("TURN_COMPLETED", f"T-{number}", intent_id="INT-1", response=reply, session_id=SESSION)
    return fold(history.events, ESTIMATE, SESSION, is_split=True)


def project(state: ContextState, ruleset: Ruleset = SPLIT, message: str = "", **more: Any) -> Projection:
    resolution = resolve_active(state, ruleset)
    return Projector(ruleset).project(state, resolution, ranking=WORD_RANK, message=message, turn_ts=TODAY, **more)


def from_elsewhere(number: int, text: str, day: str, session_id: str = "SES-0000000f") -> Item:
    stamp = f"{day}T10:{number:02d}:00.000000+00:00"
    return evidence_item(f"T-f{number}", entry_ref(number), stamp, text, ESTIMATE, session_id=session_id, separator=LINE)


def test_a_message_is_shown_without_its_reply() -> None:
    state = talk("nothing of it", "a word", "another")
    ruleset = Ruleset(excerpt_tokens=40, newest_turns=0, context_budget=35)
    projection = project(state, ruleset, "question 1")
    assert "T-1.message" in shown(projection)
    assert "T-1" in hidden(projection)
    assert [item.entity_id for item in projection.eligible()][1:] == [
        "T-1.message",
        "T-1",
        "T-2.message",
        "T-2",
        "T-3.message",
        "T-3",
    ]


def test_a_message_is_named_by_the_entry_that_began_its_turn() -> None:
    turns = talk("reply").turns
    assert [turns[name].ref for name in ("T-1.message", "T-1")] == [entry_ref(2), entry_ref(3)]


def test_newest_turns_count_turns_and_not_items() -> None:
    state = talk("one", "two", "three", "four")
    projection = project(state, Ruleset(excerpt_tokens=40, newest_turns=2, context_budget=70, max_stubs=0), "of no use")
    assert shown(projection)[1:] == ["T-3.message", "T-3", "T-4.message", "T-4"]


def test_all_is_whole_if_all_fits() -> None:
    state = talk(FILLER * 5, "short")
    projection = project(state, Ruleset(excerpt_tokens=40, admission="newest_first"))
    assert FILLER * 5 in render(projection, ESTIMATE).text


def test_an_excerpt_has_the_sentences_that_match_and_says_how_to_read_the_rest() -> None:
    long = f"{FILLER * 3}The flute costs ninety euros. {FILLER * 3}"
    state = talk(long, "short", "short", "short")
    projection = project(state, Ruleset(excerpt_tokens=40, context_budget=90), "what does the flute cost?")
    (placed,) = [each for each in projection.visible if each.item.entity_id == "T-1"]
    assert "The flute costs ninety euros." in placed.item.text
    assert placed.item.text.startswith("assistant: …")
    assert placed.item.text.endswith("… [T-1]")
    assert placed.item.whole == f"assistant: {long}"
    assert placed.item.tokens <= 40


def test_an_excerpt_without_a_match_is_the_beginning() -> None:
    item = from_elsewhere(1, "assistant: It begins here. " + FILLER * 5, "2026-02-01")
    cut = excerpted(item, asked_terms("what does the flute cost?"), 40, ESTIMATE)
    assert cut.text == "assistant: It begins here. … [T-f1]"


@settings(max_examples=examples(few=20, many=500))
@given(st.text(max_size=400), st.text(max_size=30), st.integers(20, 60))
def test_an_excerpt_keeps_to_its_size(text: str, message: str, most: int) -> None:
    item = from_elsewhere(1, f"user: {text}", "2026-02-01")
    cut = excerpted(item, asked_terms(message), most, ESTIMATE)
    assert cut.tokens <= most
    assert (cut is item) == (item.tokens <= most)


@pytest.mark.parametrize("text", ["\n" * 400, "\n" * 40_000 + "flute", ". " * 400])
def test_a_long_text_of_blank_lines_has_an_excerpt_too(text: str) -> None:
    """Models repeat line breaks up to their limit, and every later turn has such a reply before it."""
    projection = project(talk(text, "fine"), Ruleset(excerpt_tokens=40, context_budget=90), "what does the flute cost?")
    assert shown(projection)[-2:] == ["T-2.message", "T-2"]
    (cut,) = [each.item for each in projection.placed if each.item.entity_id == "T-1"]
    assert cut.text.endswith(" [T-1]")
    assert cut.tokens <= 40


def test_turns_stand_under_the_dates_of_their_days_and_today_comes_last() -> None:
    state = talk("reply")  # of 2026-02-18
    recalled = [
        from_elsewhere(5, "user: second day", "2026-02-11", "SES-0000000e"),
        from_elsewhere(4, "user: first day", "2026-02-10", "SES-0000000e"),
        from_elsewhere(6, "user: between them", "2026-02-10"),
    ]
    lines = render(project(state, message="day them", recalled=recalled), ESTIMATE).text.split("\n\n")[1].split("\n")
    assert lines == [
        "[Tue 2026-02-10]",
        "user: first day",
        "[Wed 2026-02-11]",
        "user: second day",
        "[Tue 2026-02-10]",
        "user: between them",
        "[Wed 2026-02-18]",
        "user: question 1",
        "assistant: reply",
        "[today, Fri 2026-02-20]",
    ]


@settings(max_examples=examples(few=20, many=500))
@given(st.integers(0, 300), st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ef"), st.integers(1, 60)), max_size=12))
def test_headings_and_excerpts_count_towards_the_budget(budget: int, said: list[tuple[int, str, int]]) -> None:
    recalled = [
        from_elsewhere(number, "user: question " + "word " * size, f"2026-02-1{day}", f"SES-0000000{session}")
        for number, (day, session, size) in enumerate(said, 1)
    ]
    state = talk("one", "two " * 30)
    projection = project(state, Ruleset(excerpt_tokens=40, context_budget=budget), "question word", recalled=recalled)
    text = render(projection, ESTIMATE).text
    assert ESTIMATE(text) <= projection.tokens_used
    assert projection.tokens_used <= budget or projection.flags


@pytest.mark.parametrize("older", [Ruleset(), Ruleset(policy_version=2)])
def test_a_policy_without_excerpts_shows_turns_as_it_did(older: Ruleset) -> None:
    history = History()
    history.declare("INT-1")
    history.turn("T-1", "INT-1", words=0)
    state = fold(history.events, ESTIMATE, SESSION)
    text = render(project(state, older), ESTIMATE).text
    assert text == "Goal: goal INT-1\n\nuser: question of T-1\nassistant: answer of T-1"
