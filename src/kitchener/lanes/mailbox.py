"""Queues messages for one method of a component and runs the method in a limited number of workers.

A `Mailbox` gives a component lanes. Each lane has a bounded queue and a limited number of workers. `ask` puts an envelope into
a lane and waits for its one reply; `stream` also receives the items that the handler gives before. A mailbox does not know what
its messages mean. HO1 and the gateway stand behind mailboxes. `fair_queue.py` decides the order of a lane's queue.

Guarantees, explained in `docs/actors.md`:

- Each ask ends with the reply, an error, or the asker's cancellation. No pending reply is lost when the actor ends.
- A cancelled asker cancels the handler of its own message only. It waits until that handler has stopped, for a limited time.
- How the handler of a message ends that nobody wants any more, or that the mailbox cancels, is dropped.
- If the asker is cancelled before work starts, the message is dropped and its handler never runs.
- An unexpected error of a handler fails its own asker only; the worker continues with the next message. `max_restarts` such
  errors inside the window stop the actor, with the last error as the cause. If messages have an origin, all errors of one
  origin count as one, so that no single origin can stop the actor for others.
- A cancellation from outside the mailbox's scopes, such as that of a task that the handler awaited, fails that message only.
"""

import traceback
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context
from functools import partial
from typing import Final, Generic, TypedDict

import anyio
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from kitchener.cancellation import cut_off, ends_when_told, failed_alone, is_scope_cancelled
from kitchener.clock import loop_clock
from kitchener.errors import ActorStopped, KitchenerError, Overloaded
from kitchener.lanes.askers import ASKERS_CONTEXT, tell_turn
from kitchener.lanes.calling_chain import CALLING_CHAIN
from kitchener.lanes.envelope import Desk, Envelope, ItemT, MessageT, Outlet, ReplyT
from kitchener.lanes.failure_window import FailureWindow
from kitchener.lanes.fair_queue import LaneStatistics
from kitchener.lanes.wakeups import EventSignal, FutureLike, Parking, parkings, signals
from kitchener.lanes.worker_lane import NEVER, LaneLimits, WorkerLane
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of

logger = get_logger(__name__)

_FAILED_IN = "failed in the actor "
_MOST_ENTERED: Final = 2
"""Messages that begin inside each other's askers, as where a tool takes a turn; a deeper one waits for the event loop, which
has a stack of its own for each worker."""
INTERACTIVE = "interactive"
BACKGROUND = "background"
RESTART_WINDOW_S: Final = 60.0
"""The window of `max_restarts` under a runtime, seconds: as many failures within a minute are no passing trouble."""


class MailboxBounds(TypedDict):
    """The name and the limits of a mailbox, as arguments of `Mailbox`."""

    name: str
    lanes: dict[str, LaneLimits]
    max_restarts: int
    restart_window_s: float
    abort_grace_s: float


