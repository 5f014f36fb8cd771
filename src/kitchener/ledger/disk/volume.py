"""Maps a ledger's files to one address space: the finished segments in order, then the current file.

All code that reads a ledger uses this module, with offsets from the ledger's first byte; only errors name a segment's own file,
line and offset. Offsets therefore stay valid, in the index and in a running reader, when a segment is finished. Blocks, so it
runs in worker threads.
"""

import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple, Self

from kitchener.errors import LedgerDamaged, LedgerPathError
from kitchener.ledger.disk.file_ops import FileOps, check_ledger_file, path_problem, read_or_tell
from kitchener.ledger.disk.manifests import (
    SegmentManifest,
    check_file,
    fault_at,
    folder_of,
    manifest_path,
    read_manifests,
    segment_path,
)
from kitchener.ledger.format.lines import OPENING, BadLine

_OPEN_FILES: Final = 16
"""Most segments kept open for reading; the least recently used one is closed."""
_TRIES: Final = 100
"""Most attempts to open a ledger while a writer keeps finishing segments."""
FIRST_BYTES: Final = 2_048
"""Bytes at the start of a ledger that contain its id."""


class LedgerFile(NamedTuple):
    """A finished segment or the open file, and where it stands in the whole ledger."""

    file: Path
    """Path of the file."""
    base: int
    """Offset in the ledger where the file begins, bytes."""
    end: int
    """Offset in the ledger where the part ends, bytes."""
    manifest: SegmentManifest | None
    """The manifest of a finished segment; None: the current file."""


class _View(NamedTuple):
    """The files at one moment; replaced as a whole, because a reader may use it at the same time."""

    manifests: tuple[SegmentManifest, ...]
    ends: tuple[int, ...]
    """End of each finished segment, bytes from the ledger's start."""
    fd: int
    """Descriptor of the current file."""

    @property
    def base(self) -> int:
        return self.ends[-1] if self.ends else 0


class Volume:
    """The files of one ledger, open for reading. Made by `open_volume`, or by a writer that holds the lock.

    Args:
        path: the current file, which entries are appended to
        ops: the file system
        fd: descriptor of the current file; `close` closes it
        manifests: the manifests of the finished segments
    """

    def __init__(self, path: Path, ops: FileOps, fd: int, manifests: Sequence[SegmentManifest]) -> None:
        self.path = path
        """The current file, whose name is the ledger's."""
        self._ops = ops
        self._view = _view(manifests, fd)
        self._open: OrderedDict[int, int] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def manifests(self) -> tuple[SegmentManifest, ...]:
        """The manifests of the finished segments, ascending."""
        return self._view.manifests

    @property
    def base(self) -> int:
        """Where the current file begins, bytes from the ledger's start."""
        return self._view.base

    @property
    def finished_seq(self) -> int:
        """Number of the last entry in the finished segments, which are all on disk; 0: there is no segment."""
        manifests = self._view.manifests
        return manifests[-1].last_seq if manifests else 0

    def size(self) -> int:
        """Present length of the whole ledger, bytes."""
        view = self._view
        return view.base + self._ops.fstat(view.fd).st_size

    def read(self, size: int, offset: int) -> bytes:
        """Up to `size` bytes from `offset`; fewer where a segment ends, none at the ledger's end.

        Raises:
            LedgerPathError: the system cannot read the file
            LedgerDamaged: the segment is missing, or its length differs from its manifest
        """
        view = self._view
        if offset >= view.base:
            return read_or_tell(self._ops, self.path, view.fd, size, offset - view.base)
        place = bisect_right(view.ends, offset)
        manifest, local = view.manifests[place], offset - (view.ends[place - 1] if place else 0)
        with self._lock:
            fd = self._segment(manifest)
            return read_or_tell(
                self._ops, segment_path(self.path, manifest.number), fd, min(size, manifest.length - local), local
            )

    def parts(self, start: int, end: int) -> Iterator[LedgerFile]:
        """The files that hold the bytes from `start` to `end`, in order; the last part ends at `end`."""
        view, base = self._view, 0
        for manifest, stop in zip(view.manifests, view.ends, strict=True):
            if stop > start and base < end:
                yield LedgerFile(segment_path(self.path, manifest.number), base, min(stop, end), manifest)
            base = stop
        if end > base:
            yield LedgerFile(self.path, base, end, None)

    def damage(self, seq: int, offset: int, fault: BadLine) -> LedgerDamaged:
        """The error for a wrong line.

        Args:
            seq: number of the entry expected there
            offset: where the line begins, from the ledger's start
            fault: what is wrong with it
        """
        file, line, local = self.locate(seq, offset)
        return LedgerDamaged(str(file), line=line, offset=local, field=fault.field, expected=fault.expected, found=fault.found)

    def locate(self, seq: int, offset: int) -> tuple[Path, int, int]:
        """Converts an entry's number and offset in the ledger to its file, and the line and byte offset in that file."""
        view = self._view
        place = bisect_right(view.ends, offset)
        before = view.manifests[place - 1] if place else None
        file = segment_path(self.path, view.manifests[place].number) if place < len(view.manifests) else self.path
        return file, seq - (before.last_seq if before is not None else 0), offset - (view.ends[place - 1] if place else 0)

    def is_current(self) -> bool:
        """Whether the ledger's name still refers to the current file."""
        try:
            found, held = self._ops.stat(self.path), self._ops.fstat(self._view.fd)
        except OSError:
            return True  # the name cannot be checked, so keep the open file
        return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)

    def sync(self) -> None:
        """Returns when the current file is on disk; finished segments are on disk already."""
        self._ops.sync(self._view.fd)

    def advance(self, manifest: SegmentManifest, fd: int) -> None:
        """Continues with a new file; the old one is now a finished segment. Only the writer calls this."""
        old = self._view
        with self._lock:
            self._open[manifest.number] = old.fd
            self._view = _view((*old.manifests, manifest), fd)

    def close(self) -> None:
        """Closes all open files."""
        with self._lock:
            fds = [*self._open.values(), self._view.fd]
            self._open.clear()
            self._view = self._view._replace(fd=-1)
        for fd in fds:
            if fd >= 0:
                with suppress(OSError):  # the descriptor is closed in any case
                    self._ops.close(fd)

    def _segment(self, manifest: SegmentManifest) -> int:
        fd = self._open.get(manifest.number)
        if fd is None:
            file = segment_path(self.path, manifest.number)
            check_file(self.path, manifest, self._ops)
            try:
                fd = self._open[manifest.number] = self._ops.open(file, os.O_RDONLY)
            except OSError as error:
                raise path_problem(file, error) from error
            if len(self._open) > _OPEN_FILES:
                self._ops.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(manifest.number)
        return fd

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def open_volume(path: Path, ops: FileOps) -> Volume:
    """Opens a ledger for reading while another process may write it. Checks the manifests, and that their segments exist.

    Raises:
        LedgerPathError: the ledger cannot be read
        LedgerDamaged: a manifest or segment is missing, or differs from what was written
    """
    for _ in range(_TRIES):
        try:
            fd = ops.open(path, os.O_RDONLY)
        except OSError as error:
            missing = file_missing(path, ops) if isinstance(error, FileNotFoundError) else None
            raise missing or path_problem(path, error) from error
        volume = Volume(path, ops, fd, ())
        try:
            check_ledger_file(ops, path, fd)
            manifests, problem = list[SegmentManifest](), None
            try:
                manifests = read_manifests(path, ops)
            except LedgerDamaged as error:
                problem = error
            # If the name still refers to the file opened before the manifests were read, these manifests belong to that file.
            if not volume.is_current():
                volume.close()
                continue
            if problem is not None:
                raise problem
            manifests, _ = sorted_out(path, ops, fd, manifests)
        except BaseException:
            volume.close()
            raise
        return Volume(path, ops, fd, manifests)
    raise LedgerPathError(str(path), "another file replaces it again and again; try again when no program moves it")


