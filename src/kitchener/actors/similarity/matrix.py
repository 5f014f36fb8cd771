"""Compares a message with the vectors of a long history in about a millisecond, with numpy.

What all texts of a history have in common, such as speakers, subject and tone, does not help to distinguish them. So the
directions in which the vectors vary most are removed before vectors are compared ("all but the top"; with a static model, twice
as many of the wanted texts come first). Then all vectors are compared by sketches of one bit for each number, and the best few
by their numbers. This module knows no texts, no files and no clock.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy import bitwise_count  # of numpy 2; the import tells whether it is there
from numpy.typing import NDArray

from kitchener.actors.similarity.vectors import Vector, scores_of

_Floats = NDArray[np.float32]

_PER_SCORED: Final = 4
"""Scored texts times this: the texts that are compared by their numbers."""
_LEAST_COMPARED: Final = 256
"""Least number of texts that are compared by their numbers."""
_COMMON: Final = 5
"""Most directions that are removed."""
_TEXTS_PER_COMMON: Final = 64
"""Least number of texts for each removed direction; with fewer, a direction may be the meaning of a single text."""
_STRONG: Final = 4
"""A removed direction is at least this many times as strong as the average one. Weaker ones are the meaning of a few texts."""
_SAMPLE: Final = 1_024
"""Number of vectors, spread over the history, from which the directions are computed."""
_ROUNDS: Final = 8
"""Iterations that compute the directions. More would change the scores by less than their rounding."""
_GROWTH: Final = 1.25
"""The directions are computed again after the number of vectors has grown by this factor."""
_AT_ONCE: Final = 4_096
"""Number of vectors whose sketches are computed together; limits memory."""


class VectorMatrix:
    """Implements `Vectors`. A vector takes two bytes and one bit for each number.

    Args:
        capacity: most vectors
    """

    def __init__(self, capacity: int) -> None:
        self.capacity, self.held = capacity, 0
        self._at = np.full(0, -1, np.int64)
        """The position of each row's vector; -1: the row is empty."""
        self._rows = np.zeros((0, 0), np.float16)
        self._sketches = np.zeros((0, 0), np.uint64)
        self._common: _Floats = np.zeros((0, 0), np.float32)
        """The directions that all texts have in common, one a column."""
        self._average: _Floats = np.zeros(0, np.float32)
        self._based_on = 0
        """Number of vectors when the directions were computed."""
        self._changed: list[int] = []
        """Rows whose sketches are out of date."""

    def put(self, position: int, vector: Vector) -> None:
        """See `Vectors`."""
        row = position % self.capacity
        if row >= len(self._at):
            self._grow(row, len(vector))
        if self._at[row] > position:  # a turn that began earlier comes late
            return
        self.held += int(self._at[row] < 0)
        self._at[row] = position
        self._rows[row] = np.frombuffer(vector, np.float32) if len(vector) == self._rows.shape[1] else 0
        self._changed.append(row)

    def unknown(self, end: int) -> Sequence[int]:
        """See `Vectors`."""
        positions = np.arange(end - 1, max(0, end - self.capacity) - 1, -1)
        rows = positions % self.capacity
        known = np.zeros(len(rows), np.bool_)
        inside = rows < len(self._at)
        known[inside] = self._at[rows[inside]] == positions[inside]
        found: list[int] = positions[~known].tolist()
        return found

    def scores(self, message: Vector, end: int, scored: int) -> dict[int, int]:
        """See `Vectors`."""
        if len(message) != self._rows.shape[1]:
            self._at, self._rows, self._sketches = self._at[:0], self._rows[:0, :0], self._sketches[:0, :0]
            self.held = self._based_on = 0
            self._changed.clear()
            return {}
        self._refresh()
        asked = self._particular(np.frombuffer(message, np.float32)[None])
        chosen = self._nearest(asked, end, max(_LEAST_COMPARED, _PER_SCORED * scored))
        found = (self._particular(self._rows[chosen]) @ asked[0]).tolist()
        cosines = dict(zip(self._at[chosen].tolist(), found, strict=True))
        return scores_of(cosines, float(self._average @ asked[0]), scored)

    def _grow(self, row: int, size: int) -> None:
        before = len(self._at)
        more = min(self.capacity, max(2 * before, row + 1, 64)) - before
        size = self._rows.shape[1] if before else size
        self._at = np.concatenate((self._at, np.full(more, -1, np.int64)))
        self._rows = np.concatenate((self._rows.reshape(before, size), np.zeros((more, size), np.float16)))
        words = -(-size // 64)
        self._sketches = np.concatenate((self._sketches.reshape(words, before), np.zeros((words, more), np.uint64)), axis=1)

    def _refresh(self) -> None:
        """Updates the directions and the sketches."""
        stale = np.array(self._changed, np.int64)
        if self.held >= _GROWTH * self._based_on:
            stale = np.flatnonzero(self._at >= 0)
            self._find_common(stale)
        for start in range(0, len(stale), _AT_ONCE):
            part = stale[start : start + _AT_ONCE]
            self._sketches[:, part] = self._sketched(self._particular(self._rows[part]))
        self._changed.clear()

    def _find_common(self, rows: NDArray[np.int64]) -> None:
        """Computes the directions in which the vectors vary most, by subspace iteration."""
        sample = self._rows[rows[:: max(1, len(rows) // _SAMPLE)]].astype(np.float32)
        size, self._based_on = sample.shape[1], len(rows)
        count = min(_COMMON, len(sample) // _TEXTS_PER_COMMON, size)
        found = sample[:: max(1, len(sample) // max(1, count))][:count].T
        for _ in range(_ROUNDS if count else 0):
            found, _unused = np.linalg.qr(sample.T @ (sample @ found))
        strengths = np.square(sample @ found).sum(axis=0)
        self._common = found[:, strengths * size > _STRONG * np.square(sample).sum()]
        self._average = self._particular(sample).mean(axis=0, dtype=np.float32) if len(sample) else np.zeros(size, np.float32)

    def _particular(self, rows: NDArray[np.floating]) -> _Floats:
        """Vectors without the common directions, scaled to length 1; a vector may be all zeros."""
        found: _Floats = rows.astype(np.float32)
        found -= (found @ self._common) @ self._common.T
        lengths = np.sqrt(np.einsum("ij,ij->i", found, found))[:, None]
        lengths[lengths < 1e-3] = np.inf
        found /= lengths
        return found

    def _sketched(self, rows: _Floats) -> NDArray[np.uint64]:
        """A column of bits for each vector; a bit says whether the number is above the average."""
        packed = np.packbits(rows > self._average, axis=1)
        padded = np.zeros((len(rows), 8 * len(self._sketches)), np.uint8)
        padded[:, : packed.shape[1]] = packed
        return padded.view(np.uint64).T

    def _nearest(self, asked: _Floats, end: int, most: int) -> NDArray[np.int64]:
        """The rows of the positions before `end`, or those with the nearest sketches if there are more than `most`."""
        is_among = (self._at >= 0) & (self._at < end)
        if int(is_among.sum()) <= most:
            return np.flatnonzero(is_among)
        distances = np.where(is_among, np.uint16(0), np.uint16(1 << 15))
        for words, (word,) in zip(self._sketches, self._sketched(asked), strict=True):
            distances += bitwise_count(words ^ word)
        return np.argpartition(distances, most)[:most]
