"""What to do about a ledger that does not verify when it is opened for writing: cut a damaged last commit, or refuse.

A crash can only damage the last commit, because the writer begins none before the one before it is durable. So bytes that
do not verify are cut off if nothing that stands behind them belongs to a later commit, and if the index has not seen them as
durable. Everything else is damage to data that was safe, and is refused. Explained in `docs/ledger.md`.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from kitchener.errors import LedgerDamaged, LedgerTailMissing
from kitchener.ledger.disk.file_ops import FileOps, write_all
from kitchener.ledger.disk.scan import ReadBytes
from kitchener.ledger.disk.volume import Volume
from kitchener.ledger.format.checks import Verifier
from kitchener.ledger.format.lines import BadLine, Mark, split_line

_log = structlog.get_logger(__name__)
_PIECE_BYTES = 1 << 20
REMEDY: Final = " (if a backup was restored: `kitchener ledger accept-head`)"
"""What to do where entries are missing."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What opening a ledger cut off."""

    path: str
    """The ledger's file."""
    after_seq: int
    """Number of the last entry that stayed."""
    offset: int
    """Where the file was cut, bytes."""
    cut_bytes: int
    """How much was cut."""
    kept_as: str | None
    """The file that holds the cut bytes; None where they could not be kept, e.g. on a full disk."""
    reason: str
    """What did not verify."""


def damage(volume: Volume, verifier: Verifier, fault: BadLine) -> LedgerDamaged:
    """The error for the first line that does not verify."""
    return volume.damage(verifier.seq + 1, verifier.offset, fault)


def tail_missing(volume: Volume, whole: Mark, durable_seq: int) -> LedgerTailMissing:
    """The error for a journal that ends before what its index has seen as durable."""
    file, line, offset = volume.locate(whole.seq + 1, whole.offset)
    return LedgerTailMissing(
        str(file),
        line=line,
        offset=offset,
        field="end",
        expected=f"at least {durable_seq} entries, as the index or the signed head has seen them on disk",
        found=f"{whole.seq} entries, so the end was cut off or an older copy was restored{REMEDY}",
    )


def check_is_crash(volume: Volume, verifier: Verifier, fault: BadLine, end: int, durable_seq: int) -> None:
    """Returns if what does not verify can only be the last commit before a crash.

    Args:
        volume: the ledger
        verifier: how far it is right
        fault: what is wrong after it
        end: its length
        durable_seq: the last entry that is known to have been durable, besides those of finished segments

    Raises:
        LedgerTailMissing: the file ends before that entry
        LedgerDamaged: data that was durable is damaged
    """
    whole, read = verifier.whole, volume.read
    durable_seq = max(durable_seq, volume.sealed_seq)
    if whole.seq < durable_seq:
        # A clean cut reads as "too short"; anything else still has the bytes, and they are wrong.
        if verifier.offset == end:
            raise tail_missing(volume, whole, durable_seq)
        raise damage(volume, verifier, fault)
    if fault.field == "ledger_id":
        raise damage(volume, verifier, fault)
    if whole.seq == 0 and not _begins_like_ours(read(64, 0), verifier.ledger_id):
        raise damage(volume, verifier, fault)
    if _has_later_commit(verifier.ledger_id, whole.batch + 1, read, verifier.offset, end):
        raise damage(volume, verifier, fault)


def _begins_like_ours(data: bytes, ledger_id: str) -> bool:
    """Whether a file without one whole commit can be a ledger at all, so that a wrong path costs nobody their file."""
    opening = f'{{"ledger_id":"{ledger_id}","seq":1,'.encode()[:64]
    return opening.startswith(data[: len(opening)]) or not data.strip(b"\0")


def _has_later_commit(ledger_id: str, damaged: int, read: ReadBytes, offset: int, end: int) -> bool:
    """Whether any line from `offset` on fits its own hash and belongs to a commit after the damaged one.

    Lines are looked for by how they begin, not by LF: the LF before one may be what is damaged.
    """
    opening = f'{{"ledger_id":"{ledger_id}","seq":'.encode()
    window = b""
    while offset < end:
        piece = read(min(_PIECE_BYTES, end - offset), offset)
        if not piece:
            break
        offset += len(piece)
        window += piece
        at = window.find(opening)
        while at >= 0:
            stop = window.find(b"\n", at)
            if stop < 0:
                break
            line = split_line(window[at:stop].removesuffix(b"\r"))  # a program may have put CR before every LF
            if line is not None and line.batch[0] > damaged and line.fits_itself:
                return True
            at = window.find(opening, at + 1)
        # What may still become a line when more is read: from an opening without LF, or from half an opening.
        window = window[at:] if at >= 0 else window[-len(opening) :]
    return False


def cut(volume: Volume, ops: FileOps, fd: int, whole: Mark, end: int, fault: BadLine, moment: str) -> Recovered:
    """Cuts the file after its last whole commit and keeps what was cut, if the disk has room for it."""
    path, offset = volume.path, whole.offset - volume.base
    aside = path.with_name(f"{path.name}.damaged-{moment}")
    kept_as: str | None = str(aside)
    try:
        _copy(ops, fd, offset, end - volume.base, aside)
    except OSError as error:
        _log.warning("cut bytes not kept", path=str(path), problem=str(error))
        kept_as = None
        with suppress(OSError):  # part of them would pass for all of them
            ops.unlink(aside)
    ops.truncate(fd, offset)
    recovered = Recovered(str(path), whole.seq, offset, end - whole.offset, kept_as, str(fault))
    _log.warning(
        "ledger recovered",
        path=recovered.path,
        after_seq=recovered.after_seq,
        cut_bytes=recovered.cut_bytes,
        kept_as=recovered.kept_as,
        field=fault.field,  # not what was found there, which may be somebody's words
    )
    return recovered


def _copy(ops: FileOps, fd: int, offset: int, end: int, to: Path) -> None:
    target = ops.open(to, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        while offset < end:
            piece = ops.read(fd, min(_PIECE_BYTES, end - offset), offset)
            if not piece:
                break
            write_all(ops, target, piece)
            offset += len(piece)
        ops.sync(target)
    finally:
        ops.close(target)
