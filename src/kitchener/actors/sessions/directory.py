"""Finds sessions by id: activates them from the ledger when they are needed, and passivates them when they are idle.

`SessionManager` is one active session: its state, its counters, and the writer of its entries in HO2m. `SessionDirectory`
holds the active sessions and activates others from the ledger. On activation it closes a turn that a crash left open.
`admission.py` decides when a turn may run. Explained in `docs/sessions.md`.
"""

from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

import anyio

from kitchener.actors.authority.authority import ContextAuthority, SessionThread
from kitchener.actors.sessions.active_text import ActiveText
from kitchener.actors.sessions.external_names import ExternalNames
from kitchener.actors.sessions.fresh_ids import FreshIds, TakenNumbers, check_session_id, taken_numbers
from kitchener.actors.sessions.history import Exchange, read_exchanges
from kitchener.actors.sessions.queue import SessionQueue
from kitchener.actors.sessions.recalled_results import SessionResults
from kitchener.actors.sessions.state import PastTurn, SessionState, fold
from kitchener.actors.turn_memory import LongTermMemory
from kitchener.clock import Clock, iso, loop_clock
from kitchener.config import HO2Config
from kitchener.context.fold.context_events import FOLDED_TYPES
from kitchener.context.intents.transitions import IntentEvent
from kitchener.errors import SessionEnded, SessionMismatch, StaleHead, SubjectErased, UnknownSession
from kitchener.ids import (
    EntryId,
    IdSource,
    SessionId,
    SubjectId,
    TurnId,
    WorkOrderId,
    anonymous_subject,
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
)
from kitchener.records.events import VERSION
from kitchener.records.ref import Ref

logger = get_logger(__name__)


MadeEntry = tuple[str, str, Mapping[str, object]]
"""Type, entity and fields of an entry to write."""


class SessionManager:
    """One active session. It runs one turn at a time; its state is the fold of its entries.

    Args:
        state: the session's state as folded from the ledger
        agent_class: the session's agent class
        ledgers: the session's entries are written here
        config: limits of the history in memory
        clock: time of day for the payloads of entries
    """

    __slots__ = (
        "_agent_class",
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

    def __init__(self, state: SessionState, *, agent_class: str, ledgers: LedgerGroup, config: HO2Config, clock: Clock) -> None:
        self.state = state
        self.session_id = state.session_id
        """The session's id."""
        self.subject_id = state.subject_id
        """The subject of the conversation."""
        self._base: CommonPayload = {"session_id": self.session_id, "subject_id": self.subject_id, "v": VERSION}
        self._agent_class = agent_class
        self._ledgers, self._ho2m = ledgers, ledgers.ho2m
        self._config = config
        self._clock = clock
        self.queue: SessionQueue | None = None
        """The calls that hold the session or wait for it, managed by `admission.py`; None: there are none."""
        self.rejecting = 0
        """Rejections that are being written. The session stays active until they are written, because the ledger lacks them."""
        self.last_used = 0.0
        self.thread: SessionThread | None = None
        """The Context Authority's state of the session; None if the Authority is off."""
        state.window = deque(state.window, maxlen=config.attention_window_turns)
        state.tool_results = deque(state.tool_results, maxlen=config.recalled_results)
        self.results = SessionResults(state, ledgers, config)
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
        """Number of the last work order; 0 if there is none."""
        return self.state.wo_count

    def next_wo_number(self) -> int:
        """Reserves the next number of a work order and returns it; the first is 1."""
        self.state.wo_count += 1
        return self.state.wo_count

    def next_wo_id(self) -> WorkOrderId:
        """Reserves the next number of a work order and returns the id with this number."""
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
        """Adds a turn to the history in memory. Writes nothing, so the turn is lost when the session is passivated."""
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
        fields: Mapping[str, object],
        *,
        turn: str | None = None,
        expected_head: EntryId | None = None,
    ) -> Awaitable[Ref]:
        """Writes an entry of this session to HO2m and returns its reference when awaited.

        The payload gets `fields` and the fields that every payload carries.
        """
        return self.append(entry_type, entity_id, {**self.fields_of(turn), **fields}, expected_head)

    async def append(
        self, entry_type: str, entity_id: str, payload: Mapping[str, object], expected_head: EntryId | None = None
    ) -> Ref:
        """Writes an entry with a complete payload, which includes `fields_of` its turn, and applies it to the state."""
        ref = await self._ho2m.write(LedgerEntry(entry_type, entity_id, payload), expected_head=expected_head)
        fold(self.state, ((entry_type, payload, ref),))
        if self.thread is not None and entry_type in FOLDED_TYPES:
            self.thread.apply(entry_type, entity_id, self._ho2m.last_timestamp, payload, ref)
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
                    self.thread.apply(entry.entry_type, entry.entity_id, at.timestamp, entry.payload, ref)
        return refs

    async def commit(self) -> None:
        """Returns when all written entries are durable."""
        await self._ledgers.commit()

    def request_commit(self) -> None:
        """Requests a commit of the written entries without waiting for it."""
        self._ledgers.request_commit()

    def now(self) -> str:
        """The time of day as ISO text."""
        return iso(self._clock.time_us())


