"""A bounded lane whose askers do the work: each takes one of the lane's places, after waiting for its turn, and leaves it.

The runtime has one for its turns. The asker's own task works in the place, so a cancelled asker stops its work at once and
frees the place. `fair_queue.py` decides who comes next. This module starts no task. Explained in `docs/actors.md`.
"""

from collections.abc import Callable
from typing import Literal

import anyio

from kitchener.clock import loop_clock
from kitchener.errors import Overloaded, WaitedTooLong
from kitchener.lanes.askers import tell_turn
from kitchener.lanes.fair_queue import FairQueue, LaneStatistics
from kitchener.lanes.wakeups import Wakeup, signals

Outcome = Literal["entered", "late", "no room", "sent away"]
"""How a wait ended. `late`: it had room in the queue, but no place before the deadline. `no room`: the queue was full until
the deadline. `sent away`: `Lane.send_away` ended it."""


class _LaneAsker:
    """An asker that waits. Its task awaits `wakeup`, which is set with the outcome."""

    __slots__ = ("has_room", "origin", "outcome", "waits_since", "wakeup")

    def __init__(self, origin: object, wakeup: Wakeup) -> None:
        self.origin, self.wakeup = origin, wakeup
        self.has_room = False
        self.waits_since: float | None = None
        self.outcome: Outcome | None = None


class Lane:
    """The places of a lane, taken by the tasks that ask for them.

    Args:
        name: the lane's name in errors
        places: most places that are taken at the same time
        capacity: most askers that wait in the queue; further ones ask for room
        now: the event loop's clock, seconds; None: that of the running loop
    """

    def __init__(self, name: str, places: int, capacity: int, *, now: Callable[[], float] | None = None) -> None:
        self._name, self._now = name, now or loop_clock()
        self._queue: FairQueue[_LaneAsker] = FairQueue(places, capacity, now=self._now)
        self._signal = signals()

    @property
    def running(self) -> int:
        """Places taken."""
        return self._queue.running

    @property
    def waiting(self) -> int:
        """Askers in the queue."""
        return self._queue.waiting

    def statistics(self) -> LaneStatistics:
        """The present counts of the lane, and of its waits so far."""
        return self._queue.statistics()

    def late(self, seconds: float) -> WaitedTooLong:
        """The error for an asker that was in the queue and got no place in so many seconds."""
        return WaitedTooLong(f"the wait in {self._name} for one of {self._queue.places:,} places", seconds)

    def overloaded(self) -> Overloaded:
        """The error for an asker that finds no room."""
        queue = self._queue
        if queue.is_full:
            return Overloaded(self._name, queue.capacity)
        return Overloaded(f"one subject's share of {self._name}", queue.queue_share)

    def has_room(self, origin: object) -> bool:
        """Whether an asker of this origin could wait in the queue now."""
        return self._queue.has_room(origin)

    def try_enter(self, origin: object = "") -> bool:
        """Takes a place if that is possible without waiting. Returns whether it did; if so, `leave` must follow."""
        return self._queue.try_start(origin)

    async def enter(self, origin: object, deadline: float) -> Outcome:
        """Takes a place after waiting for its turn. An asker that is cancelled while it waits has not entered.

        Args:
            origin: the subject whose share of the lane counts
            deadline: on the event loop's clock, seconds

        Returns:
            `entered`: `leave` must follow. Any other outcome: no place was taken
        """
        if self.try_enter(origin):
            return "entered"
        waiter = _LaneAsker(origin, Wakeup(self._signal()))
        self._queue.push(waiter)
        try:
            self._serve()
            with anyio.CancelScope(deadline=deadline):
                await waiter.wakeup
            if waiter.outcome is None:
                self._dismiss(waiter, "late" if waiter.has_room else "no room")
                self._serve()
        except BaseException:
            if waiter.outcome == "entered":
                self._queue.end(origin)
            elif waiter.outcome is None:
                if not waiter.has_room:
                    tell_turn(self.overloaded(), self._now())
                self._queue.withdraw(waiter)
            self._serve()
            raise
        if waiter.outcome == "no room":  # its turn's deadline may pass in the same moment
            tell_turn(self.overloaded(), self._now())
        assert waiter.outcome is not None
        return waiter.outcome

    def leave(self, origin: object = "") -> None:
        """Frees a place and gives it to the next asker."""
        self._queue.end(origin)
        self._serve()

    def send_away(self) -> None:
        """Ends every wait, without a place."""
        for waiter in self._queue.entries():
            self._dismiss(waiter, "sent away")

    def _serve(self) -> None:
        """Gives each free place to the next asker."""
        while (waiter := self._queue.first()) is not None:
            self._queue.start(waiter)
            waiter.outcome = "entered"
            waiter.wakeup.set()

    def _dismiss(self, waiter: _LaneAsker, outcome: Outcome) -> None:
        self._queue.withdraw(waiter)
        waiter.outcome = outcome
        waiter.wakeup.set()
