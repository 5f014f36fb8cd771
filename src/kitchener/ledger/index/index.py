"""Where a ledger's entries of one session or key stand, in a SQLite file that can be deleted at any time.

The journal is the truth and this is derived from it: it is written after the journal's fsync, caught up or rebuilt when a
ledger is opened, and every line found through it is checked against its own hash. It knows nothing of payloads. Blocks, so
it runs in worker threads; the writing connection and the reading one each belong to one thread at a time.
"""

import os
import sqlite3
import sys
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeVar
from urllib.parse import quote

import structlog

from kitchener.errors import LedgerPathError
from kitchener.ids import path_part
from kitchener.ledger.format.lines import START, IndexKeys, Mark
from kitchener.ledger.index.tail import IndexDamaged, Place, Row, Tail, check_row, hash_of, unpack

_log = structlog.get_logger(__name__)
T = TypeVar("T")

_FORMAT: Final = f"kitchener-index/5 {sys.byteorder}"
_TABLES: Final = """
CREATE TABLE head (
    id INTEGER PRIMARY KEY CHECK (id = 0), format TEXT, ledger_id TEXT, keys TEXT,
    seq INTEGER, offset INTEGER, chain TEXT, batch INTEGER, timestamp TEXT, last_line INTEGER, last_hash TEXT,
    durable_seq INTEGER, checksum INTEGER
);
CREATE TABLE places (
    id INTEGER PRIMARY KEY, hash INTEGER, key TEXT, after_seq INTEGER, last_seq INTEGER, base INTEGER, checksum INTEGER,
    packed BLOB
);
CREATE INDEX by_hash ON places (hash);
CREATE TABLE stops (
    seq INTEGER PRIMARY KEY, offset INTEGER, chain TEXT, batch INTEGER, timestamp TEXT
);
"""

_ROWS: Final = "SELECT key, after_seq, base, checksum, packed FROM places WHERE hash = ? AND key = ?"
_INSERT: Final = "INSERT INTO places (hash, key, after_seq, last_seq, base, checksum, packed) VALUES "
_VALUES: Final = "(?, ?, ?, ?, ?, ?, ?)"
_TOGETHER: Final = 16
"""Rows in one statement; running one costs a third of what its row does, and lets go of Python's lock."""
_STOPS_AT_ONCE: Final = 256
"""Stops that one question gives; they are some 16 MiB of the ledger."""
_PARTS: Final = {"head", "places", "by_hash", "stops"}


FAULTS: Final = (IndexDamaged, sqlite3.Error, UnicodeDecodeError)
"""What asking a damaged index raises. SQLite's module cannot decode a message that quotes damaged text."""


class Known(NamedTuple):
    """What an index says about its journal."""

    mark: Mark = START
    """The place up to which it was written."""
    last_line: int = 0
    """Byte offset of the last entry before that place."""
    last_hash: str = ""
    """That entry's hash, `sha256:` and hex digits."""
    durable_seq: int = 0
    """The last entry that was on disk when it was written."""


def index_path(directory: Path, ledger_id: str, ledger: Path) -> Path:
    """The file of a ledger's index.

    Its name holds the ledger's id, and a hash of where the ledger lies as seen from the index: two files of one id do not
    share an index, and a whole tree can be moved.
    """
    where = os.path.relpath(ledger.resolve(), directory.resolve())
    name = path_part(ledger_id)[:120]  # file systems end at 255 bytes
    return directory / f"{name}-{sha256(f'{ledger_id}|{where}'.encode()).hexdigest()[:12]}.sqlite"