class SessionDirectory:
    """Holds the active sessions of one agent class and activates others from the ledger.

    Args:
        agent_class: the agent class of the sessions
        ledgers: the ledgers of the agent class
        config: idle time, history window and session ids
        clock: time of day
        ids: source of new session ids
        max_active: most sessions in memory; beyond it, the least recently used idle ones are passivated
        text: bounds the text of the active sessions, together with those of other agent classes
        authority: the Context Authority; None if it is off
        memory: may have signals of a turn whose start a crash lost; None if memory is not used
    """

    def __init__(  # noqa: PLR0913 - each is a part of the supervisor that the directory needs
        self,
        *,
        agent_class: str,
        ledgers: LedgerGroup,
        config: HO2Config,
        clock: Clock,
        ids: IdSource,
        max_active: int,
        text: ActiveText,
        authority: ContextAuthority | None = None,
        memory: LongTermMemory | None = None,
    ) -> None:
        self._agent_class = agent_class
        self._ledgers = ledgers
        self._config = config
        self._clock = clock
        self._active: OrderedDict[str, SessionManager] = OrderedDict()
        self._fresh_ids = FreshIds(ids, ledgers, self._active)
        # A cached name is useful while its session is active; a passive session is looked up in the ledger anyway.
        self.names = ExternalNames(ledgers, max_active)
        """Finds sessions by the names that clients gave them."""
        self._idle_s, self._max_active = config.idle_passivate_s, max_active
        self._text = text
        self._memory = memory
        self._authority = authority
        self._now = loop_clock()
        self._activating: dict[str, anyio.Event] = {}
        self.barred: set[str] = set()
        """Subjects that are being erased. `find` and `start` refuse their sessions."""

    def __len__(self) -> int:
        return len(self._active)

    async def find(self, session_id: str, *, subject_id: str | None = None) -> SessionManager:
        """Returns the active session, and activates it from the ledger first if it is passive.

        Args:
            session_id: the session
            subject_id: the expected subject; None: not checked

        Raises:
            CallerError: the id does not have the form of a session id
            UnknownSession: this agent class has no such session
            SessionMismatch: the session belongs to another subject
            SubjectErased: the session's subject is being erased
        """
        session = self._active.get(session_id)
        if session is None:
            session = await self._activate(session_id)
        if subject_id is not None and subject_id != session.subject_id:  # checked first: other errors would reveal facts
            raise SessionMismatch(session_id, "subject", subject_id)
        self._touch(session)
        self.check(session.subject_id)
        return session

    def state(self, session_id: str) -> SessionState | None:
        """The state of an active session; None if the session is not active."""
        session = self._active.get(session_id)
        return session.state if session is not None else None

    def thread(self, session_id: str) -> SessionThread | None:
        """The Context Authority's state of an active session; None if the session is not active or the Authority is off."""
        session = self._active.get(session_id)
        return session.thread if session is not None else None

    async def find_open(self, session_id: str, *, subject_id: str | None = None) -> SessionManager:
        """Like `find`, but raises SessionEnded or SubjectErased if the session has ended."""
        session = await self.find(session_id, subject_id=subject_id)
        session.check_open()
        return session

    def check(self, subject_id: str) -> None:
        """Raises SubjectErased if the subject is being erased."""
        if subject_id in self.barred:
            raise SubjectErased(subject_id)

    def active_of(self, subject_id: str) -> list[SessionManager]:
        """The active sessions of a subject, least recently used first."""
        return [session for session in self._active.values() if session.subject_id == subject_id]

    def passivate(self, session: SessionManager) -> None:
        """Passivates a session. The next `find` activates it from the ledger."""
        self._text.forget(session)
        self._active.pop(session.session_id, None)

    async def start(
        self, session_id: str | None = None, *, subject_id: str | None = None, external_id: str | None = None
    ) -> SessionManager:
        """Starts a new session, or returns the open session with this id.

        Raises:
            SessionEnded: the session with this id has ended
            SessionMismatch: the session with this id belongs to another subject
            SubjectErased: the subject is being erased
        """
        if session_id is not None:
            with suppress(UnknownSession):
                return await self.find_open(session_id, subject_id=subject_id)
            self._fresh_ids.forget(session_id)
        chosen = SessionId(session_id) if session_id is not None else await self._fresh_ids.take()
        self.check(subject_id or "")
        state = SessionState(chosen, SubjectId(subject_id) if subject_id else anonymous_subject(chosen), external_id)
        session = self._manager(state)
        if self._authority is not None:
            if self._authority.is_signer_due:
                await self._authority.declare_signer()
            session.thread = self._authority.thread(chosen)
        # A drawn id is known to be free. The caller's id may belong to a session whose start a crash has lost.
        taken = await taken_numbers(chosen, self._ledgers, self._memory) if session_id is not None else None
        # A lost turn is closed before the first intent, which may then adopt it.
        is_cut_off = taken is not None and taken.turn > 0
        first = None if is_cut_off else self._first_intent(session)
        try:
            # Another call may have started a session with the caller's id in the meantime.
            head = EntryId("") if session_id is not None else None
            await session.start_session(() if first is None else (first,), expected_head=head)
        except StaleHead:
            return await self.find_open(chosen, subject_id=subject_id)
        if external_id is not None:
            self.names.started(chosen, external_id, subject_id)
        if taken is not None:
            await _skip_numbers(session, taken)
        if is_cut_off and (first := self._first_intent(session)) is not None:
            await session.write(*first)
        self._keep(session)
        return session

    def _first_intent(self, session: SessionManager) -> IntentEvent | None:
        """The declaration that a new session begins with; None: it begins without an intent."""
        if self._authority is None or session.thread is None or self._authority.is_shadow:
            return None
        return self._authority.first_intent(session.thread, session.session_id)

    def _manager(self, state: SessionState) -> SessionManager:
        return SessionManager(
            state, agent_class=self._agent_class, ledgers=self._ledgers, config=self._config, clock=self._clock
        )

    def _keep(self, session: SessionManager) -> None:
        self._active[session.session_id] = session
        self._touch(session)
        self._text.add(session, partial(self.passivate, session))

    def _touch(self, session: SessionManager) -> None:
        now = self._now()
        session.last_used = now
        self._active.move_to_end(session.session_id)
        oldest = next(iter(self._active.values()))
        if now - oldest.last_used > self._idle_s or len(self._active) > self._max_active:
            self._passivate_idle(session, now)

    def _passivate_idle(self, touched: SessionManager, now: float) -> None:
        """Passivates sessions that have been idle for too long or exceed `max_active`. Looks at the 16 least recently used.

        A session with a running call stays active, and so does `touched`.
        """
        oldest = list(islice(self._active.values(), _PASSIVATE_AT_ONCE))
        for session in oldest:
            is_idle = now - session.last_used > self._idle_s
            if session.queue is not None or session.rejecting:  # in use: move it back, so that idle sessions come first
                session.last_used = now
                self._active.move_to_end(session.session_id)
            elif session is not touched and (is_idle or len(self._active) > self._max_active):
                self.passivate(session)

    async def _activate(self, session_id: str) -> SessionManager:
        check_session_id(session_id)
        while (others := self._activating.get(session_id)) is not None:
            await others.wait()
            if session_id in self._active:
                return self._active[session_id]
        done = self._activating[session_id] = anyio.Event()
        try:
            session = await self._read_back(session_id)
            self._keep(session)
            return session
        finally:
            del self._activating[session_id]
            done.set()

    async def _read_back(self, session_id: str) -> SessionManager:
        entries = [entry async for entry in self._ledgers.ho2m.read(session_id=session_id)]
        if not entries:
            raise UnknownSession(session_id, self._agent_class)
        first = events.read_as(SessionStartPayload, entries[0])
        state = SessionState(SessionId(session_id), SubjectId(first["subject_id"]), first.get("external_id"))
        session = self._manager(state)
        fold(state, ((e.entry_type, events.read_payload(e.entry_type, e.payload), e.ref) for e in entries))
        if self._authority is not None:
            if self._authority.is_signer_due:
                await self._authority.declare_signer()
            session.thread = await self._authority.read_back(session_id, entries)
        await _skip_numbers(session, await taken_numbers(state.session_id, self._ledgers, self._memory))
        if (cut_off := session.state.open_turn) is not None:
            logger.warning("turn cut off by a crash closed", turn_id=cut_off.turn_id)
        await close_open_turn(session, "crash")
        return session


