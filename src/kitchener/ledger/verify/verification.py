"""Turns a ledger's files into a report on their damage. An incomplete last commit counts as damage too.

Changes no file; only opening a ledger for writing recovers it.
"""

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
from kitchener.ledger.format.lines import NO_HASH, START, BadLine, CommitDigest, Mark
from kitchener.ledger.verify.checkpoint import Checkpoint, check_held, check_tree, read_checkpoint


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The result of verifying a ledger."""

    path: str
    """The current file, which entries are appended to."""
    ledger_id: str
    """The ledger's name; "" if an empty or damaged file does not contain it."""
    entries: int
    """Number of verified entries."""
    batches: int
    """Number of verified complete commits."""
    head: str
    """Chain hash at the end of the last verified commit."""
    fault: LedgerDamaged | None
    """The first fault; None: there is none."""
    seconds: float
    """Duration of the verification."""
    end: Mark
    """The end of the last verified commit."""
    checkpoint: Checkpoint | None = None
    """The signed head beside the file, checked too; None: there is none, or the file has a fault already."""

    @property
    def ok(self) -> bool:
        """Whether no fault was found."""
        return self.fault is None


class Head(NamedTuple):
    """The signed head beside a ledger. Callers read it before the ledger, because a writer may extend both."""

    checkpoint: Checkpoint | None
    """The signed head; None: there is none, or it cannot be read."""
    fault: LedgerDamaged | None
    """Why the head cannot be read; None: it can, or there is none."""

    @classmethod
    def of(cls, path: Path) -> Self:
        """The signed head beside this file."""
        try:
            return cls(read_checkpoint(path), None)
        except LedgerDamaged as error:
            return cls(None, error)

    def boundaries(self) -> CommitDigest:
        """An empty digest over the ends of the commits that this head covers."""
        return CommitDigest(up_to=self.checkpoint.seq if self.checkpoint is not None else 0)

    def with_head_checked(
        self, report: VerifyReport, volume: Volume, public_key: str | None, boundaries: CommitDigest
    ) -> VerifyReport:
        """The report on a whole ledger, extended by a check of this head against its chain and the ends of its commits."""
        if report.fault is not None:
            return report
        fault = self.fault or check_held(
            self.checkpoint, volume, report.ledger_id, report.entries, public_key, boundaries=boundaries
        )
        if fault is None and self.checkpoint is not None and report.entries:
            fault = check_tree(self.checkpoint, volume)
        return replace(report, fault=fault, checkpoint=self.checkpoint)


def verify_file(
    path: Path | str, *, progress: Callable[[int, int], None] | None = None, public_key: str | None = None
) -> VerifyReport:
    """Verifies a whole ledger: its segments, their manifests, the current file, and the signed head beside it, if there is one.

    Blocks: call it in a worker thread.

    Args:
        path: the current file, which entries are appended to
        progress: called with `(bytes done, bytes in all)`, after each block
        public_key: 64 hex digits; a head signed with this key must exist. None: any head is checked with its own key

    Raises:
        LedgerPathError: the ledger cannot be read
        SigningError: there is a signed head, and `cryptography` cannot be imported
    """
    path, ops = Path(path), FileOps()
    head = Head.of(path)
    try:
        volume = open_volume(path, ops)
    except LedgerDamaged as error:
        return nothing_read(path, error)
    with volume:
        size = volume.size()
        note = None if progress is None else (lambda done: progress(done, size))
        boundaries = head.boundaries()
        report = verify_part(volume, ledger_id_of(volume.read), START, size, note, ended=boundaries.take)
        return head.with_head_checked(report, volume, public_key, boundaries)


def unreadable(path: Path, error: LedgerPathError) -> VerifyReport:
    """The report on a ledger that cannot be read because one of its paths is not a regular file."""
    fault = LedgerDamaged(error.path, line=1, offset=0, field="file", expected="a file that can be read", found=error.problem)
    return nothing_read(path, fault)


def nothing_read(path: Path, fault: LedgerDamaged | None = None) -> VerifyReport:
    """The report on a ledger before any line is read."""
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
    """Verifies a ledger between two positions, and compares every segment between them with its manifest.

    Args:
        volume: the ledger's files
        ledger_id: the ledger that the lines must belong to
        start: where to begin; everything before it is trusted
        end: byte offset where to stop
        progress: called with the offset reached, after each block
        ended: called with the number of the last entry of each commit
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
