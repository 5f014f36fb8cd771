"""Turns a ledger's bytes into whole lines, and feeds them to a verifier. Blocks, so it runs in a worker thread."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final

from kitchener.ledger.disk.manifests import SegmentManifest, fault_at, manifest_path
from kitchener.ledger.disk.volume import FIRST_BYTES, LedgerFile, Volume
from kitchener.ledger.format.checks import Verifier
from kitchener.ledger.format.lines import NO_END, OPENING, START, BadLine, Mark, shown, split_line
from kitchener.ledger.format.tree import Peaks, hash_text, leaf_of_line
from kitchener.small_files import is_file, is_there

ReadBytes = Callable[[int, int], bytes]
"""`(size, offset)` to the bytes at that offset; fewer at the end of the file."""

BESIDE: Final = (".checkpoint", ".segments")
"""Ends of the names that lie beside a ledger's file, after its own name: its signed head and its segments."""
_PIECE_BYTES = 1 << 18
MAX_LINE_BYTES = 65 << 20
"""More than the largest entry that can be configured. A longer line is damage and is not read to its end."""


def read_blocks(read: ReadBytes, offset: int, end: int) -> Iterator[bytes]:
    """The whole lines between two offsets, each with its LF, in blocks.

    Raises:
        BadLine: after the last whole line, if bytes without an LF remain
    """
    rest = bytearray()
    while offset < end and len(rest) < MAX_LINE_BYTES:
        piece = read(min(_PIECE_BYTES, end - offset), offset)
        if not piece:
            break
        offset += len(piece)
        last = piece.rfind(b"\n") + 1
        if last:
            yield bytes(rest) + piece[:last] if rest else piece[:last]
            rest = bytearray(piece[last:])
        else:
            rest += piece  # `bytes` would be copied whole with each piece
    if rest:
        raise BadLine("framing", "a line that ends with LF", shown(bytes(rest)))


def read_lines(read: ReadBytes, offset: int, end: int) -> Iterator[list[bytes]]:
    """The whole lines between two offsets, without their LF, in lists. Raises as `read_blocks`."""
    for block in read_blocks(read, offset, end):
        lines = block.split(b"\n")
        lines.pop()
        yield lines


def verify_range(
    verifier: Verifier,
    volume: Volume,
    end: int,
    progress: Callable[[int], None] | None = None,
    *,
    hashes_files: bool = False,
) -> None:
    """Verifies everything from the verifier's position up to an offset, where a commit must end.

    Args:
        verifier: its position says where to begin, and afterwards how far the ledger is right
        volume: the ledger's files
        end: byte offset where to stop
        progress: called with the offset reached, after each block
        hashes_files: compare each segment that is read from its first byte with all facts in its manifest

    Raises:
        BadLine: the line after `verifier.seq`, at `verifier.offset`, is wrong or missing
        LedgerDamaged: a segment differs from its manifest
    """
    for part in volume.parts(verifier.offset, end):
        manifest = part.manifest
        sha = sha256() if hashes_files and manifest is not None and part.base == verifier.offset else None
        peaks = Peaks() if sha is not None and manifest is not None and manifest.tree is not None else None
        read = volume.read if sha is None else _passing_to(sha.update, volume.read)
        for block in read_blocks(read, verifier.offset, part.end):
            verifier.feed(block)
            if peaks is not None:
                peaks.extend(map(leaf_of_line, block.split(b"\n")[:-1]))
            if progress is not None:
                progress(verifier.offset)
        if manifest is not None and part.end - part.base == manifest.length:
            _check_manifest(volume, part, manifest, verifier, sha.hexdigest() if sha is not None else None, peaks)
    verifier.end()


def _passing_to(take: Callable[[bytes], None], read: ReadBytes) -> ReadBytes:
    def read_on(size: int, offset: int) -> bytes:
        data = read(size, offset)
        take(data)
        return data

    return read_on


def _check_manifest(
    volume: Volume, part: LedgerFile, manifest: SegmentManifest, verifier: Verifier, digest: str | None, peaks: Peaks | None
) -> None:
    """Raises LedgerDamaged if a segment with verified lines differs from its manifest."""
    whole = verifier.whole
    found: list[tuple[str, object, object]] = [
        ("ledger_id", verifier.ledger_id, manifest.ledger_id),
        ("last_seq", whole.seq, manifest.last_seq),
        ("last_chain_hash", f"sha256:{whole.chain}", manifest.last_chain_hash),
    ]
    if digest is not None:
        first = find_line(volume.read, 1, START._replace(offset=part.base))
        line = split_line(first[1]) if first is not None else None
        found.append(("first_chain_hash", f"sha256:{line.chain_hash}" if line is not None else "", manifest.first_chain_hash))
        found.append(("sha256", f"sha256:{digest}", manifest.sha256))
    if peaks is not None:
        found.append(("tree", hash_text(peaks.root), manifest.tree))
    for field, expected, written in found:
        if expected != written:
            raise fault_at(manifest_path(volume.path, manifest.number), field, str(expected), str(written))


def ledger_id_of(read: ReadBytes) -> str:
    """The ledger id in a file's first line; "": there is none."""
    name, end, _ = read(FIRST_BYTES, 0).removeprefix(OPENING).partition(b'"')
    return name.decode("ascii", "replace") if end and read(len(OPENING), 0) == OPENING else ""


def may_be_ledger(path: Path) -> bool:
    """Whether a file is or was a ledger, judged by the files beside it and by its first bytes. True if it cannot be read."""
    if any(is_there(path.with_name(f"{path.name}{end}")) for end in BESIDE):
        return True
    if not is_file(path):
        return True  # a pipe, a link or a directory may be at the path of a ledger
    try:
        with path.open("rb") as file:
            begin = file.read(len(OPENING))
    except OSError:
        return True
    return OPENING.startswith(begin) or not begin.strip(b"\0")  # a crash may leave less than a line, or zeros


def find_line(read: ReadBytes, number: int, start: Mark = START) -> tuple[int, bytes] | None:
    """Byte offset and bytes (without LF) of line n, which holds entry n; None: there is no such line.

    Args:
        read: reads a verified file
        number: number of the line, from 1
        start: a position before that line
    """
    offset, ahead = start.offset, number - start.seq
    for lines in read_lines(read, offset, NO_END):
        if ahead > len(lines):
            ahead -= len(lines)
            offset += sum(map(len, lines)) + len(lines)
            continue
        before = lines[: ahead - 1]
        return offset + sum(map(len, before)) + len(before), lines[ahead - 1]
    return None
