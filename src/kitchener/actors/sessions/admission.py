"""Who may run a turn, and when: the session's own FIFO first, then the runtime's limit of running turns, fair to subjects.

Both are bounded and both waits end at the admission deadline. Whatever is turned away is recorded as `TURN_REJECTED`
and consumes no turn number, so that no input is lost silently. What a turn does is not known here. Explained in
`docs/sessions.md`.
"""

from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import anyio

from kitchener.actors.mailbox.wakeups import Wakeup, signals
from kitchener.actors.sessions.directory import SessionManager
from kitchener.clock import loop_clock, scope_class
from kitchener.config import HO2Config
from kitchener.errors import Overloaded, RuntimeClosed, SessionBusy, TurnReplaced
from kitchener.records import events
from kitchener.records.turn import TurnCall

RejectReason = Literal["busy", "overloaded", "replaced"]


class TurnLimiter:
    """At most so many turns run at once, of all sessions of a runtime; others wait, and only so many.

    Subjects are served in turn, and in order within a subject. One subject leaves an eighth of the slots and a quarter of the
    places in line to others, so nobody keeps everybody out, however many sessions they open or streams they stop reading.
    Also counts running turns for a shutdown that waits for them.
    """

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._running_share, self._waiting_share = max_running - max_running // 8, max_waiting - max_waiting // 4
        self._lines: OrderedDict[str, deque[Wakeup]] = OrderedDict()
        """Who waits, by subject, in the order in which subjects are served."""
        self._running_of: dict[str, int] = {}
        """Slots by subject, of those who hold one."""
        self._closed = False
        self._idle: anyio.Event | None = None
        self.running = self.waiting = 0
        self._scopes: set[anyio.CancelScope] = set()
        self._signal, self._scope = signals(), scope_class()

    @property
    def is_closed(self) -> bool:
        """Whether no turns are admitted any more."""
        return self._closed

    def try_enter(self, subject_id: str = "") -> bool:
        """Takes a slot, as `enter`, if one is free for this subject."""
        if self._closed:
            raise RuntimeClosed("the runtime is shutting down and takes no more turns")
        # While a slot is free, all who wait have their share of slots: nobody is overtaken.
        if self.running >= self._max_running or self._running_of.get(subject_id, 0) >= self._running_share:
            return False
        self._take(subject_id)
        return True

    async def enter(self, deadline: float, subject_id: str = "") -> None:
        """Takes a slot; the caller must `leave`.

        Raises:
            Overloaded: too many wait, or too many of this subject, or the deadline passed; nothing was taken
            RuntimeClosed: no turns are admitted any more
        """
        if self.try_enter(subject_id):
            return
        line = self._lines.get(subject_id)
        if self.waiting >= self._max_waiting or (line is not None and len(line) >= self._waiting_share):
            raise Overloaded("the runtime's queue of turns", self._max_waiting)
        place = Wakeup(self._signal())
        self._lines.setdefault(subject_id, deque()).append(place)
        self.waiting += 1
        try:
            with self._scope(deadline=deadline):
                await place
        except BaseException:
            if place.is_set:
                self.leave(subject_id)  # the slot was ours just now: hand it on
            raise
        finally:
            if not place.is_set:
                self._forget(subject_id, place)
        if not place.is_set:
            raise Overloaded("the runtime's queue of turns", self._max_waiting)
        if self._closed:
            self.leave(subject_id)
            raise RuntimeClosed("the runtime is shutting down and takes no more turns")

    def leave(self, subject_id: str = "") -> None:
        """Gives the slot to the next in line."""
        self.running -= 1
        held = self._running_of[subject_id] - 1
        if held:
            self._running_of[subject_id] = held
        else:
            del self._running_of[subject_id]
        if self._lines and not self._closed:
            self._serve()
        if self._idle is not None:
            self._tell_if_idle()

    def close(self) -> None:
        """Admits nothing more; those in line are turned away."""
        self._closed = True
        for subject_id in list(self._lines):
            while subject_id in self._lines:
                self._give(subject_id)  # each of them gives its slot back on waking

    def _take(self, subject_id: str) -> None:
        self.running += 1
        self._running_of[subject_id] = self._running_of.get(subject_id, 0) + 1

    def _serve(self) -> None:
        """Gives a free slot to the first subject in line who has less than its share; at most one has all of it."""
        for subject_id in self._lines:
            if self._running_of.get(subject_id, 0) < self._running_share:
                self._give(subject_id)
                return

    def _give(self, subject_id: str) -> None:
        place = self._lines[subject_id][0]
        self._forget(subject_id, place)
        if subject_id in self._lines:
            self._lines.move_to_end(subject_id)
        self._take(subject_id)
        place.set()

    def _forget(self, subject_id: str, place: Wakeup) -> None:
        line = self._lines[subject_id]
        line.remove(place)
        self.waiting -= 1
        if not line:
            del self._lines[subject_id]

    def track(self, scope: anyio.CancelScope) -> None:
        """A running turn's scope, so that a shutdown can end it."""
        self._scopes.add(scope)

    def untrack(self, scope: anyio.CancelScope) -> None:
        """The turn of this scope is over."""
        self._scopes.discard(scope)
        if self._idle is not None:
            self._tell_if_idle()

    def cancel_running(self) -> None:
        """Cancels every running turn."""
        for scope in self._scopes:
            scope.cancel()

    async def wait_idle(self) -> None:
        """Returns when no turn runs, also none without a slot: a tool may have left one behind that was inside its own turn."""
        if self.running or self._scopes:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    def _tell_if_idle(self) -> None:
        if not self.running and not self._scopes and self._idle is not None:
            self._idle.set()
            self._idle = None


