"""Verifies a ledger's file and reports. Refuses any damage, the last commit included: only opening for writing recovers."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from kitchener.errors import LedgerDamaged
from kitchener.ledger.chain import START, BadLine, Mark
from kitchener.ledger.checkpoint import Checkpoint, check_held, read_checkpoint
from kitchener.ledger.files import FileOps, check_ledger_file, path_problem, read_or_tell
from kitchener.ledger.recovery import damage
from kitchener.ledger.scanning import ReadBytes, ledger_id_of, verify_range
from kitchener.ledger.verifier import Verifier


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What verifying a ledger found."""

    path: str
    """The file."""
    ledger_id: str
    """Which ledger it is; "" where an empty or damaged file does not say."""
    entries: int
    """Entries that were checked and are right."""
    batches: int
    """Complete commits that were checked and are right."""
    head: str
    """Chain hash of the last of them."""
    fault: LedgerDamaged | None
    """The first thing that is wrong; None: nothing."""
    seconds: float
    """How long it took."""
    checkpoint: Checkpoint | None = None
    """The signed head that stands beside the file and was checked too; None: there is none, or the file has a fault before."""

    @property
    def ok(self) -> bool:
        """Whether all of it is right."""
        return self.fault is None


def verify_file(
    path: Path | str, *, progress: Callable[[int, int], None] | None = None, public_key: str | None = None
) -> VerifyReport:
    """Checks a ledger's file from its first byte to its last, and that it holds the signed head beside it, if there is one.

    Blocks: call it in a worker thread.

    Args:
        path: the file
        progress: told `(bytes done, bytes in all)` now and then
        public_key: 64 hex digits; the head must be signed with this key, and there must be one. None: with its own

    Raises:
        LedgerPathError: it cannot be read
        SigningError: there is a signed head, and the `crypto` extra is not installed
    """
    path, ops = Path(path), FileOps()
    # Read before the file, which may be growing: the head is then in the part that is looked at.
    try:
        held, misfit = read_checkpoint(path), None
    except LedgerDamaged as error:
        held, misfit = None, error
    try:
        fd = ops.open(path, os.O_RDONLY)
    except OSError as error:
        raise path_problem(path, error) from error
    try:
        size = check_ledger_file(ops, path, fd).st_size

        def read(length: int, offset: int) -> bytes:
            return read_or_tell(ops, path, fd, length, offset)

        note = None if progress is None else (lambda done: progress(done, size))
        report = verify_part(path, ledger_id_of(read), read, START, size, note)
        if report.fault is None:
            misfit = misfit or check_held(held, path, read, report.ledger_id, report.entries, public_key)
            report = replace(report, fault=misfit, checkpoint=held)
        return report
    finally:
        ops.close(fd)


def verify_part(
    path: Path, ledger_id: str, read: ReadBytes, start: Mark, end: int, progress: Callable[[int], None] | None = None
) -> VerifyReport:
    """Checks a file between two places.

    Args:
        path: the file, for the report
        ledger_id: whose it must be
        read: its bytes
        start: where to begin; everything before it is taken on trust
        end: byte offset where to stop
        progress: told the offset reached, now and then
    """
    began = perf_counter()
    verifier, fault = Verifier(ledger_id, start), None
    try:
        verify_range(verifier, read, end, progress)
    except BadLine as error:
        fault = damage(path, verifier, error)
    whole = verifier.whole
    return VerifyReport(
        str(path),
        ledger_id,
        verifier.seq - start.seq,
        whole.batch - start.batch,
        f"sha256:{whole.chain}",
        fault,
        perf_counter() - began,
    )
