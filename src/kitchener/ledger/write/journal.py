"""Appends commits to a ledger's file and syncs them; opening locks, verifies and recovers the file first.

Everything here blocks and runs in worker threads, one call at a time. Operating system errors become `LedgerPathError` while
opening, and `LedgerWriteError` later; after a `LedgerWriteError` the journal writes nothing more.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from kitchener.errors import LedgerPathError, LedgerWriteError
from kitchener.ledger.disk.file_ops import (
    FileOps,
    check_ledger_file,
    ensure_directory_or_tell,
    locked_by,
    path_problem,
    write_all,
)
from kitchener.ledger.disk.fork_guard import watch
from kitchener.ledger.disk.manifests import has_segments, read_manifests
from kitchener.ledger.disk.scan import ReadBytes, find_line, verify_range
from kitchener.ledger.disk.volume import Volume, file_missing
from kitchener.ledger.format.checks import LineBatch, Verifier
from kitchener.ledger.format.lines import START, BadLine, Mark, StoredEntry, render_batch, split_line
from kitchener.ledger.index.index import IndexedState
from kitchener.ledger.verify.recovery import Recovered, check_is_crash, cut, tail_missing
from kitchener.ledger.write.segments import SegmentDigest, make_manifest, protect, put_aside, settle_manifests, swap
from kitchener.logs import get_logger

_log = get_logger(__name__)
_PIECE_BYTES = 1 << 20
_TRIES = 100
"""Most attempts to open a ledger whose file is finished between opening and locking it."""


class Journal:
    """An open ledger. Made by `open_journal`."""

    def __init__(self, volume: Volume, ops: FileOps, fd: int, ledger_id: str, identity: tuple[int, int]) -> None:
        self.path, self.ledger_id = volume.path, ledger_id
        self.volume = volume
        """The ledger's files, for reading."""
        self.tip = START
        """Where the next commit goes. The operating system has every byte before it."""
        self.synced = START
        """Where the synced part ends: every byte before it is on disk."""
        self.recovered: Recovered | None = None
        """The bytes that opening cut off the file; None: nothing was cut."""
        self.problem: str | None = None
        """Why the journal writes nothing more; None: it still writes."""
        self._ops, self._fd = ops, fd
        self._identity = identity
        self._last_commit: int | None = None
        self._digest = SegmentDigest(volume)
        self._not_before = 0
        self._process = os.getpid()
        watch(self)

    @property
    def is_forked(self) -> bool:
        """Whether this is a child's copy of a journal that its parent writes."""
        return self._process != os.getpid()

    def append(self, entries: Sequence[StoredEntry]) -> list[int]:
        """Writes one commit to the file and returns the length of each line in bytes.

        Raises:
            LedgerWriteError: this write or an earlier one failed
        """
        commit = render_batch(entries, self.tip.chain, self.tip.batch + 1)
        self._guarded(lambda: self._write(commit.data))
        self._digest.take(self.tip.offset, commit)
        last = entries[-1]
        self.tip = Mark(last.seq, self.tip.offset + len(commit.data), commit.chain, self.tip.batch + 1, last.timestamp)
        return commit.lengths

    def sync(self) -> None:
        """Returns when every appended commit is on disk; does nothing when all are on disk already."""
        if self.synced.seq != self.tip.seq or self.problem is not None:
            self._guarded(lambda: self._ops.sync(self._fd))
            self.synced = self.tip

    def poison(self, problem: str) -> None:
        """Stops all writing, because a ledger of the same group failed."""
        if self.problem is None:
            self.problem = problem

    def close(self) -> None:
        """Closes the file and releases its lock; a forked child's copy leaves the lock to the parent."""
        if self._fd >= 0 and not self.is_forked:
            with suppress(OSError):  # closing the descriptor releases the lock too, unless a child process inherited it
                self._ops.unlock(self._fd)
        self._fd = -1
        self.volume.close()  # all data was synced or refused before this point

    def finish_segment(self, segment_bytes: int) -> None:
        """Finishes the current file if it has reached `segment_bytes`, and continues in a new one; see `segments`.

        If finishing fails, the file keeps growing, and the next attempt follows after another `segment_bytes` bytes.

        Raises:
            LedgerWriteError: the new file may not be durable; the journal writes nothing more
        """
        if self.problem is not None:
            return
        length = self.tip.offset - self.volume.base
        try:
            self._digest.follow(self.tip.offset)
            if length < max(segment_bytes, self._not_before):
                return
            self.sync()
            self._finish_segment()
        except (OSError, LedgerPathError) as error:
            self._digest, self._not_before = SegmentDigest(self.volume), length + segment_bytes
            _log.warning("segment not finished", path=str(self.path), reason=str(error), next_try_at_bytes=self._not_before)

    def _finish_segment(self) -> None:
        volume, ops = self.volume, self._ops
        manifest = make_manifest(volume, self.ledger_id, self.tip, self._digest)
        following = put_aside(volume, ops, self._identity, manifest)
        try:
            self._guarded(lambda: swap(self.path, ops))
        except BaseException:
            ops.close(following.fd)
            raise
        volume.advance(manifest, following.fd)
        self._fd, self._identity = following
        self._digest, self._not_before = SegmentDigest(volume), 0
        protect(self.path, ops, manifest.number)

    def _write(self, data: bytes) -> None:
        found, size = self._ops.stat(self.path), self._ops.fstat(self._fd).st_size
        if (found.st_dev, found.st_ino) != self._identity:
            raise OSError("another file was put in its place while it was open")
        expected = self.tip.offset - self.volume.base
        if size != expected:
            raise OSError(f"it is {size} bytes long instead of {expected}: somebody else wrote to it")
        write_all(self._ops, self._fd, data)

    def _guarded(self, action: Callable[[], None]) -> None:
        if self.problem is not None:
            raise LedgerWriteError(str(self.path), self.problem)
        try:
            action()
        except OSError as error:
            # Never retried: the kernel may have dropped the pages, and a second fsync would succeed without writing them.
            self.problem = error.strerror or str(error)
            raise LedgerWriteError(str(self.path), self.problem) from error

    def prepare(self, known: IndexedState, each: Callable[[Mark, LineBatch], None], time_us: int) -> None:
        """Verifies and recovers the file before its first use. Called once.

        Args:
            known: the facts in the index; its mark was found in the file, or is START
            each: called for every commit after that mark
            time_us: the time in microseconds since 1970, used to name the file that keeps cut bytes

        Raises:
            LedgerDamaged: durable data does not verify
            LedgerTailMissing: the file ends before the last durable entry
            LedgerPathError: the file cannot be read, cut or synced
        """
        try:
            self._verify(known, each, time_us)
            self._make_durable(known.durable_seq)
        except OSError as error:
            raise path_problem(self.path, error) from error

    def _verify(self, known: IndexedState, each: Callable[[Mark, LineBatch], None], time_us: int) -> None:
        def note(after: Mark, entries: LineBatch) -> None:
            self._last_commit = entries[0][0]
            each(after, entries)

        volume = self.volume
        end = volume.size()
        verifier = Verifier(self.ledger_id, known.mark, note)
        try:
            verify_range(verifier, volume, end)
        except BadLine as fault:
            check_is_crash(volume, verifier, fault, end, known.durable_seq)
            self.recovered = cut(volume, self._ops, self._fd, verifier.whole, end, fault, time_us)
        if verifier.whole.seq < known.durable_seq:
            raise tail_missing(volume, verifier.whole, known.durable_seq)
        self.tip = verifier.whole

    def _make_durable(self, durable_seq: int) -> None:
        """Syncs every entry that the file holds, so that readers see only durable entries."""
        if self.tip.seq > max(durable_seq, self.volume.finished_seq) and self._last_commit is not None:
            # After a failed fsync the kernel marks pages clean, and a new fsync skips them; so write the last commit again.
            self._rewrite(self._last_commit, self.tip.offset)
        self._ops.sync(self._fd)
        self._ops.sync_directory(self.path.parent)
        self.synced = self.tip

    def _rewrite(self, offset: int, end: int) -> None:
        fd = self._ops.open(self.path, os.O_WRONLY)  # a descriptor with O_APPEND writes only at the end
        try:
            found = self._ops.fstat(fd)
            if (found.st_dev, found.st_ino) != self._identity:
                raise LedgerPathError(str(self.path), "another file was put in its place while it was being opened")
            while offset < end:
                piece = self.volume.read(min(_PIECE_BYTES, end - offset), offset)
                offset += self._ops.overwrite(fd, piece, offset - self.volume.base)
        finally:
            self._ops.close(fd)


