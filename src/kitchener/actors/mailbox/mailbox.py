"""Queues messages for one method of a component and runs the method in a limited number of workers.

A component (`HO1Executor`) knows nothing of mailboxes. A `Mailbox` gives the component lanes. Each lane has a bounded queue and
a limited number of workers. `ask` puts an envelope into a lane and waits for its one reply. A mailbox does not know what its
messages mean. `hosts.py` uses it. The order of a lane's queue is that of `kitchener.lanes`.

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
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypedDict, TypeVar

import anyio
from anyio.abc import TaskGroup

from kitchener.actors.mailbox.calling_chain import CALLING_CHAIN
from kitchener.cancellation import cut_off, ends_when_told, is_own_failure, is_scope_cancelled
from kitchener.clock import loop_clock
from kitchener.errors import ActorStopped, KitchenerError, Overloaded
from kitchener.lanes.askers import ASKERS_CONTEXT, tell_turn
from kitchener.lanes.fair_queue import FairQueue, LaneStatistics
from kitchener.lanes.wakeups import EventSignal, FutureLike, Wakeup, signals
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of

logger = get_logger(__name__)

MessageT = TypeVar("MessageT")
ReplyT = TypeVar("ReplyT")

_FAILED_IN = "failed in the actor "
INTERACTIVE = "interactive"
BACKGROUND = "background"


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """The limits of one lane."""

    concurrency: int
    """Messages handled at the same time."""
    capacity: int
    """Messages in the queue; further ones wait for room."""
    idle_workers: int = 256
    """Idle workers kept for later messages; a worker beyond this number ends when the queue is empty."""


class Envelope(Wakeup, Generic[MessageT, ReplyT]):
    """A message with its asker's calling chain and the slot for its one reply. Filling the slot wakes the asker."""

    __slots__ = (
        "chain",
        "context",
        "error",
        "has_room",
        "message",
        "origin",
        "queue",
        "reply",
        "scope",
        "stopped",
        "waits_since",
    )

    def __init__(
        self, message: MessageT, origin: object, signal: FutureLike, queue: "FairQueue[Envelope[MessageT, ReplyT]]"
    ) -> None:
        self._signal = signal
        self.is_set = False
        self.message, self.origin, self.queue = message, origin, queue
        self.chain = CALLING_CHAIN.get()
        self.context = copy_context()
        self.reply: ReplyT | None = None
        self.error: BaseException | None = None
        self.scope: anyio.CancelScope | None = None
        """The cancel scope of the worker that handles the message; None before a worker takes it."""
        self.has_room = False
        self.waits_since: float | None = None
        self.stopped: anyio.Event | None = None
        """Set when the handler of an abandoned message has stopped; None unless the asker waits for that."""

    def finish(self, reply: ReplyT | None = None, error: BaseException | None = None) -> None:
        """Fills the reply slot; later calls have no effect."""
        if not self.is_set:
            self.reply, self.error = reply, error
            self.set()
            if self.stopped is not None:
                self.stopped.set()