async def _skip_numbers(session: SessionManager, taken: TakenNumbers) -> None:
    """Makes the session's numbers continue after these, and closes a turn that HO2m lacks."""
    session.state.wo_count = max(session.state.wo_count, taken.work_order)
    if taken.turn > session.state.turn_count:
        turn = turn_id(session.session_id, taken.turn)
        crashed: TurnAbortedPayload = {"reason": "crash"}
        await session.write(events.TURN_ABORTED, turn, crashed, turn=turn)
        logger.warning("turn without a start closed", turn_id=turn)


async def close_open_turn(session: SessionManager, reason: AbortReason) -> None:
    """Closes an open turn in one commit: `WO_ABANDONED` for each open work order, then `TURN_ABORTED`."""
    turn = session.state.open_turn
    if turn is None:
        return
    open_ones = [(events.WO_ABANDONED, wo_id, {"wo_id": wo_id, "reason": reason}) for wo_id in turn.work_orders]
    await session.write_all([*open_ones, (events.TURN_ABORTED, turn.turn_id, {"reason": reason})], turn=turn.turn_id)


_PASSIVATE_AT_ONCE = 16
_TURN_CHARS: Final = 200
"""Characters counted for a turn in the window besides its text. Its objects take about 1,500 bytes, as much as 200 to 400
characters of ordinary text with their words."""
