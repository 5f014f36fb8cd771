"""Decides when a message may run its turn: first the session's FIFO queue, then the runtime's limit of running turns.

Both queues are bounded, and both waits end at the admission deadline. The limit is fair to subjects. A refused message is
recorded as `TURN_REJECTED` and takes no turn number, so that no input is lost silently. This module does not know what a turn
does. Explained in `docs/sessions.md`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio

from kitchener.actors.admission.content import ContentIntake
from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.sessions.active_text import ActiveText
from kitchener.actors.sessions.queue import SessionQueue, Waiter
from kitchener.clock import loop_clock
from kitchener.config import HO2Config
from kitchener.errors import Overloaded, RuntimeClosed, SessionBusy, TurnReplaced, UnsupportedPart, WaitedTooLong
from kitchener.lanes.fair_queue import LaneStatistics
from kitchener.lanes.lane import Lane
from kitchener.records import events
from kitchener.records.entries import RejectReason, TurnRejectedPayload
from kitchener.records.turn import TurnCall


class TurnLimiter:
    """Limits how many turns of a runtime run at once and how many wait, fairly between subjects.

    A shutdown uses the limiter to cancel running turns and to wait for their end.
    """

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self._lane, self._now = Lane("the runtime's queue of turns", max_running, max_waiting), loop_clock()
        self._closed = False
        self._idle: anyio.Event | None = None
        self._scopes: set[anyio.CancelScope] = set()
        self._refused = 0

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called, so that no more turns are admitted."""
        return self._closed

    @property
    def running(self) -> int:
        """Turns that hold a slot."""
        return self._lane.running

    @property
    def waiting(self) -> int:
        """Turns that wait for a slot."""
        return self._lane.waiting

    def try_enter(self, subject_id: str = "") -> bool:
        """Takes a slot if one is free for this subject, without waiting. Returns whether it took one.

        Raises:
            RuntimeClosed: no more turns are admitted
        """
        if self._closed:
            raise _closed()
        return self._lane.try_enter(subject_id)

    async def enter(self, deadline: float, subject_id: str = "") -> None:
        """Takes a slot, after waiting for one if necessary. The caller must call `leave`.

        Args:
            deadline: on the event loop's clock, seconds
            subject_id: the subject whose share the slot counts against

        Raises:
            Overloaded: the queue, or the subject's share of it, is full, or the deadline passed; no slot was taken
            RuntimeClosed: no more turns are admitted
        """
        if self.try_enter(subject_id):
            return
        if not self._lane.has_room(subject_id):
            self._refused += 1
            raise self._lane.overloaded()
        began = self._now()
        try:
            outcome = await self._lane.enter(subject_id, deadline)
        except BaseException:  # it may have been given a slot in that moment, which is free again
            self._tell_if_idle()
            raise
        if outcome == "entered" and self._closed:
            self.leave(subject_id)
        if self._closed:
            raise _closed()
        if outcome != "entered":
            self._refused += 1
            raise self._lane.overloaded() if outcome == "no room" else self._lane.late(deadline - began)

    def statistics(self) -> LaneStatistics:
        """The present counts of the queue of turns, and of its waits and refusals so far."""
        return replace(self._lane.statistics(), given_up=self._refused)

    def leave(self, subject_id: str = "") -> None:
        """Releases a slot and grants it to the next waiting turn."""
        self._lane.leave(subject_id)
        if self._idle is not None:
            self._tell_if_idle()

    def close(self) -> None:
        """Admits no more turns. Waiting turns fail with `RuntimeClosed`."""
        self._closed = True
        self._lane.send_away()

    def track(self, scope: anyio.CancelScope) -> None:
        """Registers a running turn's scope for `cancel_running`."""
        self._scopes.add(scope)

    def untrack(self, scope: anyio.CancelScope) -> None:
        """Removes the scope of a turn that is over."""
        self._scopes.discard(scope)
        if self._idle is not None:
            self._tell_if_idle()

    def cancel_running(self) -> None:
        """Cancels every running turn."""
        for scope in self._scopes:
            scope.cancel()

    async def wait_idle(self) -> None:
        """Returns when no turn runs, with or without a slot. A nested turn has no slot, and a tool may have left one behind."""
        if self._lane.running or self._scopes:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    def _tell_if_idle(self) -> None:
        if not self._lane.running and not self._scopes and self._idle is not None:
            self._idle.set()
            self._idle = None


def _closed() -> RuntimeClosed:
    return RuntimeClosed("the runtime is shutting down and takes no more turns")


