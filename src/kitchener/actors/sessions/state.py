"""Folds a session's entries in HO2m into its state. Pure: a running session and an activated one get the same state.

The state holds what the next turn needs: counters, the newest turns, and the open turn. Nothing in it grows with the session.
`actors/sessions/directory.py` owns the state and passes it the entries.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kitchener.actors.attention.retriever import ContextFragment, words_of
from kitchener.ids import EntryId, SessionId, SubjectId, TurnId
from kitchener.records import events
from kitchener.records.entries import ERASED
from kitchener.records.ref import Ref
from kitchener.records.spoken import turn_text
from kitchener.records.tokens import estimate_tokens

COSTS: Final = ("input_tokens", "output_tokens", "llm_calls", "tool_calls")
"""The cost fields that are summed over a session's turns."""


class PastTurn:
    """A completed turn in the form that later turns use."""

    __slots__ = ("_words", "exchange", "fragment", "response", "turn_id", "user_message")

    def __init__(self, turn_id: str, user_message: str, response: str, ref: Ref, estimator: str) -> None:
        self.turn_id, self.user_message, self.response = turn_id, user_message, response
        content = turn_text(user_message, response)
        self.fragment = ContextFragment(
            "HO2M", turn_id, content, estimate_tokens(content, estimator), ref=ref, ref_json=ref.as_json()
        )
        self.exchange = {"user": user_message, "assistant": response}
        """The turn as input for classification."""
        self._words: frozenset[str] | None = None

    @property
    def words(self) -> frozenset[str]:
        """The turn's words for lexical matching, computed on first use and cached."""
        if self._words is None:
            self._words = words_of(self.fragment.content)
        return self._words


@dataclass(slots=True)
class OpenTurn:
    """A turn that was started and neither completed nor aborted."""

    turn_id: TurnId
    user_message: str
    work_orders: dict[str, str] = field(default_factory=dict)
    """Types of the open work orders, by id."""


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
    wo_count: int = 0
    """Number of the last planned work order; 0 if there is none."""
    tokens_used: int = 0
    cost: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COSTS, 0))
    """Cost summed over all completed turns."""
    window: deque[PastTurn] = field(default_factory=deque)
    """The newest completed turns, oldest first."""
    failed_work_orders: list[str] = field(default_factory=list)
    """Failed work orders that no later work order has superseded and no completed turn has abandoned, at most 100."""
    open_turn: OpenTurn | None = None
    head: EntryId = field(default=EntryId(""))
    """Entry id of the session's last entry in HO2m."""

    def newest(self, count: int) -> list[PastTurn]:
        """The newest `count` completed turns, oldest first."""
        return list(self.window)[-count:] if count else []


MAX_FAILED_KEPT = 100
"""Most failed work orders that a session remembers. The limit bounds memory during an outage."""


def begin_turn(state: SessionState, turn_id: TurnId, user_message: str) -> OpenTurn:
    """Applies `TURN_STARTED` and returns the open turn."""
    state.turn_count += 1
    state.open_turn = OpenTurn(turn_id, user_message)
    return state.open_turn


def complete_turn(state: SessionState, payload: Mapping[str, Any], user_message: str, ref: Ref, estimator: str) -> None:
    """Applies `TURN_COMPLETED`."""
    cost: Mapping[str, int] = payload.get("cost_summary") or {}  # an entry of another program may lack it
    for key, before in state.cost.items():
        state.cost[key] = before + cost.get(key, 0)
    state.completed_turns += 1
    state.window.append(PastTurn(payload["turn_id"], user_message, _text(payload.get("response", "")), ref, estimator))
    state.open_turn = None


def fold(state: SessionState, entries: Iterable[tuple[str, Mapping[str, Any], Ref]], estimator: str) -> SessionState:
    """Applies a session's entries, in order, as `(entry type, payload, ref)`."""
    for entry_type, payload, ref in entries:
        _apply(state, entry_type, payload, ref, estimator)
        state.head = EntryId(ref.entry_id)
    return state


def _apply(state: SessionState, entry_type: str, payload: Mapping[str, Any], ref: Ref, estimator: str) -> None:
    turn = state.open_turn
    match entry_type:
        case events.TURN_STARTED:
            begin_turn(state, payload["turn_id"], _text(payload["user_message"]))
            state.turn_count = max(state.turn_count, _number(payload["turn_id"]))
        case events.WO_PLANNED:
            state.wo_count = max(state.wo_count + 1, _number(payload["wo_id"]))
            if turn is not None:
                turn.work_orders[payload["wo_id"]] = payload["wo_type"]
        case events.WO_COMPLETED | events.WO_ABANDONED | events.WO_SUPERSEDED:
            if turn is not None:
                turn.work_orders.pop(payload["wo_id"], None)
            forget_failed(state, payload["wo_id"])
            book_cost(state, _tokens(payload.get("cost")))
        case events.WO_FAILED:
            if turn is not None:
                turn.work_orders.pop(payload["wo_id"], None)
            note_failed(state, payload["wo_id"])
            book_cost(state, _tokens(payload.get("cost")))
        case events.TURN_COMPLETED:
            complete_turn(state, payload, turn.user_message if turn else "", ref, estimator)
        case events.TURN_ABORTED:
            state.open_turn = None
            # A crash may have lost the turn's start, but the turn's number is still used.
            state.turn_count = max(state.turn_count, _number(payload["turn_id"]))
        case events.SESSION_END:
            state.is_ended, state.is_erased = True, events.ends_by_erasure(entry_type, payload)
        case _:
            pass


def note_failed(state: SessionState, wo_id: str) -> None:
    """Applies `WO_FAILED`: remembers the work order unless the list is full."""
    if len(state.failed_work_orders) < MAX_FAILED_KEPT:
        state.failed_work_orders.append(wo_id)


def forget_failed(state: SessionState, wo_id: str) -> None:
    """Applies `WO_SUPERSEDED` or `WO_ABANDONED`: removes the work order from the failed ones."""
    if wo_id in state.failed_work_orders:
        state.failed_work_orders.remove(wo_id)


def book_cost(state: SessionState, tokens: int) -> None:
    """Adds the tokens of a finished work order to the session's budget. An aborted turn's tokens count too."""
    state.tokens_used += tokens


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ERASED


def _number(entity_id: object) -> int:
    """The number at the end of an id. Numbers can have gaps, because a crash may lose entries."""
    number = str(entity_id).rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _tokens(cost: Mapping[str, int] | None) -> int:
    return cost["input_tokens"] + cost["output_tokens"] if cost else 0
