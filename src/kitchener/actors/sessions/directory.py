"""Sessions as virtual actors: found by id at any time, activated from the ledger, put away when idle.

`SessionManager` is one active session: its state, its entries in HO2m, its counters. `SessionDirectory` holds the active
ones and brings others back from the ledger, closing explicitly what a crash left open. Who may run a turn when is
`admission.py`'s matter. Explained in `docs/sessions.md`.
"""

from collections import OrderedDict, deque
from collections.abc import Awaitable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final

import anyio
import structlog

from kitchener.actors.authority.authority import ContextAuthority, SessionThread
from kitchener.actors.sessions.fresh_ids import FreshIds, check_session_id
from kitchener.actors.sessions.state import PastTurn, SessionState, fold
from kitchener.actors.turn_memory import LongTermMemory
from kitchener.cancellation import raises_cut_off
from kitchener.clock import Clock, iso, loop_clock
from kitchener.config import HO2Config
from kitchener.context.fold.events import FOLDED_TYPES
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
from kitchener.ledger import LedgerEntry, Ledgers
from kitchener.records import events
from kitchener.records.events import VERSION
from kitchener.records.ref import Ref

logger = structlog.get_logger(__name__)
_entry: Final = tuple.__new__
"""What calling `LedgerEntry` does, in half the time; ten times a turn."""


class SessionManager:
    """One active session. One turn at a time; its state is the fold of its entries.

    Args:
        state: what the ledger says of it
        agent_class: whose session
        ledgers: where its entries go
        config: bounds of the history in memory
        clock: for the time of its entries' payloads
    """

    __slots__ = (
        "_agent_class",
        "_base",
        "_clock",
        "_config",
        "_ho2m",
        "_ledgers",
        "admission",
        "last_used",
        "session_id",
        "state",
        "subject_id",
        "thread",
    )

    def __init__(self, state: SessionState, *, agent_class: str, ledgers: Ledgers, config: HO2Config, clock: Clock) -> None:
        self.state = state
        self.session_id = state.session_id
        """The session's id."""
        self.subject_id = state.subject_id
        """Whose conversation it is."""
        self._base = {"session_id": self.session_id, "subject_id": self.subject_id, "v": VERSION}
        self._agent_class = agent_class
        self._ledgers, self._ho2m = ledgers, ledgers.ho2m
        self._config = config
        self._clock = clock
        self.admission: Any = None
        """The session's queue, while it has one; owned by `admission.py`."""
        self.last_used = 0.0
        self.thread: SessionThread | None = None
        """What the Context Authority keeps of the session; None where it is off."""
        state.window = deque(state.window, maxlen=config.attention_window_turns)

    def check_open(self) -> None:
        """Raises SessionEnded or SubjectErased where the session takes no more turns."""
        if self.state.is_erased:
            raise SubjectErased(self.subject_id, self.session_id)
        if self.state.is_ended:
            raise SessionEnded(self.session_id)

    @property
    def history(self) -> list[tuple[str, str]]:
        """The newest turns as (user message, response), oldest first; bounded by `attention_window_turns`."""
        return [(past.user_message, past.response) for past in self.state.window]

    @property
    def wo_sequence(self) -> int:
        """Number of the last work order."""
        return self.state.wo_count

    def next_wo_number(self) -> int:
        """The next work order's number, from 1."""
        self.state.wo_count += 1
        return self.state.wo_count

    def next_wo_id(self) -> WorkOrderId:
        """The next work order's id."""
        return work_order_id(self.session_id, self.next_wo_number())

    def next_turn_id(self) -> TurnId:
        """The id that the next turn will have."""
        return turn_id(self.session_id, self.state.turn_count + 1)

    async def start_session(self, *, expected_head: EntryId | None = None) -> Ref:
        """Writes `SESSION_START`; with "" as expected head refused as `StaleHead` if the session has entries already."""
        fields: dict[str, Any] = {"agent_class": self._agent_class}
        if self.state.external_id is not None:
            fields["external_id"] = self.state.external_id
        return await self.write(events.SESSION_START, self.session_id, fields, expected_head=expected_head)

    async def end_session(self, session_id: str, turn_count: int, total_cost: Mapping[str, int], reason: str = "ended") -> Ref:
        """Writes `SESSION_END` and waits until it is durable."""
        fields = {"turn_count": turn_count, "total_cost": dict(total_cost), "reason": reason}
        ref = await self.write(events.SESSION_END, session_id, fields)
        self.state.is_ended = True
        await self.commit()
        return ref

    def add_turn(self, user_message: str, response: str, *, turn: str | None = None, ref: Ref | None = None) -> None:
        """Adds a turn to the history in memory."""
        past = PastTurn(
            turn or turn_id(self.session_id, self.state.completed_turns + 1),
            user_message,
            response,
            ref or Ref("", "", ""),
            self._config.token_estimator,
        )
        self.state.window.append(past)
        self.state.completed_turns += 1

    def fields_of(self, turn: str | None) -> dict[str, Any]:
        """What every payload about a turn carries, or about the session itself where there is no turn."""
        return self._base if turn is None else {**self._base, "turn_id": turn}

    def write(
        self,
        entry_type: str,
        entity_id: str,
        fields: Mapping[str, Any],
        *,
        turn: str | None = None,
        expected_head: EntryId | None = None,
    ) -> Awaitable[Ref]:
        """Writes an entry of this session to HO2m, with what every payload carries; gives its reference when it is awaited."""
        return self.append(entry_type, entity_id, {**self.fields_of(turn), **fields}, expected_head)

    async def append(
        self, entry_type: str, entity_id: str, payload: dict[str, Any], expected_head: EntryId | None = None
    ) -> Ref:
        """Writes an entry whose payload is complete: `fields_of` its turn and its own."""
        ref = await self._ho2m.write(_entry(LedgerEntry, (entry_type, entity_id, payload)), expected_head=expected_head)
        self.state.head = ref.entry_id  # type: ignore[assignment]  # `EntryId(…)` is a call, and says nothing at run time
        if self.thread is not None and entry_type in FOLDED_TYPES:
            self.thread.apply(entry_type, entity_id, self._ho2m.last_timestamp, payload, ref)
        return ref

    async def write_all(self, made: Iterable[tuple[str, str, Mapping[str, Any]]], *, turn: str | None = None) -> list[Ref]:
        """Writes entries, each as type, entity and fields, in one commit: after a crash all of them are there, or none."""
        carried = self.fields_of(turn)
        entries = [LedgerEntry(kind, entity_id, {**carried, **fields}) for kind, entity_id, fields in made]
        stored = await self._ho2m.write_all(entries)
        refs = [each.ref for each in stored]
        for entry, ref, at in zip(entries, refs, stored, strict=True):
            self.state.head = EntryId(ref.entry_id)
            if self.thread is not None and entry.entry_type in FOLDED_TYPES:
                self.thread.apply(entry.entry_type, entry.entity_id, at.timestamp, entry.payload, ref)
        return refs

    async def commit(self) -> None:
        """Returns when what was written is durable."""
        await self._ledgers.commit()

    def request_commit(self) -> None:
        """Makes what was written durable soon, without waiting for it."""
        self._ledgers.request_commit()

    def now(self) -> str:
        """The clock's time as ISO text."""
        return iso(self._clock.time_us())


