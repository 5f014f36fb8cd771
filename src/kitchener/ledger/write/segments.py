"""Turns a full ledger file into a finished segment: writes its manifest, links it into the folder, and starts a new file.

After a crash between two steps, the next opening ignores or undoes the steps done so far:

1. create the next file, empty, and lock it, while the current file keeps the ledger's name;
2. write the manifest and sync it;
3. link the current file under a second name, in the folder of segments;
4. rename the next file to the ledger's name, atomically. Only now is the segment finished.

Until step 4 the manifest is a draft: it starts at the first entry of the current file, and readers see that. At every moment
the ledger's name refers to a file, and some file holds every entry. Blocks, so it runs in a worker thread. Explained in
`docs/ledger.md`.
"""

import os
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from kitchener.ledger.disk.file_ops import FileOps, ensure_directory, write_whole
from kitchener.ledger.disk.manifests import (
    FORMAT,
    NO_MANIFEST,
    SegmentManifest,
    fault_at,
    folder_of,
    manifest_path,
    segment_path,
)
from kitchener.ledger.disk.scan import find_line, read_blocks
from kitchener.ledger.disk.volume import Volume, sorted_out
from kitchener.ledger.format.lines import START, BadLine, Mark, RenderedCommit, split_line
from kitchener.ledger.format.tree import Peaks, hash_text, leaf_of_head, leaf_of_line
from kitchener.logs import get_logger

_log = get_logger(__name__)
_CATCH_UP_BYTES = 1 << 20
"""Bytes hashed per commit of what the file held when it was opened; the limit bounds the delay of each commit."""
_PIECE_BYTES = 1 << 18
_NEXT = "next"


class SegmentDigest:
    """The running SHA-256 and Merkle tree of a volume's last file; each file has its own.

    Lines are hashed from memory when they are written. Finishing a file therefore does not read it again, which would hold up a
    commit for a second, and a change to the file before it is finished makes file and manifest differ. Lines that the file held
    when it was opened are read from it.
    """

    def __init__(self, volume: Volume) -> None:
        self._volume = volume
        self._sha, self._tree = sha256(), Peaks()
        self._done = volume.base

    def take(self, offset: int, commit: RenderedCommit) -> None:
        """Hashes lines written at `offset` if everything before them is hashed; otherwise `follow` reads them later."""
        if offset == self._done:
            self._add(commit.data, map(leaf_of_head, commit.heads))

    def follow(self, end: int) -> None:
        """Reads and hashes the next lines before `end`, a limited number of bytes per call.

        Raises:
            OSError: the file cannot be read, or does not have what was written
        """
        self._read(end, self._done + _CATCH_UP_BYTES)

    def finish(self, end: int) -> tuple[str, str]:
        """`sha256:…` of the file, which ends at offset `end`, and `sha256:…`, the root of its tree. Raises as `follow`."""
        self._read(end, end)
        return f"sha256:{self._sha.hexdigest()}", hash_text(self._tree.root)

    def _read(self, end: int, stop: int) -> None:
        try:
            blocks = read_blocks(self._volume.read, self._done, end)
            while self._done < min(end, stop):
                lines = next(blocks, None)
                if lines is None:
                    raise OSError(f"ends at byte {self._done - self._volume.base} instead of {end - self._volume.base}")
                self._add(lines, map(leaf_of_line, lines.split(b"\n")[:-1]))
        except BadLine as fault:
            raise OSError(f"its lines are not what was written: {fault}") from fault

    def _add(self, lines: bytes, leaves: Iterable[bytes]) -> None:
        self._tree.extend(leaves)
        self._sha.update(lines)
        self._done += len(lines)


class NextSegment(NamedTuple):
    """The file after a finished segment, open and locked."""

    fd: int
    identity: tuple[int, int]
    """Device and inode of the file."""


