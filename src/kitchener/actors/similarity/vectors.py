"""Compares vectors: which texts are most similar to a message, and how much.

All vectors are compared by sketches, the signs of their numbers, which takes little time. Only the best few are compared by
their numbers. This module knows no texts, no files and no clock.
"""

from array import array
from collections.abc import Iterable, Sequence
from heapq import nlargest, nsmallest
from math import isfinite, sqrt
from operator import mul
from typing import Final, NamedTuple

from kitchener.records.embedding import FULL_SCORE

MAX_DIMENSIONS: Final = 8_192
"""Most numbers of a vector."""
_PER_SCORED: Final = 4
"""Texts per scored one that are compared by their numbers."""


class Vector(NamedTuple):
    """A vector of length 1, or of only zeros."""

    numbers: "array[float]"
    sketch: int
    """A bit for each number: whether it is above zero."""


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
    return Vector(values, int("".join(["1" if each > 0 else "0" for each in values]), 2))


def scores_of(message: Vector, vectors: Sequence[Vector | None], scored: int) -> dict[int, int]:
    """Returns the positions of the most similar vectors, with scores from 1 to 1,000.

    The most similar one gets 1,000. One that is as similar as the others are on average gets nothing.

    Args:
        message: the vector to compare with
        vectors: the vectors; None: not known. Those of another size are left out
        scored: most positions that get a score
    """
    size = len(message.numbers)
    known = [(n, each) for n, each in enumerate(vectors) if each is not None and len(each.numbers) == size]
    if len(known) > _PER_SCORED * scored:
        sketch = message.sketch
        nearest = nsmallest(_PER_SCORED * scored, [((each.sketch ^ sketch).bit_count(), -n) for n, each in known])
        chosen = [(-n, vectors[-n]) for _, n in nearest]
        known = [(n, each) for n, each in chosen if each is not None]
    cosines = [(sum(map(mul, each.numbers, message.numbers)), n) for n, each in known]
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
