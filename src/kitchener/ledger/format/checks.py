"""Turns lines into verified commits (`Verifier`), or into entries whose chain alone is verified (`Follower`).

A verifier compares every byte, hash and number with what the writer would have written. Pure: it receives lines and reports
which one is wrong and why. `bulk` verifies most lines many at a time; this module checks the rest line by line. `scan` reads
the files; `recovery` and the readers decide what a bad line means.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Final, NamedTuple

import orjson
import rfc8785

from kitchener.ledger.format.bulk import (
    AT_ONCE,
    FIELDS,
    STRICT,
    LinePosition,
    VerifiedLines,
    check_heads,
    check_lines,
    day_at,
    size_of_commit,
)
from kitchener.ledger.format.lines import (
    AFTER_BATCH,
    START,
    TO_BODY,
    BadLine,
    EntryBody,
    FaultField,
    Line,
    Mark,
    chain_hash,
    entry_id_of,
    follow,
    is_ledger_id,
    misfit,
    other_bytes,
    shown,
    split_line,
)

LineBatch = list[tuple[int, int, EntryBody, str]]
"""The entries of one commit: byte offset and length of each line, its decoded body, and its entry hash as hex digits."""

_STAMP = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]\.[0-9]{6}(?:Z|\+00:00)")
_BRACE: Final = ord("}")


class _Due(NamedTuple):
    """What the next line must contain."""

    ledger_id: str
    seq: int
    chain: str
    batch: int
    place: int
    size: int | None
    """Number of entries in the commit; None where a commit begins, because its first line states the number."""
    timestamp: bytes


class Verifier:
    """Verifies lines in order, from a trusted position.

    Args:
        ledger_id: the ledger that the lines must belong to
        start: the position before the first line
        each: called for every complete commit with the position after it and its entries
        ended: called for every complete commit with the number of its last entry
    """

    def __init__(
        self,
        ledger_id: str,
        start: Mark = START,
        each: Callable[[Mark, LineBatch], None] | None = None,
        ended: Callable[[int], None] | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self.whole = start
        """The end of the last complete commit."""
        self._at = LinePosition(start.seq, start.offset, start.chain, start.batch, 0, 0, start.timestamp)
        self._each, self._ended = each, ended
        self._is_named = is_ledger_id(ledger_id)
        self._entries: LineBatch = []

    @property
    def seq(self) -> int:
        """Number of the last verified line; its commit may be incomplete."""
        return self._at.seq

    @property
    def offset(self) -> int:
        """Byte offset of the next line."""
        return self._at.offset

    def feed(self, block: bytes) -> None:
        """Verifies the next lines, given as bytes that end with an LF.

        Raises:
            BadLine: line `seq` + 1, at `offset`, is wrong; no later line was checked
        """
        at = 0
        while at < len(block):
            found = check_lines(block, at, self.ledger_id, self._at) if self._is_named else None
            if found is None:
                for line in block[at:].split(b"\n", AT_ONCE)[:-1]:
                    self.take(line)
                    at += len(line) + 1
            else:
                self._note(at, found)
                at = found.stops[-1] + 1
                del found  # free these objects before the next ones are made

    def take(self, line: bytes) -> None:
        """Verifies the next line, given without its LF, with the slow check; accepts the same lines as `feed`.

        Raises:
            BadLine: the line is wrong
        """
        self._note(0, self._look_at(line))

    def _look_at(self, line: bytes) -> VerifiedLines:
        """The verified next line; raises BadLine if the line is wrong."""
        after_batch = line.find(AFTER_BATCH)
        before, start = self._at, after_batch + TO_BODY
        body, number = line[start:-1], before.seq + 1
        batch, place, size = before.batch, before.place + 1, before.size
        if before.place == before.size:
            batch, place, size = batch + 1, 1, size_of_commit(line, 0, after_batch)
        given = size if place > 1 else None
        due = _Due(self.ledger_id, number, before.chain, batch, place, given, before.timestamp.encode())
        stamp = _checked_stamp(line, body, due)
        entry_id, entry_hash = entry_id_of(stamp[:10].decode(), number), hashlib.sha256(body).hexdigest()
        link = chain_hash(before.chain, self.ledger_id, number, entry_id, entry_hash)
        head = (
            f'{{"ledger_id":"{self.ledger_id}","seq":{number},"entry_id":"{entry_id}","batch":[{batch},{place},{size}],'
            f'"entry_hash":"sha256:{entry_hash}","chain_hash":"sha256:{link}","entry":'
        ).encode()
        if not self._is_named or len(head) != start or not line.startswith(head) or line[-1] != _BRACE or place > size:
            raise _fault(line, due)
        fields = _fields(body)
        after = LinePosition(number, before.offset + len(line) + 1, link, batch, place, size, stamp.decode())
        return VerifiedLines(after, [fields], [len(line)], [(1, link, batch)] if place == size else [], [entry_hash])

    def end(self) -> None:
        """Raises BadLine if the last line does not end a commit."""
        if self.whole.seq != self.seq:
            raise BadLine("batch", f"{self._at.size} entries in commit {self._at.batch}", f"{self._at.place}")

    def _note(self, at: int, found: VerifiedLines) -> None:
        """Advances past verified lines, and passes the commits that they complete to the callbacks.

        Args:
            at: offset of the first line in the block that `found.stops` counts in
            found: the lines
        """
        before, self._at = self._at, found.after
        base = before.offset - at
        if self._ended is not None:
            for count, _, _ in found.ends:
                self._ended(before.seq + count)
        if self._each is None:
            if found.ends:
                self.whole = _end_of(found, -1, before.seq, base)
            return
        lines, begin = [], before.offset
        for stop, fields, entry_hash in zip(found.stops, found.fields, found.hashes, strict=True):
            lines.append((begin, base + stop + 1 - begin, fields, entry_hash))
            begin = base + stop + 1
        done = 0
        for number, (count, _, _) in enumerate(found.ends):
            entries, self._entries = [*self._entries, *lines[done:count]], []
            done, self.whole = count, _end_of(found, number, before.seq, base)
            self._each(self.whole, entries)
        self._entries += lines[done:]


class VerifiedRun(NamedTuple):
    """Consecutive entries of one day whose chain is verified."""

    before: LinePosition
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
        self.at = LinePosition(start.seq, start.offset, start.chain, start.batch, 0, 0, start.timestamp)
        """The position after the last verified line."""

    def feed(self, block: bytes) -> Iterator[VerifiedRun]:
        """The entries of the next lines, given as bytes that end with an LF.

        Raises:
            BadLine: the next line, at `at`, does not continue the chain; no later line was checked
        """
        start = 0
        while start < len(block):
            before, day = self.at, day_at(block, start)
            heads = check_heads(block, start, self.ledger_id, before, day)
            if heads is None:
                for line in block[start:].split(b"\n", AT_ONCE)[:-1]:
                    yield self._follow_closely(line)
                    start += len(line) + 1
                continue
            after = heads.stops[-1] + 1
            self.at = LinePosition(
                before.seq + len(heads.stops),
                before.offset + after - start,
                heads.chain,
                heads.batch,
                heads.place,
                heads.size,
                before.timestamp,
            )
            start = after
            yield VerifiedRun(before, day, heads.bodies, heads.hashes)

    def _follow_closely(self, line: bytes) -> VerifiedRun:
        before = self.at
        seq = before.seq + 1
        chain = follow(line, self.ledger_id, seq, before.chain)
        parts, fault = split_line(line), None
        if parts is None or not parts.fits_itself:
            fault = misfit(line, self.ledger_id)
        parts = parts or Line(self.ledger_id, seq, "", before[3:6], "", chain, b"")  # so the next line gets the slow check too
        day = parts.entry_id[2:12]
        if fault is None and parts.entry_id != (expected := entry_id_of(day, seq)):
            fault = BadLine("entry_id", expected, parts.entry_id)
        self.at = LinePosition(seq, before.offset + len(line) + 1, chain, *parts.batch, before.timestamp)
        return VerifiedRun(before, day, [parts.body], [parts.entry_hash], fault)


def _end_of(found: VerifiedLines, number: int, seq: int, base: int) -> Mark:
    """The position after the n-th commit that ends in these lines."""
    count, chain, batch = found.ends[number]
    return Mark(seq + count, base + found.stops[count - 1] + 1, chain, batch, found.fields[count - 1]["timestamp"])


def _fields(body: bytes) -> EntryBody:
    """A body as an object; raises BadLine if it is not canonical or not the body of an entry."""
    try:
        fields: EntryBody = orjson.loads(body)
        if orjson.dumps(fields, option=STRICT) != body or tuple(fields) != FIELDS or type(fields["payload"]) is not dict:
            check_body(fields, body)
    except orjson.JSONDecodeError as error:
        raise BadLine("entry", "canonical JSON", f"{other_bytes(len(body))} ({error})") from error
    except orjson.JSONEncodeError as error:  # an integer that a double cannot hold exactly
        raise BadLine("entry", "canonical JSON (RFC 8785)", f"{other_bytes(len(body))} ({error})") from error
    return fields


def _checked_stamp(line: bytes, body: bytes, due: _Due) -> bytes:
    """The timestamp of an entry; raises BadLine if it is malformed or earlier than the entry before."""
    stamp = stamp_of(body)
    if not is_moment(stamp) or not body.endswith(b',"timestamp":"%b"}' % stamp):
        parts = split_line(line)
        if parts is None or not parts.fits_itself:
            raise _fault(line, due)
        raise BadLine("timestamp", "UTC with microseconds, e.g. 2026-02-18T10:30:00.000001+00:00", other_bytes(len(stamp)))
    if stamp[:26] < due.timestamp[:26]:
        raise BadLine("timestamp", f"not before {due.timestamp.decode()}", stamp.decode())
    return stamp


def is_moment(stamp: bytes) -> bool:
    """Whether this is a valid timestamp of an entry: UTC with microseconds, on an existing day."""
    if _STAMP.fullmatch(stamp) is None:
        return False
    try:
        datetime.fromisoformat(stamp.decode())
    except ValueError:
        return False
    return True


def check_body(fields: EntryBody, body: bytes) -> None:
    """Checks a body with the slow canonical encoder; raises BadLine if it is not canonical or not the body of an entry."""
    if sorted(fields) != [*FIELDS] or not isinstance(fields["payload"], dict):
        raise BadLine("entry", "entity_id, entry_type, payload and timestamp", other_bytes(len(body)))
    try:
        orjson.dumps(fields)  # takes at most 254 levels; the slow encoder's limit depends on who called
        canonical = rfc8785.dumps(orjson.loads(body))
    except (ValueError, RecursionError, orjson.JSONEncodeError) as error:
        raise BadLine("entry", "canonical JSON (RFC 8785)", other_bytes(len(body))) from error
    if canonical != body:
        raise BadLine("entry", "canonical JSON (RFC 8785)", other_bytes(len(body)))


def _fault(line: bytes, due: _Due) -> BadLine:
    """The first difference between a wrong line and what it must contain."""
    parts = split_line(line)
    if parts is None:
        whose = f" of {due.ledger_id}" if due.ledger_id else ""
        return BadLine("framing", f"entry {due.seq}{whose} on a line of its own", shown(line))
    found_hash = hashlib.sha256(parts.body).hexdigest()
    entry_id = entry_id_of(stamp_of(parts.body)[:10].decode("ascii", "replace"), due.seq)
    size = parts.batch[2] if due.size is None else due.size
    link = chain_hash(due.chain, due.ledger_id, due.seq, entry_id, found_hash)
    compared: tuple[tuple[FaultField, str, str], ...] = (
        ("ledger_id", due.ledger_id, parts.ledger_id),
        ("seq", str(due.seq), str(parts.seq)),
        ("entry_hash", f"sha256:{parts.entry_hash}", f"sha256:{found_hash}"),
        ("entry_id", entry_id, parts.entry_id),
        ("batch", f"[{due.batch}, {due.place}, {size}]", str([*parts.batch])),
        ("chain_hash", f"sha256:{link}", f"sha256:{parts.chain_hash}"),
    )
    for field, expected, found in compared:
        if expected != found:
            return BadLine(field, expected, found)
    return BadLine("framing", "the line as it was written", shown(line))


def stamp_of(body: bytes) -> bytes:
    """The timestamp at the end of a body."""
    return body[-29:-2] if body[-3:] == b'Z"}' else body[-34:-2]
