"""Turns a ledger's files into its Merkle tree (`format.tree`). Blocks, so it runs in a worker thread."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from kitchener.ledger.disk.manifests import SegmentManifest
from kitchener.ledger.disk.scan import read_lines
from kitchener.ledger.disk.volume import Volume
from kitchener.ledger.format.lines import NO_END, NO_HASH, START, BadLine, Mark, follow
from kitchener.ledger.format.tree import LedgerTree, Peaks, hash_bytes, leaf_of_line


class SegmentSpan(NamedTuple):
    """The entries of one file of a ledger that are in a tree."""

    first: int
    """Number of the first entry."""
    last: int
    """Number of the last entry in the tree; the file may have more."""
    base: int
    """Where the file begins, bytes from the ledger's start."""
    before: str
    """Chain hash before the first entry, hex digits."""
    manifest: SegmentManifest | None
    """The manifest of a finished segment; None: the current file."""


def segments_up_to(volume: Volume, seq: int) -> list[SegmentSpan]:
    """The files of a ledger whose last entry would be `seq`."""
    found, base, before = list[SegmentSpan](), 0, NO_HASH
    for manifest in volume.manifests:
        if manifest.first_seq > seq:
            return found
        found.append(SegmentSpan(manifest.first_seq, min(manifest.last_seq, seq), base, before, manifest))
        base, before = base + manifest.length, manifest.last_chain_hash.removeprefix("sha256:")
    first = volume.finished_seq + 1
    return [*found, SegmentSpan(first, seq, base, before, None)] if first <= seq else found


def raw_lines(volume: Volume, segment: SegmentSpan) -> Iterator[bytes]:
    """The lines of a segment, without their LF.

    Raises:
        LedgerDamaged: a line is missing
    """
    left, offset = segment.last - segment.first + 1, segment.base
    for lines in read_lines(volume.read, segment.base, NO_END):
        yield from lines[:left]
        left -= len(lines)
        offset += sum(map(len, lines)) + len(lines)
        if left <= 0:
            return
    seq = segment.last - left + 1
    raise volume.damage(seq, offset, BadLine("framing", f"entry {seq}", "nothing"))


def lines_of(volume: Volume, ledger_id: str, segment: SegmentSpan) -> Iterator[tuple[bytes, bytes]]:
    """The lines of a segment, without their LF, each with its leaf. Checks their chain, and no bodies.

    Raises:
        LedgerDamaged: a line is missing, or does not continue the chain
    """
    offset, chain = segment.base, segment.before
    for seq, line in enumerate(raw_lines(volume, segment), segment.first):
        try:
            chain = follow(line, ledger_id, seq, chain)
            yield line, leaf_of_line(line)
        except BadLine as fault:
            raise volume.damage(seq, offset, fault) from fault
        offset += len(line) + 1


def root_of(volume: Volume, ledger_id: str, segment: SegmentSpan) -> bytes:
    """The root over a segment's lines: from its manifest if the manifest has one, otherwise from the lines."""
    manifest = segment.manifest
    if manifest is not None and manifest.tree is not None and manifest.last_seq == segment.last:
        return hash_bytes(manifest.tree)
    peaks = Peaks()
    peaks.extend(leaf for _, leaf in lines_of(volume, ledger_id, segment))
    return peaks.root


def tree_of(volume: Volume, ledger_id: str, seq: int) -> LedgerTree:
    """The tree of a verified ledger whose last entry would be `seq`; trusts the roots in its manifests."""
    tree, segments = LedgerTree(ledger_id), segments_up_to(volume, seq)
    for segment in segments[:-1]:
        tree.add_segment(segment.last, root_of(volume, ledger_id, segment))
    tree.add_lines(map(leaf_of_line, raw_lines(volume, segments[-1])))
    return tree


def resumed(volume: Volume, ledger_id: str, seq: int, frontier: Sequence[str]) -> LedgerTree | None:
    """The tree of a ledger whose last entry was `seq`, from its frontier; None: the frontier has the wrong number of hashes."""
    segments = segments_up_to(volume, seq)
    if not segments:
        return None
    before, lines = len(segments) - 1, seq - segments[-1].first + 1
    hashes, cut = [hash_bytes(each) for each in frontier], before.bit_count()
    if len(hashes) != cut + lines.bit_count():
        return None
    return LedgerTree(ledger_id, segments[-1].first, Peaks(before, hashes[:cut]), Peaks(lines, hashes[cut:]))


def extend(tree: LedgerTree, volume: Volume, after: int, to: int, start: Mark = START) -> None:
    """Adds the lines of the entries from `after` + 1 to `to`. Reads the lines only, no roots in manifests.

    Args:
        tree: has the lines up to `after`
        volume: the ledger's files
        after: number of the last entry in the tree
        to: number of the last entry to add
        start: a position before entry `after` + 1
    """
    ends = {manifest.last_seq for manifest in volume.manifests}
    numbered = enumerate((line for lines in read_lines(volume.read, start.offset, NO_END) for line in lines), start.seq + 1)
    for seq, line in islice(numbered, after - start.seq, to - start.seq):
        if seq - 1 in ends:
            tree.finish_segment()
        tree.add_lines((leaf_of_line(line),))
