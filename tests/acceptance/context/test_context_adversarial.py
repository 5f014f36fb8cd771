"""Histories that tempt a policy to guess: liveness, activity and visibility follow from explicit events alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.canonical import canonical_bytes
from kitchener.context import (
    ContextState,
    Projector,
    SessionIntents,
    SourceEvent,
    eligible,
    fold,
    lists_of,
    projection_payload,
    reach_from,
    resolve_active,
    resolve_intent_transition,
)
from kitchener.context.ruleset import Ruleset
from kitchener.ids import intent_id
from kitchener.records.entries import IntentSupersededPayload, payload_as
from kitchener.records.outputs import Classification
from tests.context.history import (
    ESTIMATE,
    NEWEST,
    SESSION,
    WORD_RANK,
    History,
    event_lists,
    hidden,
    rulesets,
    second,
    shown,
    text_of,
)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop is enough: what a model is shown does not depend on it."""
    return "asyncio"


def two_intents() -> History:
    history = History()
    history.declare("INT-1")
    history.declare("INT-2")
    history.turn("T-1", "INT-1")
    history.turn("T-2", "INT-2")
    return history


def test_competing_intents_most_recent_wins_override() -> None:
    history = two_intents()
    for ruleset, active, blocked in [
        (NEWEST, None, "COMPETING_INTENTS"),
        (Ruleset(admission="newest_first", intent_conflict_policy="most_recent_wins"), "INT-2", None),
    ]:
        resolution = history.resolve(ruleset)
        assert (resolution.active, resolution.blocked_by) == (active, blocked)
        assert [flag.kind for flag in resolution.flags] == ["COMPETING_INTENTS"]
        assert resolution.flags[0].involved_refs == (history.events[0].ref, history.events[1].ref)
        if active is None:
            with pytest.raises(ValueError, match="COMPETING_INTENTS"):
                history.project(ruleset)
        else:
            assert shown(history.project(ruleset)) == ["INT-2", "T-2"]


def test_supersession_chain_latest_active() -> None:
    history = History()
    for name in ("INT-1", "INT-2", "INT-3"):
        history.declare(name)
        history.turn(f"T-{name}", name)
    history.supersede("INT-1", "INT-2")
    history.supersede("INT-2", "INT-3")
    assert history.resolve() == ("INT-3", None, (), ())
    assert eligible(history.state(), "INT-3") == {"INT-3": ("DEFINES_INTENT",), "T-INT-3": ("REACHABLE_FROM_INTENT",)}
    late = fold(reversed(history.events), ESTIMATE, SESSION)
    assert resolve_active(late, NEWEST).active == "INT-3"


def test_zombie_work_order_stays_eligible() -> None:
    history = History()
    history.declare("INT-1")
    history.open("WO-1", "INT-1")
    for n in range(300):
        history.turn(f"T-{n:03d}", "INT-1")
    assert eligible(history.state(), "INT-1")["WO-1"] == ("OPEN_WO", "REACHABLE_FROM_INTENT")
    assert "WO-1" in shown(history.project())


def test_silent_supersession_is_not_inferred() -> None:
    history = History()
    history.declare("INT-1")
    same: dict[str, Any] = {"targets": ["the package list"], "acceptance": ["non-empty"]}
    history.open("WO-1", "INT-1", **same)
    history.open("WO-2", "INT-1", **same)
    history.add("WO_COMPLETED", "WO-2")
    history.open("WO-3", "INT-1", **same)
    assert [name for name in eligible(history.state(), "INT-1") if name.startswith("WO")] == ["WO-1", "WO-3"]


