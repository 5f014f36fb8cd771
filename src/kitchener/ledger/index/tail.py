"""Maps sessions and keys to positions of their entries, in memory for entries that the index lacks, and packed for the index.

Pure except for a lock. Knows nothing of files.
"""

import struct
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from kitchener.ledger.format.checks import LineBatch
from kitchener.ledger.format.lines import IndexKeys, Mark, session_of

_STOP_BYTES: Final = 64 << 10
"""Least distance between two stops, which are positions where a scan can start."""
_FULL_BYTES: Final = 1 << 30
"""A tail ends here because its offsets are 32-bit numbers; the largest commit still fits after this limit."""
_SESSION: Final = "@"
_OTHER: Final = "="
_PACKED: Final = struct.Struct("=III16s")
HASH_DIGITS: Final = slice(len("sha256:"), len("sha256:") + 32)
"""The part of an entry hash that a location keeps: 128 bits, too many to find other content with the same bits."""

Location = tuple[int, int, int, bytes]
"""The position of an entry: its number, byte offset of its line, length of the line with its LF, and the first 16 bytes of its
entry hash."""


def session_key(session_id: str) -> str:
    """The index key of a session's entries."""
    return _SESSION + session_id


def other_key(key: str) -> str:
    """The index key of any other key; its prefix differs from that of sessions."""
    return _OTHER + key


PackedRow = tuple[int, str, int, int, int, bytearray]
"""A row as it is stored: the hash of its key, then the fields of an `IndexRow`."""


class IndexDamaged(Exception):
    """The index differs from what was written. Users never see this error, because the journal is read instead."""


class IndexedEntry(Protocol):
    """What an index needs of an entry."""

    @property
    def entry_hash(self) -> str:
        """`sha256:` and 64 hex digits over the entry's body."""
        ...

    @property
    def session_id(self) -> str | None:
        """The entry's session; None: it has none."""
        ...

    @property
    def keys(self) -> tuple[str, ...]:
        """The entry's keys besides its session."""
        ...


class _Found(NamedTuple):
    """An entry read back from the file."""

    entry_hash: str
    session_id: str | None
    keys: tuple[str, ...]


class IndexRow(NamedTuple):
    """One row of the index: the positions of one key's entries in one tail."""

    key: str
    after_seq: int
    """Number of the entry before the tail; the packed numbers count from it."""
    base: int
    """Byte offset where the tail starts; the packed offsets count from it."""
    checksum: int
    """CRC-32 over the other fields."""
    packed: bytes
    """28 bytes an entry: number (from `after_seq`), offset of the line (from `base`) and length of the line, as 32-bit numbers;
    then 16 bytes of the entry hash."""