class _WorkerLane(Generic[MessageT, ReplyT]):
    """A lane's queue and workers.

    Workers are woken one at a time. Each woken worker wakes two more while messages are left, so a burst gets all its workers
    after a few rounds of the event loop. If the handler never waits, as with a model in this process, one worker serves the
    whole burst.
    """

    __slots__ = ("coming", "idle", "limits", "queue", "workers")

    def __init__(self, limits: LaneLimits, now: Callable[[], float], *, is_fair: bool) -> None:
        self.limits = limits
        self.queue: FairQueue[Envelope[MessageT, ReplyT]] = FairQueue(
            limits.concurrency, limits.capacity, now=now, is_fair=is_fair
        )
        self.idle: list[Wakeup] = []
        """One wakeup for each idle worker."""
        self.workers = 0
        self.coming = 0
        """Workers that were started or woken and have not looked into the queue yet."""


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
        origin: returns the origin of a message, such as its subject; lanes are fair between origins. None: all messages have
            one origin, and each error counts by itself
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
        lane_of = partial(_WorkerLane[MessageT, ReplyT], now=loop_clock(), is_fair=origin is not None)
        self._lanes: defaultdict[str, _WorkerLane[MessageT, ReplyT]] = defaultdict(lambda: lane_of(lanes[INTERACTIVE]))
        self._lanes.update((lane, lane_of(limits)) for lane, limits in lanes.items())
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
        envelope = self._put(message, lane)
        with anyio.CancelScope(deadline=deadline):
            return await self._reply(envelope)
        if not envelope.has_room:
            raise self._overloaded(lane)
        raise TimeoutError(f"{self._name} did not reply before the deadline")

    async def ask_within(self, message: MessageT, *, lane: str = INTERACTIVE) -> ReplyT:
        """Like `ask`, but without a deadline. The caller runs inside a scope with a deadline.

        If the caller is cancelled while the message waits for room, its turn learns of that (`lanes/askers.py`).
        """
        envelope = self._put(message, lane)
        try:
            return await self._reply(envelope)
        except anyio.get_cancelled_exc_class():
            if not envelope.has_room:
                tell_turn(self._overloaded(lane), anyio.current_time())
            raise

    def statistics(self) -> dict[str, LaneStatistics]:
        """The current counts of each lane, and of its waits so far."""
        return {name: lane.queue.statistics(len(lane.idle)) for name, lane in self._lanes.items()}

    def _put(self, message: MessageT, lane: str) -> Envelope[MessageT, ReplyT]:
        """Puts the message into the lane, where it waits for room if the queue is full."""
        if self._tasks is None or self._fatal is not None:
            raise self._stopped()
        origin = self._origin(message) if self._origin is not None else None
        box = self._lanes[lane]
        envelope = Envelope(message, origin, self._signal(), box.queue)
        box.queue.push(envelope)
        if not box.coming:
            self._call_worker(box)
        return envelope

    async def _reply(self, envelope: Envelope[MessageT, ReplyT]) -> ReplyT:
        """Waits for the reply to a message. Cancelling this call abandons the message."""
        if not envelope.is_set:
            try:
                await envelope
            except BaseException:
                await self._abandon(envelope)
                raise
        if envelope.error is not None:
            raise envelope.error
        return envelope.reply  # type: ignore[return-value]  # set whenever error is None and the wakeup is set

    async def _abandon(self, envelope: Envelope[MessageT, ReplyT]) -> None:
        """Drops a message whose reply is no longer needed, or cancels its handler and waits until the handler has stopped.

        The wait ends after `abort_grace_s`.
        """
        if envelope.is_set:
            return
        if envelope.scope is None:  # no worker has taken it
            envelope.queue.withdraw(envelope)
            envelope.finish(error=self._stopped())
            return
        envelope.scope.cancel()
        stopped = envelope.stopped = envelope.stopped or anyio.Event()
        with anyio.move_on_after(self._abort_grace_s, shield=True):
            await stopped.wait()

    def _overloaded(self, lane: str) -> Overloaded:
        return Overloaded(f"the mailbox of {self._name}", self._lanes[lane].limits.capacity)

    def _stopped(self) -> KitchenerError:
        stopped = ActorStopped(f"{self._name} has stopped")
        stopped.__cause__ = self._fatal
        return stopped

    def _call_worker(self, lane: _WorkerLane[MessageT, ReplyT]) -> None:
        """Wakes or starts one more worker if a message and a worker slot are available."""
        if lane.queue.waiting <= lane.coming or self._fatal is not None or not lane.queue.may_start():
            return
        if lane.idle:
            lane.coming += 1
            lane.idle.pop().set()
        elif lane.workers < lane.limits.concurrency and self._tasks is not None:
            lane.coming += 1
            lane.workers += 1
            # A worker serves many askers, so it starts without the context variables of the asker that started it.
            Context().run(partial(self._tasks.start_soon, self._work, lane, name=f"{self._name} worker"))

    async def _work(self, lane: _WorkerLane[MessageT, ReplyT]) -> None:
        try:
            await self._serve(lane)
        except anyio.get_cancelled_exc_class():
            if is_scope_cancelled():
                raise
            # Otherwise the task group would treat this cancellation as its own and close without an error.
            logger.error("actor's worker was cancelled by something else", actor=self._name)
        self._call_worker(lane)

    async def _serve(self, lane: _WorkerLane[MessageT, ReplyT]) -> None:
        """Handles messages one after the other, until the worker is cancelled or is one idle worker too many."""
        queue = lane.queue
        envelope: Envelope[MessageT, ReplyT] | None = None
        lane.coming -= 1
        has_come = True
        try:
            with anyio.CancelScope() as scope:
                # A scope that was cancelled for one message must not see the next one.
                while not scope.cancel_called and self._fatal is None:
                    envelope = queue.first()
                    if envelope is not None:
                        queue.start(envelope)
                        if queue.waiting and (has_come or not lane.coming):
                            self._call_worker(lane)
                            self._call_worker(lane)
                        has_come = False
                        envelope.scope = scope
                        await self._handle(envelope)
                        queue.end(envelope.origin)
                        envelope = None
                    elif len(lane.idle) < lane.limits.idle_workers:
                        await self._park(lane)
                        has_come = True
                    else:
                        break
        finally:
            lane.workers -= 1
            if envelope is not None:
                queue.end(envelope.origin)
                envelope.finish(error=self._stopped())

    async def _park(self, lane: _WorkerLane[MessageT, ReplyT]) -> None:
        """Waits as an idle worker until a message wakes it."""
        wake = Wakeup(self._signal())
        lane.idle.append(wake)
        try:
            await wake
        finally:
            if wake.is_set:
                lane.coming -= 1
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
            for envelope in lane.queue.entries():
                lane.queue.withdraw(envelope)
                envelope.finish(error=self._stopped())
