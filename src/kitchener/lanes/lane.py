"""A bounded lane whose askers do the work: each takes one of the lane's places, after waiting for its turn, and leaves it.

The gateway has a lane for each provider, and the runtime one for its turns. The asker's own task works in the place, so a
cancelled asker stops its work at once and frees the place. `fair_queue.py` decides who comes next. This module starts no task.
Explained in `docs/actors.md`.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from kitchener.clock import loop_clock, scope_class
from kitchener.errors import Overloaded
from kitchener.lanes.askers import tell_turn
from kitchener.lanes.fair_queue import FairQueue, LaneStatistics
from kitchener.lanes.wakeups import Wakeup, signals

Outcome = Literal["entered", "late", "no room", "sent away"]
"""How a wait ended. `late`: it had room in the queue, but no place before the deadline. `no room`: the queue was full until
the deadline. `sent away`: `Lane.send_away` ended it."""

_AWAKE = float("-inf")


class Pacing(Protocol):
    """Delays the work in a lane, whatever places are free."""

    is_on: bool
    """Whether anything may be delayed."""

    def ready_at(self, cost: int) -> float:
        """When work of this cost may begin, on the event loop's clock, seconds."""
        ...

    def take(self, cost: int, now: float) -> None:
        """Books work that begins now."""
        ...


class _Unpaced:
    """The pacing of a lane that delays nothing."""

    is_on = False

    def ready_at(self, cost: int) -> float:
        return _AWAKE

    def take(self, cost: int, now: float) -> None:
        pass


class _LaneAsker:
    """An asker that waits. Its task awaits `wakeup`, which is set with the outcome, or to make it the timekeeper."""

    __slots__ = ("alarm", "cost", "deadline", "has_room", "origin", "outcome", "waits_since", "wakeup")

    def __init__(self, origin: object, cost: int, deadline: float, wakeup: Wakeup) -> None:
        self.origin, self.cost, self.deadline, self.wakeup = origin, cost, deadline, wakeup
        self.has_room = False
        self.waits_since: float | None = None
        self.outcome: Outcome | None = None
        self.alarm = _AWAKE
        """When the task wakes by itself, on the event loop's clock; minus infinity while it is awake."""


class Lane:
    """The places of a lane, taken by the tasks that ask for them.

    Args:
        name: the lane's name in errors
        places: most places that are taken at the same time
        capacity: most askers that wait in the queue; further ones ask for room
        now: the event loop's clock, seconds; None: that of the running loop
        pacing: delays the work in the lane; None: nothing does
    """

    def __init__(
        self, name: str, places: int, capacity: int, *, now: Callable[[], float] | None = None, pacing: Pacing | None = None
    ) -> None:
        self._name, self._now = name, now or loop_clock()
        self._queue: FairQueue[_LaneAsker] = FairQueue(places, capacity, now=self._now)
        self._pacing = pacing or _Unpaced()
        self._timekeeper: _LaneAsker | None = None
        self._due = float("inf")
        self._signal, self._scope = signals(), scope_class()

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

    def overloaded(self) -> Overloaded:
        """The error for an asker that finds no room."""
        return Overloaded(self._name, self._queue.capacity)

    def has_room(self, origin: object) -> bool:
        """Whether an asker of this origin could wait in the queue now."""
        return self._queue.has_room(origin)

    def try_enter(self, origin: object = "", cost: int = 0, now: float | None = None) -> bool:
        """Takes a place if that is possible without waiting. Returns whether it did; if so, `leave` must follow."""
        pacing = self._pacing
        if not pacing.is_on:
            return self._queue.try_start(origin)
        if now is None:
            now = self._now()
        if self._queue.waiting or pacing.ready_at(cost) > now or not self._queue.try_start(origin):
            return False
        pacing.take(cost, now)
        return True

    async def enter(self, origin: object, deadline: float, cost: int = 0) -> Outcome:
        """Takes a place after waiting for its turn. An asker that is cancelled while it waits has not entered.

        Args:
            origin: the subject whose share of the lane counts
            deadline: on the event loop's clock, seconds
            cost: what the pacing books for the work

        Returns:
            `entered`: `leave` must follow. Any other outcome: no place was taken
        """
        if self.try_enter(origin, cost):
            return "entered"
        waiter = _LaneAsker(origin, cost, deadline, Wakeup(self._signal()))
        self._queue.push(waiter)
        try:
            self._serve()
            while waiter.outcome is None:
                await self._sleep(waiter)
        except BaseException:
            if waiter.outcome == "entered":
                self._queue.end(origin)
            elif waiter.outcome is None:
                if not waiter.has_room:
                    tell_turn(self.overloaded(), self._now())
                self._queue.withdraw(waiter)
            self._hand_over(waiter)
            raise
        self._hand_over(waiter)
        if waiter.outcome == "no room":  # its turn's deadline may pass in the same moment
            tell_turn(self.overloaded(), self._now())
        return waiter.outcome

    def leave(self, origin: object = "") -> None:
        """Frees a place and gives it to the next asker."""
        self._queue.end(origin)
        if self._queue.waiting:
            self._serve()

    def send_away(self) -> None:
        """Ends every wait, without a place."""
        for waiter in self._queue.entries():
            self._dismiss(waiter, "sent away")

    def _serve(self) -> None:
        """Gives each free place to the next asker. If only the pacing delays that one, it becomes the timekeeper."""
        queue, pacing = self._queue, self._pacing
        self._due = float("inf")
        while (waiter := queue.first()) is not None:
            if pacing.is_on:
                now, due = self._now(), pacing.ready_at(waiter.cost)
                if now < due <= waiter.deadline:
                    self._due, self._timekeeper = due, waiter
                    if due < waiter.alarm:
                        waiter.wakeup.set()
                    return
                if due > now:
                    self._dismiss(waiter, "late")
                    continue
                pacing.take(waiter.cost, now)
            queue.start(waiter)
            waiter.outcome = "entered"
            waiter.wakeup.set()

    def _dismiss(self, waiter: _LaneAsker, outcome: Outcome) -> None:
        self._queue.withdraw(waiter)
        waiter.outcome = outcome
        waiter.wakeup.set()

    def _hand_over(self, waiter: _LaneAsker) -> None:
        """Passes a leaving asker's place or its role as timekeeper to the next one."""
        if self._timekeeper is waiter:
            self._timekeeper = None
        if self._queue.waiting:
            self._serve()

    async def _sleep(self, waiter: _LaneAsker) -> None:
        """Waits until there is an outcome, the asker becomes the timekeeper, or its alarm or deadline passes."""
        waiter.alarm = min(waiter.deadline, self._due) if self._timekeeper is waiter else waiter.deadline
        if not waiter.wakeup.is_set:
            with self._scope(deadline=waiter.alarm):
                await waiter.wakeup
        if waiter.outcome is not None:
            return
        waiter.wakeup, waiter.alarm = Wakeup(self._signal()), _AWAKE
        if self._timekeeper is waiter:
            self._serve()
        if waiter.outcome is None and self._now() >= waiter.deadline:
            self._dismiss(waiter, "late" if waiter.has_room else "no room")
