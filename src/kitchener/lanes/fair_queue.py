"""Decides which of the entries that wait for a place in a lane comes next, and how many may wait. The one rule of fairness.

Subjects are served in rotation, and the entries of one subject in order. One subject leaves an eighth of the places and a
quarter of the queue to others, so that no subject can block them. Beyond the queue's capacity an entry asks for room, in the
same order. This module awaits nothing. `lane.py` gives the places to the tasks that ask, and the mailbox to its workers.
Explained in `docs/actors.md`.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar


class QueueEntry(Protocol):
    """What waits in a queue."""

    origin: object
    """The subject, or another key of the rotation."""
    has_room: bool
    """Whether it is in the queue; otherwise it asks for room. Set by the queue."""
    waits_since: float | None
    """When it came, on the event loop's clock, if no place was free then. Set by the queue."""


EntryT = TypeVar("EntryT", bound=QueueEntry)
_Lines = OrderedDict[object, OrderedDict[EntryT, None]]
"""Entries by origin, in the order in which origins are served. Removal takes constant time."""


@dataclass(frozen=True, slots=True)
class LaneStatistics:
    """The counts of a lane at one moment, and of its waits so far."""

    waiting: int
    """Those that wait in the queue."""
    running: int
    """Places taken."""
    idle: int
    """Workers without a message; 0 in a lane whose askers do the work."""
    asking_for_room: int
    """Asking for room, as the queue is full."""
    waited: int = 0
    """How many got a place after a wait, since the start."""
    longest_wait_s: float = 0.0
    """The longest such wait, seconds."""
    given_up: int = 0
    """How many gave up while they asked for room, or were refused since there was none, since the start."""
    places: int = 0
    """Most that run at the same time."""
    capacity: int = 0
    """Most that wait in the queue."""