class Admission:
    """Admits the messages of each session one at a time, by the overlap policy.

    Args:
        config: overlap policy, queue length and admission deadline
        limiter: the runtime's limit of running turns
        text: counts the text of a session when its last call has ended
        content: knows which images and files the model takes
    """

    def __init__(self, config: HO2Config, limiter: TurnLimiter, text: ActiveText, content: ContentIntake) -> None:
        self._config, self._content = config, content
        self._limiter = limiter
        self._text = text
        self._now = loop_clock()

    async def enter(self, session: SessionManager, message: str, call: TurnCall, *, nested: bool) -> SessionQueue:
        """Takes the session and a slot of the runtime for a turn. The caller must call `leave`.

        A nested turn takes no slot, because the turn that waits for it already holds one.

        Raises:
            SessionBusy, Overloaded, TurnReplaced, UnsupportedPart: recorded as `TURN_REJECTED`; nothing was started
            RuntimeClosed: the runtime is shutting down; nothing was recorded or started
        """
        deadline = self._now() + self._config.admission_deadline_s
        if call.deadline is not None:
            deadline = min(deadline, call.deadline)
        try:
            if call.parts and (refusal := self._content.refusal(call.parts)) is not None:
                raise refusal
            queue = await self._enter_session(session, deadline)
            try:
                if not nested and not self._limiter.try_enter(session.subject_id):
                    await self._limiter.enter(deadline, session.subject_id)
                if queue.is_replaced:  # a newer message came while this one waited
                    if not nested:
                        self._limiter.leave(session.subject_id)
                    raise TurnReplaced(session.session_id)
            except BaseException:
                self._leave_session(session)
                raise
        except (SessionBusy, Overloaded, TurnReplaced, UnsupportedPart) as refused:
            await self._record(session, message, call.idempotency_key, _REASONS[type(refused)])
            raise
        return queue

    def leave(self, session: SessionManager, *, nested: bool) -> None:
        """Releases the session and the slot that `enter` took."""
        if not nested:
            self._limiter.leave(session.subject_id)
        self._leave_session(session)

    @asynccontextmanager
    async def call(self, session: SessionManager) -> AsyncIterator[None]:
        """Holds the session for a call that is not a turn. The call waits in the session's FIFO queue like a turn."""
        await self._enter_session(session, self._now() + self._config.admission_deadline_s, is_turn=False)
        try:
            yield
        finally:
            self._leave_session(session)

    async def expel(self, session: SessionManager, deadline: float) -> None:
        """Cancels the session's running turn and returns when no call holds the session or waits for it.

        Raises:
            Overloaded: a call still held the session at the deadline
        """
        queue = session.queue
        if queue is None:
            return
        if queue.scope is not None:
            queue.scope.cancel()
        await self._wait(queue, session, Waiter(is_turn=False), deadline)
        self._leave_session(session)

    async def _enter_session(self, session: SessionManager, deadline: float, *, is_turn: bool = True) -> SessionQueue:
        queue = session.queue
        if queue is None:
            queue = session.queue = SessionQueue()
            return queue
        policy = self._config.overlap_policy if is_turn else "queue"
        if policy == "reject":
            raise SessionBusy(session.session_id)
        if policy == "replace":
            self._replace(queue)
        elif len(queue.waiting) >= self._config.session_queue:
            raise Overloaded(f"the queue of session {session.session_id}", self._config.session_queue)
        await self._wait(queue, session, Waiter(is_turn=is_turn), deadline)
        return queue

    async def _wait(self, queue: SessionQueue, session: SessionManager, waiter: Waiter, deadline: float) -> None:
        began = self._now()
        queue.waiting.append(waiter)
        try:
            with anyio.CancelScope(deadline=deadline):
                await waiter.granted.wait()
        except BaseException:
            if waiter.granted.is_set() and not waiter.is_replaced:
                self._leave_session(session)  # this call already holds the session: pass it on
            raise
        finally:
            if not waiter.granted.is_set():
                queue.waiting.remove(waiter)
        if waiter.is_replaced:
            raise TurnReplaced(session.session_id)
        if not waiter.granted.is_set():
            raise WaitedTooLong(f"the wait for session {session.session_id}, where another call runs,", deadline - began)

    @staticmethod
    def _replace(queue: SessionQueue) -> None:
        """Cancels the running turn and rejects the waiting turns, because only the newest message counts."""
        for waiter in [waiter for waiter in queue.waiting if waiter.is_turn]:
            queue.waiting.remove(waiter)
            waiter.is_replaced = True
            waiter.granted.set()
        queue.is_replaced = True
        if queue.scope is not None:
            queue.scope.cancel()

    def _leave_session(self, session: SessionManager) -> None:
        queue = session.queue
        assert queue is not None
        queue.scope = None
        queue.is_replaced = False
        if queue.waiting:
            queue.waiting.popleft().granted.set()
        else:
            session.queue = None
            if session.thread is not None:
                session.thread.ranking.rest()
            self._text.rest(session)

    @staticmethod
    async def _record(session: SessionManager, message: str, key: str | None, reason: RejectReason) -> None:
        fields: TurnRejectedPayload = {"user_message": message, "reason": reason}
        if key is not None:
            fields["idempotency_key"] = key
        session.rejecting += 1
        try:
            await session.write(events.TURN_REJECTED, session.session_id, fields)
        finally:
            session.rejecting -= 1
        session.request_commit()


_REASONS: dict[type[Exception], RejectReason] = {
    SessionBusy: "busy",
    Overloaded: "overloaded",
    WaitedTooLong: "overloaded",
    TurnReplaced: "replaced",
    UnsupportedPart: "unsupported",
}