class Tail:
    """Positions, in memory, of the newest entries, which the index does not have yet. Threads may share it."""

    def __init__(self, start: Mark) -> None:
        self.start = self.end = start
        """The tail covers every entry between `start` and `end`."""
        self.last_line = 0
        """Byte offset of the last entry's line."""
        self.last_hash = ""
        """The last entry's hash."""
        self.stops: list[Mark] = []
        """Positions between `start` and `end`, at least `_STOP_BYTES` apart, where a scan can start."""
        # Packed in the index's own format, so the index can store them unchanged; 28 bytes an entry.
        self._by_session = defaultdict[str, bytearray](bytearray)
        self._by_key = defaultdict[str, bytearray](bytearray)
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.end.seq - self.start.seq

    @property
    def is_full(self) -> bool:
        """Whether the tail can take no further commit; the caller must move it into the index or drop it."""
        return self.end.offset - self.start.offset >= _FULL_BYTES

    def extend(self, entries: Sequence[IndexedEntry], lengths: Iterable[int], after: Mark) -> None:
        """Adds the next entries.

        Args:
            entries: the entries after `end`
            lengths: length of each entry's line in bytes
            after: the position after the last entry
        """
        seq, offset = self.end.seq - self.start.seq, self.end.offset - self.start.offset
        by_session, by_key, length, entry_hash = self._by_session, self._by_key, 0, ""
        with self._lock:
            for entry, length in zip(entries, lengths, strict=True):
                seq += 1
                session_id, entry_hash = entry.session_id, entry.entry_hash
                packed = _PACKED.pack(seq, offset, length, bytes.fromhex(entry_hash[HASH_DIGITS]))
                if session_id is not None:
                    by_session[session_id] += packed
                for key in entry.keys:
                    by_key[key] += packed
                offset += length
            self.last_line, self.last_hash = after.offset - length, entry_hash
            self.end = after
            last_stop = self.stops[-1] if self.stops else self.start
            if after.offset - last_stop.offset >= _STOP_BYTES:
                self.stops.append(after)

    def find_stop(self, seq: int) -> Mark | None:
        """The last stop at or before the end of entry `seq`; None: there is none."""
        return next((stop for stop in reversed(self.stops) if stop.seq <= seq), None)

    def next_stops(self, seq: int) -> list[Mark]:
        """The stops after entry `seq`, ascending, and `end`; none if `seq` lies outside the tail."""
        end = self.end
        if not self.start.seq <= seq < end.seq:
            return []
        return [*(stop for stop in self.stops if seq < stop.seq < end.seq), end]

    def extend_from_file(self, commit: LineBatch, index_keys: IndexKeys | None, after: Mark) -> None:
        """Adds a commit that was read from the file."""
        found = []
        for _, _, fields, entry_hash in commit:
            payload = fields["payload"]
            keys = index_keys(fields["entry_type"], payload) if index_keys is not None else ()
            found.append(_Found(f"sha256:{entry_hash}", session_of(payload), keys))
        self.extend(found, [length for _, length, _, _ in commit], after)

    def find(self, key: str, after_seq: int, up_to_seq: int) -> list[Location]:
        """The entries of an index key within bounds, ascending."""
        by_key = self._by_session if key[0] == _SESSION else self._by_key
        with self._lock:
            packed = bytes(by_key.get(key[1:], b""))
        found = _locations(packed, self.start.seq, self.start.offset)
        return [each for each in found if after_seq < each[0] <= up_to_seq]

    def rows(self) -> list[PackedRow]:
        """One row of the index for each key."""
        rows = []
        seq, base = self.start.seq, self.start.offset
        origin = _origin(seq, base)
        for prefix, by_key in ((_SESSION, self._by_session), (_OTHER, self._by_key)):
            for name, packed in by_key.items():
                key = prefix + name
                key_hash = hash_of(key)
                # SQLite's module takes a bytearray directly; for other bytes-like types it first searches for an adapter.
                rows.append((key_hash, key, seq, base, crc32(packed, key_hash ^ origin), packed))
        rows.sort()  # so that rows adjacent in the index are written together
        return rows


def hash_of(key: str) -> int:
    """The number by which the index sorts a key."""
    # Short, so one page of the tree holds many; the key in the row distinguishes equal hashes.
    return crc32(key.encode())


def check_row(row: IndexRow) -> None:
    """Raises IndexDamaged if a row is not what was written."""
    packed = row.packed
    if (
        not isinstance(packed, bytes)
        or not isinstance(row.key, str)
        or len(packed) % _PACKED.size
        or row.checksum != crc32(packed, hash_of(row.key) ^ _origin(row.after_seq, row.base))
    ):
        raise IndexDamaged(f"the row of {row.key!r} after entry {row.after_seq} is not what was written")


def unpack(row: IndexRow) -> list[Location]:
    """The entries of a row, ascending."""
    return _locations(row.packed, row.after_seq, row.base)


def _origin(after_seq: int, base: int) -> int:
    return crc32(f"{after_seq}|{base}".encode())


def _locations(packed: bytes, after_seq: int, base: int) -> list[Location]:
    found = _PACKED.iter_unpack(packed)
    return [(after_seq + seq, base + offset, length, entry_hash) for seq, offset, length, entry_hash in found]