class FairQueue(Generic[EntryT]):
    """The places of a lane and the entries that wait for one.

    Args:
        places: most entries that run at the same time
        capacity: most entries in the queue, besides those that a free place is about to take
        now: the event loop's clock, seconds
        is_fair: False: one origin may take every place; for entries that all have one origin
    """

    __slots__ = (
        "_asking",
        "_is_fair",
        "_lines",
        "_now",
        "_running_of",
        "asking",
        "capacity",
        "given_up",
        "longest_wait_s",
        "place_share",
        "places",
        "queue_share",
        "running",
        "waited",
        "waiting",
    )

    def __init__(self, places: int, capacity: int, *, now: Callable[[], float], is_fair: bool = True) -> None:
        self.places, self.capacity, self._now = places, capacity, now
        self.place_share = places - places // 8 if is_fair else places
        self.queue_share = capacity - capacity // 4 if is_fair else capacity
        self._running_of: dict[object, int] = {}
        """Places of each origin; an origin without a place is absent."""
        self._lines: _Lines[EntryT] = OrderedDict()
        self._asking: _Lines[EntryT] = OrderedDict()
        self.running = self.waiting = self.asking = 0
        self.waited = self.given_up = 0
        self.longest_wait_s = 0.0

    def statistics(self, idle: int = 0) -> LaneStatistics:
        """The present counts. Entries that a free place is about to take do not count as waiting."""
        startable = sum(
            min(len(line), self.place_share - self._running_of.get(origin, 0)) for origin, line in self._lines.items()
        )
        waiting = self.waiting - min(startable, self.places - self.running)
        return LaneStatistics(
            waiting,
            self.running,
            idle,
            self.asking,
            self.waited,
            self.longest_wait_s,
            self.given_up,
            self.places,
            self.capacity,
        )

    def try_start(self, origin: object) -> bool:
        """Takes a place if one is free for this origin. Returns whether it did; if so, `end` must follow.

        It overtakes nobody: entries wait beside a free place only if their origins have their full share.
        """
        if self.running >= self.places:
            return False
        held = self._running_of.get(origin, 0)
        if held >= self.place_share:
            return False
        self.running += 1
        self._running_of[origin] = held + 1
        return True

    @property
    def is_full(self) -> bool:
        """Whether no entry of any origin would get into the queue now."""
        return self.waiting >= self.capacity + self.places - self.running

    def has_room(self, origin: object) -> bool:
        """Whether an entry of this origin would get into the queue now."""
        if self.is_full:
            return False
        line, free = self._lines.get(origin), self.places - self.running
        if line is None or len(line) < self.queue_share:
            return True
        return len(line) < self.queue_share + min(free, self.place_share - self._running_of.get(origin, 0))

    def push(self, entry: EntryT) -> None:
        """Adds an entry, to the queue or to those that ask for room."""
        origin = entry.origin
        entry.waits_since = self._now() if self.running + self.waiting >= self.places else None
        if self.waiting < self.queue_share and not self._asking:
            entry.has_room = True  # without a look at its line, which cannot be longer than the whole queue
        else:
            entry.has_room = origin not in self._asking and self.has_room(origin)
        if entry.has_room:
            self._append(entry)
        else:
            self._asking.setdefault(origin, OrderedDict())[entry] = None
            self.asking += 1

    def move_to_front(self, entry: EntryT) -> None:
        """Lets an entry that was pushed come before the others in the queue, or get room before those that ask for it."""
        lines = self._lines if entry.has_room else self._asking
        lines[entry.origin].move_to_end(entry, last=False)
        lines.move_to_end(entry.origin, last=False)

    def first(self) -> EntryT | None:
        """The entry that comes next, if a place is free for it."""
        if self.waiting and self.running < self.places:
            for origin, line in self._lines.items():
                if self._running_of.get(origin, 0) < self.place_share:
                    return next(iter(line))
        return None

    def may_start(self) -> bool:
        """Whether an entry waits for which a place is free."""
        # No origin can have its full share of the places before so many are taken at all.
        return self.waiting > 0 and (self.running < self.place_share or self.first() is not None)

    def start(self, entry: EntryT) -> None:
        """Gives a place to an entry in the queue. `end` must follow."""
        origin, lines = entry.origin, self._lines
        line = lines[origin]
        del line[entry]
        if line:
            lines.move_to_end(origin)
        else:
            del lines[origin]
        self.waiting -= 1
        self.running += 1
        self._running_of[origin] = self._running_of.get(origin, 0) + 1
        if entry.waits_since is not None:
            self.waited += 1
            self.longest_wait_s = max(self.longest_wait_s, self._now() - entry.waits_since)

    def end(self, origin: object) -> None:
        """Frees a place of this origin."""
        self.running -= 1
        held = self._running_of[origin] - 1
        if held:
            self._running_of[origin] = held
        else:
            del self._running_of[origin]
        if self._asking:
            self._fill()

    def withdraw(self, entry: EntryT) -> None:
        """Removes an entry that waits."""
        if entry.has_room:
            self._take(self._lines, entry)
            self.waiting -= 1
            self._fill()
        else:
            self._take(self._asking, entry)
            self.asking -= 1
            self.given_up += 1

    def entries(self) -> list[EntryT]:
        """All entries that wait, those in the queue first."""
        return [entry for lines in (self._lines, self._asking) for line in lines.values() for entry in line]

    def _append(self, entry: EntryT) -> None:
        line = self._lines.get(entry.origin)
        if line is None:
            line = self._lines[entry.origin] = OrderedDict()
        line[entry] = None
        self.waiting += 1

    @staticmethod
    def _take(lines: _Lines[EntryT], entry: EntryT) -> None:
        line = lines[entry.origin]
        del line[entry]
        if not line:
            del lines[entry.origin]

    def _fill(self) -> None:
        """Moves entries that ask for room into the queue until it is full."""
        while self._asking and self.waiting < self.capacity + self.places - self.running:
            entry = next((next(iter(line)) for origin, line in self._asking.items() if self.has_room(origin)), None)
            if entry is None:
                return
            origin = entry.origin
            self._take(self._asking, entry)
            if origin in self._asking:
                self._asking.move_to_end(origin)
            self.asking -= 1
            entry.has_room = True
            self._append(entry)
