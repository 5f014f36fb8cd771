"""Queues messages for one method of a component and runs the method in a limited number of workers.

A component (`HO1Executor`, `LLMGateway`) knows nothing of mailboxes. A `Mailbox` gives the component lanes. Each lane has a
bounded queue and a limited number of workers. `ask` puts an envelope into a lane and waits for its one reply. A mailbox does
not know what its messages mean. The hosts (`hosts.py`) use it; it uses only anyio.

Guarantees, explained in `docs/actors.md`:

- Each ask ends with the reply, an error, or the asker's cancellation. No pending reply is lost when the actor ends.
- A cancelled asker cancels the handler of its own message only. It waits until that handler has stopped, for a limited time.
- If the asker is cancelled before work starts, the message is dropped and its handler never runs.
- An unexpected error of a handler fails its own asker only; the worker continues with the next message. `max_restarts` such
  errors inside the window stop the actor, with the last error as the cause. If messages have an origin, all errors of one
  origin count as one, so that no single origin can stop the actor for others.
- A cancellation from outside the mailbox's scopes, such as that of a task that the handler awaited, fails that message only.
"""

import traceback
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypedDict, TypeVar

import anyio
from anyio.abc import TaskGroup

from kitchener.actors.mailbox.calling_chain import CALLING_CHAIN
from kitchener.actors.mailbox.wakeups import EventSignal, FutureLike, Wakeup, signals
from kitchener.cancellation import cut_off, ends_when_told, is_own_failure, is_scope_cancelled
from kitchener.errors import ActorStopped, KitchenerError, Overloaded, origin_of
from kitchener.logs import get_logger

logger = get_logger(__name__)

MessageT = TypeVar("MessageT")
ReplyT = TypeVar("ReplyT")

ASKERS_CONTEXT: ContextVar[Context | None] = ContextVar("ASKERS_CONTEXT", default=None)
"""The context variables of the asker whose message is being handled; None outside of a worker. Tools run in this context."""

_FAILED_IN = "failed in the actor "
INTERACTIVE = "interactive"
BACKGROUND = "background"


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """The limits of one lane."""

    concurrency: int
    """Messages handled at the same time."""
    capacity: int
    """Messages in the queue; further askers wait for room."""
    idle_workers: int = 256
    """Idle workers kept for later messages; a worker beyond this number ends when the queue is empty."""


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """Message and worker counts of a lane at one moment."""

    waiting: int
    running: int
    idle: int
    asking_for_room: int


class Envelope(Wakeup, Generic[MessageT, ReplyT]):
    """A message with its asker's calling chain and the slot for its one reply. Filling the slot wakes the asker."""

    __slots__ = ("chain", "context", "error", "is_abandoned", "message", "on_done", "reply", "scope", "stopped")

    def __init__(self, message: MessageT, signal: FutureLike, on_done: Callable[[], None] | None = None) -> None:
        self._signal = signal
        self.is_set = False
        self.message = message
        self.chain = CALLING_CHAIN.get()
        self.context = copy_context()
        self.on_done = on_done
        self.reply: ReplyT | None = None
        self.error: BaseException | None = None
        self.scope: anyio.CancelScope | None = None
        """The cancel scope of the worker that handles the message; None before a worker takes it."""
        self.is_abandoned = False
        self.stopped: anyio.Event | None = None
        """Set when the handler of an abandoned message has stopped; None unless the asker waits for that."""

    def finish(self, reply: ReplyT | None = None, error: BaseException | None = None) -> None:
        """Fills the reply slot; later calls have no effect."""
        if not self.is_set:
            self.reply, self.error = reply, error
            self.set()
            if self.stopped is not None:
                self.stopped.set()
            if self.on_done is not None:
                self.on_done()


