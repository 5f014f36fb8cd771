"""Where entries stand: by session and by key, packed for the index, and in memory for those that the index has not yet.

Pure but for a lock. Knows nothing of files.
"""

import struct
import threading
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol
from zlib import crc32

from kitchener.ledger.format.checks import Batch
from kitchener.ledger.format.lines import IndexKeys, Mark, session_of

_STOP_BYTES: Final = 64 << 10
"""How far apart the stops are that a scan can start from."""
_FULL_BYTES: Final = 1 << 30
"""A tail's offsets are 32-bit numbers, so it ends before these overflow; a commit is shorter than what is left."""
_SESSION: Final = "@"
_OTHER: Final = "="
_PACKED: Final = struct.Struct("=III16s")
HASH_DIGITS: Final = slice(len("sha256:"), len("sha256:") + 32)
"""The part of an entry hash that a place keeps: 128 bits, so that no other content can be found that fits."""

Place = tuple[int, int, int, bytes]
"""Where an entry stands and what it says: its number, the byte offset of its line, the length of the line with its LF, and the
first 16 bytes of its entry hash."""


def session_key(session_id: str) -> str:
    """The index key of a session's entries."""
    return _SESSION + session_id


def other_key(key: str) -> str:
    """The index key of any other key; kept apart from sessions."""
    return _OTHER + key


class IndexDamaged(Exception):
    """The index cannot be what was written. Never shown to users: the journal is read instead."""


class Indexed(Protocol):
    """An entry, as far as an index looks at it."""

    @property
    def entry_hash(self) -> str:
        """`sha256:` and 64 hex digits over what it says."""
        ...

    @property
    def session_id(self) -> str | None:
        """Its session, if it has one."""
        ...

    @property
    def keys(self) -> tuple[str, ...]:
        """Its other keys."""
        ...


class _Found(NamedTuple):
    """An entry that was found in the file."""

    entry_hash: str
    session_id: str | None
    keys: tuple[str, ...]


class Row(NamedTuple):
    """Where the entries of one key stood in one tail, as the index says it."""

    key: str
    after_seq: int
    """Where the tail began, which the entries are numbered from: the number of the entry before it."""
    base: int
    """The same as a byte offset."""
    checksum: int
    """Over the other fields."""
    packed: bytes
    """28 bytes an entry: its number and the offset of its line, both from there, and the length of its line, as 32-bit numbers;
    then 16 bytes of its entry hash."""


