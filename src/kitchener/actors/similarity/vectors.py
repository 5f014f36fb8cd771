"""Compares vectors: which texts are most similar to a message, and how much.

`matrix.py` compares many of them with numpy. Where numpy is not installed, `FewVectors` compares the newest ones. This module
knows no texts, no files and no clock.
"""

from array import array
from collections.abc import Iterable, Sequence
from heapq import nlargest
from math import isfinite, sqrt
from operator import mul
from typing import Final, Protocol, TypeAlias

from kitchener.records.embedding import FULL_SCORE

Vector: TypeAlias = "array[float]"
"""A vector of length 1, or of only zeros."""

MAX_DIMENSIONS: Final = 8_192
"""Most numbers of a vector."""
_FULL: Final = 0.8
"""A text gets the full score at this share of the way from the average similarity to equality, because paraphrases of a
message seldom come nearer."""
_FEW: Final = 2_000
"""Most vectors that are compared without numpy, which takes about 20 ms."""


class Vectors(Protocol):
    """The vectors of the newest items of one history, by the item's position."""

    capacity: int
    """Most vectors. A new one replaces the oldest."""

    @property
    def held(self) -> int:
        """How many vectors there are."""
        ...

    def put(self, position: int, vector: Vector) -> None:
        """Sets the vector of an item."""
        ...

    def unknown(self, end: int) -> Sequence[int]:
        """The positions without a vector among the newest `capacity` ones before `end`, newest first."""
        ...

    def scores(self, message: Vector, end: int, scored: int) -> dict[int, int]:
        """Returns the positions before `end` that are most similar to a message, at most `scored`, as `scores_of` scores them.

        If the message's vector has another size, all vectors are dropped, because another model now has the name.
        """
        ...


class FewVectors:
    """Vectors that are compared one by one.

    Args:
        capacity: most vectors
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = min(capacity, _FEW)
        self._found: dict[int, Vector] = {}

    @property
    def held(self) -> int:
        """See `Vectors`."""
        return len(self._found)

    def put(self, position: int, vector: Vector) -> None:
        """See `Vectors`."""
        self._found[position] = vector
        while len(self._found) > self.capacity:
            del self._found[min(self._found)]

    def unknown(self, end: int) -> Sequence[int]:
        """See `Vectors`."""
        return [n for n in range(end - 1, max(0, end - self.capacity) - 1, -1) if n not in self._found]

    def scores(self, message: Vector, end: int, scored: int) -> dict[int, int]:
        """See `Vectors`."""
        if any(len(each) != len(message) for each in self._found.values()):
            self._found.clear()
        cosines = {n: sum(map(mul, each, message)) for n, each in self._found.items() if n < end}
        return scores_of(cosines, sum(cosines.values()) / max(1, len(cosines)), scored)


def unit_vector(numbers: Iterable[float]) -> Vector:
    """Returns the vector of length 1 in the direction of these numbers.

    Raises:
        ValueError: there are no numbers, too many, or one that is not finite
        TypeError: a value is not a number
    """
    values = array("f", numbers)
    if not 0 < len(values) <= MAX_DIMENSIONS:
        raise ValueError(f"a vector of {len(values):,} numbers, expected 1 to {MAX_DIMENSIONS:,}")
    length = sqrt(sum(map(mul, values, values)))
    if not isfinite(length):
        raise ValueError("a vector with a number that is not finite")
    return array("f", [each / length for each in values]) if length else values


def scores_of(cosines: dict[int, float], average: float, scored: int) -> dict[int, int]:
    """Returns the positions with the largest cosines, with scores from 1 to 1,000.

    A score does not depend on the other texts that score. A text of average similarity scores nothing, so an unrelated message
    finds little.

    Args:
        cosines: the cosines of vectors to the message, by position
        average: the mean cosine of all texts
        scored: most positions that get a score
    """
    least = max(0.0, average)
    full = _FULL * (1.0 - least)
    if full < 1e-3:  # all texts are equal
        return {}
    best = nlargest(scored, [(each, n) for n, each in cosines.items()])
    rounded = {n: min(FULL_SCORE, round(FULL_SCORE * (each - least) / full)) for each, n in best}
    return {n: score for n, score in rounded.items() if score > 0}
