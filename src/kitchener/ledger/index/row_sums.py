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

from kitchener.ledger.index.tail import IndexDamaged

_RANGES: Final = 16_384
"""Ranges of key hashes. An index of 10 million entries has some 40 rows in each."""
_SHIFT: Final = 18
"""Number of the low bits of a key hash that its range ignores."""
_TYPE: Final = "I"
_MASK: Final = 0xFFFF_FFFF
_HASH, _ID, _ROW = 0x9E37_79B1, 0x85EB_CA77, 0xC2B2_AE3D
"""Odd factors, so that any one bit of a hash or an id that changes also changes the sum."""
_SUM: Final = """SELECT count(*), ifnull(sum(hash), 0), ifnull(sum(id), 0) FROM places INDEXED BY by_hash
    WHERE hash >= ? AND hash < ? AND id <= ?"""


class RowSums:
    """One sum for each range of key hashes, 64 KiB. Never changed once it is made, so threads may share it."""

    def __init__(self, rows: int = 0, sums: "array[int] | None" = None) -> None:
        self.rows = rows
        """Number of rows that are summed up, which is also the id of the last one."""
        self._sums = array(_TYPE, bytes(4 * _RANGES)) if sums is None else sums

    def plus(self, key_hashes: Iterable[int]) -> Self:
        """The sums with one more row for each of these hashes; the rows get the next ids."""
        sums, row = self._sums[:], self.rows
        for key_hash in key_hashes:
            row += 1
            place = key_hash >> _SHIFT
            sums[place] = (sums[place] + key_hash * _HASH + row * _ID + _ROW) & _MASK
        return type(self)(row, sums)

    def check(self, connection: sqlite3.Connection, key_hashes: Iterable[int]) -> None:
        """Raises IndexDamaged if rows in the ranges of these hashes are missing, added or moved.

        Rows that were written later are left out.
        """
        if not self.rows:
            return
        for place in {each >> _SHIFT for each in key_hashes}:
            first = place << _SHIFT
            count, hashes, ids = connection.execute(_SUM, (first, first + (1 << _SHIFT), self.rows)).fetchone()
            if (hashes * _HASH + ids * _ID + count * _ROW) % (_MASK + 1) != self._sums[place]:
                raise IndexDamaged("rows are missing, or are not those that were written")

    def pack(self) -> bytes:
        """The sums as the index stores them."""
        packed = self._sums.tobytes()
        return zlib.compress(packed, 1) if _is_sparse(self.rows) else packed

    @classmethod
    def unpack(cls, rows: int, packed: bytes) -> Self:
        """The sums that the index has stored; raises IndexDamaged if they are none."""
        try:
            sums = array(_TYPE, zlib.decompress(packed) if _is_sparse(rows) else packed)
        except (zlib.error, ValueError) as error:
            raise IndexDamaged("the sums over its rows cannot be read") from error
        if len(sums) != _RANGES:
            raise IndexDamaged("the sums over its rows are incomplete")
        return cls(rows, sums)


def _is_sparse(rows: int) -> bool:
    """Whether most sums are zero, so that compressing saves space; else it would take as long as writing the rows."""
    return rows < _RANGES // 4