def test_deferred_work_order_stub_only() -> None:
    """And a deferred intent ends the walk: nothing of it, and nothing above it, is reached."""
    history = History()
    history.declare("INT-root")
    history.turn("T-root", "INT-root")
    history.declare("INT-off", "INT-root")
    history.turn("T-off", "INT-off")
    history.declare("INT-1", "INT-off")
    history.turn("T-1", "INT-1")
    history.open("WO-1", "INT-1")
    before = history.project()
    assert shown(before) == ["INT-root", "INT-off", "INT-1", "WO-1", "T-root", "T-off", "T-1"]
    history.add("WO_DEFERRED", "WO-1", reason="waits for approval")
    history.add("INTENT_DEFERRED", "INT-off", reason="next month")
    projection = history.project(Ruleset(admission="newest_first", context_budget=100_000))
    assert hidden(projection) == {"INT-off": ("STUB", "DEFERRED"), "WO-1": ("STUB", "DEFERRED")}
    assert shown(projection) == ["INT-1", "T-1"]
    assert eligible(history.state(), "INT-1")["WO-1"] == ("OPEN_WO", "REACHABLE_FROM_INTENT")
    assert history.state().work_orders["WO-1"].is_live
    assert "waits for approval" in text_of(projection).text


@pytest.mark.parametrize("budget", [0, 1, 40, 2_400])
def test_failed_work_order_unsuppressible(budget: int) -> None:
    history = History()
    history.declare("INT-1")
    for n in range(20):
        history.turn(f"T-{n:02d}", "INT-1")
    history.open("WO-1", "INT-1")
    history.fail("WO-1", "model was down " * 10)
    ruleset = Ruleset(admission="newest_first", context_budget=budget)
    projection = history.project(ruleset)
    assert "WO-1" in shown(projection)
    assert "WO-1" in text_of(projection).text
    over = "UNSUPPRESSIBLE_OVER_BUDGET" in [flag.kind for flag in projection.flags]
    assert over == (budget < 2_400)
    history.open("WO-2", "INT-1")
    history.add("WO_COMPLETED", "WO-2")
    assert "WO-1" in shown(history.project(ruleset))
    history.add("WO_SUPERSEDED", "WO-1", superseded_by_wo_id="WO-2", reason="retry succeeded")
    assert "WO-1" not in eligible(history.state(), "INT-1")


@given(event_lists(), rulesets, st.integers(0, 500))
def test_suppression_never_changes_liveness(events: list[SourceEvent], ruleset: Ruleset, tokens_left: int) -> None:
    state = fold(events, ESTIMATE, SESSION)
    before = state.snapshot()
    active = resolve_active(state, ruleset).active
    found = set()
    for tokens in (None, tokens_left, 0):
        projection = Projector(ruleset).project(
            state, resolve_active(state, ruleset), ranking=WORD_RANK, message="longer", tokens_left=tokens
        )
        ledger_part = [item for item in projection.eligible() if item.kind != "rule"]
        found.add(tuple(item.entity_id for item in ledger_part))
        assert {item.entity_id: item.reasons for item in ledger_part} == eligible(state, active)
    assert len(found) == 1
    assert state.snapshot() == before


def record(state: ContextState, ruleset: Ruleset) -> bytes:
    projection = Projector(ruleset).project(state, resolve_active(state, ruleset), ranking=WORD_RANK, message="longer than")
    rendering = text_of(projection)
    payload = projection_payload(projection, rendering, timestamp=second(1), turn_id="T-9")
    return canonical_bytes([payload, rendering.text])


@given(event_lists(), rulesets)
def test_projection_replay_identical(events: list[SourceEvent], ruleset: Ruleset) -> None:
    """Also where the second run reads the same entries in another order."""
    first = record(fold(events, ESTIMATE, SESSION), ruleset)
    assert record(fold(events, ESTIMATE, SESSION), ruleset) == first
    assert record(fold(reversed(events), ESTIMATE, SESSION), ruleset) == first


@given(event_lists(), rulesets)
def test_projection_same_as_incremental_state(events: list[SourceEvent], ruleset: Ruleset) -> None:
    projector = Projector(ruleset)
    running = ContextState(ESTIMATE, SESSION)
    for count, event in enumerate(events, 1):
        running.apply(event)
        again = fold(sorted(events[:count], key=lambda each: each.key), ESTIMATE, SESSION)
        assert running.snapshot() == again.snapshot()
        mine, theirs = [
            projector.project(state, resolve_active(state, ruleset), ranking=WORD_RANK, message="short")
            for state in (running, again)
        ]
        assert lists_of(mine) == lists_of(theirs)
        assert text_of(mine) == text_of(theirs)
        assert (mine.intent_id, mine.tokens_used, mine.flags) == (theirs.intent_id, theirs.tokens_used, theirs.flags)


