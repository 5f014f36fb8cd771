"""Counts how long something took, by buckets. For what happens often and is read seldom: adding one allocates nothing."""

from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DurationCounts:
    """What `Durations` had counted at one moment."""

    bounds: tuple[float, ...]
    """Upper bounds of the buckets, seconds, rising. One more bucket has everything above the last one."""
    counts: tuple[int, ...]
    """How many are in each bucket."""
    sum_s: float
    """All durations together, seconds."""


class Durations:
    """How often something took how long.

    Args:
        bounds: upper bounds of the buckets, seconds, rising
    """

    __slots__ = ("_bounds", "_counts", "_sum_s")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds, self._counts, self._sum_s = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, seconds: float) -> None:
        """Counts one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum_s += seconds

    def statistics(self) -> DurationCounts:
        """The present counts."""
        return DurationCounts(self._bounds, tuple(self._counts), self._sum_s)
