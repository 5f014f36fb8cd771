"""Accepts a restored backup as the ledger's new end, and records in the ledger which entries are missing.

A ledger that ends before an entry in its index or signed head is refused (`LedgerTailMissing`). Only a person can say whether
the cause is a restored backup or an attack; an operator who accepts the loss calls this. Blocks, so it runs in a worker thread.
Explained in `docs/ledger.md`.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, TypedDict
from urllib.parse import unquote

import orjson

from kitchener.canonical import canonical_bytes, digest
from kitchener.clock import Clock
from kitchener.config import LedgerConfig
from kitchener.errors import LedgerWriteError
from kitchener.ledger.disk.file_ops import FileOps, kept_path, remove_database
from kitchener.ledger.disk.scan import ledger_id_of, verify_range
from kitchener.ledger.disk.volume import Volume, open_volume
from kitchener.ledger.format.checks import LineBatch, Verifier
from kitchener.ledger.format.lines import START, BadLine, Mark, StoredEntry, body_of, entry_id_of
from kitchener.ledger.index.index import FAULTS, IndexedState, IndexSnapshot
from kitchener.ledger.index.index_dirs import index_path
from kitchener.ledger.verify.checkpoint import Checkpoint, check_held, checkpoint_path, read_checkpoint
from kitchener.ledger.verify.recovery import check_is_crash, damage
from kitchener.ledger.write.journal import Journal, open_journal
from kitchener.ledger.write.stamper import Stamper
from kitchener.small_files import is_there

_PIECE_BYTES: Final = 1 << 20
LEDGER_HEAD_ACCEPTED: Final = "LEDGER_HEAD_ACCEPTED"
"""Type of the entry that records the acceptance; its entity is the ledger itself."""


class KnownHead(TypedDict):
    """The newest missing entry whose hash is known."""

    seq: int
    chain_hash: str


class AcceptedPayload(TypedDict):
    """The payload of `LEDGER_HEAD_ACCEPTED`."""

    v: int
    seq: int
    """Number of the last remaining entry."""
    chain_hash: str
    """Chain hash of the last remaining entry."""
    missing_from: int
    """Number of the first missing entry."""
    missing_to: int
    """Number of the last entry known to be missing."""
    known_head: KnownHead | None
    """The newest missing entry with a known hash; None: no hash is known."""
    reason: str
    """The operator's reason."""


class AcceptedHead(NamedTuple):
    """The result of accepting a ledger's present end."""

    path: str
    ledger_id: str
    record: AcceptedPayload
    """The payload of the entry that records it."""
    set_aside: str | None
    """New path of the signed head that names a missing entry; None: there was no such head."""

    def as_json(self) -> dict[str, object]:
        """All of it in one level, as a command prints it."""
        record = {key: value for key, value in self.record.items() if key != "v"}
        return {"path": self.path, "ledger_id": self.ledger_id, **record, "set_aside": self.set_aside}


def accept_head(
    path: Path, reason: str, *, index_dirs: Sequence[Path], config: LedgerConfig, clock: Clock, ops: FileOps | None = None
) -> AcceptedHead | None:
    """Records the ledger's present end as its end, deletes its index, and renames a signed head that names a missing entry.

    Verifies everything first, and cuts an incomplete commit at the end, as any opening for writing does. The record is on disk
    before the index or the head changes. If a crash interrupts this, the ledger is refused as before, or a second call finishes
    the work.

    Args:
        path: the ledger's file
        reason: the operator's reason, for the record
        index_dirs: directories that may hold the ledger's index
        config: how far the clock may jump
        clock: the time of day
        ops: the file system; None: the real one

    Returns:
        what was accepted; None: nothing is missing, and nothing was changed

    Raises:
        LedgerLocked: another writer has the ledger open
        LedgerDamaged: the remaining entries do not verify
        LedgerPathError, LedgerWriteError: the ledger cannot be read or written
    """
    ops = ops or FileOps()
    held = read_checkpoint(path)
    ledger_id = _ledger_id(path, held, index_dirs, ops)
    if not ledger_id:
        return None  # neither file, head nor index shows that any entry was ever written
    journal = open_journal(path, ledger_id, ops)
    try:
        whole, last = _verified(journal)
        indexes = [*_indexes(path, ledger_id, index_dirs)]
        fact = _missing(journal, whole, last, held, indexes, reason)
        if fact is None:
            return None
        journal.prepare(IndexedState(whole), lambda *_: None, clock.time_us())
        if last != fact:  # otherwise the record exists, and a crash interrupted the steps after it
            journal.append([_entry(journal, fact, Stamper(ledger_id, clock, config, whole.timestamp))])
        journal.sync()
        set_aside = _clear(path, ops, held, fact, [each.path for each in indexes], clock)
    finally:
        journal.close()
    return AcceptedHead(str(path), ledger_id, fact, set_aside)


