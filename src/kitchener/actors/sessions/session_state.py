"""Folds a session's entries in HO2m into its state. Pure: a running session and an activated one get the same state.

The state holds what the next turn needs: counters, the newest turns, and the open turn. Nothing in it grows with the session.
`active_session.py` owns the state and applies each entry when it is written. `directory.py` applies all entries when a session
is activated.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kitchener.actors.attention.attention_context import ContextFragment
from kitchener.actors.attention.retriever import match_words
from kitchener.actors.sessions.pending_approvals import ASKED_CHARS, DeferredWork, PendingApprovals
from kitchener.ids import EntryId, SessionId, SubjectId, TurnId
from kitchener.records import events
from kitchener.records.entries import (
    ERASED,
    ApprovalRequestedPayload,
    ApprovalResolvedPayload,
    CostMapping,
    CostSummary,
    MessageImportedPayload,
    PartAttachedPayload,
    SessionEndPayload,
    TurnAbortedPayload,
    TurnCompletedPayload,
    TurnStartedPayload,
    WorkOrderCompletedPayload,
    WorkOrderDeferredPayload,
    WorkOrderFailedPayload,
    WorkOrderPlannedPayload,
)
from kitchener.records.parts import StoredPart
from kitchener.records.ref import Ref
from kitchener.records.spoken import as_chat, imported_text, spoken_in, told_reply, turn_text
from kitchener.records.tokens import estimate_tokens


def no_cost() -> CostSummary:
    """A sum to which nothing was added yet."""
    return CostSummary(input_tokens=0, output_tokens=0, llm_calls=0, tool_calls=0)


def add_cost(total: CostSummary, spent: CostSummary | None) -> None:
    """Adds what one turn used to the sum of a session.

    Args:
        total: the sum
        spent: of `TURN_COMPLETED`; None, or without a count: another program wrote the entry
    """
    if not spent:
        return
    total["input_tokens"] += spent.get("input_tokens", 0)
    total["output_tokens"] += spent.get("output_tokens", 0)
    if cached := spent.get("cached_tokens"):
        total["cached_tokens"] = total.get("cached_tokens", 0) + cached
    total["llm_calls"] += spent.get("llm_calls", 0)
    total["tool_calls"] += spent.get("tool_calls", 0)


class PastTurn:
    """A completed turn in the form that later turns use."""

    __slots__ = ("_words", "exchange", "fragment", "response", "turn_id", "user_message")

    def __init__(
        self,
        turn_id: str,
        user_message: str,
        response: str,
        ref: Ref,
        estimator: str,
        speaker: str | None = None,
        content: str = "",
    ) -> None:
        self.turn_id, self.user_message, self.response = turn_id, user_message, response
        content = content or turn_text(user_message, response, speaker)
        said = tuple(as_chat(spoken_in(content)))
        if said == (user_message, response):
            said = user_message, response  # shares long texts instead of copying them
        self.fragment = ContextFragment("HO2M", turn_id, content, estimate_tokens(content, estimator), ref=ref, said=said)
        self.exchange = {"user": user_message, "assistant": response}
        """The turn as input for classification."""
        self._words: frozenset[str] | None = None

    @property
    def words(self) -> frozenset[str]:
        """The turn's words for lexical matching, computed on first use and cached."""
        if self._words is None:
            self._words = match_words(self.fragment.content)
        return self._words


@dataclass(slots=True)
class OpenTurn:
    """A turn that was started and neither completed nor aborted."""

    turn_id: TurnId
    user_message: str
    work_orders: dict[str, str] = field(default_factory=dict)
    """Id of each work order that has not ended, and its type."""
    speaker: str | None = None
    """The name of the person who said the message; None: the subject."""
    resumed: tuple[str, DeferredWork] | None = None
    """The deferred work order that the turn continues; None: it continues none."""


