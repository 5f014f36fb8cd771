"""Decides about a ledger that does not verify when it is opened for writing: cut a damaged last commit, or refuse.

A crash can only damage the last commit, because the writer starts a commit only after the one before is durable. Bytes that do
not verify are therefore cut off if no later commit follows them and if neither index nor signed head recorded them as durable.
All other damage hit durable data, and the ledger is refused. Explained in `docs/ledger.md`.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kitchener.errors import LedgerDamaged, LedgerTailMissing
from kitchener.ledger.disk.file_ops import FileOps, kept_path, write_all
from kitchener.ledger.disk.scan import MAX_LINE_BYTES, ReadBytes
from kitchener.ledger.disk.volume import Volume
from kitchener.ledger.format.checks import Verifier
from kitchener.ledger.format.lines import BadLine, Line, Mark, split_line
from kitchener.logs import get_logger

_log = get_logger(__name__)
_PIECE_BYTES = 1 << 20
_RETURN: Final = 0x0D
REMEDY: Final = " (if a backup was restored: `kitchener ledger accept-head`)"
"""The advice at the end of an error about missing entries."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The bytes that opening a ledger cut off."""

    path: str
    """The ledger's file."""
    after_seq: int
    """Number of the last remaining entry."""
    offset: int
    """Offset in the file where it was cut, bytes."""
    cut_bytes: int
    kept_as: str | None
    """The file that holds the cut bytes; None: they could not be kept, e.g. on a full disk."""
    reason: str
    """The fault that the verification found."""


def damage(volume: Volume, verifier: Verifier, fault: BadLine) -> LedgerDamaged:
    """The error for the first line that does not verify."""
    return volume.damage(verifier.seq + 1, verifier.offset, fault)


def tail_missing(volume: Volume, whole: Mark, durable_seq: int) -> LedgerTailMissing:
    """The error for a journal that ends before an entry that its index or signed head recorded as durable."""
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
    """Returns if a fault can only be the last commit before a crash.

    Args:
        volume: the ledger's files
        verifier: stands at the fault; everything before it verified
        fault: what is wrong with the next line
        end: length of the ledger, bytes
        durable_seq: number of the last entry known to be durable, apart from the finished segments

    Raises:
        LedgerTailMissing: the file ends before that entry
        LedgerDamaged: durable data is damaged
    """
    whole, read = verifier.whole, volume.read
    durable_seq = max(durable_seq, volume.finished_seq)
    if whole.seq < durable_seq:
        # A file that ends at the fault is too short. Otherwise the bytes exist and are wrong.
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
    """Whether a file without a whole commit can be a ledger. Without this check a wrong path could destroy a user's file."""
    opening = f'{{"ledger_id":"{ledger_id}","seq":1,'.encode()[:64]
    return opening.startswith(data[: len(opening)]) or not data.strip(b"\0")


def _has_later_commit(ledger_id: str, damaged: int, read: ReadBytes, offset: int, end: int) -> bool:
    """Whether any line from `offset` on matches its own hash and belongs to a commit after the damaged one.

    Searches for the first bytes of a line, not for LF, because the LF before a line may be damaged. Bytes that are made to
    look like lines inside lines count as a later commit if hashing them takes many times the work of reading them.
    """
    opening = f'{{"ledger_id":"{ledger_id}","seq":'.encode()
    window, stop, searched = bytearray(), -1, 0
    most_hashed = MAX_LINE_BYTES + 16 * (end - offset)
    while offset < end:
        piece = read(min(_PIECE_BYTES, end - offset), offset)
        if not piece:
            break
        offset += len(piece)
        window += piece
        at = window.find(opening)
        while at >= 0:
            if stop < at:
                stop = window.find(b"\n", max(at, searched))
                searched = len(window) if stop < 0 else searched
            if stop < 0 and len(window) - at <= MAX_LINE_BYTES:
                break
            line = _line_between(window, at, stop)
            if line is not None:
                most_hashed -= len(line.body)
                if (line.batch[0] > damaged and line.fits_itself) or most_hashed < 0:
                    return True
            at = window.find(opening, at + 1)
        # Keep the bytes that the next piece may complete to a line: from an opening without LF, or from half an opening.
        del window[: at if at >= 0 else max(0, len(window) - len(opening))]
        stop, searched = -1, len(window)
    return False


def _line_between(window: bytearray, at: int, stop: int) -> Line | None:
    """The line from `at` up to its LF at `stop`; None: there is no LF, or these bytes do not have the form of a line."""
    stop -= stop > 0 and window[stop - 1] == _RETURN  # a program may have put CR before every LF
    return split_line(window, at, stop) if window.endswith(b"}}", at, max(at, stop)) else None


def cut(volume: Volume, ops: FileOps, fd: int, whole: Mark, end: int, fault: BadLine, time_us: int) -> Recovered:
    """Cuts the file after its last whole commit; keeps the cut bytes in another file if the disk has room."""
    path, offset = volume.path, whole.offset - volume.base
    kept = kept_path(path, "damaged", time_us)
    kept_as: str | None = str(kept)
    try:
        _copy(ops, fd, offset, end - volume.base, kept)
    except OSError as error:
        _log.warning("cut bytes not kept", path=str(path), problem=str(error))
        kept_as = None
        with suppress(OSError):  # an incomplete copy would look complete
            ops.unlink(kept)
    ops.truncate(fd, offset)
    recovered = Recovered(str(path), whole.seq, offset, end - whole.offset, kept_as, str(fault))
    _log.warning(
        "ledger recovered",
        path=recovered.path,
        after_seq=recovered.after_seq,
        cut_bytes=recovered.cut_bytes,
        kept_as=recovered.kept_as,
        field=fault.field,  # not `fault.found`, which may contain what a person said
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