def _ledger_id(path: Path, held: Checkpoint | None, index_dirs: Sequence[Path], ops: FileOps) -> str:
    """The ledger's name, from its file, its signed head or the name of its index; "": none of them has it."""
    with open_volume(path, ops) as volume:
        found = ledger_id_of(volume.read)
    if found or held is not None:
        return found or (held.ledger_id if held is not None else "")
    for directory in index_dirs:
        for file in sorted(directory.glob("*.sqlite")):
            name = unquote(file.stem.rpartition("-")[0])
            if index_path(directory, name, path) == file:
                return name
    return ""


def _verified(journal: Journal) -> tuple[Mark, AcceptedPayload | None]:
    """The end of the last whole commit, and the payload of the last entry if that records an acceptance; otherwise None."""
    volume, last = journal.volume, LineBatch()

    def keep(_: Mark, commit: LineBatch) -> None:
        last[:] = commit[-1:]

    verifier, size = Verifier(journal.ledger_id, START, keep), volume.size()
    try:
        verify_range(verifier, volume, size, hashes_files=True)
    except BadLine as fault:
        # A copy may end in the middle of a line; any other fault is damage.
        if any(b"\n" in piece for piece in _pieces(volume, verifier.offset, size)):
            raise damage(volume, verifier, fault) from None
        check_is_crash(volume, verifier, fault, size, 0)
    if not last or last[0][2]["entry_type"] != LEDGER_HEAD_ACCEPTED:
        return verifier.whole, None
    record: AcceptedPayload = orjson.loads(canonical_bytes(last[0][2]["payload"]))
    return verifier.whole, record


def _pieces(volume: Volume, offset: int, end: int) -> Iterator[bytes]:
    while offset < end and (piece := volume.read(_PIECE_BYTES, offset)):
        offset += len(piece)
        yield piece


def _indexes(path: Path, ledger_id: str, index_dirs: Sequence[Path]) -> Iterator[IndexSnapshot]:
    for directory in index_dirs:
        file = index_path(directory, ledger_id, path)
        if is_there(file):
            yield IndexSnapshot(file, ledger_id, "")


def _missing(
    journal: Journal,
    whole: Mark,
    last: AcceptedPayload | None,
    held: Checkpoint | None,
    indexes: Sequence[IndexSnapshot],
    reason: str,
) -> AcceptedPayload | None:
    """The record of the missing entries; None: there are none.

    Raises:
        LedgerDamaged: the signed head belongs to another chain
    """
    seen, heads = whole.seq, list[tuple[int, str]]()
    for snapshot in indexes:
        with suppress(*FAULTS, OSError), snapshot:
            known = snapshot.known
            seen = max(seen, known.durable_seq)
            heads += [(known.mark.seq, f"sha256:{known.mark.chain}")] if known.mark.seq > whole.seq else []
    if held is not None and held.seq > whole.seq:
        seen = max(seen, held.seq)
        heads.append((held.seq, held.chain_hash))
    head = max(heads, default=None)
    lost: KnownHead | None = None if head is None else {"seq": head[0], "chain_hash": head[1]}
    is_recorded = last is not None and lost is not None and (last["missing_to"], last["known_head"]) == (seen, lost)
    if seen > whole.seq and not is_recorded:
        return {
            "v": 1,
            "seq": whole.seq,
            "chain_hash": f"sha256:{whole.chain}",
            "missing_from": whole.seq + 1,
            "missing_to": seen,
            "known_head": lost,
            "reason": reason,
        }
    misfit = None if is_recorded else check_held(held, journal.volume, journal.ledger_id, whole.seq)
    if misfit is not None and last is not None and held is not None:
        is_recorded = last["known_head"] == {"seq": held.seq, "chain_hash": held.chain_hash}
    if is_recorded and last is not None:
        return {**last, "reason": reason}  # a crash came after the record, before the index and the head changed
    if misfit is not None:
        raise misfit
    return None


def _entry(journal: Journal, fact: AcceptedPayload, stamper: Stamper) -> StoredEntry:
    ledger_id, seq, timestamp = journal.ledger_id, journal.tip.seq + 1, stamper.stamp()
    body = body_of(LEDGER_HEAD_ACCEPTED, ledger_id, fact, timestamp)
    entry_id = entry_id_of(timestamp[:10], seq)
    return StoredEntry(ledger_id, seq, entry_id, digest(body), LEDGER_HEAD_ACCEPTED, ledger_id, timestamp, body, None, (), None)


def _clear(
    path: Path, ops: FileOps, held: Checkpoint | None, fact: AcceptedPayload, indexes: Sequence[Path], clock: Clock
) -> str | None:
    """Deletes the indexes and renames the signed head. The head is kept because a signature cannot be recomputed."""
    aside: Path | None = None
    try:
        for each in indexes:
            remove_database(each)
        if held is not None and held.seq > fact["seq"]:
            file = checkpoint_path(path)
            aside = kept_path(file, "superseded", clock.time_us())
            ops.rename(file, aside)
            ops.sync_directory(file.parent)
    except OSError as error:
        raise LedgerWriteError(str(error.filename or path), error.strerror or str(error)) from error
    return str(aside) if aside is not None else None
