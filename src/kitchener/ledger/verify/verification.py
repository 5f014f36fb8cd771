"""Verifies a ledger and reports. Refuses any damage, the last commit included: only opening for writing recovers."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import NamedTuple, Self

from kitchener.errors import LedgerDamaged, LedgerPathError
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.ledger.disk.scan import ledger_id_of, verify_range
from kitchener.ledger.disk.volume import Volume, open_volume
from kitchener.ledger.format.checks import Verifier
from kitchener.ledger.format.lines import NO_HASH, START, BadLine, Boundaries, Mark
from kitchener.ledger.verify.checkpoint import Checkpoint, check_held, read_checkpoint


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What verifying a ledger found."""

    path: str
    """The file that is appended to."""
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
    end: Mark
    """The place up to which it is right."""
    checkpoint: Checkpoint | None = None
    """The signed head that stands beside the file and was checked too; None: there is none, or the file has a fault before."""

    @property
    def ok(self) -> bool:
        """Whether all of it is right."""
        return self.fault is None


class Head(NamedTuple):
    """The signed head beside a ledger, read before the ledger, which may be growing."""

    checkpoint: Checkpoint | None
    """None: there is none, or none that can be read."""
    fault: LedgerDamaged | None
    """Why it cannot be read."""

    @classmethod
    def of(cls, path: Path) -> Self:
        """The head of the ledger with this file."""
        try:
            return cls(read_checkpoint(path), None)
        except LedgerDamaged as error:
            return cls(None, error)

    def boundaries(self) -> Boundaries:
        """Takes note of where the commits end that this head covers."""
        return Boundaries(up_to=self.checkpoint.seq if self.checkpoint is not None else 0)

    def held_against(
        self, report: VerifyReport, volume: Volume, public_key: str | None, boundaries: Boundaries
    ) -> VerifyReport:
        """The report on a whole ledger, and whether this head is in it, and fits where its commits end."""
        if report.fault is not None:
            return report
        fault = self.fault or check_held(
            self.checkpoint, volume, report.ledger_id, report.entries, public_key, boundaries=boundaries
        )
        return replace(report, fault=fault, checkpoint=self.checkpoint)


def verify_file(
    path: Path | str, *, progress: Callable[[int, int], None] | None = None, public_key: str | None = None
) -> VerifyReport:
    """Checks a ledger from its first byte to its last: segments, their seals, and the signed head beside it, if there is one.

    Blocks: call it in a worker thread.

    Args:
        path: the file that is appended to
        progress: told `(bytes done, bytes in all)` now and then
        public_key: 64 hex digits; the head must be signed with this key, and there must be one. None: with its own

    Raises:
        LedgerPathError: it cannot be read
        SigningError: there is a signed head, and the `crypto` extra is not installed
    """
    path, ops = Path(path), FileOps()
    head = Head.of(path)
    try:
        volume = open_volume(path, ops)
    except LedgerDamaged as error:
        return _nothing_read(path, error)
    with volume:
        size = volume.size()
        note = None if progress is None else (lambda done: progress(done, size))
        boundaries = head.boundaries()
        report = verify_part(volume, ledger_id_of(volume.read), START, size, note, ended=boundaries.take)
        return head.held_against(report, volume, public_key, boundaries)


def unreadable(path: Path, error: LedgerPathError) -> VerifyReport:
    """The report on a ledger of which nothing can be read, because something else stands at a path of it."""
    fault = LedgerDamaged(error.path, line=1, offset=0, field="file", expected="a file that can be read", found=error.problem)
    return _nothing_read(path, fault)


def _nothing_read(path: Path, fault: LedgerDamaged) -> VerifyReport:
    return VerifyReport(str(path), "", 0, 0, f"sha256:{NO_HASH}", fault, 0.0, START)


def verify_part(
    volume: Volume,
    ledger_id: str,
    start: Mark,
    end: int,
    progress: Callable[[int], None] | None = None,
    *,
    ended: Callable[[int], None] | None = None,
) -> VerifyReport:
    """Checks a ledger between two places, and every segment that lies between them against its seal.

    Args:
        volume: its files
        ledger_id: whose it must be
        start: where to begin; everything before it is taken on trust
        end: byte offset where to stop
        progress: told the offset reached, now and then
        ended: told the number of the last entry of each commit
    """
    began = perf_counter()
    verifier = Verifier(ledger_id, start, ended=ended)
    fault: LedgerDamaged | None = None
    try:
        verify_range(verifier, volume, end, progress, hashes_files=True)
    except BadLine as error:
        fault = volume.damage(verifier.seq + 1, verifier.offset, error)
    except LedgerDamaged as error:
        fault = error
    whole = verifier.whole
    return VerifyReport(
        str(volume.path),
        ledger_id,
        verifier.seq - start.seq,
        whole.batch - start.batch,
        f"sha256:{whole.chain}",
        fault,
        perf_counter() - began,
        whole,
    )
