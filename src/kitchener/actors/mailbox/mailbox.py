"""Hosts a plain component's one method behind a bounded mailbox.

A component (`HO1Executor`, `LLMGateway`) knows nothing of mailboxes. A `Mailbox` gives it lanes: each lane has a bounded queue
and a limited number of workers. `ask` puts an envelope into the lane and waits for the one-shot reply. What the
mailbox does not know: what the messages mean. Above it stand the hosts (`hosts.py`); below it only anyio.

Guarantees, explained in `docs/actors.md`:

- Either the reply, or an error, or the asker's cancellation; a pending reply is never forgotten, also when the actor ends.
- A cancelled asker cancels its own message's handler and nobody else's, and waits (bounded) until that has stopped.
- A message whose asker is gone before work started is dropped, and its handler never runs.
- A handler that raises an unexpected error fails its own asker only; its worker starts afresh with the next message.
  `max_restarts` such errors inside the window stop the actor with the last one as the cause. Where messages have an origin,
  all errors with messages of one origin count as one: nobody stops the actor for others.
- A cancellation that comes from no scope of the mailbox, as of a task that the handler waited for, fails that one message.
"""

import traceback
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import anyio
import structlog
from anyio.abc import TaskGroup

from kitchener.actors.mailbox.calling_chain import CALLING_CHAIN
from kitchener.actors.mailbox.wakeups import EventSignal, Signal, Wakeup, signals
from kitchener.cancellation import cut_off, ends_when_told, is_own_failure, is_scope_cancelled
from kitchener.errors import ActorStopped, KitchenerError, Overloaded, origin_of

logger = structlog.get_logger(__name__)

Asked = TypeVar("Asked")
Replied = TypeVar("Replied")

ASKERS_CONTEXT: ContextVar[Context | None] = ContextVar("ASKERS_CONTEXT", default=None)
"""The context variables of whoever sent the message that is being handled; None outside of a worker. Tools run with them."""

_FAILED_IN = "failed in the actor "
INTERACTIVE = "interactive"
BACKGROUND = "background"


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """The bounds of one lane."""

    concurrency: int
    """Messages handled at the same time."""
    capacity: int
    """Messages that may wait; further askers wait for room."""
    idle_workers: int = 256
    """Workers kept for the next message; more than these end when they have nothing to do."""


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """A lane's state at one moment."""

    waiting: int
    running: int
    idle: int
    asking_for_room: int


class Envelope(Wakeup, Generic[Asked, Replied]):
    """A message on its way: with its asker's calling chain and the slot for its one reply, which wakes the asker."""

    __slots__ = ("chain", "context", "error", "is_abandoned", "message", "on_done", "reply", "scope", "stopped")

    def __init__(self, message: Asked, signal: Signal, on_done: Callable[[], None] | None = None) -> None:
        self._signal = signal
        self.is_set = False
        self.message = message
        self.chain = CALLING_CHAIN.get()
        self.context = copy_context()
        self.on_done = on_done
        self.reply: Replied | None = None
        self.error: BaseException | None = None
        self.scope: anyio.CancelScope | None = None
        """Of the worker that has begun with it; cancelling it ends that worker and nothing else."""
        self.is_abandoned = False
        self.stopped: anyio.Event | None = None
        """What the asker waits for after it has abandoned a message that is being handled."""

    def finish(self, reply: Replied | None = None, error: BaseException | None = None) -> None:
        """Fills the reply slot, once."""
        if not self.is_set:
            self.reply, self.error = reply, error
            self.set()
            if self.stopped is not None:
                self.stopped.set()
            if self.on_done is not None:
                self.on_done()


class _Lane:
    """A lane's queue and workers.

    Workers are called one at a time, and each that comes calls two more while messages are left. So a burst has its workers
    after a few rounds of the event loop, and where the handler does not wait, as with a model in this process, one worker
    that is called once serves all of it.
    """

    __slots__ = ("coming", "idle", "limits", "queue", "room", "woken", "workers")

    def __init__(self, limits: LaneLimits) -> None:
        self.limits = limits
        self.queue: deque[Envelope[Any, Any]] = deque()
        self.idle: list[Wakeup] = []
        """What each parked worker waits for."""
        self.room: deque[tuple[Envelope[Any, Any], Wakeup]] = deque()
        """Askers that wait for room, in order; their envelopes are moved into the queue for them."""
        self.workers = 0
        self.coming = 0
        """Workers that were called and have not looked into the queue yet."""
        self.woken = 0
        """Those of them that had been idle."""

    def is_full(self) -> bool:
        """Whether there is no room for another message; what an idle worker is going to take needs none."""
        waiting, capacity = len(self.queue), self.limits.capacity
        return waiting >= capacity and waiting >= capacity + len(self.idle) + self.woken

    def fill(self) -> None:
        """Moves envelopes that wait for room into the queue, as far as there is room."""
        while self.room and not self.is_full():
            envelope, place = self.room.popleft()
            self.queue.append(envelope)
            place.set()


