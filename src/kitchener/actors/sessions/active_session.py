"""One active session: its state, its counters, and the writer of its entries in HO2m.

Every entry of a session is written here and applied to the session's state in the same step, so nobody else changes the state
for an entry. `directory.py` finds sessions and activates them from the ledger. Explained in `docs/sessions.md`.
"""

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Iterable
from typing import Final

from kitchener.actors.authority.authority import SHOWN_TO_OTHERS, ContextAuthority
from kitchener.actors.authority.session_thread import SessionThread
from kitchener.actors.sessions.history import Exchange, read_exchanges
from kitchener.actors.sessions.queue import SessionQueue
from kitchener.actors.sessions.recalled_results import SessionResults
from kitchener.actors.sessions.session_state import PastTurn, SessionState, fold
from kitchener.clock import Clock
from kitchener.config import HO2Config
from kitchener.context.fold.context_events import FOLDED_TYPES
from kitchener.errors import SessionEnded, SubjectErased
from kitchener.ids import (
    EntryId,
    SessionId,
    SubjectId,
    TurnId,
    WorkOrderId,
    turn_id,
    work_order_id,
)
from kitchener.ledger import LedgerEntry, LedgerGroup
from kitchener.logs import get_logger
from kitchener.records import events
from kitchener.records.entries import (
    AbortReason,
    CommonPayload,
    CostSummary,
    SessionEndPayload,
    SessionStartPayload,
    TurnAbortedPayload,
    WorkOrderAbandonedPayload,
)
from kitchener.records.events import VERSION
from kitchener.records.ref import Ref
from kitchener.times import iso_of

logger = get_logger(__name__)

MadeEntry = tuple[str, str, CommonPayload]
"""Type, entity and fields of an entry to write."""


