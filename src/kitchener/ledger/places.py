"""Where entries stand: by session and by key, packed for the index, and in memory for those that the index has not yet.

Pure but for a lock. Knows nothing of files.
"""

import threading
import zlib
from array import array
from collections.abc import Iterable, Iterator
from typing import Final

from kitchener.ledger.chain import IndexKeys, Mark, session_of
from kitchener.ledger.verifier import Batch

_STOP_BYTES: Final = 64 << 10
"""How far apart the stops are that a scan can start from."""
_SESSION: Final = "@"
_OTHER: Final = "="

Place = tuple[int, int, int]
"""Where an entry stands: its number, the byte offset of its line, the length of the line with its LF."""


def session_key(session_id: str) -> str:
    """The index key of a session's entries."""
    return _SESSION + session_id


def other_key(key: str) -> str:
    """The index key of any other key; kept apart from sessions."""
    return _OTHER + key


class IndexDamaged(Exception):
    """The index cannot be what was written. Never shown to users: the journal is read instead."""


class Tail:
    """Where entries stand that the index does not have yet: few, newest, in memory. Threads may share it."""

    def __init__(self, start: Mark) -> None:
        self.start = self.end = start
        """It holds every entry between these places."""
        self.last_line = 0
        """Byte offset of the last entry's line."""
        self.stops: list[Mark] = []
        """Places between them, some way apart, from which a scan can start."""
        self._by_session: dict[str, list[int]] = {}
        self._by_key: dict[str, list[int]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return self.end.seq - self.start.seq

    def extend(self, entries: Iterable[tuple[str | None, tuple[str, ...], int]], after: Mark) -> None:
        """Takes up the next entries.

        Args:
            entries: session, other keys and length of the line of each entry after `end`
            after: the place after the last of them
        """
        seq, offset = self.end.seq, self.end.offset
        by_session, by_key = self._by_session, self._by_key
        with self._lock:
            for session_id, keys, length in entries:
                seq += 1
                if session_id is not None:
                    numbers = by_session.get(session_id)
                    if numbers is None:
                        by_session[session_id] = [seq, offset, length]
                    else:
                        numbers += (seq, offset, length)
                for key in keys:
                    by_key.setdefault(key, []).extend((seq, offset, length))
                self.last_line = offset
                offset += length
            self.end = after
            last_stop = self.stops[-1] if self.stops else self.start
            if after.offset - last_stop.offset >= _STOP_BYTES:
                self.stops.append(after)

    def find_stop(self, seq: int) -> Mark | None:
        """The last of the stops at or before the end of entry `seq`."""
        return next((stop for stop in reversed(self.stops) if stop.seq <= seq), None)

    def take_up(self, commit: Batch, index_keys: IndexKeys | None, after: Mark) -> None:
        """Takes up a commit as it was found in the file."""
        found = []
        for _, length, fields in commit:
            payload = fields["payload"]
            keys = index_keys(fields["entry_type"], payload) if index_keys is not None else ()
            found.append((session_of(payload), keys, length))
        self.extend(found, after)

    def find(self, key: str, after_seq: int, up_to_seq: int) -> list[Place]:
        """The entries of an index key within bounds, ascending."""
        found = self._by_session if key[0] == _SESSION else self._by_key
        with self._lock:
            numbers = found.get(key[1:], [])[:]
        return [place for place in _triples(numbers) if after_seq < place[0] <= up_to_seq]

    def rows(self) -> list[tuple[int, str, int, int, int, bytes]]:
        """One row of the index for each key: the first entry's number and offset, then differences to them."""
        rows = []
        for prefix, by_key in ((_SESSION, self._by_session), (_OTHER, self._by_key)):
            for name, numbers in by_key.items():
                key, seq, base = prefix + name, numbers[0], numbers[1]
                packed = array("I", [0]) * len(numbers)
                packed[::3] = array("I", [number - seq for number in numbers[::3]])
                packed[1::3] = array("I", [offset - base for offset in numbers[1::3]])
                packed[2::3] = array("I", numbers[2::3])
                rows.append((hash_of(key), key, seq, numbers[-3], base, _checked(key, seq, base, packed.tobytes())))
        rows.sort()  # neighbours in the index are then written together
        return rows


def hash_of(key: str) -> int:
    """The number by which the index sorts a key."""
    # Short, so that one page of the tree holds many; equal hashes are told apart by the key beside them.
    return zlib.crc32(key.encode())


def _checked(key: str, seq: int, base: int, packed: bytes) -> bytes:
    return packed + zlib.crc32(packed, zlib.crc32(f"{key}|{seq}|{base}".encode())).to_bytes(4, "little")


def check_row(key: str, seq: int, base: int, row: bytes) -> None:
    """Raises IndexDamaged where a row is not what was written."""
    packed = row[:-4]
    if len(packed) % 12 or row != _checked(key, seq, base, packed):
        raise IndexDamaged(f"the row of {key!r} from entry {seq} on is not what was written")


def unpack(seq: int, base: int, row: bytes) -> Iterator[Place]:
    """The entries of a row, ascending."""
    numbers = array("I", row[:-4])
    return zip(map(seq.__add__, numbers[::3]), map(base.__add__, numbers[1::3]), numbers[2::3], strict=True)


def _triples(numbers: list[int]) -> Iterator[Place]:
    return zip(numbers[::3], numbers[1::3], numbers[2::3], strict=True)
