"""Reads and checks the manifests of a ledger's finished segments, which never change again.

A long ledger consists of segments of about `segment_bytes`. The current file keeps the ledger's name; finished segments lie in
the folder `<file>.segments` beside it, each with a manifest in a file `.seal`. A manifest contains the hash of the manifest
before, so a removed or replaced one is detected. `volume` reads across segments; `write.segments` makes them.
Blocks, so it runs in a worker thread. Explained in `docs/ledger.md`.
"""

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from kitchener.canonical import MAX_INTEGER, canonical_bytes, digest
from kitchener.errors import LedgerDamaged
from kitchener.ledger.disk.file_ops import FileOps, path_problem
from kitchener.ledger.format.lines import is_ledger_id, other_bytes

FORMAT: Final = "kitchener-seal/2"
EARLIER_FORMAT: Final = "kitchener-seal/1"
"""The format of a manifest without `tree`."""
FOLDER: Final = ".segments"
"""Suffix that turns a ledger's file name into the name of its segment folder."""
NO_MANIFEST: Final = "sha256:" + "0" * 64
"""The field `previous` of the first manifest."""
_MANIFEST: Final = "seal"
_SEGMENT: Final = "segment"
"""Suffixes of the files of a manifest and of its segment."""
_MAX_BYTES: Final = 16_384
_HASH = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(rf"([0-9]{{6,}})\.({_MANIFEST}|{_SEGMENT})")


class SegmentManifest(NamedTuple):
    """The facts about one segment, as its manifest file states them."""

    format: str
    """`kitchener-seal/2`, or `/1` of a manifest without `tree`"""
    ledger_id: str
    number: int
    """Number of the segment: 1, 2, 3 … without gaps."""
    first_seq: int
    """Number of the segment's first entry."""
    last_seq: int
    """Number of the segment's last entry, which ends a commit."""
    first_chain_hash: str
    """Chain hash of the first entry."""
    last_chain_hash: str
    """Chain hash of the last entry."""
    length: int
    """Length of the segment's file, bytes."""
    sha256: str
    """`sha256:` and 64 hex digits over the segment's file."""
    previous: str
    """`sha256:` and 64 hex digits over the file of the manifest before; 64 zeros in the first manifest."""
    tree: str | None = None
    """Root of the Merkle tree over the segment's lines (`format.tree`); None: an earlier version wrote the manifest."""

    @property
    def text(self) -> bytes:
        """The content of the manifest's file: canonical JSON and LF."""
        return canonical_bytes({name: value for name, value in self._asdict().items() if value is not None}) + b"\n"

    @property
    def hash(self) -> str:
        """`sha256:…` over the manifest's file; the next manifest's `previous`."""
        return digest(self.text)


def folder_of(path: Path) -> Path:
    """The folder of a ledger's finished segments."""
    return path.with_name(path.name + FOLDER)


def manifest_path(path: Path, number: int) -> Path:
    """The file of a ledger's n-th manifest."""
    return folder_of(path) / f"{number:06d}.{_MANIFEST}"


def segment_path(path: Path, number: int) -> Path:
    """The file of a ledger's n-th segment."""
    return folder_of(path) / f"{number:06d}.{_SEGMENT}"


def read_manifests(path: Path, ops: FileOps) -> list[SegmentManifest]:
    """The manifests of a ledger, ascending. Checks that there is no gap and that each manifest has the hash of the one before.

    Does not read the segments.

    Args:
        path: the ledger's current file
        ops: the file system

    Raises:
        LedgerDamaged: a manifest is missing, or differs from what was written
        LedgerPathError: a manifest cannot be read
    """
    tries = 3  # a writer may create or remove the last manifest while the folder is listed
    while True:
        tries -= 1
        try:
            return _read_all(path, ops)
        except LedgerDamaged:
            if not tries:
                raise


def has_segments(path: Path, ops: FileOps) -> bool:
    """Whether a ledger has finished segments."""
    return any(_numbers(path, ops).values())


def _read_all(path: Path, ops: FileOps) -> list[SegmentManifest]:
    numbers = _numbers(path, ops)
    manifests: list[SegmentManifest] = []
    for number in range(1, max(numbers[_MANIFEST] | numbers[_SEGMENT], default=0) + 1):
        if number not in numbers[_MANIFEST]:
            raise fault_at(manifest_path(path, number), "file", f"the manifest of segment {number}", "nothing")
        manifests.append(_read(path, number, manifests, ops))
    return manifests