class Tail:
    """Where entries stand that the index does not have yet: few, newest, in memory. Threads may share it."""

    def __init__(self, start: Mark) -> None:
        self.start = self.end = start
        """It holds every entry between these places."""
        self.last_line = 0
        """Byte offset of the last entry's line."""
        self.last_hash = ""
        """The last entry's hash."""
        self.stops: list[Mark] = []
        """Places between them, some way apart, from which a scan can start."""
        # As the index packs them, so that nothing is left to do when it gets them, and 28 bytes an entry.
        self._by_session: dict[str, bytearray] = {}
        self._by_key: dict[str, bytearray] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.end.seq - self.start.seq

    @property
    def is_full(self) -> bool:
        """Whether it takes up no further commit: it must move into the index, or be given up."""
        return self.end.offset - self.start.offset >= _FULL_BYTES

    def extend(self, entries: Sequence[Indexed], lengths: Iterable[int], after: Mark) -> None:
        """Takes up the next entries.

        Args:
            entries: those after `end`
            lengths: of the line of each
            after: the place after the last of them
        """
        seq, offset = self.end.seq - self.start.seq, self.end.offset - self.start.offset
        by_session, by_key, length, entry_hash = self._by_session, self._by_key, 0, ""
        with self._lock:
            for entry, length in zip(entries, lengths, strict=True):
                seq += 1
                session_id, entry_hash = entry.session_id, entry.entry_hash
                packed = _PACKED.pack(seq, offset, length, bytes.fromhex(entry_hash[HASH_DIGITS]))
                if session_id is not None:
                    places = by_session.get(session_id)
                    if places is None:
                        by_session[session_id] = bytearray(packed)
                    else:
                        places += packed
                for key in entry.keys:
                    by_key.setdefault(key, bytearray()).extend(packed)
                offset += length
            self.last_line, self.last_hash = after.offset - length, entry_hash
            self.end = after
            last_stop = self.stops[-1] if self.stops else self.start
            if after.offset - last_stop.offset >= _STOP_BYTES:
                self.stops.append(after)

    def find_stop(self, seq: int) -> Mark | None:
        """The last of the stops at or before the end of entry `seq`."""
        return next((stop for stop in reversed(self.stops) if stop.seq <= seq), None)

    def next_stops(self, seq: int) -> list[Mark]:
        """The known places after entry `seq`, ascending; none where it does not hold that entry."""
        end = self.end
        if not self.start.seq <= seq < end.seq:
            return []
        return [*(stop for stop in self.stops if seq < stop.seq < end.seq), end]

    def take_up(self, commit: Batch, index_keys: IndexKeys | None, after: Mark) -> None:
        """Takes up a commit as it was found in the file."""
        found = []
        for _, _, fields, entry_hash in commit:
            payload = fields["payload"]
            keys = index_keys(fields["entry_type"], payload) if index_keys is not None else ()
            found.append(_Found(f"sha256:{entry_hash}", session_of(payload), keys))
        self.extend(found, [length for _, length, _, _ in commit], after)

    def find(self, key: str, after_seq: int, up_to_seq: int) -> list[Place]:
        """The entries of an index key within bounds, ascending."""
        found = self._by_session if key[0] == _SESSION else self._by_key
        with self._lock:
            packed = bytes(found.get(key[1:], b""))
        places = _places(packed, self.start.seq, self.start.offset)
        return [place for place in places if after_seq < place[0] <= up_to_seq]

    def rows(self) -> list[tuple[int, str, int, int, int, int, bytearray]]:
        """One row of the index for each key."""
        rows = []
        seq, base = self.start.seq, self.start.offset
        origin = _origin(seq, base)
        for prefix, by_key in ((_SESSION, self._by_session), (_OTHER, self._by_key)):
            for name, packed in by_key.items():
                key = prefix + name
                key_hash = hash_of(key)
                last_seq = seq + _PACKED.unpack_from(packed, len(packed) - _PACKED.size)[0]
                # SQLite's module takes a bytearray as it is, and looks for an adapter for every other kind of bytes.
                rows.append((key_hash, key, seq, last_seq, base, crc32(packed, key_hash ^ origin), packed))
        rows.sort()  # neighbours in the index are then written together
        return rows


def hash_of(key: str) -> int:
    """The number by which the index sorts a key."""
    # Short, so that one page of the tree holds many; equal hashes are told apart by the key beside them.
    return crc32(key.encode())


def check_row(row: Row) -> None:
    """Raises IndexDamaged where a row is not what was written."""
    packed = row.packed
    if (
        not isinstance(packed, bytes)
        or len(packed) % _PACKED.size
        or row.checksum != crc32(packed, hash_of(row.key) ^ _origin(row.after_seq, row.base))
    ):
        raise IndexDamaged(f"the row of {row.key!r} after entry {row.after_seq} is not what was written")


def unpack(row: Row) -> list[Place]:
    """The entries of a row, ascending."""
    return _places(row.packed, row.after_seq, row.base)


def _origin(after_seq: int, base: int) -> int:
    return crc32(f"{after_seq}|{base}".encode())


def _places(packed: bytes, after_seq: int, base: int) -> list[Place]:
    found = _PACKED.iter_unpack(packed)
    return [(after_seq + seq, base + offset, length, entry_hash) for seq, offset, length, entry_hash in found]