class SessionQueue:
    """The queue of one session: who runs, who waits. Exists only while somebody does."""

    __slots__ = ("is_replaced", "scope", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[_Place] = deque()
        self.scope: anyio.CancelScope | None = None
        """Of the running turn, once it has one."""
        self.is_replaced = False
        """The running turn was cancelled in favour of a newer message."""


class _Place:
    __slots__ = ("granted", "is_replaced", "is_turn")

    def __init__(self, *, is_turn: bool) -> None:
        self.granted = anyio.Event()
        self.is_replaced = False
        self.is_turn = is_turn


class Admission:
    """Lets messages of a session in, one at a time, by the session's overlap policy.

    Args:
        config: policy, queue length, admission deadline
        limiter: the runtime's limit of running turns
    """

    def __init__(self, config: HO2Config, limiter: TurnLimiter) -> None:
        self._config = config
        self._limiter = limiter
        self._now = loop_clock()

    async def enter(self, session: SessionManager, message: str, call: TurnCall, *, nested: bool) -> SessionQueue:
        """Takes the session, and a slot of the runtime, for a turn; `leave` must follow.

        A nested turn takes no slot: the turn that waits for it holds one already.

        Raises:
            SessionBusy, Overloaded, TurnReplaced, RuntimeClosed: not admitted; recorded, nothing was started
        """
        deadline = self._now() + self._config.admission_deadline_s
        if call.deadline is not None:
            deadline = min(deadline, call.deadline)
        try:
            queue = await self._enter_session(session, deadline)
            try:
                if not nested and not self._limiter.try_enter(session.subject_id):
                    await self._limiter.enter(deadline, session.subject_id)
                if queue.is_replaced:  # by a newer message, while this one waited
                    if not nested:
                        self._limiter.leave(session.subject_id)
                    raise TurnReplaced(session.session_id)
            except BaseException:
                self._leave_session(session)
                raise
        except (SessionBusy, Overloaded, TurnReplaced) as refusal:
            await self._record(session, message, call.idempotency_key, _REASONS[type(refusal)])
            raise
        return queue

    def leave(self, session: SessionManager, *, nested: bool) -> None:
        """Gives back what `enter` took."""
        if not nested:
            self._limiter.leave(session.subject_id)
        self._leave_session(session)

    @asynccontextmanager
    async def call(self, session: SessionManager) -> AsyncIterator[None]:
        """Holds the session for a call that is not a turn, through the same FIFO."""
        await self._enter_session(session, self._now() + self._config.admission_deadline_s, is_turn=False)
        try:
            yield
        finally:
            self._leave_session(session)

    async def expel(self, session: SessionManager, deadline: float) -> None:
        """Cancels the session's running turn, and returns when nobody holds the session or waits for it any more.

        Raises:
            Overloaded: somebody still did at the deadline
        """
        queue: SessionQueue | None = session.admission
        if queue is None:
            return
        if queue.scope is not None:
            queue.scope.cancel()
        await self._wait(queue, session, _Place(is_turn=False), deadline)
        self._leave_session(session)

    async def _enter_session(self, session: SessionManager, deadline: float, *, is_turn: bool = True) -> SessionQueue:
        queue: SessionQueue | None = session.admission
        if queue is None:
            queue = session.admission = SessionQueue()
            return queue
        policy = self._config.overlap_policy if is_turn else "queue"
        if policy == "reject":
            raise SessionBusy(session.session_id)
        if policy == "replace":
            self._replace(queue)
        elif len(queue.waiting) >= self._config.session_queue:
            raise Overloaded(f"the queue of session {session.session_id}", self._config.session_queue)
        await self._wait(queue, session, _Place(is_turn=is_turn), deadline)
        return queue

    async def _wait(self, queue: SessionQueue, session: SessionManager, place: _Place, deadline: float) -> None:
        queue.waiting.append(place)
        try:
            with anyio.CancelScope(deadline=deadline):
                await place.granted.wait()
        except BaseException:
            if place.granted.is_set() and not place.is_replaced:
                self._leave_session(session)  # it was our turn just now: hand it on
            raise
        finally:
            if not place.granted.is_set():
                queue.waiting.remove(place)
        if place.is_replaced:
            raise TurnReplaced(session.session_id)
        if not place.granted.is_set():
            raise Overloaded(f"the queue of session {session.session_id}", self._config.session_queue)

    @staticmethod
    def _replace(queue: SessionQueue) -> None:
        """Cancels the running turn and turns away those in line: only the newest message counts."""
        for place in [place for place in queue.waiting if place.is_turn]:
            queue.waiting.remove(place)
            place.is_replaced = True
            place.granted.set()
        queue.is_replaced = True
        if queue.scope is not None:
            queue.scope.cancel()

    @staticmethod
    def _leave_session(session: SessionManager) -> None:
        queue: SessionQueue = session.admission
        queue.scope = None
        queue.is_replaced = False
        if queue.waiting:
            queue.waiting.popleft().granted.set()
        else:
            session.admission = None

    @staticmethod
    async def _record(session: SessionManager, message: str, key: str | None, reason: RejectReason) -> None:
        fields: dict[str, Any] = {"user_message": message, "reason": reason}
        if key is not None:
            fields["idempotency_key"] = key
        await session.write(events.TURN_REJECTED, session.session_id, fields)
        session.request_commit()


_REASONS: dict[type[Exception], RejectReason] = {
    SessionBusy: "busy",
    Overloaded: "overloaded",
    TurnReplaced: "replaced",
}