def _numbers(path: Path, ops: FileOps) -> dict[str, set[int]]:
    """The numbers of the existing files by suffix: manifests under `seal`, segments under `segment`."""
    numbers: dict[str, set[int]] = {_MANIFEST: set(), _SEGMENT: set()}
    try:
        names = ops.list_directory(folder_of(path))
    except FileNotFoundError:
        names = []
    except OSError as error:
        raise path_problem(folder_of(path), error) from error
    for name in names:
        found = _NAME.fullmatch(name)
        if found is not None:
            numbers[found[2]].add(int(found[1]))
    return numbers


def check_file(path: Path, manifest: SegmentManifest, ops: FileOps) -> os.stat_result:
    """The status of a segment's file, after a check of existence, type and length only.

    Raises:
        LedgerDamaged: the file is missing, is not a regular file, or has another length
        LedgerPathError: the system refuses to report its status
    """
    file = segment_path(path, manifest.number)
    try:
        found = ops.stat(file)
    except FileNotFoundError:
        raise fault_at(
            file, "file", f"segment {manifest.number} of {manifest.ledger_id}, {manifest.length} bytes", "nothing"
        ) from None
    except OSError as error:
        raise path_problem(file, error) from error
    if not stat.S_ISREG(found.st_mode):
        raise fault_at(file, "file", "a regular file", "something else")
    if found.st_size != manifest.length:
        shorter = min(found.st_size, manifest.length)
        raise fault_at(file, "length", f"{manifest.length} bytes", f"{found.st_size} bytes", offset=shorter)
    return found


def fault_at(path: Path, field: str, expected: str, found: str, *, line: int = 1, offset: int = 0) -> LedgerDamaged:
    """The error for a fault of a file; without a line, of all of it."""
    return LedgerDamaged(str(path), line=line, offset=offset, field=field, expected=expected, found=found)


def _read(path: Path, number: int, before: Sequence[SegmentManifest], ops: FileOps) -> SegmentManifest:
    file = manifest_path(path, number)
    try:
        fd = ops.open(file, os.O_RDONLY)
        try:
            if not stat.S_ISREG(ops.fstat(fd).st_mode):
                raise fault_at(file, "file", "a regular file", "something else")
            data = ops.read(fd, _MAX_BYTES, 0)
        finally:
            ops.close(fd)
    except FileNotFoundError:
        raise fault_at(file, "file", f"the manifest of segment {number}", "nothing") from None
    except OSError as error:
        raise path_problem(file, error) from error
    manifest = _parsed(data)
    if manifest is None or manifest.text != data:
        raise fault_at(file, "framing", "a manifest as it was written", other_bytes(len(data)))
    last = before[-1] if before else None
    for field, expected, found in (
        ("number", number, manifest.number),
        ("ledger_id", last.ledger_id if last is not None else manifest.ledger_id, manifest.ledger_id),
        ("previous", last.hash if last is not None else NO_MANIFEST, manifest.previous),
        ("first_seq", last.last_seq + 1 if last is not None else 1, manifest.first_seq),
    ):
        if expected != found:
            raise fault_at(file, field, str(expected), str(found))
    return manifest


def _parsed(data: bytes) -> SegmentManifest | None:
    try:
        fields: object = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(fields, dict) or set(fields) | {"tree"} != set(SegmentManifest._fields):
        return None
    manifest = SegmentManifest(**fields)
    numbers = (manifest.number, manifest.first_seq, manifest.last_seq, manifest.length)
    hashes = (
        manifest.first_chain_hash,
        manifest.last_chain_hash,
        manifest.sha256,
        manifest.previous,
        fields.get("tree", NO_MANIFEST),
    )
    is_one = (
        manifest.format == (FORMAT if "tree" in fields else EARLIER_FORMAT)
        and isinstance(manifest.ledger_id, str)
        and is_ledger_id(manifest.ledger_id)
        and all(type(each) is int and 0 < each <= MAX_INTEGER for each in numbers)
        and manifest.first_seq <= manifest.last_seq
        and all(isinstance(each, str) and _HASH.fullmatch(each) for each in hashes)
    )
    return manifest if is_one else None