class Index:
    """The index of a ledger that is open for writing. Made by `open_index`."""

    def __init__(self, path: Path, ledger_id: str, keys: str) -> None:
        self.path = path
        self.known = Known()
        """What it says, as of the last write."""
        self._ledger_id, self._keys = ledger_id, keys
        self._writer = _connect(path)
        self._reader: sqlite3.Connection | None = None

    def load(self) -> None:
        """Takes up what is there; raises IndexDamaged where it is not this ledger's, or sqlite3.Error."""
        self._writer.execute("PRAGMA journal_mode = WAL")
        self._writer.execute("PRAGMA synchronous = NORMAL")
        found = {name for (name,) in self._writer.execute("SELECT name FROM sqlite_master")}
        if not found:
            self.clear(Known())
            return
        if found != _PARTS:
            raise IndexDamaged("parts of it are missing")
        self.known = read_known(self._writer, self._ledger_id, self._keys)

    def clear(self, known: Known) -> None:
        """Starts from nothing."""
        for table in ("head", "places", "stops"):
            self._writer.execute(f"DROP TABLE IF EXISTS {table}")
        self._writer.executescript(_TABLES)
        with self._transaction():
            self._save(known)
        self.known = known

    def add(self, tail: Tail, durable_seq: int) -> None:
        """Notes what a tail holds, which begins where the index ends."""
        if tail.start != self.known.mark:
            raise IndexDamaged(f"it ends with entry {self.known.mark.seq}, and entry {tail.start.seq} would come next")
        mark = tail.end
        known = Known(mark, tail.last_line, tail.last_hash, durable_seq)
        rows = tail.rows()
        alone = len(rows) - len(rows) % _TOGETHER
        together = (tuple(chain.from_iterable(rows[each : each + _TOGETHER])) for each in range(0, alone, _TOGETHER))
        with self._transaction():
            self._writer.executemany(_INSERT + ", ".join([_VALUES] * _TOGETHER), together)
            self._writer.executemany(_INSERT + _VALUES, rows[alone:])
            self._writer.executemany("INSERT INTO stops VALUES (?, ?, ?, ?, ?)", tail.stops)
            self._save(known)
        self.known = known

    def note_durable(self, durable_seq: int) -> None:
        """Remembers how far the journal is on disk, so that a missing end is noticed."""
        if durable_seq != self.known.durable_seq:
            known = self.known._replace(durable_seq=durable_seq)
            check = _checksum(self._ledger_id, self._keys, known)
            self._writer.execute("UPDATE head SET durable_seq = ?, checksum = ?", (durable_seq, check))
            self.known = known

    def reader(self) -> sqlite3.Connection:
        """The connection for queries."""
        if self._reader is None:
            self._reader = _connect(self.path)
        return self._reader

    def close(self) -> None:
        """Closes both connections."""
        if self._reader is not None:
            self._reader.close()
        self._writer.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._writer.execute("ROLLBACK")
            raise
        self._writer.execute("COMMIT")

    def _save(self, known: Known) -> None:
        self._writer.execute(
            "INSERT OR REPLACE INTO head VALUES (0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                _FORMAT,
                self._ledger_id,
                self._keys,
                *known.mark,
                known.last_line,
                known.last_hash,
                known.durable_seq,
                _checksum(self._ledger_id, self._keys, known),
            ),
        )


class IndexSnapshot:
    """The index of a ledger that somebody else may be writing, for one question. Changes and makes no file.

    Args:
        path: its file
        ledger_id: whose index it must be
        keys: names the function that must have given the keys; "": any

    Raises:
        IndexDamaged: there is none, or not the right one
    """

    def __init__(self, path: Path, ledger_id: str, keys: str) -> None:
        self.path = path
        self._ledger_id, self._keys = ledger_id, keys

    def __enter__(self) -> Self:
        self._before = self._state()
        if self._before[0] is None:
            raise IndexDamaged("there is none")
        # While a writer is at work there is a write-ahead log, and SQLite shares it; else nothing changes under our hands,
        # and `immutable` keeps SQLite from making one.
        options = "mode=ro&readonly_shm=1" if self._before[1] is not None else "immutable=1"
        self._connection = sqlite3.connect(f"file:{quote(str(self.path))}?{options}", uri=True, isolation_level=None)
        try:
            self.known = read_known(self._connection, self._ledger_id, self._keys or None)
        except BaseException:
            self._connection.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._connection.close()

    def ask(self, question: Callable[[sqlite3.Connection, Known], T]) -> T:
        """The answer; raises IndexDamaged where a writer began or ended its work meanwhile."""
        answer = question(self._connection, self.known)
        if self._before[1] is None and self._state() != self._before:
            raise IndexDamaged("it changed while it was read")
        return answer

    def _state(self) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        return _changed_at(self.path), _changed_at(self.path.with_name(f"{self.path.name}-wal"))


def open_index(path: Path, ledger_id: str, keys: str) -> Index:
    """The index of a ledger; an empty one where there is none, or none that can be used.

    Args:
        path: its file
        ledger_id: whose index it must be
        keys: names the function that gives the keys, so that an index made with another one is not used

    Raises:
        LedgerPathError: no index can be made there
    """
    try:
        return _load(path, ledger_id, keys)
    except FAULTS as error:
        _log.warning("index rebuilt", path=str(path), reason=str(error))
    try:
        remove_index(path)
        return _load(path, ledger_id, keys)
    except (sqlite3.Error, OSError) as error:
        raise LedgerPathError(str(path), f"cannot hold the ledger's index: {error}") from error


