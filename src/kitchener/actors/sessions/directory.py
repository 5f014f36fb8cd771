"""Finds sessions by id: activates them from the ledger when they are needed, and passivates them when they are idle.

On activation it closes a turn that a crash left open. `active_session.py` is a session that is active, and `admission.py`
decides when its turns run. Explained in `docs/sessions.md`.
"""

from collections import OrderedDict
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final

import anyio

from kitchener.actors.authority.authority import ContextAuthority
from kitchener.actors.authority.session_thread import SessionThread
from kitchener.actors.sessions.active_session import SessionManager, close_open_turn
from kitchener.actors.sessions.active_text import ActiveText
from kitchener.actors.sessions.external_names import ExternalNames
from kitchener.actors.sessions.fresh_ids import FreshIds, TakenNumbers, check_session_id, taken_numbers
from kitchener.actors.sessions.session_state import SessionState, fold
from kitchener.actors.turn_memory import LongTermMemory
from kitchener.clock import Clock, loop_clock
from kitchener.config import HO2Config
from kitchener.context.intents.transitions import IntentEvent
from kitchener.errors import SessionMismatch, StaleHead, SubjectErased, UnknownSession
from kitchener.ids import EntryId, IdSource, SessionId, SubjectId, anonymous_subject, turn_id
from kitchener.ledger import LedgerGroup
from kitchener.logs import get_logger
from kitchener.records import events
from kitchener.records.entries import SessionStartPayload, TurnAbortedPayload

logger = get_logger(__name__)

_PASSIVATE_AT_ONCE: Final = 16
"""Sessions that are looked at for passivation at a time."""


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

    async def find_or_start(self, session_id: str | None, subject_id: str | None) -> SessionManager:
        """Returns the open session of a message; without a session id, a new one. Raises as `find_open` and `start`."""
        if session_id is None:
            return await self.start(subject_id=subject_id)
        return await self.find_open(session_id, subject_id=subject_id)

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
            state,
            agent_class=self._agent_class,
            ledgers=self._ledgers,
            config=self._config,
            clock=self._clock,
            authority=self._authority,
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
        """Passivates sessions that have been idle for too long or exceed `max_active`. Looks at the least recently used ones.

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