TURN = "T-00000001-000003"
NEW = intent_id(SESSION, TURN, 1)
DECLARED, SUPERSEDED, REOPENED, CLOSED = "INTENT_DECLARED", "INTENT_SUPERSEDED", "INTENT_REOPENED", "INTENT_CLOSED"
ROWS: list[tuple[str | None, dict[str, Any], str, str, list[tuple[str, str]], str | None, list[str]]] = [
    # active intent, classification, policy for the unclear; action, events, intent of the turn, flags
    (None, {"intent_relation": "continue"}, "continue", "DECLARE", [(DECLARED, NEW)], NEW, []),
    (None, {"intent_relation": "switch"}, "continue", "DECLARE", [(DECLARED, NEW)], NEW, []),
    (None, {"intent_relation": "unclear"}, "ask", "DECLARE", [(DECLARED, NEW)], NEW, []),
    (None, {"intent_relation": "close"}, "continue", "NOOP", [], None, []),
    ("INT-1", {"intent_relation": "continue"}, "ask", "CONTINUE", [], "INT-1", []),
    ("INT-1", {"intent_relation": "switch"}, "ask", "SUPERSEDE", [(DECLARED, NEW), (SUPERSEDED, "INT-1")], NEW, []),
    (
        "INT-1",
        {"intent_relation": "switch", "prior_intent_id": "INT-0"},
        "ask",
        "REOPEN",
        [(REOPENED, "INT-0"), (SUPERSEDED, "INT-1")],
        "INT-0",
        [],
    ),
    ("INT-1", {"intent_relation": "close"}, "ask", "CLOSE", [(CLOSED, "INT-1")], "INT-1", []),
    ("INT-1", {"intent_relation": "unclear"}, "continue_and_flag", "CONTINUE", [], "INT-1", ["UNCLEAR_INTENT"]),
    ("INT-1", {"intent_relation": "unclear"}, "continue", "CONTINUE", [], "INT-1", []),
    ("INT-1", {"intent_relation": "unclear"}, "declare", "SUPERSEDE", [(DECLARED, NEW), (SUPERSEDED, "INT-1")], NEW, []),
    ("INT-1", {"intent_relation": "unclear"}, "ask", "ASK", [], "INT-1", []),
    ("INT-1", {"intent_relation": "switch", "confidence": 0.5}, "ask", "ASK", [], "INT-1", []),
    (None, {"intent_relation": "close", "confidence": 0.5}, "ask", "DECLARE", [(DECLARED, NEW)], NEW, []),
]


@pytest.mark.parametrize(("active", "said", "policy", "action", "events", "serves", "flags"), ROWS)
def test_transition_table(
    active: str | None,
    said: Classification,
    policy: Any,
    action: str,
    events: list[tuple[str, str]],
    serves: str | None,
    flags: list[str],
) -> None:
    history = History()
    history.declare("INT-0")
    history.declare("INT-1")
    history.supersede("INT-0", "INT-1")
    if active is None:
        history.close("INT-1")
    ruleset = Ruleset(admission="newest_first", intent_mode="classified", unclear_policy=policy, intent_min_confidence=0.6)
    assert history.resolve(ruleset).active == active
    decision = resolve_intent_transition(
        active,
        {"confidence": 0.6, **said},
        ruleset,
        message="something else",
        session_intents=SessionIntents(SESSION, TURN, history.state().intents),
    )
    assert (decision.action, decision.intent_id) == (action, serves)
    assert [(each.entry_type, each.entity_id) for each in decision.events] == events
    assert [flag.kind for flag in decision.flags] == flags
    assert (decision.before_turn, decision.after_turn) == (
        ((), decision.events) if action == "CLOSE" else (decision.events, ())
    )
    if len(events) == 2:
        assert payload_as(IntentSupersededPayload, decision.events[1].payload)["superseded_by_intent_id"] == serves
    history.write(decision.events)
    state = history.state()
    assert not state.invalid
    assert history.resolve(ruleset).active == (None if action == "CLOSE" else serves)
    assert bool(reach_from(state, serves).intents) == (action not in ("CLOSE", "NOOP"))