class SessionDirectory:
    """The active sessions of one agent class, and the way to all others.

    Args:
        agent_class: whose sessions
        ledgers: where they are recorded
        config: idle time, window, ids
        clock: time of day
        ids: fresh session ids
        max_active: sessions in memory; beyond it the longest idle are put away
        authority: decides what the model sees; None where it is off
        memory: knows turns whose signals outlived their start; None where it is not used
    """

    def __init__(
        self,
        *,
        agent_class: str,
        ledgers: Ledgers,
        config: HO2Config,
        clock: Clock,
        ids: IdSource,
        max_active: int,
        authority: ContextAuthority | None = None,
        memory: LongTermMemory | None = None,
    ) -> None:
        self._agent_class = agent_class
        self._ledgers = ledgers
        self._config = config
        self._clock = clock
        self._active: OrderedDict[str, SessionManager] = OrderedDict()
        self._fresh_ids = FreshIds(ids, ledgers, self._active)
        self._idle_s, self._max_active = config.idle_passivate_s, max_active
        self._memory = memory
        self._authority = authority
        self._now = loop_clock()
        self._activating: dict[str, anyio.Event] = {}
        self.barred: set[str] = set()
        """Subjects who are being erased: no session of theirs is given out."""

    def __len__(self) -> int:
        return len(self._active)

    async def find(self, session_id: str, *, subject_id: str | None = None) -> SessionManager:
        """The session, active; brought back from the ledger if need be.

        Raises:
            CallerError: the id has not the form of a session id
            UnknownSession: this agent class has no such session
            SessionMismatch: it belongs to another subject
        """
        session = self._active.get(session_id)
        if session is None:
            session = await self._activate(session_id)
        if subject_id is not None and subject_id != session.subject_id:  # before all else: the rest is its owner's
            raise SessionMismatch(session_id, "subject", subject_id)
        self._touch(session)
        self.check(session.subject_id)
        return session

    def state(self, session_id: str) -> SessionState | None:
        """The state of an active session; None of one that is not active."""
        session = self._active.get(session_id)
        return session.state if session is not None else None

    def thread(self, session_id: str) -> SessionThread | None:
        """What the Context Authority keeps of an active session; None of one that is not, or where it is off."""
        session = self._active.get(session_id)
        return session.thread if session is not None else None

    async def find_open(self, session_id: str, *, subject_id: str | None = None) -> SessionManager:
        """As `find`, and the session has not ended."""
        session = await self.find(session_id, subject_id=subject_id)
        session.check_open()
        return session

    def check(self, subject_id: str) -> None:
        """Raises SubjectErased where a subject is being erased."""
        if subject_id in self.barred:
            raise SubjectErased(subject_id)

    def active_of(self, subject_id: str) -> list[SessionManager]:
        """The active sessions of a subject, in the order of their last use."""
        return [session for session in self._active.values() if session.subject_id == subject_id]

    def put_away(self, session: SessionManager) -> None:
        """Forgets an active session; asked for again, it comes back from the ledger."""
        self._active.pop(session.session_id, None)

    async def start(
        self, session_id: str | None = None, *, subject_id: str | None = None, external_id: str | None = None
    ) -> SessionManager:
        """A session that takes turns: a new one, or the open one of this id.

        Raises:
            SessionEnded, SessionMismatch: the id is taken by a session that ended or belongs to another subject
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
            session.thread = self._authority.thread(chosen)
        try:
            # A fresh id was looked up already; one that the caller gave may have been started by somebody else just now.
            await session.start_session(expected_head=EntryId("") if session_id is not None else None)
        except StaleHead:
            return await self.find_open(chosen, subject_id=subject_id)
        if self._authority is not None and session.thread is not None and not self._authority.is_shadow:
            declared = self._authority.first_intent(session.thread, chosen)
            if declared is not None:
                await session.write(*declared)
        self._keep(session)
        return session

    async def by_external_id(self, external_id: str, subject_id: str | None) -> SessionId | None:
        """The newest session that a subject started with this external id, or None; without a subject, an anonymous one."""
        found = await self._ledgers.ho2m.last(key=events.external_index_key(subject_id, external_id))
        return SessionId(found[-1].payload["session_id"]) if found else None

    def _manager(self, state: SessionState) -> SessionManager:
        return SessionManager(
            state, agent_class=self._agent_class, ledgers=self._ledgers, config=self._config, clock=self._clock
        )

    def _keep(self, session: SessionManager) -> None:
        self._active[session.session_id] = session
        self._touch(session)

    def _touch(self, session: SessionManager) -> None:
        now = self._now()
        session.last_used = now
        self._active.move_to_end(session.session_id)
        oldest = next(iter(self._active.values()))
        if now - oldest.last_used > self._idle_s or len(self._active) > self._max_active:
            self._passivate(session, now)

    def _passivate(self, touched: SessionManager, now: float) -> None:
        """Puts away sessions that are idle for long, or too many; one with a turn stays, and so does the one in hand."""
        oldest = list(islice(self._active.values(), _PASSIVATE_AT_ONCE))
        for session in oldest:
            is_idle = now - session.last_used > self._idle_s
            if session.admission is not None:  # has a turn: the oldest idle ones must come to the front
                session.last_used = now
                self._active.move_to_end(session.session_id)
            elif session is not touched and (is_idle or len(self._active) > self._max_active):
                del self._active[session.session_id]

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
        first = events.read_payload(entries[0].entry_type, entries[0].payload)
        state = SessionState(SessionId(session_id), SubjectId(first["subject_id"]), first.get("external_id"))
        fold(
            state,
            ((e.entry_type, events.read_payload(e.entry_type, e.payload), e.ref) for e in entries),
            self._config.token_estimator,
        )
        session = self._manager(state)
        if self._authority is not None:
            session.thread = await self._authority.read_back(session_id, entries)
        await self._skip_unplanned(session)
        await close_open_turn(session, "crash")
        return session

    async def _skip_unplanned(self, session: SessionManager) -> None:
        """Numbers that a lost tail of HO2m had given out, and that another ledger knows, are not given out again."""
        state, began = session.state, 0
        if newest := await self._ledgers.ho1m.last(session_id=session.session_id):
            state.wo_count = max(state.wo_count, int(newest[-1].entity_id.rpartition("-")[2]))
            began = int(str(newest[-1].payload["turn_id"]).rpartition("-")[2])
        signalled = None
        if self._memory is not None:
            with raises_cut_off("resuming the session"):
                signalled = await self._memory.last_turn_id(session.session_id)
        if signalled:
            number = signalled.rpartition("-")[2]
            began = max(began, int(number) if number.isdecimal() else 0)
        if began > state.turn_count:
            turn = turn_id(session.session_id, began)
            state.turn_count = began
            await session.write(events.TURN_ABORTED, turn, {"reason": "crash"}, turn=turn)
            logger.warning("turn without a start closed", turn_id=turn)


async def close_open_turn(session: SessionManager, reason: str) -> None:
    """Closes what was begun and not ended, in one commit: `WO_ABANDONED` for each open work order, and `TURN_ABORTED`."""
    turn = session.state.open_turn
    if turn is None:
        return
    session.state.open_turn = None
    open_ones = [(events.WO_ABANDONED, wo_id, {"wo_id": wo_id, "reason": reason}) for wo_id in turn.work_orders]
    await session.write_all([*open_ones, (events.TURN_ABORTED, turn.turn_id, {"reason": reason})], turn=turn.turn_id)


_PASSIVATE_AT_ONCE = 16
