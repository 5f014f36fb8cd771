"""Sums over the rows of an index, which show that a row is missing.

A row's own checksum shows that it was changed, but not that it is gone. So the key hashes are divided into ranges, and for each
range one number sums up the rows that were written. A query recomputes the sum of its range from SQLite's tree of key hashes,
without reading the rows. Knows nothing of files.
"""

import sqlite3
import zlib
from array import array
from collections.abc import Iterable
from typing import Final, Self

from kitchener.ledger.index.tail import IndexDamaged, PackedRow

_RANGES: Final = 4_096
"""Ranges of key hashes. An index of 10 million entries has about 150 rows in each, whose sum takes some 20 µs."""
_SHIFT: Final = 20
"""Bits of a key hash that its range leaves open."""
_TYPE: Final = "I"
_MASK: Final = 0xFFFF_FFFF
_HASH, _SEQ, _ROW = 0x9E37_79B1, 0x85EB_CA77, 0xC2B2_AE3D
"""Odd factors, so that any one bit of a row that changes also changes the sum."""
_SUM: Final = """SELECT count(*), ifnull(sum(hash), 0), ifnull(sum(after_seq), 0), ifnull(sum(checksum), 0)
    FROM places INDEXED BY by_hash WHERE hash >= ? AND hash < ? AND after_seq < ?"""


class RowSums:
    """One sum for each range of key hashes, 16 KiB. Never changed once it is made, so threads may share it."""

    def __init__(self, sums: "array[int] | None" = None) -> None:
        self._sums = array(_TYPE, bytes(4 * _RANGES)) if sums is None else sums

    def plus(self, rows: Iterable[PackedRow]) -> Self:
        """The sums with these rows added."""
        sums = self._sums[:]
        for key_hash, _, after_seq, _, checksum, _ in rows:
            place = key_hash >> _SHIFT
            sums[place] = (sums[place] + key_hash * _HASH + after_seq * _SEQ + checksum + _ROW) & _MASK
        return type(self)(sums)

    def check(self, connection: sqlite3.Connection, key_hashes: Iterable[int], up_to_seq: int) -> None:
        """Raises IndexDamaged if rows in the ranges of these hashes are missing, added or moved.

        Args:
            connection: the index
            key_hashes: hashes of the keys that a query asks for
            up_to_seq: number of the last entry in the rows that were summed up; rows written later are left out
        """
        if up_to_seq == 0:
            return
        for place in {each >> _SHIFT for each in key_hashes}:
            first = place << _SHIFT
            count, hashes, seqs, checksums = connection.execute(_SUM, (first, first + (1 << _SHIFT), up_to_seq)).fetchone()
            if (hashes * _HASH + seqs * _SEQ + checksums + count * _ROW) % (_MASK + 1) != self._sums[place]:
                raise IndexDamaged("rows are missing, or are not those that were written")

    def pack(self) -> bytes:
        """The sums as the index stores them."""
        return zlib.compress(self._sums.tobytes(), 1)

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """The sums that the index has stored; raises IndexDamaged if they are none."""
        try:
            sums = array(_TYPE, zlib.decompress(packed))
        except (zlib.error, TypeError, ValueError) as error:
            raise IndexDamaged("the sums over its rows cannot be read") from error
        if len(sums) != _RANGES:
            raise IndexDamaged("the sums over its rows are incomplete")
        return cls(sums)
