"""What was erased is never more than a stub, whatever fits beside it (docs/erasure.md)."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kitchener.context.projection.explanation import explain
from tests.context.history import NEWEST, History, hidden, shown, text_of
from tests.context.projection.test_projection import newest

SEALED: dict[str, Any] = {"$sealed": {"v": 1, "kid": "0a", "nonce": "n", "ct": "c"}}


def talk(*erased: bool, objective: Any = "plan") -> History:
    """A session of one intent, in which some turns are erased."""
    history = History()
    history.add("INTENT_DECLARED", "INT-1", intent_id="INT-1", scope="SESSION", objective=objective)
    for n, is_erased in enumerate(erased, 1):
        turn = f"T-{n:02d}"
        message, response = (SEALED, SEALED) if is_erased else (f"question {n}", f"answer {n}")
        history.add("TURN_STARTED", turn, turn_id=turn, user_message=message)
        history.add("TURN_COMPLETED", turn, turn_id=turn, intent_id="INT-1", response=response, quality_gate_passed=True)
    return history


def test_an_erased_turn_and_intent_are_stubs_beside_what_can_be_read() -> None:
    projection = talk(True, False, objective=SEALED).project()
    assert shown(projection) == ["T-02"]
    assert hidden(projection) == {"INT-1": ("STUB", "ERASED"), "T-01": ("STUB", "ERASED")}
    text = text_of(projection).text
    assert "[T-01] erased" in text
    assert "Goal: [erased]" in text
    assert "sealed" not in text
    assert projection.tokens_used == sum(each.tokens for each in (*projection.head, *projection.placed))


def test_whoever_says_the_word_is_not_erased() -> None:
    history = talk(objective="[erased]")
    history.add("TURN_STARTED", "T-01", turn_id="T-01", user_message="[erased]")
    history.add("TURN_COMPLETED", "T-01", turn_id="T-01", intent_id="INT-1", response="[erased]", quality_gate_passed=True)
    assert shown(history.project()) == ["INT-1", "T-01"]


def test_it_is_explained() -> None:
    history = talk(True)
    found = explain("T-01", history.state(), history.project())
    assert (found.verdict, found.form, found.suppressed_by) == ("suppressed", "STUB", "ERASED")
    assert found.text == "T-01 is suppressed (ERASED), shown as a stub: its text was erased with its subject"


def test_a_message_that_comes_late_is_erased_as_well() -> None:
    """The fold that begins again, because an event came late, finds it too."""
    history = talk(True, False)
    late = history.events[1:3]
    history.events[1:3] = []
    state = history.state()
    for each in late:
        state.apply(each)
    assert state.turns["T-01"].is_erased
    assert state.has_erased


@given(erased=st.lists(st.booleans(), max_size=30), budget=st.integers(0, 400), max_stubs=st.integers(0, 12))
def test_nothing_erased_is_visible_and_the_budget_and_the_stubs_hold(erased: list[bool], budget: int, max_stubs: int) -> None:
    projection = talk(*erased).project(newest(context_budget=budget, max_stubs=max_stubs))
    visible = {each.item.entity_id for each in projection.visible}
    assert not visible & {f"T-{n:02d}" for n, is_erased in enumerate(erased, 1) if is_erased}
    placed = (*projection.head, *projection.placed)
    assert projection.tokens_used == sum(each.tokens for each in placed)
    assert projection.tokens_used <= max(budget, projection.head[0].tokens)
    assert sum(each.form == "STUB" for each in projection.placed) <= max_stubs
    as_if = talk(*erased).project(NEWEST)
    assert {each.entity_id for each in as_if.eligible()} == {each.entity_id for each in projection.eligible()}