@dataclass(slots=True)
class SessionState:
    """The state of one session. Mutable, owned by its `SessionManager`."""

    session_id: SessionId
    subject_id: SubjectId
    external_id: str | None = None
    is_ended: bool = False
    is_erased: bool = False
    """Whether the session ended because its subject was erased."""
    turn_count: int = 0
    """Number of the last started turn; 0 if there is none."""
    completed_turns: int = 0
    imported: int = 0
    """Number of imported messages, without replies that follow a message."""
    wo_count: int = 0
    """Number of the last planned work order; 0 if there is none."""
    tokens_used: int = 0
    cost: CostSummary = field(default_factory=no_cost)
    """Cost summed over all completed turns."""
    window: deque[PastTurn] = field(default_factory=deque)
    """The newest completed turns, oldest first."""
    failed_work_orders: list[str] = field(default_factory=list)
    """Failed work orders that no later work order has superseded and no completed turn has abandoned, at most 100."""
    tool_results: deque[tuple[str, Ref]] = field(default_factory=deque)
    """The newest tool results that later turns may be shown, oldest first: the turn, and the `TOOL_CALL` entry."""
    has_parts: bool = False
    """Whether a message of the session brought an image or a file."""
    approvals: PendingApprovals | None = None
    """Tool calls that wait for a person, and tools allowed for the session; None: no person was ever asked."""
    open_turn: OpenTurn | None = None
    head: EntryId = field(default=EntryId(""))
    """Entry id of the session's last entry in HO2m."""
    estimator: str = "utf8/3"
    """The estimator for the tokens of completed turns: the setting `token_estimator`."""

    def newest(self, count: int) -> list[PastTurn]:
        """The newest `count` completed turns, oldest first."""
        return list(self.window)[-count:] if count else []


MAX_FAILED_KEPT = 100
"""Most failed work orders that a session remembers. The limit bounds memory during an outage."""


def fold(state: SessionState, entries: Iterable[tuple[str, Mapping[str, object], Ref]]) -> SessionState:
    """Applies a session's entries, in order, as `(entry type, payload, ref)`."""
    for entry_type, payload, ref in entries:
        state.head = EntryId(ref.entry_id)
        if entry_type in CHANGES:
            CHANGES[entry_type](state, payload, ref)
    return state


def _start_turn(state: SessionState, payload: TurnStartedPayload, _: Ref) -> None:
    state.turn_count = max(state.turn_count + 1, number_of(payload["turn_id"]))
    speaker = payload.get("speaker")
    named = None if speaker is None else _text(speaker)
    state.open_turn = OpenTurn(TurnId(payload["turn_id"]), _text(payload["user_message"]), speaker=named)
    resumes = payload.get("resumes")
    if resumes is not None and state.approvals is not None:
        deferred = state.approvals.deferred.get(resumes["wo_id"])
        state.open_turn.resumed = (resumes["wo_id"], deferred) if deferred is not None else None


def _attach_part(state: SessionState, payload: PartAttachedPayload, _: Ref) -> None:
    state.has_parts = True
    if state.open_turn is not None:
        state.open_turn.user_message += f"\n{StoredPart.from_payload(payload).stub}"


def _plan_work_order(state: SessionState, payload: WorkOrderPlannedPayload, _: Ref) -> None:
    wo_id = payload["wo_id"]
    state.wo_count = max(state.wo_count, number_of(wo_id) or state.wo_count + 1)
    if (turn := state.open_turn) is not None:
        turn.work_orders[wo_id] = payload["wo_type"]
        if turn.resumed is not None and turn.resumed[0] == payload.get("parent_wo_id"):
            turn.resumed[1].loop.append(wo_id)


def _fail_work_order(state: SessionState, payload: WorkOrderFailedPayload, ref: Ref) -> None:
    _end_work_order(state, payload, ref)
    if len(state.failed_work_orders) < MAX_FAILED_KEPT:
        state.failed_work_orders.append(payload["wo_id"])


def _end_work_order(state: SessionState, payload: WorkOrderCompletedPayload | WorkOrderFailedPayload, _: Ref) -> None:
    wo_id = payload["wo_id"]
    if state.open_turn is not None:
        state.open_turn.work_orders.pop(wo_id, None)
    if wo_id in state.failed_work_orders:
        state.failed_work_orders.remove(wo_id)
    if state.approvals is not None:
        state.approvals.deferred.pop(wo_id, None)
    if cost := payload.get("cost"):  # WO_ABANDONED and WO_SUPERSEDED have none
        state.tokens_used += _tokens(cost)  # an aborted turn's tokens count too


def _defer_work_order(state: SessionState, payload: WorkOrderDeferredPayload, _: Ref) -> None:
    """The work order stays open until its turn completes. A turn that is cut off abandons it, with its requests."""
    cost = payload.get("cost")
    if not cost or state.open_turn is None:  # another program wrote it
        return
    state.tokens_used += _tokens(cost)
    state.approvals = state.approvals or PendingApprovals()
    turn, wo_id = state.open_turn, payload["wo_id"]
    if turn.resumed is None:
        state.approvals.deferred[wo_id] = DeferredWork(turn.turn_id, turn.user_message[:ASKED_CHARS], [wo_id])
    else:
        before = turn.resumed[1]
        state.approvals.deferred[wo_id] = DeferredWork(turn.turn_id, before.asked_for, list(before.loop))


