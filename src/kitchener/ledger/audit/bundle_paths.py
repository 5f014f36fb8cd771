"""Reads from a ledger what links some of its entries to its head: their lines, and the hashes beside their Merkle paths.

Blocks, so it runs in a worker thread.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import orjson

from kitchener.ledger.audit.bundle_parts import references
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.ledger.disk.trees import Segment, lines_of, raw_lines, root_of, segments_up_to
from kitchener.ledger.disk.volume import Volume, open_volume
from kitchener.ledger.format.lines import BadLine, EntryBody, Line, shown, split_line
from kitchener.ledger.format.tree import Peaks, hash_text, leaf_of_segment, root_between, tree_hash


class Paths(NamedTuple):
    """What links some entries of a ledger to its head."""

    lines: list[Line]
    """The lines of the entries, ascending."""
    path: list[str]
    """The hashes beside the paths, in the order in which `root_between` asks for them."""
    bounds: list[tuple[int, int, int]]
    """Number, first and last entry of each segment that has one of the entries."""
    segments: int
    """Number of segments up to the head."""
    tree: str
    """Hash of the ledger's tree up to the head."""


def read_paths(file: Path, ledger_id: str, seqs: Sequence[int], head: tuple[int, str]) -> Paths:
    """Reads the segments that have the entries, and of the others only their seals, if these have a root.

    Args:
        file: the ledger's file
        ledger_id: name of the ledger
        seqs: numbers of the entries, ascending; at least one
        head: number and chain hash of the head's entry; not before the last of them

    Raises:
        LedgerDamaged: a line is missing or malformed, or has the wrong number
        LedgerPathError: the ledger cannot be read
    """
    path, found = list[str](), list[Line]()

    def given(leaves: Sequence[bytes]) -> bytes:
        peaks = Peaks()
        for leaf in leaves:
            peaks.push(leaf)
        path.append(hash_text(peaks.root))
        return peaks.root

    with open_volume(file, FileOps()) as volume:
        segments = segments_up_to(volume, head[0])

        def leaf_at(number: int) -> bytes:
            segment, leaves = segments[number - 1], list[bytes]()
            first, last = segment.first, segment.last
            wanted = _between(seqs, segment)
            for seq, (raw, leaf) in enumerate(lines_of(volume, ledger_id, segment), first):
                leaves.append(leaf)
                if seq in wanted:
                    found.append(_split(volume, seq, raw))
            root = root_between(
                first,
                last + 1,
                sorted(wanted),
                lambda low, high: given(leaves[low - first : high - first]),
                lambda seq: leaves[seq - first],
            )
            return leaf_of_segment(ledger_id, first, last, root)

        def roots(low: int, high: int) -> bytes:
            others = segments[low - 1 : high - 1]
            return given(
                [leaf_of_segment(ledger_id, each.first, each.last, root_of(volume, ledger_id, each)) for each in others]
            )

        numbers = [number for number, segment in enumerate(segments, 1) if _between(seqs, segment)]
        root = root_between(1, len(segments) + 1, numbers, roots, leaf_at)
    bounds = [(number, segments[number - 1].first, segments[number - 1].last) for number in numbers]
    return Paths(found, path, bounds, len(segments), tree_hash(ledger_id, *head, len(segments), root))


class Wanted(NamedTuple):
    """The entries of one ledger that a bundle shows."""

    file: Path
    """The ledger's file."""
    ledger_id: str
    """Name of the ledger."""
    seqs: Sequence[int]
    """Numbers of the entries, ascending; at least one."""
    head_seq: int
    """Number of the head's entry."""


def linked_entries(ledgers: Sequence[Wanted]) -> Mapping[str, set[int]]:
    """By ledger, the entries to which the wanted ones refer, between the first of that ledger's and its head.

    Raises:
        LedgerDamaged: a line is missing or malformed
        LedgerPathError: a ledger cannot be read
    """
    found: dict[str, set[int]] = {each.ledger_id: set() for each in ledgers}
    ranges = {each.ledger_id: range(each.seqs[0], each.head_seq + 1) for each in ledgers}
    for each in ledgers:
        for line in _lines(each.file, each.seqs):
            for ledger_id, seq in _targets(line):
                if seq in ranges.get(ledger_id, ()):
                    found[ledger_id].add(seq)
    return found


def _targets(line: Line) -> list[tuple[str, int]]:
    """Ledger and number of the entries to which a line's entry refers; none where its body is damaged."""
    try:
        fields: EntryBody = orjson.loads(line.body)
        return [(ref.ledger_id, seq) for _, ref, _, seq in references(fields)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []  # verifying the bundle tells what is wrong with it


def _lines(file: Path, seqs: Sequence[int]) -> Iterator[Line]:
    with open_volume(file, FileOps()) as volume:
        for segment in segments_up_to(volume, seqs[-1]):
            wanted = _between(seqs, segment)
            for seq, raw in enumerate(raw_lines(volume, segment) if wanted else (), segment.first):
                if seq in wanted:
                    yield _split(volume, seq, raw)


def _between(seqs: Sequence[int], segment: Segment) -> Collection[int]:
    """The numbers that are a segment's."""
    return {seq for seq in seqs if segment.first <= seq <= segment.last}


def _split(volume: Volume, seq: int, raw: bytes) -> Line:
    line = split_line(raw)
    if line is None or line.seq != seq:
        raise volume.damage(seq, 0, BadLine("framing", f"entry {seq}", shown(raw)))
    return line