class _Lane(Generic[MessageT, ReplyT]):
    """A lane's queue and workers.

    Workers are woken one at a time. Each woken worker wakes two more while messages are left, so a burst gets all its workers
    after a few rounds of the event loop. If the handler never waits, as with a model in this process, one worker serves the
    whole burst.
    """

    __slots__ = ("coming", "idle", "limits", "queue", "room", "woken", "workers")

    def __init__(self, limits: LaneLimits) -> None:
        self.limits = limits
        self.queue: deque[Envelope[MessageT, ReplyT]] = deque()
        self.idle: list[Wakeup] = []
        """One wakeup for each idle worker."""
        self.room: deque[tuple[Envelope[MessageT, ReplyT], Wakeup]] = deque()
        """Askers that wait for room, in order, with their envelopes."""
        self.workers = 0
        self.coming = 0
        """Workers that were started or woken and have not looked into the queue yet."""
        self.woken = 0
        """Woken workers among `coming`; the others were newly started."""

    def is_full(self) -> bool:
        """Whether the queue has no room. A message that an idle worker will take needs no room."""
        waiting, capacity = len(self.queue), self.limits.capacity
        return waiting >= capacity and waiting >= capacity + len(self.idle) + self.woken

    def fill(self) -> None:
        """Moves waiting envelopes into the queue until it is full."""
        while self.room and not self.is_full():
            envelope, place = self.room.popleft()
            self.queue.append(envelope)
            place.set()


class MailboxBounds(TypedDict):
    """The name and the limits of a mailbox, as arguments of `Mailbox`."""

    name: str
    lanes: dict[str, LaneLimits]
    max_restarts: int
    restart_window_s: float
    abort_grace_s: float


class FailureWindow:
    """Counts failures within a sliding window of time, one for each origin.

    Args:
        limit: the number of failures that is too many
        window_s: length of the window, seconds
    """

    def __init__(self, limit: int, window_s: float) -> None:
        self.limit, self.window_s = limit, window_s
        self._failures: deque[tuple[float, object]] = deque()

    def add(self, now: float, origin: object) -> bool:
        """Counts a failure. Returns whether there are now too many.

        Args:
            now: on the event loop's clock, seconds
            origin: one origin counts once; None: the failure counts by itself
        """
        failures = self._failures
        while failures and now - failures[0][0] > self.window_s:
            failures.popleft()
        if origin is not None and any(origin == counted for _, counted in failures):
            return False
        failures.append((now, origin))
        return len(failures) >= self.limit


