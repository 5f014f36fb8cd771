"""Turns selected entries of ledgers into a bundle: one file with the entries and what links them to a head.

The link is a Merkle path, whose size grows with the logarithm of the ledger's length. If no signed head has a tree, it is the
chain: number and hashes of each entry from the first selected one up to the head. Only the rows of selected entries contain the
stored body, so a bundle discloses no other content. The caller selects the entries;
`bundle_check` verifies bundles. Blocks, so it runs in a worker thread. The format is explained in `docs/proof.md`.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import orjson

from kitchener.canonical import canonical_bytes
from kitchener.errors import CallerError
from kitchener.ledger.bundles.bundle_sections import references
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.ledger.disk.manifests import fault_at
from kitchener.ledger.disk.scan import read_lines
from kitchener.ledger.disk.trees import SegmentSpan, lines_of, raw_lines, root_of, segments_up_to
from kitchener.ledger.disk.volume import Volume, open_volume
from kitchener.ledger.format.lines import NO_END, BadLine, EntryBody, Line, shown, split_line
from kitchener.ledger.format.tree import Peaks, hash_text, leaf_of_segment, root_between, tree_hash
from kitchener.ledger.verify.checkpoint import Checkpoint, checkpoint_path, read_checkpoint

FORMAT: Final = "kitchener-proof/2"
EARLIER_FORMAT: Final = "kitchener-proof/1"
"""The format in which a bundle need not show who signed its projections."""
MAX_BUNDLE_BYTES: Final = 1 << 30
"""Largest bundle that the verifiers read, bytes: sixteen times the default limit of `kitchener ledger proof`."""


class BundleSelection(NamedTuple):
    """The entries of one ledger to put into a bundle."""

    path: Path
    """The ledger's file."""
    ledger_id: str
    seqs: tuple[int, ...]
    """Numbers of the entries, ascending; at least one."""
    head: tuple[int, str]
    """Number and chain hash of the last entry seen; used if no signed head covers the selected entries."""


class BundleSection(NamedTuple):
    """The section of a bundle that comes from one ledger."""

    ledger_id: str
    entries: int
    """Number of entries with a body."""
    first: int
    """Number of the first entry with a body."""
    head_seq: int
    """Number of the head's entry, whose chain hash covers all the others."""
    checkpoint: Checkpoint | None
    """The signed head; None: the head is not signed."""
    is_chain: bool
    """Whether every entry up to the head has a row."""

    def as_json(self) -> dict[str, object]:
        """All facts as JSON types; of a signed head only its signer."""
        signer = self.checkpoint.signer if self.checkpoint is not None else None
        return {
            "ledger_id": self.ledger_id,
            "entries": self.entries,
            "first": self.first,
            "head": self.head_seq,
            "signer": signer,
            "chain": self.is_chain,
        }


def write_bundle(
    write: Callable[[bytes], object],
    turn_id: str,
    session_id: str,
    selections: Sequence[BundleSelection],
    *,
    max_bytes: int,
    chain: bool = False,
) -> list[BundleSection]:
    """Writes a bundle piece by piece and returns one section for each ledger.

    Args:
        write: receives the next bytes
        turn_id: the turn that the bundle proves
        session_id: the turn's session
        selections: the entries of each ledger, in the order of the bundle
        max_bytes: largest size of the bundle
        chain: link the entries to the heads by the chain, even if a path is possible

    Raises:
        CallerError: the bundle would exceed `max_bytes`
        LedgerDamaged: a line is malformed or has the wrong number, or the lines are not those of the signed tree
        LedgerPathError: a ledger cannot be read
    """
    entries = sum(len(each.seqs) for each in selections)
    count = _Counter(write, max_bytes)
    # Written key by key, in the order of RFC 8785, so that the bundle is never in memory as a whole.
    count(b'{"entries":%d,"format":%s,"ledgers":[' % (entries, canonical_bytes(FORMAT)))
    sections, by_path = [], {} if chain else {each.ledger_id: each for each in selections if _has_path(each)}
    linked = _linked_entries([*by_path.values()])
    for number, each in enumerate(selections):
        count(b"," if number else b"")
        if each.ledger_id in by_path:
            sections.append(_write_path_section(count, each, linked.get(each.ledger_id, set())))
        else:
            sections.append(write_section(count, each))
    count(b'],"session_id":%s,"turn_id":%s}\n' % (canonical_bytes(session_id), canonical_bytes(turn_id)))
    return sections


