"""Maps a session or key to the positions of its entries, in a SQLite file that can be deleted at any time.

The index is derived from the journal. It is written after the journal's fsync, and completed or rebuilt when a ledger is
opened. Every line found through the index is checked against its own hash. Knows nothing of payloads. Blocks, so it runs in
worker threads; one thread at a time uses the writing connection, and one the reading connection.
"""

import os
import sqlite3
import sys
import zlib
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import closing, contextmanager
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeVar
from urllib.parse import quote

from kitchener.errors import LedgerDiskError, LedgerPathError
from kitchener.ledger.disk.file_ops import DISK_ERRORS, path_problem, remove_database
from kitchener.ledger.format.lines import START, IndexKeys, Mark
from kitchener.ledger.index.row_sums import RowSums
from kitchener.ledger.index.tail import IndexDamaged, IndexRow, Location, Tail, check_row, hash_of, unpack
from kitchener.logs import get_logger

_log = get_logger(__name__)
T = TypeVar("T")

_FORMAT: Final = f"kitchener-index/6 {sys.byteorder}"
_TABLES: Final = {
    "head": """CREATE TABLE head (
        id INTEGER PRIMARY KEY CHECK (id = 0), format TEXT, ledger_id TEXT, keys TEXT,
        seq INTEGER, offset INTEGER, chain TEXT, batch INTEGER, timestamp TEXT, last_line INTEGER, last_hash TEXT,
        durable_seq INTEGER, checksum INTEGER
    )""",
    "places": """CREATE TABLE places (
        id INTEGER PRIMARY KEY, hash INTEGER, key TEXT, after_seq INTEGER, base INTEGER, checksum INTEGER, packed BLOB
    )""",
    "sums": """CREATE TABLE sums (
        id INTEGER PRIMARY KEY CHECK (id = 0), seq INTEGER, rows INTEGER, checksum INTEGER, packed BLOB
    )""",
    "stops": """CREATE TABLE stops (
        seq INTEGER PRIMARY KEY, offset INTEGER, chain TEXT, batch INTEGER, timestamp TEXT, checksum INTEGER
    )""",
}
_ROWS: Final = """SELECT key, after_seq, base, checksum, packed FROM places INDEXED BY by_hash
    WHERE hash = ? AND id <= ? ORDER BY hash DESC, id DESC"""
"""Filters by the indexed columns only: a damaged row must be returned, so that its checksum is checked."""
_INSERT: Final = "INSERT INTO places VALUES "
_VALUES: Final = "(?, ?, ?, ?, ?, ?, ?)"
_TOGETHER: Final = 16
"""Rows in one INSERT statement, to pay the cost of a statement once for many rows."""
_STOPS_AT_ONCE: Final = 256
"""Most stops that one query returns; they span about 16 MiB of the ledger."""
_PARTS: Final = {*_TABLES, "by_hash"}


_DISK_ERRORS: Final = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMOPEN,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_SHMMAP,
)
"""Errors of a disk that is full or fails. They say nothing about what the index holds."""
_IN_USE: Final = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
"""Another program holds a lock on the index."""
_WAIT_S: Final = 1.0
"""Longest wait for another program that has the index locked, seconds. Commits wait too."""
_PRIMARY: Final = 0xFF
"""The bits of an extended error code that are the code it extends."""
FAULTS: Final = (IndexDamaged, sqlite3.Error, UnicodeDecodeError)
"""Errors of a query to a damaged index. SQLite's module cannot decode a message that quotes damaged text."""


class IndexedState(NamedTuple):
    """The facts that an index stores about its journal."""

    mark: Mark = START
    """The end of the indexed part of the journal."""
    last_line: int = 0
    """Byte offset of the last indexed entry."""
    last_hash: str = ""
    """Hash of the last indexed entry, `sha256:` and hex digits."""
    durable_seq: int = 0
    """Number of the last entry that was on disk when the index was written."""
    sums: RowSums = RowSums()
    """Sums over the rows, which show that one is missing."""