def remove_index(path: Path) -> None:
    """Deletes an index that nobody has open."""
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def read_known(connection: sqlite3.Connection, ledger_id: str, keys: str | None) -> Known:
    """What an index says about its journal; raises IndexDamaged where it is another ledger's, or was made with other keys."""
    row = connection.execute("SELECT * FROM head").fetchone()
    if row is None or len(row) != 13 or row[1] != _FORMAT:
        raise IndexDamaged("it has another format")
    if row[2] != ledger_id:
        raise IndexDamaged(f"it belongs to ledger {row[2]!r}")
    if keys is not None and row[3] != keys:
        raise IndexDamaged("it was made for other keys")
    known = Known(Mark(*row[4:9]), *row[9:12])
    if row[12] != _checksum(row[2], row[3], known):
        raise IndexDamaged("its head is not what was written")
    return known


def find_places(connection: sqlite3.Connection, key: str, after_seq: int, up_to_seq: int) -> Iterator[Place]:
    """A key's entries within bounds, ascending. Reads all rows at once, decodes them one by one."""
    found = connection.execute(
        f"{_ROWS} AND last_seq > ? AND after_seq < ? ORDER BY hash, id", (hash_of(key), key, after_seq, up_to_seq)
    )
    rows = [*map(Row._make, found.fetchall())]
    for row in rows:
        check_row(row)
    return (place for row in rows for place in unpack(row) if after_seq < place[0] <= up_to_seq)


def find_known(connection: sqlite3.Connection, keys: Collection[str]) -> set[str]:
    """Those of the keys that have entries."""
    hashes = [hash_of(key) for key in keys]
    marks = ",".join("?" * len(hashes))
    rows = connection.execute(f"SELECT DISTINCT key FROM places WHERE hash IN ({marks})", hashes).fetchall()
    return {key for (key,) in rows if key in keys}


def find_newest(connection: sqlite3.Connection, key: str, up_to_seq: int, limit: int) -> list[Place]:
    """A key's last entries, ascending."""
    newest: list[Place] = []
    rows = connection.execute(f"{_ROWS} AND after_seq < ? ORDER BY hash DESC, id DESC", (hash_of(key), key, up_to_seq))
    with closing(rows):
        for row in map(Row._make, rows):
            check_row(row)
            newest.extend(place for place in reversed(unpack(row)) if place[0] <= up_to_seq)
            if len(newest) >= limit:
                break
    return newest[:limit][::-1]


def find_stop(connection: sqlite3.Connection, seq: int) -> Mark:
    """The last known place at or before the end of entry `seq`, from which a scan can start."""
    row = connection.execute("SELECT * FROM stops WHERE seq <= ? ORDER BY seq DESC LIMIT 1", (seq,)).fetchone()
    return Mark(*row) if row is not None else START


def next_stops(connection: sqlite3.Connection, known: Known, seq: int) -> list[Mark]:
    """The first known places after entry `seq`, ascending; none where the index ends before them."""
    rows = connection.execute("SELECT * FROM stops WHERE seq > ? ORDER BY seq LIMIT ?", (seq, _STOPS_AT_ONCE)).fetchall()
    stops = [Mark(*row) for row in rows]
    return stops or ([known.mark] if known.mark.seq > seq else [])


def keys_name(index_keys: IndexKeys | None) -> str:
    """A name for a function that gives keys; "" for none."""
    return f"{index_keys.__module__}.{index_keys.__qualname__}" if index_keys is not None else ""


def _checksum(ledger_id: str, keys: str, known: Known) -> int:
    # A head that was damaged must not pass for one that has seen more than there is.
    return zlib.crc32(f"{ledger_id}|{keys}|{known.mark}|{known.last_line}|{known.last_hash}|{known.durable_seq}".encode())


def _changed_at(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _connect(path: Path) -> sqlite3.Connection:
    # Threads take turns on a connection; SQLite's own check would refuse every thread but the first.
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=32)


def _load(path: Path, ledger_id: str, keys: str) -> Index:
    if path.is_symlink():  # SQLite would follow it, and write into somebody else's file
        raise IndexDamaged("it is a symbolic link")
    index = Index(path, ledger_id, keys)
    try:
        index.load()
    except BaseException:
        index.close()
        raise
    return index