class Mailbox(Generic[MessageT, ReplyT]):
    """A bounded mailbox with lanes in front of one handler.

    Args:
        handler: the component's method; runs in a worker task of this mailbox
        name: the actor's name in errors and logs
        lanes: the lanes by name; a lane with another name gets the limits of `interactive`
        max_restarts, restart_window_s: number of unexpected errors within this many seconds that stops the actor
        abort_grace_s: how long a cancelled asker waits for its handler to stop, seconds
        origin: returns the origin of a message, such as its subject; lanes are fair between origins. None: all messages have
            one origin, and each error counts by itself
        now: the event loop's clock, seconds; None: that of the running loop
    """

    def __init__(
        self,
        handler: Callable[[MessageT], Awaitable[ReplyT]],
        *,
        name: str,
        lanes: dict[str, LaneLimits],
        max_restarts: int,
        restart_window_s: float,
        abort_grace_s: float,
        origin: Callable[[MessageT], object] | None = None,
        now: Callable[[], float] | None = None,
    ) -> None:
        self._handler = handler
        self._origin = origin
        self._name = name
        self._now: Callable[[], float] = now or loop_clock()
        lane_of = partial(WorkerLane[MessageT, ReplyT], now=self._now, is_fair=origin is not None)
        self._lanes: defaultdict[str, WorkerLane[MessageT, ReplyT]] = defaultdict(lambda: lane_of(lanes[INTERACTIVE]))
        self._lanes.update((lane, lane_of(limits)) for lane, limits in lanes.items())
        self._failures = FailureWindow(max_restarts, restart_window_s)
        self._abort_grace_s = abort_grace_s
        self._tasks: TaskGroup | None = None
        self._fatal: Exception | None = None
        self._stop = anyio.Event()
        self._closed_as = "is not open: enter its `open()` first"
        self._signal: Callable[[], FutureLike] = EventSignal
        self._parking: Callable[[], Parking] = EventSignal
        self._entered = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Mailbox[MessageT, ReplyT]"]:
        """Accepts messages while the context is open. On exit, pending replies fail with `ActorStopped`.

        Raises:
            ExceptionGroup: holds one `ActorStopped` if the handler failed too often; the last failure is its cause
        """
        self._signal, self._parking, self._closed_as = signals(), parkings(), "has stopped"
        body_error: Exception | None = None
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._watch, name=f"the watch over {self._name}")
                try:
                    yield self
                except Exception as error:  # noqa: BLE001  raised again below, outside the task group, which would wrap it
                    body_error = error
                self._tasks = None
                tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
            for lane in self._lanes:
                self.refuse(lane, self._stopped)
        if body_error is not None:
            raise body_error

    async def ask(self, message: MessageT, *, deadline: float, lane: str = INTERACTIVE) -> ReplyT:
        """Returns the handler's reply to the message.

        Args:
            message: passed to the handler unchanged
            deadline: on the event loop's clock, seconds; covers waiting for room, for a worker and for the reply
            lane: the lane of the message

        Raises:
            Overloaded: no room before the deadline; the handler never saw the message
            TimeoutError: no reply before the deadline; the handler was cancelled
            ActorStopped: the actor ended first
            Exception: any error that the handler raised
        """
        envelope = self._put(message, lane)
        with anyio.CancelScope(deadline=deadline):
            return await self._reply(envelope, lane)
        if not envelope.has_room:
            raise self._overloaded(lane)
        raise TimeoutError(f"{self._name} did not reply before the deadline")

    async def ask_within(
        self,
        message: MessageT,
        *,
        lane: str = INTERACTIVE,
        begin_by: float = NEVER,
        cost: int = 0,
        is_return: bool = False,
    ) -> ReplyT:
        """Like `ask`, but the caller, or the handler itself, bounds the time of the work.

        If the caller is cancelled while the message waits for room, its turn learns of that (`lanes/askers.py`).

        Args:
            message: passed to the handler unchanged
            lane: the lane of the message
            begin_by: when a worker must have taken the message, on the event loop's clock, seconds
            cost: what the lane's pacing books for the message
            is_return: whether the message was handled before in vain. It then waits in front of the others

        Raises:
            Overloaded: no room until `begin_by`; the handler never saw the message
            TimeoutError: no worker until `begin_by`, or the pacing allows none before; the handler never saw the message
            ActorStopped: the actor ended first
            Exception: any error that the handler raised
        """
        envelope = self._put(message, lane, begin_by, cost, is_return)
        if envelope.is_set and not envelope.asker_is_cancelled:
            return _outcome(envelope)  # an idle worker has replied at once
        return await self._reply(envelope, lane)

    async def stream(
        self,
        message: MessageT,
        outlet: Outlet[ItemT],
        *,
        lane: str = INTERACTIVE,
        begin_by: float = NEVER,
        cost: int = 0,
        is_return: bool = False,
    ) -> AsyncGenerator[ItemT | ReplyT, None]:
        """Yields the items that the handler gives through the outlet, and then its reply. Otherwise like `ask_within`.

        The handler waits while the caller works with an item. Closing the generator cancels the handler.
        """
        envelope = self._put(message, lane, begin_by, cost, is_return, outlet)
        try:
            if envelope.asker_is_cancelled:
                await checkpoint()  # ends with the cancellation
            while True:
                if not outlet.items:
                    if envelope.is_set:
                        break
                    await self._wait(envelope, lane)
                if outlet.items:
                    yield outlet.items.pop()
                    outlet.resume()
        except BaseException:
            await self._abandon(envelope, lane)
            raise
        finally:
            outlet.release()
        yield _outcome(envelope)

    def refuse(self, lane: str, error: Callable[[], Exception], whom: Callable[[MessageT], bool] = lambda _: True) -> None:
        """Ends the wait of a lane's messages for which `whom` is True, with an error. Messages that have begun continue."""
        queue = self._lanes[lane].queue
        for envelope in queue.entries():
            if whom(envelope.message):
                queue.withdraw(envelope)
                envelope.finish(error=error())

    def statistics(self) -> dict[str, LaneStatistics]:
        """The current counts of each lane, and of its waits so far."""
        return {name: lane.queue.statistics(len(lane.idle)) for name, lane in self._lanes.items()}

    def _put(
        self,
        message: MessageT,
        lane: str,
        begin_by: float = NEVER,
        cost: int = 0,
        is_return: bool = False,
        outlet: Outlet[ItemT] | None = None,
    ) -> Envelope[MessageT, ReplyT]:
        """Puts the message into the lane, where it waits for room if the queue is full. An idle worker begins it at once."""
        if self._tasks is None or self._fatal is not None:
            raise self._stopped()
        origin = self._origin(message) if self._origin is not None else None
        box = self._lanes[lane]
        envelope: Envelope[MessageT, ReplyT] = Envelope(message, origin, begin_by, cost)
        if outlet is not None:
            outlet.bind(envelope.nudge, self._signal)
        desk = box.put(envelope, is_return)
        if desk is not None:
            self._resume(desk, envelope)
        elif not box.coming:
            self._call_worker(box)
        return envelope

    async def _reply(self, envelope: Envelope[MessageT, ReplyT], lane: str) -> ReplyT:
        """Waits for the reply to a message. Cancelling this call abandons the message."""
        try:
            if envelope.asker_is_cancelled:
                await checkpoint()  # ends with the cancellation
            while not envelope.is_set:
                await self._wait(envelope, lane)
        except BaseException:
            await self._abandon(envelope, lane)
            raise
        return _outcome(envelope)

    async def _wait(self, envelope: Envelope[MessageT, ReplyT], lane: str) -> None:
        """Waits until the envelope wakes its asker, and until `begin_by` if no worker takes the message."""
        if envelope.begin_by == NEVER or envelope.scope is not None:
            await envelope.woken(self._signal())
            return
        with anyio.CancelScope(deadline=envelope.begin_by) as envelope.patience:
            await envelope.woken(self._signal())
            return
        if envelope.scope is not None:
            return  # a worker took it in the moment in which the wait ended
        if not envelope.has_room:
            raise self._overloaded(lane)
        raise TimeoutError(f"{self._name} did not begin before the deadline")

    async def _abandon(self, envelope: Envelope[MessageT, ReplyT], lane: str) -> None:
        """Drops a message whose reply is no longer needed, or cancels its handler and waits until the handler has stopped.

        The wait ends after `abort_grace_s`.
        """
        if envelope.is_set:
            envelope.error = None  # nobody will raise it, and the frames of its traceback hold the envelope
            return
        if envelope.scope is None:  # no worker has taken it
            box = self._lanes[lane]
            if envelope.desk is not None:
                envelope.desk.envelope = None
                box.queue.end(envelope.origin)
            else:
                if not envelope.has_room:
                    tell_turn(self._overloaded(lane), self._now())
                box.queue.withdraw(envelope)
            envelope.finish(error=self._stopped())
            self._call_worker(box)  # the next message may be due earlier
            return
        envelope.scope.cancel()
        stopped = envelope.stopped = envelope.stopped or anyio.Event()
        with anyio.move_on_after(self._abort_grace_s, shield=True):
            await stopped.wait()
        envelope.is_set, envelope.error = True, None  # as above, also where the handler stops only later

    def _overloaded(self, lane: str) -> Overloaded:
        limits = self._lanes[lane].limits
        return Overloaded(limits.name or f"the mailbox of {self._name}", limits.capacity)

    def _stopped(self) -> KitchenerError:
        stopped = ActorStopped(f"{self._name} {self._closed_as}")
        stopped.__cause__ = self._fatal
        return stopped

    def _resume(self, desk: Desk[MessageT, ReplyT], envelope: Envelope[MessageT, ReplyT]) -> None:
        """Lets a worker begin the message on its desk: at once, inside the asker's task, where the backend allows it."""
        if self._entered >= _MOST_ENTERED:
            desk.set()
            return
        self._entered += 1
        try:
            envelope.asker_is_cancelled = desk.resume()
        finally:
            self._entered -= 1

    def _call_worker(self, lane: WorkerLane[MessageT, ReplyT]) -> None:
        """Wakes or starts one more worker if a message and a worker slot are available."""
        if lane.queue.waiting <= lane.coming or self._fatal is not None or not lane.queue.may_start():
            return
        if lane.alarm is not None and lane.pacing is not None:
            # A worker sleeps until the first message is due, and that may be earlier now.
            first = lane.queue.first()
            if first is not None and min(lane.pacing.ready_at(first.cost), first.begin_by) < lane.due:
                lane.alarm.set()
            return
        if lane.idle:
            lane.coming += 1
            lane.idle.pop().set()
        elif lane.workers < lane.limits.concurrency and self._tasks is not None:
            lane.coming += 1
            lane.workers += 1
            # A worker serves many askers, so it starts without the context variables of the asker that started it.
            Context().run(partial(self._tasks.start_soon, self._work, lane, name=f"{self._name} worker"))

    async def _work(self, lane: WorkerLane[MessageT, ReplyT]) -> None:
        try:
            await self._serve(lane)
        except anyio.get_cancelled_exc_class():
            if is_scope_cancelled():
                raise
            # Otherwise the task group would treat this cancellation as its own and close without an error.
            logger.error("actor's worker was cancelled by something else", actor=self._name)
        self._call_worker(lane)

    async def _serve(self, lane: WorkerLane[MessageT, ReplyT]) -> None:
        """Handles messages one after the other, until the worker is cancelled or is one idle worker too many."""
        queue = lane.queue
        desk: Desk[MessageT, ReplyT] = Desk(self._parking())
        lane.coming -= 1
        has_come = True
        try:
            with anyio.CancelScope() as scope:
                # A scope that was cancelled for one message must not see the next one.
                while not scope.cancel_called and self._fatal is None:
                    envelope = desk.envelope
                    if envelope is None and queue.waiting and (envelope := lane.next(self._name)) is not None:
                        queue.start(envelope)
                        desk.envelope = envelope
                    if envelope is not None:
                        if queue.waiting and (has_come or not lane.coming):
                            self._call_worker(lane)
                            self._call_worker(lane)
                        has_come = False
                        await self._handle(envelope, scope)
                        desk.envelope = None
                        queue.end(envelope.origin)
                    elif lane.alarm is None and lane.due != NEVER:
                        await lane.sleep(self._signal())
                        has_come = True
                    elif len(lane.idle) < lane.limits.idle_workers:
                        await lane.park(desk, self._parking())
                        has_come = True
                    else:
                        break
        finally:
            lane.workers -= 1
            envelope, desk.envelope = desk.envelope, None
            if envelope is not None:
                queue.end(envelope.origin)
                envelope.finish(error=self._stopped())

    async def _handle(self, envelope: Envelope[MessageT, ReplyT], scope: anyio.CancelScope) -> None:
        envelope.scope = scope
        if envelope.patience is not None:
            envelope.patience.deadline = NEVER  # the message has begun
        CALLING_CHAIN.set(envelope.chain)
        ASKERS_CONTEXT.set(envelope.context)
        try:
            reply = await self._handler(envelope.message)
        except BaseException as error:  # the actor's loop must survive a bug in the handler
            # Of a message that was abandoned, nobody wants to know how its handler ended.
            if not await failed_alone(error, in_own_task=True):
                raise
            if isinstance(error, KitchenerError):
                envelope.finish(error=error)  # an answer, not a failure of the actor
                return
            envelope.finish(error=self._noted(error, envelope.message))
            if isinstance(error, anyio.get_cancelled_exc_class()):
                raise  # asyncio may still count the task as cancelled, so this worker takes no further message
        else:
            envelope.finish(reply)

    def _noted(self, error: BaseException, message: MessageT) -> Exception:
        """Counts an unexpected error and returns the exception for the asker."""
        if not isinstance(error, Exception):
            error = cut_off(self._name, error)  # unchanged, it would end the asker's task
        if not any(note.startswith(_FAILED_IN) for note in getattr(error, "__notes__", ())):
            error.add_note(f"{_FAILED_IN}{self._name}")
            frames = "".join(traceback.format_tb(error.__traceback__))
            logger.error("actor failed", actor=self._name, error=origin_of(error), traceback=frames)
            if self._failures.add(anyio.current_time(), self._origin(message) if self._origin is not None else None):
                self._fatal = error
                self._stop.set()
        return error  # an error with a note comes from another actor, which has already counted it

    async def _watch(self) -> None:
        with ends_when_told(f"the watch over {self._name}"):
            await self._stop.wait()
        raise ActorStopped(
            f"{self._name} failed {self._failures.limit} times within {self._failures.window_s:g} s and was stopped"
        ) from self._fatal


def _outcome(envelope: Envelope[MessageT, ReplyT]) -> ReplyT:
    """The reply of a message, or its error, which is raised once.

    The frames of the error's traceback hold the envelope and this function's names: neither may hold the error in turn.
    """
    error, envelope.error = envelope.error, None
    if error is not None:
        try:
            raise error
        finally:
            del error
    return envelope.reply  # type: ignore[return-value]  # set whenever error is None and the wakeup is set