class Index:
    """The index of a ledger that is open for writing. Made by `open_index`."""

    def __init__(self, path: Path, ledger_id: str, keys: str) -> None:
        self.path = path
        self.known = IndexedState()
        """The stored facts, as of the last write."""
        self._ledger_id, self._keys = ledger_id, keys
        self._is_unsure = False
        self._writer = _connect(path)
        self._reader: sqlite3.Connection | None = None

    def load(self) -> None:
        """Reads the index, or creates an empty one; raises IndexDamaged if it is not this ledger's, or sqlite3.Error."""
        self._writer.execute("PRAGMA journal_mode = WAL")
        self._writer.execute("PRAGMA synchronous = NORMAL")
        found = {name for (name,) in self._writer.execute("SELECT name FROM sqlite_master")}
        if not found:
            self.clear(IndexedState())
        elif found != _PARTS:
            raise IndexDamaged("its tables are not those of this version")
        self.known = read_known(self._writer, self._ledger_id, self._keys)

    def clear(self, known: IndexedState) -> None:
        """Deletes all rows and stores these facts."""
        known = known._replace(sums=RowSums())
        with self._transaction():
            for table in _TABLES:
                self._writer.execute(f"DROP TABLE IF EXISTS {table}")
            for table in _TABLES.values():
                self._writer.execute(table)
            self._writer.execute("CREATE INDEX by_hash ON places (hash)")
            self._save(known)
        self.known = known

    def add(self, tail: Tail, durable_seq: int) -> None:
        """Stores the rows of a tail that starts where the index ends; raises IndexDamaged if it starts elsewhere."""
        self._make_sure()
        if tail.start != self.known.mark:
            raise IndexDamaged(f"it ends with entry {self.known.mark.seq}, and entry {tail.start.seq} would come next")
        mark = tail.end
        before, found = self.known.sums, tail.rows()
        rows = [(number, *row) for number, row in enumerate(found, before.rows + 1)]
        known = IndexedState(mark, tail.last_line, tail.last_hash, durable_seq, before.plus([row[0] for row in found]))
        alone = len(rows) - len(rows) % _TOGETHER
        together = (tuple(chain.from_iterable(rows[each : each + _TOGETHER])) for each in range(0, alone, _TOGETHER))
        with self._transaction():
            self._writer.execute("DELETE FROM places WHERE id > ?", (before.rows,))  # only another program adds such rows
            self._writer.executemany(_INSERT + ", ".join([_VALUES] * _TOGETHER), together)
            self._writer.executemany(_INSERT + _VALUES, rows[alone:])
            stops = ((*stop, _stop_check(stop)) for stop in tail.stops)
            self._writer.executemany("INSERT INTO stops VALUES (?, ?, ?, ?, ?, ?)", stops)
            self._save(known)
        self.known = known

    def note_durable(self, durable_seq: int) -> None:
        """Stores the number of the last durable entry, so that a later opening detects a missing end."""
        self._make_sure()
        if durable_seq != self.known.durable_seq:
            known = self.known._replace(durable_seq=durable_seq)
            check = _checksum(self._ledger_id, self._keys, known)
            self._is_unsure = True
            self._writer.execute("UPDATE head SET durable_seq = ?, checksum = ?", (durable_seq, check))
            self.known, self._is_unsure = known, False

    def reader(self) -> sqlite3.Connection:
        """The connection for queries. The first query opens it, which detects damage since the index was opened."""
        if self._reader is None:
            self._reader = _connect(self.path)
        return self._reader

    def close(self) -> None:
        """Closes both connections."""
        if self._reader is not None:
            self._reader.close()
        self._writer.close()

    def _make_sure(self) -> None:
        """Reads the stored facts again after a failed write, because the write may have taken effect."""
        if self._is_unsure:
            self.known = read_known(self._writer, self._ledger_id, self._keys)
            self._is_unsure = False

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._is_unsure = True
        self._writer.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._writer.execute("COMMIT")
        except BaseException:
            if self._writer.in_transaction:  # SQLite itself undoes what a full disk interrupts
                self._writer.execute("ROLLBACK")
            raise
        self._is_unsure = False

    def _save(self, known: IndexedState) -> None:
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
        sums = _stored_sums(known.mark.seq, known.sums.rows, known.sums.pack())
        self._writer.execute("INSERT OR REPLACE INTO sums VALUES (0, ?, ?, ?, ?)", sums)


class IndexSnapshot:
    """Reads the index of a ledger that another process may write, for one query. Changes and creates no file.

    Args:
        path: the index's file
        ledger_id: the ledger that the index must belong to
        keys: name of the function that must have given the keys; "": any

    Raises:
        IndexDamaged: there is no index, or it does not match
    """

    def __init__(self, path: Path, ledger_id: str, keys: str) -> None:
        self.path = path
        self._ledger_id, self._keys = ledger_id, keys

    def __enter__(self) -> Self:
        self._before = self._state()
        if self._before[0] is None:
            raise IndexDamaged("there is none")
        # A running writer has a write-ahead log, which SQLite shares. Without a log nothing changes while we read, and
        # `immutable` keeps SQLite from creating one.
        options = "mode=ro&readonly_shm=1" if self._before[1] is not None else "immutable=1"
        self._connection = sqlite3.connect(f"file:{quote(str(self.path))}?{options}", uri=True, isolation_level=None)
        try:
            self._connection.execute("BEGIN")  # the facts of one moment, also while a writer changes them
            self.known = read_known(self._connection, self._ledger_id, self._keys or None)
            self._connection.execute("COMMIT")
        except BaseException:
            self._connection.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._connection.close()

    def ask(self, question: Callable[[sqlite3.Connection, IndexedState], T]) -> T:
        """The answer; raises IndexDamaged if a writer opened or closed the index in the meantime."""
        answer = question(self._connection, self.known)
        if self._before[1] is None and self._state() != self._before:
            raise IndexDamaged("it changed while it was read")
        return answer

    def _state(self) -> tuple[tuple[int, int] | None, tuple[int, int] | None]:
        return _changed_at(self.path), _changed_at(self.path.with_name(f"{self.path.name}-wal"))