class Mailbox(Generic[Asked, Replied]):
    """A bounded mailbox with lanes in front of one handler.

    Args:
        handler: the component's method; runs in a worker task of this mailbox
        name: for errors and logs
        lanes: the lanes by name; a lane asked for by another name gets the limits of `interactive`
        max_restarts, restart_window_s: how many unexpected errors of the handler stop the actor
        abort_grace_s: how long a cancelled asker waits for its handler to stop, seconds
        origin: on whose behalf a message is; None: each message is on its own behalf
    """

    def __init__(
        self,
        handler: Callable[[Asked], Awaitable[Replied]],
        *,
        name: str,
        lanes: dict[str, LaneLimits],
        max_restarts: int,
        restart_window_s: float,
        abort_grace_s: float,
        origin: Callable[[Asked], object] | None = None,
    ) -> None:
        self._handler = handler
        self._origin = origin
        self._name = name
        self._lanes: defaultdict[str, _Lane] = defaultdict(lambda: _Lane(lanes[INTERACTIVE]))
        self._lanes.update((lane, _Lane(limits)) for lane, limits in lanes.items())
        self._max_restarts = max_restarts
        self._failures: deque[tuple[float, object]] = deque()
        """When the actor failed inside the window, and on whose behalf: each origin once."""
        self._restart_window_s = restart_window_s
        self._abort_grace_s = abort_grace_s
        self._tasks: TaskGroup | None = None
        self._fatal: Exception | None = None
        self._stop = anyio.Event()
        self._signal: Callable[[], Signal] = EventSignal

    @asynccontextmanager
    async def open(self) -> AsyncIterator["Mailbox[Asked, Replied]"]:
        """Takes messages while the context is open. Replies still pending when it closes become `ActorStopped`.

        Raises:
            ExceptionGroup: of one `ActorStopped`, if the handler failed too often; the last failure is its cause
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

    async def ask(self, message: Asked, *, deadline: float, lane: str = INTERACTIVE) -> Replied:
        """The handler's reply to the message.

        Args:
            message: handed to the handler as it is
            deadline: on the event loop's clock, seconds; covers waiting for room, for a worker and for the reply
            lane: which lane takes it

        Raises:
            Overloaded: no room before the deadline; the handler never saw the message
            TimeoutError: no reply before the deadline; the handler was cancelled
            ActorStopped: the actor ended first
            Exception: whatever the handler raised
        """
        envelope: Envelope[Asked, Replied] | None = None
        with anyio.CancelScope(deadline=deadline):
            envelope = await self.post(message, lane=lane)
            return await self.reply(envelope)
        if envelope is None:
            raise Overloaded(f"the mailbox of {self._name}", self._lanes[lane].limits.capacity)
        raise TimeoutError(f"{self._name} did not reply before the deadline")

    async def ask_within(self, message: Asked, *, lane: str = INTERACTIVE) -> Replied:
        """As `ask`, for a caller that already runs inside a scope with the right deadline."""
        envelope: Envelope[Asked, Replied] = Envelope(message, self._signal())
        box = self._lanes[lane]
        if not self._put(box, envelope):
            await self._wait_for_room(box, envelope)
        return await self.reply(envelope)

    async def ask_here(self, message: Asked, *, lane: str = INTERACTIVE) -> Replied:
        """As `ask_within`, but while a worker's place is free and nobody waits, the handler runs in the asker's own task.

        That saves two switches of tasks. Bounds, order and the counting of failures are the same; the asker's cancellation
        is the handler's, and an actor that closes waits for such an asker as for any other caller of its own.
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
        self, message: Asked, *, lane: str = INTERACTIVE, on_done: Callable[[], None] | None = None
    ) -> Envelope[Asked, Replied]:
        """Puts the message into the lane, waiting for room if it is full; `reply` or `abandon` must follow.

        `on_done` is called when the reply slot is filled, whoever fills it.
        """
        envelope: Envelope[Asked, Replied] = Envelope(message, self._signal(), on_done)
        box = self._lanes[lane]
        if not self._put(box, envelope):
            await self._wait_for_room(box, envelope)
        return envelope

    async def reply(self, envelope: Envelope[Asked, Replied]) -> Replied:
        """Waits for the reply to a posted message; being cancelled here abandons it."""
        if not envelope.is_set:
            try:
                await envelope
            except BaseException:
                await self.abandon(envelope)
                raise
        if envelope.error is not None:
            raise envelope.error
        return envelope.reply  # type: ignore[return-value]  # set whenever error is None and done is set

    async def abandon(self, envelope: Envelope[Asked, Replied]) -> None:
        """Nobody waits for this reply any more: drops the message, or cancels its handler and waits until it stopped."""
        if envelope.is_set:
            return
        envelope.is_abandoned = True
        if envelope.scope is None:  # nobody has begun with it
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
        """Each lane's queue and workers now."""
        return {
            name: LaneStatistics(
                max(0, len(lane.queue) - len(lane.idle) - lane.woken),
                lane.workers - len(lane.idle),
                len(lane.idle),
                len(lane.room),
            )
            for name, lane in self._lanes.items()
        }

    def _put(self, lane: _Lane, envelope: Envelope[Any, Any]) -> bool:
        """Puts the envelope into the lane; False: there is no room."""
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

    async def _wait_for_room(self, lane: _Lane, envelope: Envelope[Any, Any]) -> None:
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

    def _call_worker(self, lane: _Lane) -> None:
        """Has one more worker look into the queue, if there is a message for it and a place to work."""
        if len(lane.queue) <= lane.coming or self._fatal is not None:
            return
        if lane.idle:
            lane.coming += 1
            lane.woken += 1
            lane.idle.pop().set()
        elif lane.workers < lane.limits.concurrency and self._tasks is not None:
            lane.coming += 1
            lane.workers += 1
            # A worker serves many askers, so it starts with no context variables of the one who happened to call it.
            Context().run(partial(self._tasks.start_soon, self._work, lane, name=f"{self._name} worker"))

    async def _work(self, lane: _Lane) -> None:
        try:
            await self._serve(lane)
        except anyio.get_cancelled_exc_class():
            if is_scope_cancelled():
                raise
            # Else the task group would take the end of one worker for its own, and close in silence.
            logger.error("actor's worker was cancelled by something else", actor=self._name)
        self._call_worker(lane)

    async def _serve(self, lane: _Lane) -> None:
        """Takes one message after the other, until the worker is told to end or is not needed."""
        envelope: Envelope[Asked, Replied] | None = None
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

    async def _park(self, lane: _Lane) -> None:
        """Waits until the worker is called."""
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

    async def _handle(self, envelope: Envelope[Asked, Replied]) -> None:
        CALLING_CHAIN.set(envelope.chain)
        ASKERS_CONTEXT.set(envelope.context)
        try:
            reply = await self._handler(envelope.message)
        except KitchenerError as error:
            envelope.finish(error=error)  # an answer, not a failure of the actor
        except BaseException as error:  # the actor's loop: the one place that outlives a bug
            # The task is the mailbox's own: only its scopes may cancel what runs in it.
            is_cancelled = isinstance(error, anyio.get_cancelled_exc_class()) and not is_scope_cancelled()
            if not is_cancelled and not is_own_failure(error):
                raise
            envelope.finish(error=self._noted(error, envelope.message))
            if is_cancelled:
                raise  # asyncio may still count the task as cancelled, so this worker takes no further message
        else:
            envelope.finish(reply)

    def _noted(self, error: BaseException, message: Asked) -> Exception:
        """What the asker is told of an unexpected error, which counts from now on."""
        if not isinstance(error, Exception):
            error = cut_off(self._name, error)  # raised as it is, it would end the task of whoever asked
        if not any(note.startswith(_FAILED_IN) for note in getattr(error, "__notes__", ())):
            self._note_failure(error, message)
        return error  # with a note: the bug of another actor, which has counted it, on its way to whoever asked

    def _note_failure(self, error: Exception, message: Asked) -> None:
        error.add_note(f"{_FAILED_IN}{self._name}")
        frames = "".join(traceback.format_tb(error.__traceback__))
        logger.error("actor failed", actor=self._name, error=origin_of(error), traceback=frames)
        now, failures = anyio.current_time(), self._failures
        while failures and now - failures[0][0] > self._restart_window_s:
            failures.popleft()
        origin = self._origin(message) if self._origin is not None else None
        if origin is not None and any(origin == counted for _, counted in failures):
            return
        failures.append((now, origin))
        if len(failures) >= self._max_restarts:
            self._fatal = error
            self._stop.set()

    async def _watch(self) -> None:
        with ends_when_told(f"the watch over {self._name}"):
            await self._stop.wait()
        raise ActorStopped(
            f"{self._name} failed {self._max_restarts} times within {self._restart_window_s:g} s and was stopped"
        ) from self._fatal

    def _drop_all(self) -> None:
        for lane in self._lanes.values():
            while lane.room:
                envelope, place = lane.room.popleft()
                envelope.finish(error=self._stopped())
                place.set()
            while lane.queue:
                lane.queue.popleft().finish(error=self._stopped())