class SessionManager:
    """One active session. It runs one turn at a time; its state is the fold of its entries.

    Args:
        state: the session's state as folded from the ledger
        agent_class: the session's agent class
        ledgers: the session's entries are written here
        config: limits of the history in memory
        clock: time of day for the payloads of entries
        authority: shows the subject's other sessions what is written here; None if it is off
    """

    __slots__ = (
        "_agent_class",
        "_authority",
        "_base",
        "_clock",
        "_config",
        "_ho2m",
        "_ledgers",
        "_seen_turns",
        "_window_chars",
        "_window_sizes",
        "last_used",
        "queue",
        "rejecting",
        "results",
        "session_id",
        "state",
        "subject_id",
        "thread",
    )

    def __init__(
        self,
        state: SessionState,
        *,
        agent_class: str,
        ledgers: LedgerGroup,
        config: HO2Config,
        clock: Clock,
        authority: ContextAuthority | None = None,
    ) -> None:
        self.state: SessionState = state
        self._authority = authority
        self.session_id: SessionId = state.session_id
        self.subject_id: SubjectId = state.subject_id
        """The subject of the conversation."""
        self._base: CommonPayload = {"session_id": self.session_id, "subject_id": self.subject_id, "v": VERSION}
        self._agent_class = agent_class
        self._ledgers, self._ho2m = ledgers, ledgers.ho2m
        self._config = config
        self._clock = clock
        self.queue: SessionQueue | None = None
        """The calls that hold the session or wait for it, managed by `admission.py`; None: there are none."""
        self.rejecting: int = 0
        """Rejections that are being written. The session stays active until they are written, because the ledger lacks them."""
        self.last_used: float = 0.0
        self.thread: SessionThread | None = None
        """The Context Authority's state of the session; None if the Authority is off."""
        state.window = deque(state.window, maxlen=config.attention_window_turns)
        state.tool_results = deque(state.tool_results, maxlen=config.recalled_results)
        self.results: SessionResults = SessionResults(state, ledgers, config)
        """The tool results that later turns may be shown."""
        self._window_sizes: deque[int] = deque(maxlen=config.attention_window_turns)
        self._window_chars = self._seen_turns = 0
        state.estimator = config.token_estimator

    def check_open(self) -> None:
        """Raises SessionEnded or SubjectErased if the session takes no more turns."""
        if self.state.is_erased:
            raise SubjectErased(self.subject_id, self.session_id)
        if self.state.is_ended:
            raise SessionEnded(self.session_id)

    @property
    def history(self) -> list[tuple[str, str]]:
        """The newest turns as (user message, response), oldest first; at most `attention_window_turns`."""
        return [(past.user_message, past.response) for past in self.state.window]

    def read_history(self) -> AsyncIterator[Exchange]:
        """Yields all completed turns from the beginning, oldest first, read from the ledger."""
        return read_exchanges(self._ho2m, self.session_id)

    @property
    def is_ended(self) -> bool:
        """Whether the session takes no more turns."""
        return self.state.is_ended

    def held_chars(self) -> int:
        """The characters that the session keeps in memory: its newest turns, tool results and, with the Context Authority, all
        turns. The cost does not grow with the session: only turns since the last call are counted.
        """
        state, sizes = self.state, self._window_sizes
        known = state.completed_turns + state.imported
        unseen, self._seen_turns = known - self._seen_turns, known
        for past in state.newest(unseen):
            size = len(past.fragment.content) + _TURN_CHARS
            self._window_chars += size - (sizes[0] if len(sizes) == sizes.maxlen else 0)
            sizes.append(size)
        return self._window_chars + self.results.held_chars + (self.thread.held_chars if self.thread is not None else 0)

    @property
    def wo_sequence(self) -> int:
        """Number of the last work order; 0 if there is none. For programs that hold a session."""
        return self.state.wo_count

    def next_wo_number(self) -> int:
        """Reserves the next number of a work order and returns it; the first is 1."""
        self.state.wo_count += 1
        return self.state.wo_count

    def next_wo_id(self) -> WorkOrderId:
        """Reserves the next number of a work order and returns the id with this number. For programs that hold a session; a
        turn takes `next_wo_number`."""
        return work_order_id(self.session_id, self.next_wo_number())

    def next_turn_id(self) -> TurnId:
        """The id of the next turn. The turn count stays unchanged."""
        return turn_id(self.session_id, self.state.turn_count + 1)

    async def start_session(self, also: Iterable[MadeEntry] = (), *, expected_head: EntryId | None = None) -> None:
        """Writes `SESSION_START`, and others in the same commit.

        Args:
            also: entries that the session begins with
            expected_head: the session's expected last entry, "" for a session without entries; None: not checked

        Raises:
            StaleHead: the session has another last entry
        """
        fields: SessionStartPayload = {"agent_class": self._agent_class}
        if self.state.external_id is not None:
            fields["external_id"] = self.state.external_id
        await self.write_all([(events.SESSION_START, self.session_id, fields), *also], expected_head=expected_head)

    async def end_session(self, session_id: str, turn_count: int, total_cost: CostSummary, reason: str = "ended") -> Ref:
        """Writes `SESSION_END` and returns when the entry is durable."""
        fields: SessionEndPayload = {"turn_count": turn_count, "total_cost": total_cost, "reason": reason}
        ref = await self.write(events.SESSION_END, session_id, fields)
        await self.commit()
        return ref

    def add_turn(self, user_message: str, response: str) -> None:
        """Adds a turn to the history in memory. Writes nothing, so the turn is lost when the session is passivated.

        For programs that hold a session. A turn is added by its `TURN_COMPLETED`.
        """
        turn = turn_id(self.session_id, self.state.completed_turns + 1)
        self.state.window.append(PastTurn(turn, user_message, response, Ref("", "", ""), self._config.token_estimator))
        self.state.completed_turns += 1

    def fields_of(self, turn: str | None) -> CommonPayload:
        """The fields that every payload about a turn carries. With None, the fields of a payload about the session itself."""
        return self._base if turn is None else {**self._base, "turn_id": turn}

    def write(
        self,
        entry_type: str,
        entity_id: str,
        fields: CommonPayload,
        *,
        turn: str | None = None,
        expected_head: EntryId | None = None,
    ) -> Awaitable[Ref]:
        """Writes an entry of this session to HO2m and returns its reference when awaited.

        The payload gets `fields` and the fields that every payload carries.
        """
        return self.append(entry_type, entity_id, {**self.fields_of(turn), **fields}, expected_head)

    async def append(
        self, entry_type: str, entity_id: str, payload: CommonPayload, expected_head: EntryId | None = None
    ) -> Ref:
        """Writes an entry with a complete payload, which includes `fields_of` its turn, and applies it to the state."""
        entry = LedgerEntry(entry_type, entity_id, payload)
        ref = await self._ho2m.write(entry, expected_head=expected_head)
        fold(self.state, ((entry_type, payload, ref),))
        if self.thread is not None and entry_type in FOLDED_TYPES:
            _apply(entry, ref, self._ho2m.last_timestamp, self.thread, self._authority, self.subject_id)
        return ref

    async def write_all(
        self, made: Iterable[MadeEntry], *, turn: str | None = None, expected_head: EntryId | None = None
    ) -> list[Ref]:
        """Writes entries, each given as type, entity and fields, in one commit. After a crash all or none of them exist."""
        carried = self.fields_of(turn)
        entries = [LedgerEntry(kind, entity_id, {**carried, **fields}) for kind, entity_id, fields in made]
        stored = await self._ho2m.write_all(entries, expected_head=expected_head)
        refs = [each.ref for each in stored]
        fold(self.state, ((entry.entry_type, entry.payload, ref) for entry, ref in zip(entries, refs, strict=True)))
        if self.thread is not None:
            for entry, ref, at in zip(entries, refs, stored, strict=True):
                if entry.entry_type in FOLDED_TYPES:
                    _apply(entry, ref, at.timestamp, self.thread, self._authority, self.subject_id)
        return refs

    async def commit(self) -> None:
        """Returns when all written entries are durable."""
        await self._ledgers.commit()

    def request_commit(self) -> None:
        """Requests a commit of the written entries without waiting for it."""
        self._ledgers.request_commit()

    def now(self) -> str:
        """The time of day as ISO text."""
        return iso_of(self._clock.time_us())


def _apply(
    entry: LedgerEntry, ref: Ref, timestamp: str, thread: SessionThread, authority: ContextAuthority | None, subject_id: str
) -> None:
    """Applies a written entry to the context of its session, and of the other sessions that may see it."""
    entry_type, entity_id, payload = entry
    thread.apply(entry_type, entity_id, timestamp, payload, ref)
    if entry_type in SHOWN_TO_OTHERS and authority is not None:
        authority.show_others(subject_id, thread, entry_type, entity_id, payload)


async def close_open_turn(session: SessionManager, reason: AbortReason) -> None:
    """Closes an open turn in one commit: `WO_ABANDONED` for each open work order, then `TURN_ABORTED`."""
    turn = session.state.open_turn
    if turn is None:
        return
    made: list[MadeEntry] = [
        (events.WO_ABANDONED, wo_id, WorkOrderAbandonedPayload(wo_id=wo_id, reason=reason)) for wo_id in turn.work_orders
    ]
    made.append((events.TURN_ABORTED, turn.turn_id, TurnAbortedPayload(reason=reason)))
    await session.write_all(made, turn=turn.turn_id)


_TURN_CHARS: Final = 200
"""Characters counted for a turn in the window besides its text. Its objects take about 1,500 bytes, as much as 200 to 400
characters of ordinary text with their words."""
