"""Turns lines into runs of entries whose chain is right, without looking into their bodies.

Stands between `bulk`, which tells fast that many lines are right, and `chain`, which tells of one line why it is not. Pure.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kitchener.ledger.format.bulk import AT_ONCE, Standing, check_heads, day_of
from kitchener.ledger.format.lines import BadLine, Line, Mark, follow, misfit, split_line


class Run(NamedTuple):
    """Entries in a row, of one day, each of which follows on the one before it."""

    before: Standing
    """The place before the first of them."""
    day: str
    """Of their ids."""
    bodies: Sequence[bytes]
    """What they say, as it stands in the ledger; whether that is an entry at all is not known yet."""
    hashes: Sequence[str]
    """The entry hash of each, hex digits, as the line says."""
    fault: BadLine | None = None
    """What is wrong with an entry although it follows: its body has another hash. It then has a run of its own."""


class Follower:
    """Follows a ledger's chain, line by line, from a place whose chain hash is known.

    Args:
        ledger_id: whose lines they must be
        start: where the first of them stands
    """

    def __init__(self, ledger_id: str, start: Mark) -> None:
        self.ledger_id = ledger_id
        self.at = Standing(start.seq, start.offset, start.chain, start.batch, 0, 0, start.timestamp)
        """The place after the last line that follows."""

    def feed(self, block: bytes) -> Iterator[Run]:
        """The entries of further lines, given as bytes that end with an LF.

        Raises:
            BadLine: the next line, at `at`, does not follow; nothing after it was looked at
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
        parts = parts or Line(self.ledger_id, seq, "", before[3:6], "", chain, b"")  # the next is followed closely, too
        day = parts.entry_id[2:12]
        if fault is None and parts.entry_id != f"E-{day}-{seq:012d}":
            fault = BadLine("entry_id", f"E-{day}-{seq:012d}", parts.entry_id)
        self.at = Standing(seq, before.offset + len(line) + 1, chain, *parts.batch, before.timestamp)
        return Run(before, day, [parts.body], [parts.entry_hash], fault)