class _Counter:
    """Passes bytes on; raises CallerError above a limit."""

    def __init__(self, write: Callable[[bytes], object], limit: int) -> None:
        self._write, self._limit, self._size = write, limit, 0

    def __call__(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            raise CallerError(
                f"the bundle would be larger than {self._limit:,} bytes: give a higher --max-mib. If an earlier version signed"
                " the head, sign it again with `kitchener ledger checkpoint`: the bundle then names fewer entries"
            )
        self._write(data)


def write_section(write: Callable[[bytes], object], selection: BundleSelection) -> BundleSection:
    """Writes the section of one ledger with its chain: a row for each entry from the first selected one up to the head.

    Args:
        write: receives the next bytes
        selection: the entries

    Raises:
        LedgerDamaged: a line is malformed or has the wrong number
        LedgerPathError: the ledger cannot be read
    """
    path, held = selection.path, _signed_head(selection)
    head_seq, head_hash = (held.seq, held.chain_hash) if held is not None else selection.head
    head = held.as_json() if held is not None else {"chain_hash": head_hash, "ledger_id": selection.ledger_id, "seq": head_seq}
    first, shown_seqs = selection.seqs[0], frozenset(selection.seqs)
    with open_volume(path, FileOps()) as volume:
        lines = _lines(volume, max(first - 1, 1), head_seq)
        before = _before(next(lines, None)) if first > 1 else None
        write(b'{"before":%s,"head":%s,"ledger_id":' % (canonical_bytes(before), canonical_bytes(head)))
        write(b'%s,"rows":[' % canonical_bytes(selection.ledger_id))
        for number, line in enumerate(lines):
            write((b"," if number else b"") + _row(line, is_shown=line.seq in shown_seqs))
        write(b"]}")
    return BundleSection(selection.ledger_id, len(selection.seqs), first, head_seq, held, is_chain=True)


def _signed_head(selection: BundleSelection) -> Checkpoint | None:
    """The signed head; None: there is none, or it was signed before the last selected entry was written."""
    held = read_checkpoint(selection.path)
    return held if held is not None and held.seq >= selection.seqs[-1] else None


def _head_seq(selection: BundleSelection) -> int:
    held = _signed_head(selection)
    return held.seq if held is not None else selection.head[0]


def _has_path(selection: BundleSelection) -> bool:
    """Whether a path can link entries to the head. False if an earlier version signed it."""
    held = _signed_head(selection)
    return held is None or held.tree is not None


def _write_path_section(write: Callable[[bytes], object], selection: BundleSelection, linked: set[int]) -> BundleSection:
    """Writes the section of one ledger: rows of the selected entries and of those to which they refer, and the path."""
    held, shown_seqs = _signed_head(selection), frozenset(selection.seqs)
    seq, chain = (held.seq, held.chain_hash) if held is not None else selection.head
    paths = read_paths(selection.path, selection.ledger_id, sorted(shown_seqs | linked), (seq, chain))
    if held is not None and (held.segments, held.tree) != (paths.segments, paths.tree):
        raise fault_at(checkpoint_path(selection.path), "tree", str(held.tree), paths.tree)
    head = {"chain_hash": chain, "ledger_id": selection.ledger_id, "segments": paths.segments, "seq": seq, "tree": paths.tree}
    shown_head = canonical_bytes(held.as_json() if held is not None else head)
    write(b'{"head":%s,"ledger_id":%s' % (shown_head, canonical_bytes(selection.ledger_id)))
    write(b',"path":%s,"rows":[' % canonical_bytes(paths.path))
    for number, line in enumerate(paths.lines):
        write((b"," if number else b"") + _row(line, is_shown=line.seq in shown_seqs))
    write(b'],"segments":%s}' % canonical_bytes(paths.bounds))
    return BundleSection(selection.ledger_id, len(selection.seqs), selection.seqs[0], seq, held, is_chain=False)


def _before(line: Line | None) -> dict[str, object] | None:
    return {"batch": line.batch, "chain_hash": f"sha256:{line.chain_hash}", "seq": line.seq} if line is not None else None


def _row(line: Line, *, is_shown: bool) -> bytes:
    hashes = f"sha256:{line.entry_hash}", f"sha256:{line.chain_hash}"
    # Replacing invalid UTF-8 changes the body's hash, so verifying the bundle fails.
    body = (line.body.decode(errors="replace"),) if is_shown else ()
    return canonical_bytes((line.seq, line.entry_id, line.batch, *hashes, *body))


def _lines(volume: Volume, first_seq: int, last_seq: int) -> Iterator[Line]:
    """The lines of a ledger from entry `first_seq` to entry `last_seq`."""
    seq = offset = 0
    for lines in read_lines(volume.read, 0, NO_END):
        for raw in lines:
            seq += 1
            if seq > last_seq:
                return
            if seq >= first_seq:
                yield _line(volume, seq, offset, raw)
            offset += len(raw) + 1


def _line(volume: Volume, seq: int, offset: int, raw: bytes) -> Line:
    line = split_line(raw)
    if line is None or line.seq != seq:
        raise volume.damage(seq, offset, BadLine("framing", f"entry {seq}", shown(raw)))
    return line


class Paths(NamedTuple):
    """The hashes that link some entries of a ledger to its head."""

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
    """Reads the segments with the entries. Of the other segments it reads only the manifests, if these have a root.

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
        peaks.extend(leaves)
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
                    found.append(_line(volume, seq, 0, raw))
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


def _linked_entries(selections: Sequence[BundleSelection]) -> Mapping[str, set[int]]:
    """The entries to which the selected ones refer, by ledger, from the ledger's first selected entry to its head.

    Raises:
        LedgerDamaged: a line is missing or malformed
        LedgerPathError: a ledger cannot be read
    """
    found: dict[str, set[int]] = {each.ledger_id: set() for each in selections}
    ranges = {each.ledger_id: range(each.seqs[0], _head_seq(each) + 1) for each in selections}
    for each in selections:
        for line in _selected_lines(each.path, each.seqs):
            for ledger_id, seq in _targets(line):
                if seq in ranges.get(ledger_id, ()):
                    found[ledger_id].add(seq)
    return found


def _targets(line: Line) -> list[tuple[str, int]]:
    """Ledger and number of the entries to which a line's entry refers; empty if its body is damaged."""
    try:
        fields: EntryBody = orjson.loads(line.body)
        return [(ref.ledger_id, seq) for _, ref, _, seq in references(fields)]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []  # verifying the bundle reports the fault


def _selected_lines(file: Path, seqs: Sequence[int]) -> Iterator[Line]:
    with open_volume(file, FileOps()) as volume:
        for segment in segments_up_to(volume, seqs[-1]):
            wanted = _between(seqs, segment)
            for seq, raw in enumerate(raw_lines(volume, segment) if wanted else (), segment.first):
                if seq in wanted:
                    yield _line(volume, seq, 0, raw)


def _between(seqs: Sequence[int], segment: SegmentSpan) -> Collection[int]:
    """The numbers that belong to a segment."""
    return {seq for seq in seqs if segment.first <= seq <= segment.last}
