"""Writes entries to a ledger's journal and index, and searches both: the blocking part of a ledger open for writing.

The client above runs these methods in worker threads: `flush` and `note` in the thread of a commit round, those of `search` in
the thread of a read.
"""

import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from kitchener.config import LedgerConfig
from kitchener.errors import LedgerWriteError
from kitchener.ledger.disk.file_ops import FileOps, ensure_directory_or_tell, remove_database
from kitchener.ledger.format.checks import LineBatch
from kitchener.ledger.format.lines import START, CommitDigest, IndexKeys, Mark, Opener, StoredEntry
from kitchener.ledger.index.index import FAULTS, Index, IndexedState, is_temporary, keys_name, open_index
from kitchener.ledger.index.index_dirs import index_path
from kitchener.ledger.index.query import EntrySearch
from kitchener.ledger.index.tail import Tail
from kitchener.ledger.verify.checkpoint import check_tip, read_checkpoint, signed_seq
from kitchener.ledger.write.journal import Journal, check_seen, holds, open_journal
from kitchener.logs import get_logger

_log = get_logger(__name__)
T = TypeVar("T")
_TAIL_ENTRIES = 16_384
"""Entries whose positions are kept in memory before the index gets them; after a crash, opening indexes about this many."""
_LONGEST_TAIL = 262_144
"""Most entries whose positions are kept in memory while the index cannot be written; they take some 20 MiB."""
_RETRY_ENTRIES = 1_024
_SCANNED_ENTRIES = 64
"""Up to this many flushed entries stay out of the index, and a reader beside the writer scans the file for them."""
_COMMIT_ENTRIES = 8_192
_COMMIT_BYTES = 16 << 20
"""The largest commit. A longer queue becomes several commits, each durable before the next; joined entries stay joined."""


