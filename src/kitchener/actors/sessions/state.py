"""What a session's entries in HO2m add up to. A pure fold, the same for a session that runs and one that comes back.

It keeps what the next turn needs and nothing that grows with the session: counters, the newest turns, what was begun and
not ended. `actors/sessions/directory.py` owns the value and feeds it.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kitchener.actors.attention.retriever import ContextFragment, words_of
from kitchener.actors.work.budget import estimate_tokens
from kitchener.context.fold.events import ERASED
from kitchener.ids import EntryId, SessionId, SubjectId, TurnId
from kitchener.records import events
from kitchener.records.ref import Ref
from kitchener.records.spoken import turn_text

COSTS: Final = ("input_tokens", "output_tokens", "llm_calls", "tool_calls")
"""What is summed over a session's turns."""


class PastTurn:
    """A completed turn, as later turns see it."""

    __slots__ = ("_words", "exchange", "fragment", "response", "turn_id", "user_message")

    def __init__(self, turn_id: str, user_message: str, response: str, ref: Ref, estimator: str) -> None:
        self.turn_id, self.user_message, self.response = turn_id, user_message, response
        content = turn_text(user_message, response)
        self.fragment = ContextFragment(
            "HO2M", turn_id, content, estimate_tokens(content, estimator), ref=ref, ref_json=ref.as_json()
        )
        self.exchange = {"user": user_message, "assistant": response}
        """The turn as classification sees it."""
        self._words: frozenset[str] | None = None

    @property
    def words(self) -> frozenset[str]:
        """The words that lexical matching looks at; worked out when the turn is no longer among the newest."""
        if self._words is None:
            self._words = words_of(self.fragment.content)
        return self._words


@dataclass(slots=True)
class OpenTurn:
    """A turn that was begun and not ended."""

    turn_id: TurnId
    user_message: str
    work_orders: dict[str, str] = field(default_factory=dict)
    """Open work orders and their types."""


@dataclass(slots=True)
class SessionState:
    """One session. Mutable, owned by its `SessionManager`."""

    session_id: SessionId
    subject_id: SubjectId
    external_id: str | None = None
    is_ended: bool = False
    is_erased: bool = False
    """Ended because its subject was erased."""
    turn_count: int = 0
    """Number of the last turn that was begun."""
    completed_turns: int = 0
    wo_count: int = 0
    """Number of the last work order that was planned."""
    tokens_used: int = 0
    cost: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COSTS, 0))
    """Summed over all completed turns."""
    window: deque[PastTurn] = field(default_factory=deque)
    """The newest completed turns."""
    failed_work_orders: list[str] = field(default_factory=list)
    """Failed ones of earlier turns that no completed turn has put away yet."""
    open_turn: OpenTurn | None = None
    head: EntryId = field(default=EntryId(""))
    """Entry id of the session's last entry in HO2m."""

    def newest(self, count: int) -> list[PastTurn]:
        """The newest completed turns, oldest first; none for a count of 0."""
        return list(self.window)[-count:] if count else []


MAX_FAILED_KEPT = 100
"""Failed work orders remembered for the next completed turn; an outage does not fill the memory."""


def begin_turn(state: SessionState, turn_id: TurnId, user_message: str) -> OpenTurn:
    """`TURN_STARTED`."""
    state.turn_count += 1
    state.open_turn = OpenTurn(turn_id, user_message)
    return state.open_turn


def complete_turn(state: SessionState, payload: Mapping[str, Any], user_message: str, ref: Ref, estimator: str) -> None:
    """`TURN_COMPLETED`."""
    cost: Mapping[str, int] = payload.get("cost_summary") or {}  # another program's entry may say less than ours
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
            # Of a turn whose start a crash lost, this is all that is left; its number is used all the same.
            state.turn_count = max(state.turn_count, _number(payload["turn_id"]))
        case events.SESSION_END:
            state.is_ended, state.is_erased = True, events.ends_by_erasure(entry_type, payload)
        case _:
            pass


def note_failed(state: SessionState, wo_id: str) -> None:
    """`WO_FAILED`."""
    if len(state.failed_work_orders) < MAX_FAILED_KEPT:
        state.failed_work_orders.append(wo_id)


def forget_failed(state: SessionState, wo_id: str) -> None:
    """`WO_SUPERSEDED` or `WO_ABANDONED`."""
    if wo_id in state.failed_work_orders:
        state.failed_work_orders.remove(wo_id)


def book_cost(state: SessionState, tokens: int) -> None:
    """The tokens of a work order that ended, also in a turn that was aborted later: they count against the session's budget."""
    state.tokens_used += tokens


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ERASED


def _number(entity_id: object) -> int:
    """The number at the end of an id; ids are not without gaps, because a crash may lose the entries of some."""
    number = str(entity_id).rpartition("-")[2]
    return int(number) if number.isdecimal() else 0


def _tokens(cost: Mapping[str, int] | None) -> int:
    return cost["input_tokens"] + cost["output_tokens"] if cost else 0
