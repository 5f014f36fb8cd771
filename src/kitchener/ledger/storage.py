"""A ledger's file and index as one thing, open for writing: the part of a ledger that blocks.

The client above runs these methods in worker threads: `flush` and `note` in the thread of a commit round, `search` and
`newest` in that of a reader.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import structlog

from kitchener.errors import LedgerWriteError
from kitchener.ledger.chain import START, IndexKeys, Mark, Opener, StoredEntry, session_of
from kitchener.ledger.files import FileOps, ensure_directory, path_problem
from kitchener.ledger.index import (
    Index,
    IndexDamaged,
    Known,
    Place,
    find_stop,
    index_path,
    keys_name,
    open_index,
    other_key,
    remove_index,
    session_key,
)
from kitchener.ledger.journal import Journal, holds, open_journal
from kitchener.ledger.reading import Query, Shelf
from kitchener.ledger.verifier import Batch
from kitchener.ledger.verifying import VerifyReport, verify_part

_log = structlog.get_logger(__name__)
T = TypeVar("T")
_COMMIT_ENTRIES = 8_192
_COMMIT_BYTES = 16 << 20
"""The largest commit; a longer queue becomes several, each durable before the next begins."""


class Storage:
    """A ledger on disk. Made by `open_storage`."""

    def __init__(self, journal: Journal, index: Index, index_keys: IndexKeys | None, opener: Opener | None) -> None:
        self.journal = journal
        self.opened_from = "empty"
        self._index = index
        self._notes = self._answers = True
        self._index_keys = index_keys
        self._places: list[Place] = []
        # Two groups may commit one ledger at a time; what the second brings is then partly written already.
        self._lock = threading.Lock()
        self._shelf = Shelf(journal.path, journal.ledger_id, journal.read, self, index_keys, opener)

    def flush(self, entries: Sequence[StoredEntry], *, sync: bool) -> None:
        """Writes what is not written yet, in order; with `sync`, returns when it is on disk.

        Raises:
            LedgerWriteError: now or earlier, something could not be written
        """
        with self._lock:
            journal = self.journal
            if entries:
                entries = entries[max(0, journal.tip.seq + 1 - entries[0].seq) :]
            for commit in _commits(entries):
                offset = journal.tip.offset
                lengths = journal.append(commit)
                if sync:
                    journal.sync()
                if self._notes:
                    for entry, length in zip(commit, lengths, strict=True):
                        self._places.append(Place(entry.seq, offset, length, _index_names(entry.session_id, entry.keys)))
                        offset += length
            if sync:
                journal.sync()
            if journal.problem is not None:
                raise LedgerWriteError(str(journal.path), journal.problem)

    def note(self) -> None:
        """Brings the index up to what was flushed. A failure costs speed, not truth, and is logged."""
        with self._lock:
            places, self._places = self._places, []
            # After a failure the file may be longer than what the places cover.
            if places and self.journal.problem is None:
                self._add(places)

    def search(self, query: Query, end: Mark) -> Iterator[StoredEntry]:
        """The entries wanted before a place, ascending."""
        return self._shelf.search(query, end)

    def newest(self, query: Query, end: Mark, limit: int) -> list[StoredEntry]:
        """The last `limit` entries wanted before a place, ascending."""
        return self._shelf.newest(query, end, limit)

    def verify(self, from_seq: int, end: Mark) -> VerifyReport:
        """Checks everything from an entry, or a little before it, up to a place."""
        start = (self.ask(lambda index, _: find_stop(index, from_seq - 1)) if from_seq > 1 else None) or START
        return verify_part(self.journal.path, self.journal.ledger_id, self.journal.read, start, end.offset)

    def ask(self, question: Callable[[sqlite3.Connection, Known], T]) -> T | None:
        """The answer of the index; None once it turned out to be damaged. Then files are scanned until the next opening."""
        if not self._answers:
            return None
        try:
            return question(self._index.reader(), self._index.known)
        except (sqlite3.Error, IndexDamaged) as error:
            _log.warning("index is damaged", path=str(self._index.path), reason=str(error))
            self._notes = self._answers = False
            return None

    def close(self) -> None:
        """Puts on disk what is not, and gives file, lock and index back."""
        try:
            if self.journal.problem is None:
                self.journal.sync()
                if self._notes and self._index.known.durable_seq != self.journal.synced.seq:
                    self._add(())
        finally:
            self._index.close()
            self.journal.close()
            if not self._answers:
                remove_index(self._index.path)

    def abandon(self) -> None:
        """Gives everything back as it is."""
        self._index.close()
        self.journal.close()

    def prepare(self, *, full: bool, time_us: int) -> None:
        """Verifies, recovers and indexes the file. Called once.

        Args:
            full: verify every entry, also those that the index has seen
            time_us: the time, for the name of a file with cut bytes
        """
        journal, index = self.journal, self._index
        known = index.known
        if known.mark.seq > 0 and not holds(journal.read, journal.ledger_id, known):
            known = Known(durable_seq=known.durable_seq)
            index.clear(known)
        elif full:
            known = Known(durable_seq=known.durable_seq)
        journal.prepare(known, self._take_up, time_us)
        self.opened_from = "empty" if journal.tip.seq == 0 else "checkpoint" if known.mark.seq > 0 else "full"
        self._add(self._places)
        self._places = []

    def _take_up(self, after: Mark, entries: Batch) -> None:
        """Indexes a commit that was found in the file."""
        if after.seq <= self._index.known.mark.seq:
            return
        seq = after.seq - len(entries)
        for offset, length, fields in entries:
            seq += 1
            payload = fields["payload"]
            keys = self._index_keys(fields["entry_type"], payload) if self._index_keys is not None else ()
            self._places.append(Place(seq, offset, length, _index_names(session_of(payload), keys)))
        if len(self._places) >= _COMMIT_ENTRIES or after.offset - self._places[0].offset >= _COMMIT_BYTES:
            places, self._places = self._places, []
            self._index.add(places, after, self._index.known.durable_seq)

    def _add(self, places: Sequence[Place]) -> None:
        if not self._notes:
            return
        try:
            self._index.add(places, self.journal.tip, self.journal.synced.seq)
        except sqlite3.Error as error:
            # Rows after a gap would hide the gap, so nothing more is noted until the next opening catches up.
            _log.warning("index not written", path=str(self._index.path), reason=str(error))
            self._notes = False


def open_storage(
    path: Path,
    ledger_id: str,
    *,
    index_dir: Path,
    ops: FileOps,
    index_keys: IndexKeys | None,
    opener: Opener | None,
    full: bool,
    time_us: int,
) -> Storage:
    """A ledger on disk, locked, verified, recovered and indexed.

    Raises:
        LedgerLocked: another writer has it
        LedgerPathError: it cannot be put there
        LedgerDamaged: durable data does not verify, or is missing
    """
    journal = open_journal(path, ledger_id, ops)
    try:
        try:
            ensure_directory(ops, index_dir)
        except OSError as error:
            raise path_problem(index_dir, error) from error
        index = open_index(index_path(index_dir, ledger_id), ledger_id, keys_name(index_keys))
        storage = Storage(journal, index, index_keys, opener)
    except BaseException:
        journal.close()
        raise
    try:
        storage.prepare(full=full, time_us=time_us)
    except BaseException:
        storage.abandon()
        raise
    return storage


def _commits(entries: Sequence[StoredEntry]) -> Iterator[Sequence[StoredEntry]]:
    """The entries in portions that one commit may hold; nearly always one."""
    start = size = 0
    for position, entry in enumerate(entries):
        size += len(entry.body)
        if size > _COMMIT_BYTES or position - start == _COMMIT_ENTRIES:
            if position > start:
                yield entries[start:position]
            start, size = position, len(entry.body)
    if start < len(entries):
        yield entries[start:]


def _index_names(session_id: str | None, keys: tuple[str, ...]) -> tuple[str, ...]:
    names = tuple(other_key(key) for key in keys)
    return (session_key(session_id), *names) if session_id is not None else names