def holds(read: ReadBytes, ledger_id: str, known: IndexedState) -> bool:
    """Whether a file has the index's last entry at the index's last position."""
    mark = known.mark
    if mark.seq == 0:
        return False
    line = read(mark.offset - known.last_line, known.last_line)
    parts = split_line(line[:-1])
    return (
        len(line) == mark.offset - known.last_line
        and line.endswith(b"\n")
        and parts is not None
        and parts.fits_itself
        and f"sha256:{parts.entry_hash}" == known.last_hash
        and (parts.ledger_id, parts.seq, parts.chain_hash) == (ledger_id, mark.seq, mark.chain)
        and parts.batch[0] == mark.batch
        and parts.batch[1] == parts.batch[2]
    )


def check_seen(volume: Volume, known: IndexedState) -> None:
    """Raises LedgerDamaged if a durable entry has another chain hash than the index recorded for it.

    Bytes that are no line are left to the verification, which says what they are.

    Args:
        volume: the ledger's files
        known: the facts in the index, for which `holds` is false
    """
    mark, found = known.mark, None
    if 0 < mark.seq <= known.durable_seq:
        with suppress(BadLine):
            found = find_line(volume.read, mark.seq)
    line = split_line(found[1]) if found is not None else None
    if found is not None and line is not None and line.seq == mark.seq and line.chain_hash != mark.chain:
        expected = f"sha256:{mark.chain}, as its index recorded (if the ledger was replaced on purpose, delete the index)"
        raise volume.damage(mark.seq, found[0], BadLine("chain_hash", expected, f"sha256:{line.chain_hash}"))


