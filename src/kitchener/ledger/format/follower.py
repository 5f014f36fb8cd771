"""Turns lines into runs of entries with a verified chain, without decoding their bodies.

Uses `bulk` for many lines at a time, and `lines` for one line at a time where `bulk` gives up. Pure.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kitchener.ledger.format.bulk import AT_ONCE, Standing, check_heads, day_of
from kitchener.ledger.format.lines import BadLine, Line, Mark, follow, misfit, split_line


class Run(NamedTuple):
    """Consecutive entries of one day whose chain is verified."""

    before: Standing
    """The position before the first entry."""
    day: str
    """The day in the entries' ids."""
    bodies: Sequence[bytes]
    """The stored bytes of each entry; not yet decoded or checked."""
    hashes: Sequence[str]
    """The entry hash in each line, hex digits."""
    fault: BadLine | None = None
    """The fault of an entry whose chain hash is right but whose body or id is wrong; its run holds only that entry."""


class Follower:
    """Verifies a ledger's chain, line by line, from a position with a known chain hash.

    Args:
        ledger_id: the ledger that the lines must belong to
        start: the position before the first line
    """

    def __init__(self, ledger_id: str, start: Mark) -> None:
        self.ledger_id = ledger_id
        self.at = Standing(start.seq, start.offset, start.chain, start.batch, 0, 0, start.timestamp)
        """The position after the last verified line."""

    def feed(self, block: bytes) -> Iterator[Run]:
        """The entries of the next lines, given as bytes that end with an LF.

        Raises:
            BadLine: the next line, at `at`, does not continue the chain; no later line was checked
        """
        start = 0
        while start < len(block):
            before, day = self.at, day_of(block, start)
            heads = check_heads(block, start, self.ledger_id, before, day)
            if heads is None:
                for line in block[start:].split(b"\n", AT_ONCE)[:-1]:
                    yield self._follow_closely(line)
                    start += len(line) + 1
                continue
            after = heads.stops[-1] + 1
            self.at = Standing(
                before.seq + len(heads.stops),
                before.offset + after - start,
                heads.chain,
                heads.batch,
                heads.place,
                heads.size,
                before.timestamp,
            )
            start = after
            yield Run(before, day, heads.bodies, heads.hashes)

    def _follow_closely(self, line: bytes) -> Run:
        before = self.at
        seq = before.seq + 1
        chain = follow(line, self.ledger_id, seq, before.chain)
        parts, fault = split_line(line), None
        if parts is None or not parts.fits_itself:
            fault = misfit(line, self.ledger_id)
        parts = parts or Line(self.ledger_id, seq, "", before[3:6], "", chain, b"")  # so the next line gets the slow check too
        day = parts.entry_id[2:12]
        if fault is None and parts.entry_id != f"E-{day}-{seq:012d}":
            fault = BadLine("entry_id", f"E-{day}-{seq:012d}", parts.entry_id)
        self.at = Standing(seq, before.offset + len(line) + 1, chain, *parts.batch, before.timestamp)
        return Run(before, day, [parts.body], [parts.entry_hash], fault)