def make_manifest(volume: Volume, ledger_id: str, tip: Mark, digest: SegmentDigest) -> SegmentManifest:
    """The manifest of a volume's last file, which ends with `tip`.

    Raises:
        OSError: the file cannot be read, or does not have what was written
    """
    manifests = volume.manifests
    first_seq = volume.finished_seq + 1
    found = find_line(volume.read, 1, START._replace(offset=volume.base))
    line = split_line(found[1]) if found is not None else None
    if line is None or line.seq != first_seq:
        raise OSError("its first line is not what was written")
    file_hash, root = digest.finish(tip.offset)
    return SegmentManifest(
        FORMAT,
        ledger_id,
        len(manifests) + 1,
        first_seq,
        tip.seq,
        f"sha256:{line.chain_hash}",
        f"sha256:{tip.chain}",
        tip.offset - volume.base,
        file_hash,
        manifests[-1].hash if manifests else NO_MANIFEST,
        root,
    )


def put_aside(volume: Volume, ops: FileOps, identity: tuple[int, int], manifest: SegmentManifest) -> NextSegment:
    """Steps 1 to 3; returns the next file.

    Args:
        volume: the ledger's files, with every byte on disk
        ops: the file system
        identity: device and inode of the file to finish
        manifest: the manifest of that file

    Raises:
        OSError: a step failed; the ledger is unchanged
    """
    path, folder = volume.path, folder_of(volume.path)
    ensure_directory(ops, folder)
    fd = _make_next(ops, folder / _NEXT)
    try:
        found = ops.fstat(fd)
        write_whole(ops, manifest_path(path, manifest.number), manifest.text)
        segment = segment_path(path, manifest.number)
        ops.unlink(segment)  # left by an attempt that failed
        ops.link(path, segment)
        linked = ops.stat(segment)
        if (linked.st_dev, linked.st_ino) != identity:
            raise OSError("another file was put in its place while it was open")
        ops.sync_directory(folder)
    except BaseException:
        ops.close(fd)
        raise
    return NextSegment(fd, (found.st_dev, found.st_ino))


def swap(path: Path, ops: FileOps) -> None:
    """Step 4. After an OSError, the rename may or may not have happened."""
    ops.rename(folder_of(path) / _NEXT, path)
    # The new file's name must be on disk before an entry in that file is acknowledged.
    ops.sync_directory(path.parent)


def protect(path: Path, ops: FileOps, number: int) -> None:
    """Makes a finished segment read-only; logs a warning where the system refuses."""
    try:
        ops.protect(segment_path(path, number))
    except OSError as error:
        _log.warning("segment not made read-only", path=str(segment_path(path, number)), reason=str(error))


def settle_manifests(path: Path, ops: FileOps, fd: int, manifests: list[SegmentManifest]) -> list[SegmentManifest]:
    """The manifests of finished segments. Removes an unfinished segment that a crash left; the ledger's file has its entries.

    Raises:
        LedgerDamaged: the files do not belong together
        OSError: a file cannot be read or removed
    """
    finished, draft = sorted_out(path, ops, fd, manifests)
    if draft is not None:
        segment = segment_path(path, draft.number)
        begin = _digest(ops, fd, draft.length)
        if begin != draft.sha256:
            name = manifest_path(path, draft.number).name
            raise fault_at(path, "sha256", f"{draft.sha256} over {draft.length} bytes, as {name} says", begin)
        _check_copy(ops, segment, draft)
        ops.unlink(segment)
        ops.sync_directory(folder_of(path))
        ops.unlink(manifest_path(path, draft.number))
        ops.sync_directory(folder_of(path))
        _log.warning("unfinished segment undone", path=str(path), number=draft.number)
    return finished


def _check_copy(ops: FileOps, segment: Path, draft: SegmentManifest) -> None:
    """Raises LedgerDamaged if an unfinished segment's file differs from the beginning of the ledger's own file."""
    try:
        fd = ops.open(segment, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        found = _digest(ops, fd, draft.length)
    finally:
        ops.close(fd)
    if found != draft.sha256:
        raise fault_at(segment, "sha256", draft.sha256, found)


def _make_next(ops: FileOps, path: Path) -> int:
    ops.unlink(path)  # left by an attempt that failed
    fd = ops.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)
    try:
        ops.lock(fd)
    except BaseException:
        ops.close(fd)
        raise
    return fd


def _digest(ops: FileOps, fd: int, length: int) -> str:
    sha, offset = sha256(), 0
    while offset < length:
        piece = ops.read(fd, min(_PIECE_BYTES, length - offset), offset)
        if not piece:
            break
        sha.update(piece)
        offset += len(piece)
    return f"sha256:{sha.hexdigest()}"
