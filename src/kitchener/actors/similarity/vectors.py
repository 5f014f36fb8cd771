"""Compares vectors: which texts are most similar to a message, and how much.

All vectors are compared by sketches: which of their numbers are above their mean. That takes little time. Only the best few are
compared by their numbers. This module knows no texts, no files and no clock.
"""

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from heapq import nlargest
from math import isfinite, sqrt
from operator import mul
from typing import Final, NamedTuple

from kitchener.records.embedding import FULL_SCORE

MAX_DIMENSIONS: Final = 8_192
"""Most numbers of a vector."""
_PER_SCORED: Final = 3
"""Texts per scored one that are compared by their numbers."""
_LEAST_COMPARED: Final = 128
"""Texts that are compared by their numbers in any case."""


_FAR: Final = (1 << 2 * MAX_DIMENSIONS) - 1


class Vector(NamedTuple):
    """A vector of length 1, or of only zeros."""

    numbers: "array[float]"
    sketch: int
    """A bit for each number: whether it is above the mean of all."""


class VectorList:
    """Vectors by position, some of which are not known."""

    __slots__ = ("numbers", "sketches")

    def __init__(self, vectors: Iterable[Vector | None] = ()) -> None:
        self.numbers = list["array[float] | None"]()
        self.sketches = list[int]()
        """Of a vector that is not known, one that is far from all others."""
        for each in vectors:
            self.numbers.append(each.numbers if each is not None else None)
            self.sketches.append(each.sketch if each is not None else _FAR)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def missing(self) -> int:
        """How many vectors are not known."""
        return self.numbers.count(None)

    def grow(self, count: int) -> None:
        """Adds vectors that are not known, up to a number of all."""
        more = max(0, count - len(self.numbers))
        self.numbers += [None] * more
        self.sketches += [_FAR] * more

    def put(self, position: int, vector: Vector | None) -> None:
        """Sets the vector at a position."""
        self.numbers[position] = vector.numbers if vector is not None else None
        self.sketches[position] = vector.sketch if vector is not None else _FAR

    def part(self, first: int, end: int) -> "VectorList":
        """Returns the vectors from a position up to another one."""
        if (first, end) == (0, len(self.numbers)):
            return self
        found = VectorList()
        found.numbers, found.sketches = self.numbers[first:end], self.sketches[first:end]
        return found


def unit_vector(numbers: Iterable[float]) -> Vector:
    """Returns the vector of length 1 in the direction of these numbers.

    Raises:
        ValueError: there are none or too many, or one is not finite
        TypeError: one is no number
    """
    values = array("f", numbers)
    if not 0 < len(values) <= MAX_DIMENSIONS:
        raise ValueError(f"a vector of {len(values):,} numbers, expected 1 to {MAX_DIMENSIONS:,}")
    length = sqrt(sum(map(mul, values, values)))
    if not isfinite(length):
        raise ValueError("a vector with a number that is not finite")
    return from_unit(array("f", [each / length for each in values]) if length else values)


def from_unit(values: "array[float]") -> Vector:
    """Returns a vector whose length is 1 already."""
    mean = sum(values) / len(values)  # of a model without negative numbers, all signs would be equal
    return Vector(values, int("".join(["1" if each > mean else "0" for each in values]), 2))


def scores_of(message: Vector, vectors: VectorList, scored: int) -> dict[int, int]:
    """Returns the positions of the most similar vectors, with scores from 1 to 1,000.

    The most similar one gets 1,000. One that is as similar as the others are on average gets nothing.

    Args:
        message: the vector to compare with
        vectors: the vectors; those of another size are left out
        scored: most positions that get a score
    """
    size, most = len(message.numbers), max(_LEAST_COMPARED, _PER_SCORED * scored)
    chosen: Iterable[int] = range(len(vectors))
    if len(vectors) > most:
        sketch = message.sketch
        chosen = _nearest([(each ^ sketch).bit_count() for each in vectors.sketches], most)
    known = [(n, each) for n in chosen if (each := vectors.numbers[n]) is not None and len(each) == size]
    cosines = [(sum(map(mul, each, message.numbers)), n) for n, each in known]
    best = nlargest(scored + 1, cosines)
    if not best:
        return {}
    least = sum([each for each, _ in cosines]) / len(cosines) if len(cosines) > 1 else 0.0
    if len(best) > scored:
        least = max(least, best.pop()[0])
    top = best[0][0] - least
    if top <= 0:
        return {}
    rounded = {n: round(FULL_SCORE * (each - least) / top) for each, n in best if each > least}
    return {n: score for n, score in rounded.items() if score}


def _nearest(distances: Sequence[int], most: int) -> list[int]:
    """Returns the positions with the least distances, the newest among equals. Counting takes less time than sorting."""
    taken, limit, of_distance = 0, 0, Counter(distances)
    for limit in sorted(of_distance):
        if taken + of_distance[limit] >= most:
            break
        taken += of_distance[limit]
    near = [n for n, each in enumerate(distances) if each < limit]
    return near + [n for n, each in enumerate(distances) if each == limit][taken - most :]