def sorted_out(
    path: Path, ops: FileOps, fd: int, manifests: Sequence[SegmentManifest]
) -> tuple[list[SegmentManifest], SegmentManifest | None]:
    """The manifests of finished segments, and the draft manifest of the current file; None: there is no draft.

    A crash or a failure while a segment is being finished leaves a draft. Its entries are still in the current file.

    Raises:
        LedgerDamaged: the segments and the file do not belong together
    """
    if not manifests:
        return [], None
    first = _first_seq(path, ops, fd)
    finished, draft = [*manifests], None
    if first == manifests[-1].first_seq:
        draft = finished.pop()
        size = ops.fstat(fd).st_size
        if size < draft.length:
            wanted = f"at least {draft.length} bytes, as {manifest_path(path, draft.number).name} says"
            raise fault_at(path, "length", wanted, f"{size} bytes, so an older copy was put in its place", offset=size)
    for manifest in finished:
        check_file(path, manifest, ops)
        _check_begin(path, manifest, ops)
    due = finished[-1].last_seq + 1 if finished else 1
    if first not in (None, due):
        raise fault_at(path, "seq", f"{due}, after the segments in {folder_of(path).name}", str(first))
    return finished, draft


def _first_seq(path: Path, ops: FileOps, fd: int) -> int | None:
    """The entry number in a file's first line; None: there is no complete one."""
    begin = read_or_tell(ops, path, fd, FIRST_BYTES, 0)
    if not begin.startswith(OPENING):
        return None
    digits, comma, _ = begin[len(OPENING) :].partition(b'","seq":')[2].partition(b",")
    # Without the comma, the digits may be half a number: a crash can tear the first commit of a file too.
    return int(digits) if comma and digits.isdigit() and len(digits) < 20 else None


def _check_begin(path: Path, manifest: SegmentManifest, ops: FileOps) -> None:
    """Raises LedgerDamaged if a segment's first line does not have the number in its manifest."""
    file = segment_path(path, manifest.number)
    try:
        fd = ops.open(file, os.O_RDONLY)
        try:
            begin = ops.read(fd, FIRST_BYTES, 0)
        finally:
            ops.close(fd)
    except OSError as error:
        raise path_problem(file, error) from error
    wanted = f'{{"ledger_id":"{manifest.ledger_id}","seq":{manifest.first_seq},'
    if not begin.startswith(wanted.encode()):
        raise fault_at(file, "seq", str(manifest.first_seq), begin[: len(wanted) + 8].decode("ascii", "replace"))


def file_missing(path: Path, ops: FileOps) -> LedgerDamaged | None:
    """The error for a ledger that has finished segments but no current file; None: it has no segments either."""
    manifests = read_manifests(path, ops)
    if not manifests:
        return None
    return fault_at(path, "file", f"the file that continues after entry {manifests[-1].last_seq}", "nothing")


def _view(manifests: Sequence[SegmentManifest], fd: int) -> _View:
    return _View(tuple(manifests), tuple(accumulate(manifest.length for manifest in manifests)), fd)