class Mailbox(Generic[MessageT, ReplyT]):
    """A bounded mailbox with lanes in front of one handler.

    Args:
        handler: the component's method; runs in a worker task of this mailbox
        name: the actor's name in errors and logs
        lanes: the lanes by name; a lane with another name gets the limits of `interactive`
        max_restarts, restart_window_s: number of unexpected errors within this many seconds that stops the actor
        abort_grace_s: how long a cancelled asker waits for its handler to stop, seconds
        origin: returns the origin of a message, such as its subject; None: each error counts by itself
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
    ) -> None:
        self._handler = handler
        self._origin = origin
        self._name = name
        self._lanes: defaultdict[str, _Lane[MessageT, ReplyT]] = defaultdict(lambda: _Lane(lanes[INTERACTIVE]))
        self._lanes.update((lane, _Lane(limits)) for lane, limits in lanes.items())
        self._failures = FailureWindow(max_restarts, restart_window_s)
        self._abort_grace_s = abort_grace_s
        self._tasks: TaskGroup | None = None
        self._fatal: Exception | None = None
        self._stop = anyio.Event()
        self._signal: Callable[[], FutureLike] = EventSignal

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Mailbox[MessageT, ReplyT]"]:
        """Accepts messages while the context is open. On exit, pending replies fail with `ActorStopped`.

        Raises:
            ExceptionGroup: holds one `ActorStopped` if the handler failed too often; the last failure is its cause
        """
        self._signal = signals()
        try:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                tasks.start_soon(self._watch)
                yield self
                self._tasks = None
                tasks.cancel_scope.cancel()
        finally:
            self._tasks = None
            self._drop_all()

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
        envelope: Envelope[MessageT, ReplyT] | None = None
        with anyio.CancelScope(deadline=deadline):
            envelope = await self.post(message, lane=lane)
            return await self.reply(envelope)
        if envelope is None:
            raise Overloaded(f"the mailbox of {self._name}", self._lanes[lane].limits.capacity)
        raise TimeoutError(f"{self._name} did not reply before the deadline")

    async def ask_within(self, message: MessageT, *, lane: str = INTERACTIVE) -> ReplyT:
        """Like `ask`, but without a deadline. The caller runs inside a scope with a deadline."""
        envelope: Envelope[MessageT, ReplyT] = Envelope(message, self._signal())
        box = self._lanes[lane]
        if not self._put(box, envelope):
            await self._wait_for_room(box, envelope)
        return await self.reply(envelope)

    async def ask_here(self, message: MessageT, *, lane: str = INTERACTIVE) -> ReplyT:
        """Like `ask_within`, but runs the handler in the asker's own task if a worker slot is free and no message waits.

        This saves two task switches. Limits, order and failure counts are the same. Cancelling the asker cancels the handler
        directly. The actor does not cancel such a handler when it closes.
        """
        box = self._lanes[lane]
        if self._tasks is None or self._fatal is not None:
            raise self._stopped()
        if box.queue or box.room or box.workers >= box.limits.concurrency:
            return await self.ask_within(message, lane=lane)
        box.workers += 1
        try:
            return await self._handler(message)
        except KitchenerError:
            raise
        except BaseException as error:
            if not is_own_failure(error):
                raise
            noted = self._noted(error, message)
            if noted is error:
                raise
            raise noted from error
        finally:
            box.workers -= 1
            if box.queue:
                self._call_worker(box)

    async def post(
        self, message: MessageT, *, lane: str = INTERACTIVE, on_done: Callable[[], None] | None = None
    ) -> Envelope[MessageT, ReplyT]:
        """Puts the message into the lane, after waiting for room if the lane is full. `reply` or `abandon` must follow.

        Args:
            message: passed to the handler unchanged
            lane: the lane of the message
            on_done: called when the reply slot is filled, also with an error; None: no call
        """
        envelope: Envelope[MessageT, ReplyT] = Envelope(message, self._signal(), on_done)
        box = self._lanes[lane]
        if not self._put(box, envelope):
            await self._wait_for_room(box, envelope)
        return envelope

    async def reply(self, envelope: Envelope[MessageT, ReplyT]) -> ReplyT:
        """Waits for the reply to a posted message. Cancelling this call abandons the message."""
        if not envelope.is_set:
            try:
                await envelope
            except BaseException:
                await self.abandon(envelope)
                raise
        if envelope.error is not None:
            raise envelope.error
        return envelope.reply  # type: ignore[return-value]  # set whenever error is None and done is set

    async def abandon(self, envelope: Envelope[MessageT, ReplyT]) -> None:
        """Drops a message whose reply is no longer needed, or cancels its handler and waits until the handler has stopped.

        The wait ends after `abort_grace_s`.
        """
        if envelope.is_set:
            return
        envelope.is_abandoned = True
        if envelope.scope is None:  # no worker has taken it
            envelope.finish(error=self._stopped())
            for lane in self._lanes.values():
                if envelope in lane.queue:
                    lane.queue.remove(envelope)
                    lane.fill()
            return
        envelope.scope.cancel()
        stopped = envelope.stopped = envelope.stopped or anyio.Event()
        with anyio.move_on_after(self._abort_grace_s, shield=True):
            await stopped.wait()

    def statistics(self) -> dict[str, LaneStatistics]:
        """The current counts of each lane."""
        return {
            name: LaneStatistics(
                max(0, len(lane.queue) - len(lane.idle) - lane.woken),
                lane.workers - len(lane.idle),
                len(lane.idle),
                len(lane.room),
            )
            for name, lane in self._lanes.items()
        }

    def _put(self, lane: _Lane[MessageT, ReplyT], envelope: Envelope[MessageT, ReplyT]) -> bool:
        """Appends the envelope to the lane's queue. Returns False if the queue is full."""
        if self._tasks is None or self._fatal is not None:
            raise self._stopped()
        if lane.room or lane.is_full():
            return False
        lane.queue.append(envelope)
        if not lane.coming:
            self._call_worker(lane)
        return True

    def _stopped(self) -> KitchenerError:
        stopped = ActorStopped(f"{self._name} has stopped")
        stopped.__cause__ = self._fatal
        return stopped

    async def _wait_for_room(self, lane: _Lane[MessageT, ReplyT], envelope: Envelope[MessageT, ReplyT]) -> None:
        place = Wakeup(self._signal())
        lane.room.append((envelope, place))
        try:
            await place
        except BaseException:
            if place.is_set:
                await self.abandon(envelope)
            else:
                lane.room.remove((envelope, place))
            raise
        if not lane.coming:
            self._call_worker(lane)

    def _call_worker(self, lane: _Lane[MessageT, ReplyT]) -> None:
        """Wakes or starts one more worker if a message and a worker slot are available."""
        if len(lane.queue) <= lane.coming or self._fatal is not None:
            return
        if lane.idle:
            lane.coming += 1
            lane.woken += 1
            lane.idle.pop().set()
        elif lane.workers < lane.limits.concurrency and self._tasks is not None:
            lane.coming += 1
            lane.workers += 1
            # A worker serves many askers, so it starts without the context variables of the asker that started it.
            Context().run(partial(self._tasks.start_soon, self._work, lane, name=f"{self._name} worker"))

    async def _work(self, lane: _Lane[MessageT, ReplyT]) -> None:
        try:
            await self._serve(lane)
        except anyio.get_cancelled_exc_class():
            if is_scope_cancelled():
                raise
            # Otherwise the task group would treat this cancellation as its own and close without an error.
            logger.error("actor's worker was cancelled by something else", actor=self._name)
        self._call_worker(lane)

    async def _serve(self, lane: _Lane[MessageT, ReplyT]) -> None:
        """Handles messages one after the other, until the worker is cancelled or is one idle worker too many."""
        envelope: Envelope[MessageT, ReplyT] | None = None
        lane.coming -= 1
        has_come = True
        try:
            with anyio.CancelScope() as scope:
                # A scope that was cancelled for one message must not see the next one.
                while not scope.cancel_called and self._fatal is None:
                    if lane.queue:
                        envelope = lane.queue.popleft()
                        if lane.room:
                            lane.fill()
                        if has_come and lane.queue:
                            self._call_worker(lane)
                            self._call_worker(lane)
                        has_come = False
                        if not envelope.is_abandoned:
                            envelope.scope = scope
                            await self._handle(envelope)
                        envelope = None
                    elif len(lane.idle) < lane.limits.idle_workers:
                        await self._park(lane)
                        has_come = True
                    else:
                        break
        finally:
            lane.workers -= 1
            if envelope is not None:
                envelope.finish(error=self._stopped())

    async def _park(self, lane: _Lane[MessageT, ReplyT]) -> None:
        """Waits as an idle worker until a message wakes it."""
        wake = Wakeup(self._signal())
        lane.idle.append(wake)
        try:
            await wake
        finally:
            if wake.is_set:
                lane.coming -= 1
                lane.woken -= 1
            else:
                lane.idle.remove(wake)

    async def _handle(self, envelope: Envelope[MessageT, ReplyT]) -> None:
        CALLING_CHAIN.set(envelope.chain)
        ASKERS_CONTEXT.set(envelope.context)
        try:
            reply = await self._handler(envelope.message)
        except KitchenerError as error:
            envelope.finish(error=error)  # an answer, not a failure of the actor
        except BaseException as error:  # the actor's loop must survive a bug in the handler
            # This task belongs to the mailbox, so only the mailbox's scopes may cancel it.
            is_cancelled = isinstance(error, anyio.get_cancelled_exc_class()) and not is_scope_cancelled()
            if not is_cancelled and not is_own_failure(error):
                raise
            envelope.finish(error=self._noted(error, envelope.message))
            if is_cancelled:
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

    def _drop_all(self) -> None:
        for lane in self._lanes.values():
            while lane.room:
                envelope, place = lane.room.popleft()
                envelope.finish(error=self._stopped())
                place.set()
            while lane.queue:
                lane.queue.popleft().finish(error=self._stopped())