def _request_approval(state: SessionState, payload: ApprovalRequestedPayload, _: Ref) -> None:
    if state.approvals is not None:
        state.approvals.request(payload)


def _resolve_approval(state: SessionState, payload: ApprovalResolvedPayload, _: Ref) -> None:
    if state.approvals is not None:
        state.approvals.resolve(payload)


def _complete_turn(state: SessionState, payload: TurnCompletedPayload, ref: Ref) -> None:
    add_cost(state.cost, payload.get("cost_summary"))
    if direct := payload.get("direct_cost"):
        state.tokens_used += _tokens(direct)
    said, speaker = (state.open_turn.user_message, state.open_turn.speaker) if state.open_turn is not None else ("", None)
    state.completed_turns += 1
    response = _text(payload.get("response", ""))
    if "client_calls" in payload:
        response = told_reply(payload)
    state.window.append(PastTurn(payload["turn_id"], said, response, ref, state.estimator, speaker))
    for listed in payload.get("tool_results") or ():
        state.tool_results.append((payload["turn_id"], Ref.from_listed(listed)))
    state.open_turn = None


def _abort_turn(state: SessionState, payload: TurnAbortedPayload, _: Ref) -> None:
    # A crash may have lost the turn's start, but the turn's number stays used. The open turn is then an earlier one.
    if state.open_turn is not None and state.open_turn.turn_id == payload["turn_id"]:
        state.open_turn = None
    state.turn_count = max(state.turn_count, number_of(payload["turn_id"]))


def _end_session(state: SessionState, payload: SessionEndPayload, _: Ref) -> None:
    state.is_ended, state.is_erased = True, events.ends_by_erasure(events.SESSION_END, payload)


def _import_message(state: SessionState, payload: MessageImportedPayload, ref: Ref) -> None:
    """An imported reply and the message before it are one turn of the window, like the turns of this program."""
    turn, text, is_reply = payload["turn_id"], _text(payload["text"]), payload["role"] == "assistant"
    state.turn_count = max(state.turn_count, number_of(turn))
    speaker = payload.get("speaker")
    content = imported_text(text, None if speaker is None else _text(speaker), is_reply=is_reply)
    last = state.window[-1] if state.window else None
    if is_reply and last is not None and last.fragment.ref is not None and not last.response:
        content, ref = f"{last.fragment.content}\n{content}", last.fragment.ref
        state.window[-1] = PastTurn(last.turn_id, last.user_message, text, ref, state.estimator, content=content)
        return
    state.imported += 1
    said, reply = ("", text) if is_reply else (text, "")
    state.window.append(PastTurn(turn, said, reply, ref, state.estimator, content=content))


CHANGES: Final[Mapping[str, Callable[[SessionState, Any, Ref], None]]] = {
    events.TURN_STARTED: _start_turn,
    events.PART_ATTACHED: _attach_part,
    events.WO_PLANNED: _plan_work_order,
    events.WO_COMPLETED: _end_work_order,
    events.WO_FAILED: _fail_work_order,
    events.WO_ABANDONED: _end_work_order,
    events.WO_SUPERSEDED: _end_work_order,
    events.WO_DEFERRED: _defer_work_order,
    events.APPROVAL_REQUESTED: _request_approval,
    events.APPROVAL_RESOLVED: _resolve_approval,
    events.TURN_COMPLETED: _complete_turn,
    events.TURN_ABORTED: _abort_turn,
    events.MESSAGE_IMPORTED: _import_message,
    events.SESSION_END: _end_session,
}
"""Entry type to the function that changes the state. It takes the state, the payload as written or as read, and the entry's
reference. Every entry, of these types or others, also changes the head."""


def _tokens(cost: CostMapping) -> int:
    return cost["input_tokens"] + cost["output_tokens"]


def _text(value: object) -> str:
    return value if isinstance(value, str) else ERASED


def number_of(entity_id: object) -> int:
    """The number at the end of an id. Numbers can have gaps, because a crash may lose entries."""
    number = str(entity_id).rpartition("-")[2]
    return int(number) if number.isdecimal() else 0