def open_journal(path: Path, ledger_id: str, ops: FileOps) -> Journal:
    """Opens and locks a ledger's file. The caller calls `prepare` before any use and `close` in any case.

    Raises:
        LedgerLocked: another writer has the ledger open
        LedgerPathError: the path cannot hold a ledger
    """
    try:
        ensure_directory_or_tell(ops, path.parent)
        for _ in range(_TRIES):
            fd, identity = _open_and_lock(path, ops)
            try:
                found = ops.stat(path)
                if (found.st_dev, found.st_ino) == identity:
                    manifests = settle_manifests(path, ops, fd, read_manifests(path, ops))
                    return Journal(Volume(path, ops, fd, manifests), ops, fd, ledger_id, identity)
            except BaseException:
                ops.close(fd)
                raise
            ops.close(fd)  # another writer finished this file and replaced it before the lock was taken
    except OSError as error:
        raise path_problem(path, error) from error
    raise LedgerPathError(str(path), "another file replaces it again and again; try again when no program moves it")


def _open_and_lock(path: Path, ops: FileOps) -> tuple[int, tuple[int, int]]:
    # A ledger with finished segments must have a current file too. An empty new file would hide the loss of that file.
    create = 0 if has_segments(path, ops) else os.O_CREAT
    try:
        fd = ops.open(path, os.O_RDWR | os.O_APPEND | create)
    except FileNotFoundError as error:
        raise file_missing(path, ops) or error from None
    try:
        found = check_ledger_file(ops, path, fd)
        _lock(path, ops, fd, found)
    except BaseException:
        ops.close(fd)
        raise
    return fd, (found.st_dev, found.st_ino)


def _lock(path: Path, ops: FileOps, fd: int, found: os.stat_result) -> None:
    try:
        ops.lock(fd)
    except BlockingIOError:
        raise locked_by(path, found) from None
