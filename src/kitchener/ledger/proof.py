"""Writes bundles: some entries of some ledgers, with as much of each chain as ties them to a head, in one file.

An entry comes as the exact bytes of its line. Of the entries between them and after them, up to the head, the bundle has
numbers and hashes only, so it tells nothing of anybody else. Which entries belong into it is its caller's matter; `proof_check`
verifies what is written here. Blocks, so it runs in a worker thread. The format is explained in `docs/proof.md`.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from kitchener.canonical import canonical_bytes
from kitchener.errors import CallerError
from kitchener.ledger.chain import BadLine, Line, shown, split_line
from kitchener.ledger.checkpoint import Checkpoint, read_checkpoint
from kitchener.ledger.files import FileOps
from kitchener.ledger.scanning import ReadBytes, read_lines
from kitchener.ledger.volume import Volume, open_volume

FORMAT: Final = "kitchener-proof/1"
_NO_END: Final = 1 << 62
_ROWS_AT_ONCE: Final = 1_000


class Wanted(NamedTuple):
    """What a bundle shall hold of one ledger."""

    path: Path
    """The ledger's file."""
    ledger_id: str
    """Which ledger it is."""
    seqs: tuple[int, ...]
    """Numbers of the entries, ascending; at least one."""
    head: tuple[int, str]
    """Number and chain hash of the last entry seen, for where no signed head covers the wanted ones."""


class Part(NamedTuple):
    """What a bundle holds of one ledger."""

    ledger_id: str
    """Which ledger it is."""
    entries: int
    """Entries that it shows."""
    first: int
    """Number of the first of them."""
    head_seq: int
    """Number of the entry whose chain hash vouches for them."""
    checkpoint: Checkpoint | None
    """That head, signed; None: nobody signed it."""

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON types."""
        signer = self.checkpoint.signer if self.checkpoint is not None else None
        return {
            "ledger_id": self.ledger_id,
            "entries": self.entries,
            "first": self.first,
            "head": self.head_seq,
            "signer": signer,
        }


def write_bundle(
    write: Callable[[bytes], object], turn_id: str, session_id: str, wanted: Sequence[Wanted], *, max_bytes: int
) -> list[Part]:
    """Writes a bundle piece by piece, and says what it holds.

    Args:
        write: takes the next bytes
        turn_id: whose evidence it is
        session_id: the turn's session
        wanted: what of which ledgers, in the order in which it is to stand there
        max_bytes: how large the bundle may become

    Raises:
        CallerError: it would become larger
        LedgerDamaged: a line is none, or not the one that was wanted
        LedgerPathError: a ledger cannot be read
    """
    entries = sum(len(each.seqs) for each in wanted)
    count = _Counter(write, max_bytes)
    # By hand, so that no bundle has to be in memory; the keys stand in the order of RFC 8785.
    count(b'{"entries":%d,"format":%s,"ledgers":[' % (entries, canonical_bytes(FORMAT)))
    parts = []
    for number, each in enumerate(wanted):
        count(b"," if number else b"")
        parts.append(_write_part(count, each))
    count(b'],"session_id":%s,"turn_id":%s}\n' % (canonical_bytes(session_id), canonical_bytes(turn_id)))
    return parts


class _Counter:
    """Passes bytes on, up to a limit."""

    def __init__(self, write: Callable[[bytes], object], limit: int) -> None:
        self._write, self._limit, self._size = write, limit, 0

    def __call__(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            raise CallerError(
                f"the bundle would be larger than {self._limit:,} bytes, since every entry from the session's start to the head"
                " is named in it; give --max-mib a higher number"
            )
        self._write(data)


def _write_part(write: Callable[[bytes], object], wanted: Wanted) -> Part:
    path = wanted.path
    held = read_checkpoint(path)
    if held is not None and held.seq < wanted.seqs[-1]:
        held = None  # signed before the last of them was written
    head_seq, head_hash = (held.seq, held.chain_hash) if held is not None else wanted.head
    head = held._asdict() if held is not None else {"chain_hash": head_hash, "ledger_id": wanted.ledger_id, "seq": head_seq}
    with open_volume(path, FileOps()) as volume:
        before, offset, lines = _collect(volume, wanted.seqs)
        write(b'{"before":%s,"head":%s,"ledger_id":' % (canonical_bytes(before), canonical_bytes(head)))
        write(b'%s,"lines":%s,"rows":[' % (canonical_bytes(wanted.ledger_id), canonical_bytes(lines)))
        _write_rows(write, volume, offset, wanted.seqs[0], head_seq)
        write(b"]}")
    return Part(wanted.ledger_id, len(lines), wanted.seqs[0], head_seq, held)


def _collect(volume: Volume, seqs: Sequence[int]) -> tuple[dict[str, Any] | None, int, list[str]]:
    """What stands before the first of some entries, the byte offset of its line, and their lines."""
    before: dict[str, Any] | None = None
    start, lines, left = 0, list[str](), iter(seqs)
    due = next(left)
    for seq, offset, raw in _numbered(volume.read, 0, 1):
        if seq == seqs[0] - 1:
            line = _line(volume, seq, offset, raw)
            before = {"batch": line.batch, "chain_hash": f"sha256:{line.chain_hash}", "seq": seq}
        if seq < due:
            continue
        start = offset if seq == seqs[0] else start
        _line(volume, seq, offset, raw)
        lines.append(raw.decode())
        due = next(left, 0)
        if not due:
            break
    return before, start, lines


def _write_rows(write: Callable[[bytes], object], volume: Volume, start: int, first_seq: int, last_seq: int) -> None:
    rows: list[bytes] = []
    first = True
    for seq, offset, raw in _numbered(volume.read, start, first_seq):
        line = _line(volume, seq, offset, raw)
        batch = b"%d,%d,%d" % line.batch
        hashes = f'"sha256:{line.entry_hash}","sha256:{line.chain_hash}"'.encode()
        rows.append(b'[%d,"%s",[%s],%s]' % (line.seq, line.entry_id.encode(), batch, hashes))
        if seq == last_seq or len(rows) == _ROWS_AT_ONCE:
            write((b"" if first else b",") + b",".join(rows))
            rows, first = [], False
        if seq == last_seq:
            break


def _numbered(read: ReadBytes, start: int, seq: int) -> Iterator[tuple[int, int, bytes]]:
    """Number, byte offset and bytes of each line from an offset on, where the entry `seq` stands."""
    offset = start
    for lines in read_lines(read, start, _NO_END):
        for raw in lines:
            yield seq, offset, raw
            seq += 1
            offset += len(raw) + 1


def _line(volume: Volume, seq: int, offset: int, raw: bytes) -> Line:
    line = split_line(raw)
    if line is None or line.seq != seq:
        raise volume.damage(seq, offset, BadLine("framing", f"entry {seq}", shown(raw)))
    return line
