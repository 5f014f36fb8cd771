"""Requests for approval and their answers add up to one answer each, whatever else is on record (docs/approval.md)."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.actors.sessions.pending_approvals import Grant, due, granted
from kitchener.actors.sessions.session_state import SessionState, fold
from kitchener.ids import SessionId, SubjectId
from kitchener.records import events
from kitchener.records.ref import Ref
from tests.shared.property_examples import examples

SES = "SES-0000000a"
COST = {"input_tokens": 1, "output_tokens": 1, "llm_calls": 1, "tool_calls": 0, "tool_ids_used": [], "elapsed_ms": 0}
Entry = tuple[str, Mapping[str, Any], Ref]
Event = tuple[str, int, str]


def entry_of(number: int, kind: str, wo: int, what: str) -> Entry:
    """An entry about one of three work orders, each of which asks for one call of its own tool."""
    wo_id, turn_id = f"WO-{SES}-00{wo}", f"T-0000000a-00000{wo}"
    shapes: dict[str, dict[str, Any]] = {
        "start": {"user_message": f"message {wo}", "turn_ts": "", "memory": True, "read_positions": {}},
        "defer": {"wo_id": wo_id, "reason": "approval", "cost": COST},
        "ask": {
            "approval_id": f"{wo_id}.1",
            "wo_id": wo_id,
            "reason": "tool_call",
            "tool": f"tool{wo}",
            "tool_hash": "h",
            "expires_at": "2026-01-02",
        },
        "resolve": {"approval_id": f"{wo_id}.1", "wo_id": wo_id, "decision": what.rstrip("!"), "scope": "once"},
        "complete": {"response": "ok"},
        "abort": {"reason": "crash"},
        "abandon": {"wo_id": wo_id, "reason": "answered"},
    }
    fields = shapes[kind]
    if kind == "resolve" and what.endswith("!"):
        fields["scope"] = "session"
    entry_type = {
        "start": events.TURN_STARTED,
        "defer": events.WO_DEFERRED,
        "ask": events.APPROVAL_REQUESTED,
        "resolve": events.APPROVAL_RESOLVED,
        "complete": events.TURN_COMPLETED,
        "abort": events.TURN_ABORTED,
        "abandon": events.WO_ABANDONED,
    }[kind]
    ref = Ref("HO2M:ADMIN", f"E-HO2M-{number:012d}", "sha256:0")
    return entry_type, {"turn_id": turn_id, "session_id": SES, "subject_id": "ada", **fields}, ref


def state_of(entries: list[Entry]) -> SessionState:
    return fold(SessionState(SessionId(SES), SubjectId("ada")), entries)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["start", "defer", "ask", "resolve", "complete", "abort", "abandon"]),
        st.integers(1, 3),
        st.sampled_from(["approved", "approved!", "denied", "cancelled", "expired"]),
    ),
    max_size=30,
)


@settings(max_examples=examples(few=60, many=1_000))
@given(EVENTS)
def test_a_request_has_the_first_answer_in_any_order_of_entries(made: list[Event]) -> None:
    """Also after a restart at any place. Only a first answer that approves for the session allows later calls."""
    entries = [entry_of(number, *each) for number, each in enumerate(made)]
    state = SessionState(SessionId(SES), SubjectId("ada"))
    decisions: dict[str, str] = {}
    allowed: set[str] = set()
    for number, entry in enumerate(entries):
        before = {**state.approvals.deferred} if state.approvals is not None else {}
        fold(state, [entry])
        kind, payload, _ = entry
        pending = state.approvals.deferred if state.approvals is not None else {}
        if kind == events.WO_DEFERRED and state.open_turn is not None:
            decisions.pop(f"{payload['wo_id']}.1", None)  # a new life of the work order
        if kind == events.APPROVAL_REQUESTED and payload["wo_id"] in before:
            decisions.pop(payload["approval_id"], None)
        asked = before.get(payload.get("wo_id", ""))
        if kind == events.APPROVAL_RESOLVED and asked is not None and payload["approval_id"] in asked.requests:
            first = decisions.setdefault(payload["approval_id"], payload["decision"])
            if first == payload["decision"] == "approved" and payload["scope"] == "session":
                allowed.add(f"tool{payload['wo_id'][-1]}")
        for work in pending.values():
            for each in work.requests.values():
                assert each.decision == decisions.get(each.approval_id)
        assert set(state.approvals.grants if state.approvals is not None else ()) <= allowed
        restarted = state_of(entries[: number + 1])
        assert restarted.approvals == state.approvals
        assert restarted.tokens_used == state.tokens_used


def test_only_what_has_waited_too_long_is_due_and_only_the_same_tool_is_allowed() -> None:
    state = state_of([entry_of(n, kind, 1, "approved!") for n, kind in enumerate(("start", "defer", "ask"))])
    assert state.approvals is not None
    assert (due(state.approvals.open, "2026-01-01"), len(due(state.approvals.open, "2026-01-02"))) == ([], 1)
    grants = {"a": Grant("x.1", "h1", covers_untrusted=False), "b": Grant("x.2", "h2", covers_untrusted=True)}
    hashes = {"a": "h1", "b": "h2", "c": "h3"}
    assert granted(grants, hashes, untrusted=False) == {"a": "x.1", "b": "x.2"}
    assert granted(grants, hashes, untrusted=True) == {"b": "x.2"}
    assert granted(grants, {"a": "other"}, untrusted=False) == {}
