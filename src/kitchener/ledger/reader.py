"""Reads the verified commits of a ledger while another process may write it. Takes no lock and changes no file.

A reader sees whole commits that verify. A commit that is still being appended, or that a crash left incomplete, ends its view
without an error. Earlier data that does not verify is an error.
"""

import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio

from kitchener.errors import LedgerDamaged, LedgerPathError
from kitchener.lanes.thread_calls import in_own_task, opened_in_thread
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.ledger.disk.scan import ledger_id_of, verify_range
from kitchener.ledger.disk.volume import open_volume
from kitchener.ledger.format.checks import LineBatch, Verifier
from kitchener.ledger.format.lines import NO_END, OPENING, START, BadLine, IndexKeys, Mark, other_bytes
from kitchener.ledger.index.index import FAULTS, IndexedState, IndexSnapshot, keys_name
from kitchener.ledger.index.index_dirs import index_dirs_near, index_path
from kitchener.ledger.index.query import EntrySearch
from kitchener.ledger.index.tail import Tail
from kitchener.ledger.reads import LedgerReads, Snapshot
from kitchener.ledger.verify.checkpoint import read_checkpoint, signed_seq
from kitchener.ledger.verify.recovery import check_is_crash, tail_missing
from kitchener.ledger.write.journal import check_seen, holds
from kitchener.logs import get_logger
from kitchener.sealing import Sealer
from kitchener.small_files import is_there

_log = get_logger(__name__)
T = TypeVar("T")
_TRIES = 100
"""Most attempts to read while the writer keeps finishing segments."""
_TAIL_ENTRIES = 200_000
"""Most entries after the index whose positions are kept in memory; with more, each call scans the file again."""


class LedgerReader(LedgerReads):
    """One ledger, open for reading. Open it with `LedgerReader.open`. Each call sees every commit that is whole then."""

    def __init__(self, path: Path, file: "_File", index_keys: IndexKeys | None) -> None:
        super().__init__(path, index_keys)
        self._file = file

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        path: Path | str,
        *,
        ledger_id: str | None = None,
        index_dir: Path | str | None = None,
        index_keys: IndexKeys | None = None,
        sealer: Sealer | None = None,
    ) -> AsyncIterator["LedgerReader"]:
        """Opens the ledger at a path for reading, until the block ends.

        Args:
            path: the ledger's file
            ledger_id: the id that the ledger must have; None: the id in its first entry
            index_dir: directory of the index; None: the nearest directory `index` beside the file or above it
            index_keys: the same function that the writer was given
            sealer: decrypts sealed values; None: sealed values stay sealed

        Raises:
            LedgerPathError: the file cannot be read
            LedgerDamaged: earlier data does not verify
        """
        path = Path(path)
        index_dirs = [Path(index_dir)] if index_dir is not None else index_dirs_near(path)
        file = await opened_in_thread(partial(_File, path, ledger_id, index_dirs, index_keys, sealer), _File.close)
        reader = cls(path, file, index_keys)
        try:
            await reader._in_thread(file.refresh)
            yield reader
        finally:
            reader._is_closed = True
            await in_own_task(lambda: anyio.to_thread.run_sync(file.close, limiter=reader._reads))  # bounded by one read

    @property
    def ledger_id(self) -> str:
        """The ledger's name; "" while it has no entry."""
        return self._file.ledger_id

    @property
    def position(self) -> int:
        """Number of the last entry seen so far."""
        return self._file.end.seq

    def head(self) -> tuple[int, str]:
        """Number and chain hash of the last entry seen so far; `(0, "sha256:00…")` while there is none."""
        end = self._file.end
        return end.seq, f"sha256:{end.chain}"

    def _view(self, up_to_seq: int = NO_END) -> Callable[[], Snapshot | None]:
        return self._file.refresh


