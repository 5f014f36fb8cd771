"""A turn's result and its form in the ledger; explained in docs/turn.md."""

import json
from dataclasses import FrozenInstanceError, fields
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kitchener
from kitchener.canonical import canonical_bytes
from kitchener.records.ref import Ref
from kitchener.records.tools.client_tools import ClientCall
from kitchener.records.turn import (
    ClientCallRequested,
    TextDelta,
    TextRetracted,
    ToolProgress,
    ToolRan,
    ToolStarted,
    TurnCall,
    TurnCompleted,
    TurnError,
    TurnResult,
    TurnUpdate,
    WorkOrderFinished,
    WorkOrderPlanned,
)

SUMMARY: dict[str, Any] = {
    "wo_id": "WO-SES-00000001-001",
    "wo_type": "synthesize",
    "state": "completed",
    "cost": {"input_tokens": 1, "output_tokens": 2, "llm_calls": 1, "tool_calls": 0, "tool_ids_used": [], "elapsed_ms": 3},
}
COST: dict[str, Any] = {"input_tokens": 1, "output_tokens": 2, "llm_calls": 1, "tool_calls": 0}


def result(**fields: Any) -> TurnResult:
    plain: dict[str, Any] = {
        "response": "Hello!",
        "wo_chain_summary": (SUMMARY,),
        "cost_summary": COST,
        "session_id": "SES-00000001",
        "turn_id": "T-00000001-000001",
    }
    return TurnResult(**{**plain, **fields})


def test_a_plain_turn_is_whole_and_without_error() -> None:
    plain = result()
    assert (plain.quality_gate_passed, plain.degraded, plain.error) == (True, False, None)
    assert (plain.consolidation_candidates, plain.pending_approval) == ((), ())
    assert (plain.intent_id, plain.trace_hash, plain.projection_ref) == (None, None, None)


def test_the_payload_has_every_field_of_the_result_and_no_other() -> None:
    """The object that a caller asked for is read from the response."""
    named = {field.name for field in fields(TurnResult)} - {"output", "client_calls", "truncated"}
    assert set(result().as_payload()) == named
    assert set(result(response="{}", output={}).as_payload()) == {*named, "has_output"}
    assert set(result(client_calls=(ClientCall("WO-1.1", "look", {}),)).as_payload()) == {*named, "client_calls"}
    assert set(result(truncated=True).as_payload()) == {*named, "truncated"}


results = st.builds(
    result,
    response=st.text(min_size=1),
    wo_chain_summary=st.lists(st.just(SUMMARY), max_size=3).map(tuple),
    intent_id=st.none() | st.just("INT-0123456789abcdef"),
    quality_gate_passed=st.booleans(),
    consolidation_candidates=st.lists(st.text()).map(tuple),
    degraded=st.booleans(),
    pending_approval=st.lists(st.text()).map(tuple),
    client_calls=st.lists(
        st.builds(ClientCall, st.text(), st.text(), st.dictionaries(st.text(), st.none() | st.integers() | st.text()))
    ).map(tuple),
    error=st.none() | st.builds(TurnError, st.sampled_from(["BUDGET", "PROVIDER"]), st.text(), st.none() | st.text()),
    trace_hash=st.none() | st.just("sha256:00"),
    projection_ref=st.none() | st.builds(Ref, st.text(), st.text(), st.text()),
    truncated=st.booleans(),
)


@given(results)
def test_a_result_reads_back_from_its_payload_as_it_was(given_result: TurnResult) -> None:
    stored = json.loads(json.dumps(given_result.as_payload()))
    assert TurnResult.from_payload(stored) == given_result


def test_the_payload_has_a_canonical_form() -> None:
    full = result(error=TurnError("TIMEOUT", "too late"), projection_ref=Ref("CONTEXT:ADMIN", "E-1", "sha256:00"))
    assert canonical_bytes(full.as_payload()) == canonical_bytes(json.loads(canonical_bytes(full.as_payload())))


def test_fields_that_a_later_version_adds_do_not_disturb() -> None:
    assert TurnResult.from_payload({**result().as_payload(), "user_message_ref": None, "gate_ts": None, "new": 1}) == result()


@pytest.mark.parametrize("missing", ["response", "cost_summary", "error"])
def test_a_payload_that_is_no_result_is_not_read_as_one(missing: str) -> None:
    payload = {**result().as_payload()}
    del payload[missing]
    with pytest.raises(KeyError, match=missing):
        TurnResult.from_payload(payload)


def test_records_of_a_turn_do_not_change() -> None:
    for record, name in [
        (result(), "response"),
        (TurnError("TOOL", "x"), "kind"),
        (TurnCall(), "memory"),
        (Ref("a", "b", "c"), "entry_id"),
    ]:
        with pytest.raises((FrozenInstanceError, AttributeError)):
            setattr(record, name, "other")


def test_the_updates_of_a_stream_can_be_told_apart_by_their_class() -> None:
    updates = set(get_args(TurnUpdate))
    steps = {WorkOrderPlanned, WorkOrderFinished, ToolStarted, ToolProgress, ToolRan, ClientCallRequested}
    assert updates == {*steps, TextDelta, TextRetracted, TurnCompleted}
    assert {each.__name__ for each in updates} <= set(kitchener.__all__)


def test_a_call_leaves_everything_open() -> None:
    assert TurnCall() == TurnCall(session_id=None, subject_id=None, idempotency_key=None, memory=True, deadline=None)


def test_a_ref_reads_back_from_its_mapping() -> None:
    ref = Ref("HO2M:ADMIN", "E-2026-01-01-000000000001", "sha256:00")
    assert Ref.from_mapping(ref.as_mapping()) == ref
    with pytest.raises(KeyError):
        Ref.from_mapping({"ledger_id": "x", "entry_id": "y"})  # type: ignore[typeddict-item]
