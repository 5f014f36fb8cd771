"""A lane of a mailbox: its bounded queue, its pace, and how its workers wait for messages.

`mailbox.py` starts the workers and runs the handler in them. `fair_queue.py` decides which message comes next. Explained in
`docs/actors.md`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol

import anyio

from kitchener.lanes.envelope import Desk, Envelope, MessageT, ReplyT
from kitchener.lanes.fair_queue import FairQueue
from kitchener.lanes.wakeups import FutureLike, Parking, Wakeup

NEVER: Final = float("inf")


class Pacing(Protocol):
    """Delays the messages of a lane, whatever workers are free."""

    is_on: bool
    """Whether anything may be delayed."""

    def ready_at(self, cost: int) -> float:
        """When a message of this cost may begin, on the event loop's clock, seconds."""
        ...

    def take(self, cost: int, now: float) -> None:
        """Books a message that begins now."""
        ...


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """How much a lane handles at once, and how much may wait in it."""

    concurrency: int
    """Messages handled at the same time."""
    capacity: int
    """Messages in the queue; further ones wait for room."""
    idle_workers: int = 256
    """Idle workers kept for later messages; a worker beyond this number ends when the queue is empty."""
    name: str | None = None
    """The lane's queue in errors; None: `the mailbox of` the actor."""
    pacing: Pacing | None = None
    """Delays the lane's messages; None: nothing does."""


class WorkerLane(Generic[MessageT, ReplyT]):
    """A lane's queue and workers.

    Workers are woken one at a time. Each woken worker wakes two more while messages are left, so a burst gets all its workers
    after a few rounds of the event loop. If the handler never waits, as with a model in this process, one worker serves the
    whole burst.
    """

    __slots__ = ("_now", "alarm", "coming", "due", "idle", "limits", "pacing", "queue", "workers")

    def __init__(self, limits: LaneLimits, now: Callable[[], float], *, is_fair: bool) -> None:
        self.limits, self._now = limits, now
        self.queue: FairQueue[Envelope[MessageT, ReplyT]] = FairQueue(
            limits.concurrency, limits.capacity, now=now, is_fair=is_fair
        )
        self.idle: list[Desk[MessageT, ReplyT]] = []
        """The desks of idle workers."""
        self.workers = 0
        self.coming = 0
        """Workers that were started or woken and have not looked into the queue yet."""
        self.pacing = limits.pacing
        self.alarm: Wakeup | None = None
        """Wakes the one worker that sleeps until the pacing lets the first message begin; None: no worker sleeps."""
        self.due = NEVER
        """When that worker wakes, on the event loop's clock."""

    def put(self, envelope: Envelope[MessageT, ReplyT], is_return: bool) -> Desk[MessageT, ReplyT] | None:
        """Puts the message on the desk of an idle worker, who is to be woken, if it may begin now; otherwise into the queue."""
        queue, is_unpaced = self.queue, self.pacing is None or not self.pacing.is_on
        if self.idle and is_unpaced and not queue.waiting and queue.try_start(envelope.origin):
            self.coming += 1
            desk = envelope.desk = self.idle.pop()
            desk.envelope = envelope
            envelope.begin_by = NEVER
            return desk
        queue.push(envelope)
        if is_return:
            queue.move_to_front(envelope)
        return None

    def next(self, actor: str) -> Envelope[MessageT, ReplyT] | None:
        """The message that may begin now. If only the pacing delays one, `due` says until when.

        A message that the pacing allows only after its `begin_by` fails with `TimeoutError`.
        """
        pacing = self.pacing
        while (envelope := self.queue.first()) is not None:
            if pacing is None or not pacing.is_on:
                return envelope
            now, due = self._now(), pacing.ready_at(envelope.cost)
            if due <= now:
                pacing.take(envelope.cost, now)
                return envelope
            if due <= envelope.begin_by:
                if due < self.due:
                    self.due = due
                    if self.alarm is not None:
                        self.alarm.set()
                return None
            self.queue.withdraw(envelope)
            envelope.finish(error=TimeoutError(f"{actor} cannot begin before the deadline"))
        return None

    async def sleep(self, signal: FutureLike) -> None:
        """Waits until the pacing lets the first message begin, or until that may have changed."""
        alarm = self.alarm = Wakeup(signal)
        try:
            with anyio.CancelScope(deadline=self.due):
                await alarm
        finally:
            self.alarm, self.due = None, NEVER

    async def park(self, desk: Desk[MessageT, ReplyT], parking: Parking) -> None:
        """Waits as an idle worker until it gets a message, or is called to the queue."""
        desk.prepare(parking)
        self.idle.append(desk)
        try:
            await desk
        finally:
            if desk.is_set:
                self.coming -= 1
            else:
                self.idle.remove(desk)