class _File:
    """The blocking part of a reader; runs one call at a time."""

    def __init__(
        self,
        path: Path,
        ledger_id: str | None,
        index_dirs: Sequence[Path],
        index_keys: IndexKeys | None,
        sealer: Sealer | None,
    ) -> None:
        self.path, self.ledger_id = path, ledger_id or ""
        self.end = START
        """The end of the last whole commit seen."""
        self._ops = FileOps()
        self._index_dirs, self._index_keys = index_dirs, index_keys
        self._opener = sealer.open if sealer is not None else None
        self._search: EntrySearch | None = None
        self.tail: Tail | None = None
        """Positions of the entries after the index's end at the first read; None once they would take too much memory."""
        self._asks_index = True
        self._volume = open_volume(path, self._ops)

    def close(self) -> None:
        self._volume.close()

    def refresh(self) -> Snapshot | None:
        """Verifies the commits added since the last call and moves `end` to the last whole one. None: there is no entry yet."""
        for _ in range(_TRIES):
            self._reopen()
            try:
                search = self._verify_new()
                return Snapshot(search, self.end) if search is not None else None
            except LedgerDamaged:
                if self._volume.is_current():
                    raise
        raise LedgerPathError(str(self.path), "another file replaces it again and again; try again when no program moves it")

    def _reopen(self) -> None:
        """Opens the ledger's files again after the writer has finished a segment."""
        old = self._volume
        if old.is_current():
            return
        new = open_volume(self.path, self._ops)
        if len(new.manifests) > len(old.manifests) and new.manifests[: len(old.manifests)] == old.manifests:
            self._volume = new
            if self._search is not None:
                self._search.volume = new
            old.close()
        else:
            new.close()  # another ledger replaced the file; the open files still belong to the first one

    def _verify_new(self) -> EntrySearch | None:
        if self._search is None:
            self.ledger_id = self.ledger_id or self._find_id()
            if not self.ledger_id:
                return None
            self._search = EntrySearch(self._volume, self.ledger_id, self, self._index_keys, self._opener)
        known = IndexedState()
        if self.end.seq == 0:
            signed = self._signed_seq()  # read before the file, because a writer may extend both
            known = self._read_index()
            known = known._replace(durable_seq=max(known.durable_seq, signed))
            self.end = known.mark
            self.tail = Tail(known.mark)
        size = self._volume.size()
        verifier = Verifier(self.ledger_id, self.end, self._add_commit)
        try:
            verify_range(verifier, self._volume, size)
        except BadLine as fault:
            check_is_crash(self._volume, verifier, fault, size, known.durable_seq)
        if verifier.whole.seq < known.durable_seq:
            raise tail_missing(self._volume, verifier.whole, known.durable_seq)
        self.end = verifier.whole
        return self._search

    def _add_commit(self, after: Mark, entries: LineBatch) -> None:
        if self.tail is not None:
            self.tail.extend_from_file(entries, self._index_keys, after)
            if len(self.tail) > _TAIL_ENTRIES or self.tail.is_full:
                self.tail = None

    def ask(self, question: Callable[[sqlite3.Connection, IndexedState], T]) -> T | None:
        """The index's answer; None: no index matches the file."""
        for snapshot in self._snapshots() if self._asks_index else ():
            with suppress(*FAULTS, OSError), snapshot:
                if holds(self._volume.read, self.ledger_id, snapshot.known):
                    return snapshot.ask(question)
        return None

    def distrust(self, reason: str) -> None:
        """Stops using the index; later reads scan the file."""
        _log.warning("index is damaged", path=str(self.path), reason=reason)
        self._asks_index, self.tail = False, None

    def _signed_seq(self) -> int:
        """Number of the entry in the signed head, which was durable; 0: there is no signed head, or an invalid one."""
        with suppress(LedgerDamaged):
            return signed_seq(read_checkpoint(self.path), self.path, self.ledger_id)
        return 0

    def _read_index(self) -> IndexedState:
        """The facts in the index; without its position if the file does not contain that position."""
        for snapshot in self._snapshots():
            with suppress(*FAULTS, OSError), snapshot:
                known = snapshot.known
                if holds(self._volume.read, self.ledger_id, known):
                    return known
                check_seen(self._volume, known)
                return IndexedState(durable_seq=known.durable_seq)
        return IndexedState()

    def _snapshots(self) -> Iterator[IndexSnapshot]:
        for directory in self._index_dirs:
            path = index_path(directory, self.ledger_id, self.path)
            if is_there(path):
                yield IndexSnapshot(path, self.ledger_id, keys_name(self._index_keys))

    def _find_id(self) -> str:
        found = ledger_id_of(self._volume.read)
        opening = self._volume.read(len(OPENING), 0)
        if not found and opening.strip(b"\0") and not OPENING.startswith(opening):
            size, expected = other_bytes(self._volume.size()), "the first entry of a ledger"
            raise LedgerDamaged(str(self.path), line=1, offset=0, field="framing", expected=expected, found=size)
        return found