def open_index(path: Path, ledger_id: str, keys: str) -> Index:
    """Opens the index of a ledger; replaces a missing or unusable one by an empty one.

    Args:
        path: the index's file
        ledger_id: the ledger that the index must belong to
        keys: name of the function that gives the keys; an index made with another function is not used

    Raises:
        LedgerDiskError: the disk cannot store the index now, or another program has it locked; an existing index is unchanged
        LedgerPathError: the path cannot hold an index, or it cannot be opened; an existing index is unchanged
    """
    try:
        return _load(path, ledger_id, keys)
    except FAULTS as error:
        if is_temporary(error):
            raise _path_error(path, error) from error
        _log.warning("index rebuilt", path=str(path), reason=str(error))
    try:
        remove_database(path)
        return _load(path, ledger_id, keys)
    except (sqlite3.Error, OSError) as error:
        raise _path_error(path, error) from error


def is_temporary(error: Exception) -> bool:
    """Whether an error says nothing about the index itself: the disk or another program refuses access for now."""
    code = _code_of(error)
    return code in _DISK_ERRORS or code & _PRIMARY in (*_IN_USE, sqlite3.SQLITE_CANTOPEN)


def _path_error(path: Path, error: Exception) -> LedgerPathError:
    what, code = "cannot hold the ledger's index", _code_of(error)
    if code & _PRIMARY == sqlite3.SQLITE_CANTOPEN:
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))  # SQLite does not say why
        except OSError as reason:
            found = path_problem(path, reason)
            return type(found)(str(path), f"{what}: {found.problem}")
        error = OSError("a file beside it cannot be opened: its permissions or the limit of open files (`ulimit -n`) forbid it")
    if code & _PRIMARY in _IN_USE:
        return LedgerDiskError(str(path), f"{what}: another program uses it; close that program")
    is_of_disk = error.errno in DISK_ERRORS if isinstance(error, OSError) else code in _DISK_ERRORS
    return (LedgerDiskError if is_of_disk else LedgerPathError)(str(path), f"{what}: {error}")


def _code_of(error: Exception) -> int:
    """SQLite's extended code of an error; 0: it is none of SQLite's."""
    return getattr(error, "sqlite_errorcode", 0) if isinstance(error, sqlite3.Error) else 0


def read_known(connection: sqlite3.Connection, ledger_id: str, keys: str | None) -> IndexedState:
    """The facts that an index stores; raises IndexDamaged if they are damaged, another ledger's, or made with other keys."""
    row = connection.execute("SELECT * FROM head").fetchone()
    if row is None or len(row) != 13 or row[1] != _FORMAT:
        raise IndexDamaged("it has another format")
    if row[2] != ledger_id:
        raise IndexDamaged(f"it belongs to ledger {row[2]!r}")
    if keys is not None and row[3] != keys:
        raise IndexDamaged("it was made for other keys")
    known = IndexedState(Mark(*row[4:9]), *row[9:12])
    if row[12] != _checksum(row[2], row[3], known):
        raise IndexDamaged("its head is not what was written")
    stored = connection.execute("SELECT seq, rows, checksum, packed FROM sums").fetchone()
    if stored is None or not isinstance(stored[-1], bytes) or stored != _stored_sums(known.mark.seq, stored[1], stored[-1]):
        raise IndexDamaged("the sums over its rows are not what was written")
    return known._replace(sums=RowSums.unpack(stored[1], stored[-1]))


def find_locations(
    connection: sqlite3.Connection, known: IndexedState, key: str, after_seq: int, up_to_seq: int
) -> list[Location]:
    """Positions of a key's entries with `after_seq` < number <= `up_to_seq`, ascending.

    Raises:
        IndexDamaged: rows are missing, or are not what was written; the other queries for keys raise it, too
    """
    up_to_seq, found = min(up_to_seq, known.mark.seq), list[Location]()
    with closing(_rows_of(connection, known, key)) as rows:
        for row in rows:
            if row.after_seq < up_to_seq:
                found.extend(each for each in reversed(unpack(row)) if after_seq < each[0] <= up_to_seq)
            if row.after_seq <= after_seq:
                break
    return found[::-1]