class Storage:
    """A ledger on disk. Made by `open_storage`."""

    def __init__(
        self, journal: Journal, index: Index, index_keys: IndexKeys | None, opener: Opener | None, segment_bytes: int
    ) -> None:
        self.journal = journal
        self._segment_bytes = segment_bytes
        self.opened_from = "empty"
        self._index = index
        self._answers = True
        self._retry_seq = 0
        self._index_keys = index_keys
        self.flushed = START
        """End of the flushed commits. The event loop may read it while another round writes."""
        self.tail: Tail | None = None
        # Two groups may commit one ledger at the same time; the first may then have written some entries of the second.
        self._lock = threading.Lock()
        self._boundaries: CommitDigest | None = None
        self.search = EntrySearch(journal.volume, journal.ledger_id, self, index_keys, opener)

    @property
    def problem(self) -> str | None:
        """Why nothing more can be written; None: writing works."""
        return self.journal.problem

    def flush(self, entries: Sequence[StoredEntry], *, sync: bool) -> None:
        """Writes the entries that are not written yet, in order; with `sync`, returns when they are on disk.

        Raises:
            LedgerWriteError: this write or an earlier one failed
        """
        with self._lock:
            journal = self.journal
            if entries:
                entries = entries[max(0, journal.tip.seq + 1 - entries[0].seq) :]
            for commit in _commits(entries):
                lengths = journal.append(commit)
                if sync:
                    journal.sync()
                self.flushed = journal.tip
                tail = self.tail
                if tail is not None:
                    tail.extend(commit, lengths, journal.tip)
                    if tail.is_full:
                        self._note(_TAIL_ENTRIES, journal.synced.seq)
            if sync:
                journal.sync()
            if journal.problem is not None:
                raise LedgerWriteError(str(journal.path), journal.problem)

    def note(self) -> None:
        """Adds the flushed entries to the index, and finishes a full segment. A failed index write only slows later reads.

        Raises:
            LedgerWriteError: a segment was finished, and the file after it may not be durable
        """
        if not self._lock.acquire(blocking=False):
            return  # another group is writing this ledger, and updates the index afterwards
        try:
            if self.journal.problem is None:
                self._note(_TAIL_ENTRIES, self.journal.synced.seq)
                self.journal.finish_segment(self._segment_bytes)
        finally:
            self._lock.release()

    def index_flushed(self) -> None:
        """Adds the flushed entries to the index now, unless they are few, so that another reader need not scan them."""
        with self._lock:
            if self.journal.problem is None:
                self._note(_SCANNED_ENTRIES, self.journal.synced.seq)

    def ask(self, question: Callable[[sqlite3.Connection, IndexedState], T]) -> T | None:
        """The index's answer; None: it cannot be read now, or is known to be damaged. Files are then scanned."""
        if not self._answers:
            return None
        try:
            return question(self._index.reader(), self._index.known)
        except FAULTS as error:
            if not is_temporary(error):
                self.distrust(str(error))
            return None

    def distrust(self, reason: str) -> None:
        """Stops using the index; closing deletes it, so the next opening rebuilds it."""
        _log.warning("index is damaged", path=str(self._index.path), reason=reason)
        self._answers, self.tail = False, None

    def close(self) -> None:
        """Syncs the entries that are not on disk yet, and closes file, lock and index."""
        try:
            if self.journal.problem is None:
                self.journal.sync()
                self._retry_seq = min(self._retry_seq, self.journal.tip.seq)
                self._note(1, self.journal.synced.seq)
        finally:
            self._index.close()
            self.journal.close()
            if not self._answers:
                remove_database(self._index.path)

    def abandon(self) -> None:
        """Closes file, lock and index without writing anything."""
        self._index.close()
        self.journal.close()

    def prepare(self, *, full: bool, time_us: int) -> None:
        """Verifies, recovers and indexes the file. Called once.

        Args:
            full: verify every entry, including those that the index covers
            time_us: the time in microseconds since 1970, used to name the file that keeps cut bytes
        """
        journal, index = self.journal, self._index
        held = read_checkpoint(journal.path)
        signed, known = signed_seq(held, journal.path, journal.ledger_id), index.known
        if known.mark.seq > 0 and not holds(journal.volume.read, journal.ledger_id, known):
            is_short = known.mark.seq <= known.durable_seq and known.mark.offset > journal.volume.size()
            seen, known = known, IndexedState(durable_seq=known.durable_seq)
            if is_short:
                # Verify before clearing the index. A refusal, which is nearly certain, leaves the missing head in the index.
                journal.prepare(known, lambda *_: None, time_us)
            check_seen(journal.volume, seen)
            index.clear(known)
        elif full:
            known = IndexedState(durable_seq=known.durable_seq)
        self.tail = Tail(index.known.mark)
        self._boundaries = CommitDigest(up_to=signed) if known.mark.seq == 0 else None
        # An entry was durable before a signed head named it, so no crash can have removed it.
        journal.prepare(known._replace(durable_seq=max(known.durable_seq, signed)), self._add_commit, time_us)
        check_tip(held, journal.volume, journal.ledger_id, journal.tip, self.search.find_stop, self._boundaries)
        self.flushed = journal.tip
        self.opened_from = "empty" if journal.tip.seq == 0 else "checkpoint" if known.mark.seq > 0 else "full"
        self._note(_TAIL_ENTRIES, journal.synced.seq)

    def _add_commit(self, after: Mark, entries: LineBatch) -> None:
        """Adds a commit found in the file to the boundaries and to the tail of the index."""
        if self._boundaries is not None:
            self._boundaries.take(after.seq)
        tail = self.tail
        if tail is None or after.seq <= tail.end.seq:
            return
        tail.extend_from_file(entries, self._index_keys, after)
        self._note(_TAIL_ENTRIES, self._index.known.durable_seq)

    def _note(self, at_most: int, durable_seq: int) -> None:
        """Moves a tail of `at_most` entries or more into the index; with a shorter one, stores only `durable_seq`.

        If the index cannot be written now, the tail keeps growing, and the next attempt follows after `_RETRY_ENTRIES` more.
        """
        tail = self.tail
        if tail is None or tail.end.seq < self._retry_seq:
            return
        try:
            if len(tail) >= at_most or tail.is_full:
                self._index.add(tail, durable_seq)
                self.tail = Tail(self._index.known.mark)
            else:
                self._index.note_durable(durable_seq)
        except FAULTS as error:
            if not self._retry_seq:
                _log.warning("index not written", path=str(self._index.path), reason=str(error))
            self._retry_seq = tail.end.seq + _RETRY_ENTRIES
            if not is_temporary(error) or len(tail) > _LONGEST_TAIL or tail.is_full:
                # Rows after a gap would hide the gap, so the index gets no more rows until the next opening fills the gap.
                self.tail = None
        else:
            if self._retry_seq:
                _log.info("index written again", path=str(self._index.path))
            self._retry_seq = 0


def open_storage(
    path: Path,
    ledger_id: str,
    *,
    index_dir: Path,
    ops: FileOps,
    index_keys: IndexKeys | None,
    opener: Opener | None,
    config: LedgerConfig,
    time_us: int,
) -> Storage:
    """Locks, verifies, recovers and indexes a ledger on disk.

    Raises:
        LedgerLocked: another writer has the ledger open
        LedgerPathError: the path cannot hold a ledger or its index
        LedgerDamaged: durable data does not verify, or is missing
    """
    journal = open_journal(path, ledger_id, ops)
    try:
        ensure_directory_or_tell(ops, index_dir)
        index = open_index(index_path(index_dir, ledger_id, path), ledger_id, keys_name(index_keys))
        storage = Storage(journal, index, index_keys, opener, config.segment_bytes)
    except BaseException:
        journal.close()
        raise
    try:
        storage.prepare(full=config.verify_on_open == "full", time_us=time_us)
    except BaseException:
        storage.abandon()
        raise
    return storage


def _commits(entries: Sequence[StoredEntry]) -> Iterator[Sequence[StoredEntry]]:
    """The entries, split into commits of at most the largest size; nearly always one."""
    if len(entries) <= _COMMIT_ENTRIES and sum([len(entry.body) for entry in entries]) <= _COMMIT_BYTES:
        if entries:
            yield entries
        return
    start = size = 0
    for position, entry in enumerate(entries):
        size += len(entry.body)
        is_full = size > _COMMIT_BYTES or position - start >= _COMMIT_ENTRIES
        if is_full and position > start and not entries[position - 1].is_joined:
            yield entries[start:position]
            start, size = position, len(entry.body)
    if start < len(entries):
        yield entries[start:]
