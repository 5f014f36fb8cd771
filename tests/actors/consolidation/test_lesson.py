"""What a consolidation's answer teaches: the words are the model's, the evidence is counted; explained in docs/memory.md."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.actors.consolidation.lesson import Case, overlay_of, recorded_output
from kitchener.ids import SessionId, SubjectId
from kitchener.ledger import StoredEntry
from kitchener.memory.signals import SignalAccumulator
from kitchener.records import events
from kitchener.records.outputs import LearnedOutput

FIRST, LAST = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)
GATE_TS = "2026-01-03T00:00:00.000001+00:00"
CASE = Case(
    namespace="ADMIN/ada",
    subject_id=SubjectId("ada"),
    signal_id="domain:packages",
    stored_id="domain:packages",
    gate_ts=GATE_TS,
    session_id=SessionId("CONS-0000000000000000"),
    signals_position=7,
    evidence=SignalAccumulator("domain:packages", 3, LAST, FIRST, ("SES-0000000a", "SES-0000000b"), ("E1", "E2", "E3"), 1.0),
)
LESSON: LearnedOutput = {
    "bias": "Comes back to packages.",
    "category": "topic_affinity",
    "salience_weight": 0.8,
    "decay_modifier": 0.9,
    "labels": {"domain": ["packages"], "task": []},
    "context_line": "Often asks about packages.",
}


def entry(seq: int, entry_type: str, payload: Mapping[str, Any]) -> StoredEntry:
    """An entry of HO1m."""
    body = json.dumps({"entry_type": entry_type, "payload": payload}).encode()
    return StoredEntry(
        ledger_id="HO1M:ADMIN",
        seq=seq,
        entry_id=f"E{seq}",
        entry_type=entry_type,
        entity_id="WO-CONS-0000000000000000-001",
        timestamp=GATE_TS,
        payload=dict(payload),
        body=body,
        entry_hash="",
        session_id=CASE.session_id,
        keys=(),
        opener=None,
    )


def call(seq: int, text: str, *, structured: Any = None, **fields: Any) -> StoredEntry:
    """A model call on record."""
    response = {"text": text} if structured is None else {"text": text, "structured": structured}
    payload = {"model_id": "m-1", "prompt_pack_version": "PRM-X@1", "provider_id": "p", "finish_reason": "stop"}
    return entry(seq, events.LLM_CALL, {**payload, "response": response, **fields})


COMPLETED = entry(9, events.WO_COMPLETED, {"cost": {}})
EXECUTING = entry(1, events.WO_EXECUTING, {"wo_type": "consolidate"})


def test_the_evidence_is_what_was_counted() -> None:
    learned = overlay_of(CASE, LESSON, [call(2, "{}")])
    assert learned["source_signal_ids"] == ("domain:packages",)
    assert learned["source_event_ids"] == ("E1", "E2", "E3")
    assert learned["gate_snapshot"] == {"count": 3, "sessions": 2}
    assert (learned["window_start"], learned["window_end"]) == ("2026-01-01T00:00:00.000000+00:00", GATE_TS)
    assert learned["consolidation_event_ts"] == GATE_TS
    assert (learned["model"], learned["prompt_pack_version"]) == ("m-1", "PRM-X@1")


def test_nothing_that_the_model_claims_about_its_evidence_is_taken() -> None:
    claims: Any = {
        **LESSON,
        "source_event_ids": ["E9"],
        "source_signal_ids": ["domain:other"],
        "signal_id": "domain:other",
        "gate_snapshot": {"count": 99, "sessions": 99},
        "model": "better",
        "prompt_pack_version": "mine",
        "scope": "global",
        "window_end": "2099-01-01T00:00:00+00:00",
        "artifact_id": "ART-000000000000",
        "overlay_id": "OVL-0",
        "expires_at_event_ts": "2027-01-01T00:00:00+00:00",
        "enabled": False,
        "namespace": "ADMIN/bob",
    }
    assert overlay_of(CASE, claims, [call(2, "{}")]) == overlay_of(CASE, LESSON, [call(2, "{}")])


def test_the_newest_call_of_the_trace_wrote_it() -> None:
    """After a repair the second answer is the one that stands."""
    trace = [call(2, "no"), call(3, "{}", model_id="m-2"), COMPLETED]
    assert overlay_of(CASE, LESSON, trace)["model"] == "m-2"


def test_without_a_trace_the_model_is_unknown() -> None:
    learned = overlay_of(CASE, LESSON, [])
    assert (learned["model"], learned["prompt_pack_version"]) == ("unknown", "unknown")


@pytest.mark.parametrize(
    ("labels", "expected", "scope"),
    [
        ({"domain": ["a"], "task": []}, {"domain": ("a",), "task": ()}, "agent"),
        ({"domain": [], "task": ["b"]}, {"domain": (), "task": ("b",)}, "agent"),
        ({"domain": [], "task": []}, {"domain": (), "task": ()}, "global"),
        ({"domain": [" ", "\n"], "task": [""]}, {"domain": (), "task": ()}, "global"),
        ({"domain": ["a", "a ", "\ta"], "task": []}, {"domain": ("a",), "task": ()}, "agent"),
        ({"domain": ["two\nlines\x00"], "task": []}, {"domain": ("two lines",), "task": ()}, "agent"),
        ({"domain": [7, None, "a"], "task": None}, {"domain": ("a",), "task": ()}, "agent"),
        ({"domain": [str(n) for n in range(20)]}, {"domain": tuple("01234567"), "task": ()}, "agent"),
        ({"domain": ["x" * 100]}, {"domain": ("x" * 64,), "task": ()}, "agent"),
        (None, {"domain": (), "task": ()}, "global"),
    ],
)
def test_labels_are_few_short_and_plain_and_decide_the_scope(labels: Any, expected: Any, scope: str) -> None:
    learned = overlay_of(CASE, {**LESSON, "labels": labels}, [])
    assert (learned["labels"], learned["scope"]) == (expected, scope)


@given(st.text(), st.text())
def test_lines_are_one_line_without_control_characters(bias: str, line: str) -> None:
    learned = overlay_of(CASE, {**LESSON, "bias": bias, "context_line": line}, [])
    for text in (learned["context_line"], learned["content"]["bias"]):
        assert text == text.strip()
        assert text.splitlines() in ([], [text])
        assert not any(ord(char) < 32 or 127 <= ord(char) < 160 for char in text)


def test_an_answer_is_read_back_from_a_work_order_that_ho1_completed() -> None:
    text = json.dumps(LESSON)
    assert recorded_output([EXECUTING, call(2, text), COMPLETED]) == LESSON
    assert recorded_output([EXECUTING, call(2, f"```json\n{text}\n```"), COMPLETED]) == LESSON
    assert recorded_output([EXECUTING, call(2, "as asked", structured=LESSON), COMPLETED]) == LESSON


def test_after_a_repair_the_second_answer_is_read_back() -> None:
    assert recorded_output([EXECUTING, call(2, "no"), call(3, json.dumps(LESSON)), COMPLETED]) == LESSON


@pytest.mark.parametrize(
    "trace",
    [
        [],
        [EXECUTING],
        [EXECUTING, call(2, json.dumps(LESSON))],  # HO1 had not accepted it yet
        [EXECUTING, call(2, "{}"), entry(3, events.WO_FAILED, {"error": {}})],
        [EXECUTING, COMPLETED],
        [EXECUTING, call(2, "not JSON"), COMPLETED],
        [EXECUTING, call(2, "[1]"), COMPLETED],
        [EXECUTING, call(2, "", response=None), COMPLETED],
        [EXECUTING, call(2, "", response={"sealed": "x"}), COMPLETED],
    ],
)
def test_what_was_not_completed_or_cannot_be_read_is_no_answer(trace: list[StoredEntry]) -> None:
    assert recorded_output(trace) is None