def find_known(connection: sqlite3.Connection, known: IndexedState, keys: Collection[str]) -> set[str]:
    """The keys among these that have entries."""
    hashes = {hash_of(key) for key in keys}
    known.sums.check(connection, hashes)
    marks = ",".join("?" * len(hashes))
    found = set[str]()
    for key_hash, key in connection.execute(f"SELECT DISTINCT hash, key FROM places WHERE hash IN ({marks})", [*hashes]):
        if not isinstance(key, str) or hash_of(key) != key_hash:
            raise IndexDamaged("a row has another key than was written")
        found.add(key)
    return found.intersection(keys)


def find_newest(connection: sqlite3.Connection, known: IndexedState, key: str, up_to_seq: int, limit: int) -> list[Location]:
    """Positions of a key's last `limit` entries, ascending."""
    up_to_seq, newest = min(up_to_seq, known.mark.seq), list[Location]()
    with closing(_rows_of(connection, known, key)) as rows:
        for row in rows:
            newest.extend(each for each in reversed(unpack(row)) if each[0] <= up_to_seq)
            if len(newest) >= limit:
                break
    return newest[:limit][::-1]


def _rows_of(connection: sqlite3.Connection, known: IndexedState, key: str) -> Generator[IndexRow, None, None]:
    """The rows of a key, the newest first, each checked."""
    key_hash = hash_of(key)
    known.sums.check(connection, [key_hash])
    with closing(connection.execute(_ROWS, (key_hash, known.sums.rows))) as rows:
        for row in map(IndexRow._make, rows):
            check_row(row)
            if row.key == key:
                yield row
            elif hash_of(row.key) != key_hash:
                raise IndexDamaged(f"the row of {row.key!r} after entry {row.after_seq} is not where it was written")


def find_stop(connection: sqlite3.Connection, seq: int) -> Mark:
    """The last stop at or before the end of entry `seq`, where a scan can start; START: there is none."""
    row = connection.execute("SELECT * FROM stops WHERE seq <= ? ORDER BY seq DESC LIMIT 1", (seq,)).fetchone()
    return _checked_stop(row) if row is not None else START


def next_stops(connection: sqlite3.Connection, known: IndexedState, seq: int) -> list[Mark]:
    """The first stops after entry `seq`, ascending; none if the index ends at or before that entry."""
    rows = connection.execute("SELECT * FROM stops WHERE seq > ? ORDER BY seq LIMIT ?", (seq, _STOPS_AT_ONCE)).fetchall()
    stops = [*map(_checked_stop, rows)]
    return stops or ([known.mark] if known.mark.seq > seq else [])


def keys_name(index_keys: IndexKeys | None) -> str:
    """The qualified name of a function that gives keys; "" for None."""
    return f"{index_keys.__module__}.{index_keys.__qualname__}" if index_keys is not None else ""


def _checksum(ledger_id: str, keys: str, known: IndexedState) -> int:
    # Without a checksum, a damaged head could claim more durable entries than the ledger has.
    return zlib.crc32(f"{ledger_id}|{keys}|{known.mark}|{known.last_line}|{known.last_hash}|{known.durable_seq}".encode())


def _checked_stop(row: tuple[int, int, str, int, str, int]) -> Mark:
    stop = Mark(*row[:-1])
    if row[-1] != _stop_check(stop):
        raise IndexDamaged(f"the place after entry {stop.seq} is not what was written")
    return stop


def _stop_check(stop: Mark) -> int:
    return zlib.crc32(str(stop).encode())


def _stored_sums(seq: int, rows: int, packed: bytes) -> tuple[int, int, int, bytes]:
    """The row of `sums`. Its checksum covers the end of the index, so that older sums are noticed."""
    return seq, rows, zlib.crc32(packed, zlib.crc32(f"{seq}|{rows}".encode())), packed


def _changed_at(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _connect(path: Path) -> sqlite3.Connection:
    # Threads use a connection one at a time; SQLite's own check would refuse every thread but the first.
    return sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None, check_same_thread=False, cached_statements=32)


def _load(path: Path, ledger_id: str, keys: str) -> Index:
    if path.is_symlink():  # SQLite would follow the link and write to its target
        raise IndexDamaged("it is a symbolic link")
    index = Index(path, ledger_id, keys)
    try:
        index.load()
    except BaseException:
        index.close()
        raise
    return index
