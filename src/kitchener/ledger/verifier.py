"""Whether a run of lines is what the writer would have written: every byte, hash, number and commit.

Pure: it is handed lines and says which one is wrong and why. Files are read by `scanning`; what follows from a bad line is
decided by `recovery` and by readers.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

import orjson
import rfc8785

from kitchener.ledger.chain import AFTER_BATCH, START, TO_BODY, BadLine, Mark, chain_hash, shown, split_line

Batch = list[tuple[int, int, dict[str, Any]]]
"""The entries of one commit: byte offset and length of each line, and its decoded body."""

_STAMP = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}(?:Z|\+00:00)")
_NO_SECOND: Final = b"-"
"""No time begins so."""
_BRACE: Final = ord("}")
_UTC: Final = b"+00:00"
_STRICT: Final = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER
_ENDING: Final = b'+00:00"}}'
_AT_ONCE: Final = 32
"""Lines that are checked together. More do not stay in the processor's caches."""
_FIELDS: Final = ("entity_id", "entry_type", "payload", "timestamp")


class _Due(NamedTuple):
    """What the next line has to be."""

    ledger_id: str
    seq: int
    chain: str
    batch: int
    place: int
    size: int | None
    """None where a commit begins: the line itself says how many there are."""
    timestamp: bytes


class Verifier:
    """Checks lines in order, from a place that is known to be right.

    Args:
        ledger_id: whose lines they must be
        start: where the first of them stands
        each: called for every complete commit with the place after it and its entries
    """

    def __init__(self, ledger_id: str, start: Mark = START, each: Callable[[Mark, Batch], None] | None = None) -> None:
        self.ledger_id = ledger_id
        self.whole = start
        """The end of the last complete commit."""
        self.seq = start.seq
        """Number of the last line that is right; its commit may not be complete."""
        self.offset = start.offset
        """Where the next line stands."""
        self._chain, self._batch, self._place, self._size = start.chain, start.batch, 0, 0
        self._timestamp = start.timestamp.encode()
        self._second, self._id_start = _NO_SECOND, ""
        self._each = each
        self._entries: Batch = []

    def feed(self, lines: Sequence[bytes]) -> None:
        """Checks further lines, given without their LF.

        Raises:
            BadLine: line `seq` + 1, at `offset`, is wrong; nothing after it was looked at
        """
        for first in range(0, len(lines), _AT_ONCE):
            some = lines[first : first + _AT_ONCE]
            if not self._take(some):
                self._take_one_by_one(some)

    def _take(self, lines: Sequence[bytes]) -> bool:
        """Whether some lines are right, and then notes them; False: one is wrong, or takes a closer look to be told right."""
        # Millions of lines go through here: names are local, what only changes with the second or the commit is kept, and one
        # call encodes all bodies.
        sha256, ledger_id, seq, offset, chain = hashlib.sha256, self.ledger_id, self.seq, self.offset, self._chain
        batch, place, size, stamp = self._batch, self._place, self._size, self._timestamp[:26]
        opening, commit = f'{{"ledger_id":"{ledger_id}","seq":', f'","batch":[{batch},'
        second, id_start = self._second, self._id_start
        bodies: list[bytes] = []
        ends: list[Mark] = []
        for line in lines:
            after_batch = line.find(AFTER_BATCH)
            start = after_batch + TO_BODY
            body, before, stamp = line[start:-1], stamp, line[-35:-9]
            # Within one second only the fraction differs. Text order is time order.
            if not stamp.startswith(second) or stamp < before or not stamp[20:].isdigit() or not line.endswith(_ENDING):
                if stamp < before or not line.endswith(_ENDING) or not is_moment(stamp + _UTC):
                    return False
                second, id_start = stamp[:20], f"E-{stamp[:10].decode()}-"
            if place == size:
                batch, place, size = batch + 1, 0, _batch_size(line, after_batch)
                commit = f'","batch":[{batch},'
            seq += 1
            place += 1
            offset += len(line) + 1
            number = str(seq)
            entry_id, entry_hash = id_start + number.zfill(12), sha256(body).hexdigest()
            chain = sha256(
                f"kitchener/1|sha256:{chain}|{ledger_id}|{number}|{entry_id}|sha256:{entry_hash}".encode()
            ).hexdigest()
            head = (
                f'{opening}{number},"entry_id":"{entry_id}{commit}{place},{size}],'
                f'"entry_hash":"sha256:{entry_hash}","chain_hash":"sha256:{chain}","entry":'
            ).encode()
            if len(head) != start or not line.startswith(head) or place > size:
                return False
            bodies.append(body)
            if place == size:
                ends.append(Mark(seq, offset, chain, batch, f"{stamp.decode()}+00:00"))
        found = _decoded(bodies)
        if found is None:
            return False
        self._note(lines, found, ends)
        self.seq, self.offset, self._chain, self._timestamp = seq, offset, chain, stamp + _UTC
        self._batch, self._place, self._size, self._second, self._id_start = batch, place, size, second, id_start
        return True

    def _take_one_by_one(self, lines: Sequence[bytes]) -> None:
        """Looks closely at each line."""
        for line in lines:
            after_batch = line.find(AFTER_BATCH)
            start = after_batch + TO_BODY
            body, number = line[start:-1], self.seq + 1
            batch, place, size = self._batch, self._place + 1, self._size
            if self._place == self._size:
                batch, place, size = batch + 1, 1, _batch_size(line, after_batch)
            given = size if place > 1 else None
            due = _Due(self.ledger_id, number, self._chain, batch, place, given, self._timestamp)
            stamp = _checked_stamp(line, body, due)
            entry_id, entry_hash = f"E-{stamp[:10].decode()}-{number:012d}", hashlib.sha256(body).hexdigest()
            link = chain_hash(self._chain, self.ledger_id, number, entry_id, entry_hash)
            head = (
                f'{{"ledger_id":"{self.ledger_id}","seq":{number},"entry_id":"{entry_id}","batch":[{batch},{place},{size}],'
                f'"entry_hash":"sha256:{entry_hash}","chain_hash":"sha256:{link}","entry":'
            ).encode()
            if len(head) != start or not line.startswith(head) or line[-1] != _BRACE or place > size:
                raise _fault(line, due)
            fields = _fields(body)
            after = self.offset + len(line) + 1
            self._note([line], [fields], [Mark(number, after, link, batch, stamp.decode())] if place == size else [])
            self.seq, self.offset, self._chain, self._timestamp = number, after, link, stamp
            self._batch, self._place, self._size = batch, place, size

    def end(self) -> None:
        """Checks that the lines end where a commit ends; raises BadLine otherwise."""
        if self.whole.seq != self.seq:
            raise BadLine("batch", f"{self._size} entries in commit {self._batch}", f"{self._place}")

    def _note(self, lines: Sequence[bytes], fields: Sequence[dict[str, Any]], ends: Sequence[Mark]) -> None:
        """Passes on the commits that some lines complete; `offset` is still that of the first of these."""
        if self._each is None:
            self.whole = ends[-1] if ends else self.whole
            return
        offset, left = self.offset, iter(ends)
        end = next(left, None)
        for line, each in zip(lines, fields, strict=True):
            self._entries.append((offset, len(line) + 1, each))
            offset += len(line) + 1
            if end is not None and offset == end.offset:
                entries, self._entries = self._entries, []
                self.whole = end
                self._each(end, entries)
                end = next(left, None)


def _decoded(bodies: Sequence[bytes]) -> Sequence[dict[str, Any]] | None:
    """The bodies as objects, if each is what the fast encoder makes of it; None: they need a closer look."""
    try:
        found = [*map(orjson.loads, bodies)]
        # Encoded together: no JSON object begins with another whole one, so equal texts have equal parts.
        if orjson.dumps(found, option=_STRICT) != b"[%b]" % b",".join(bodies):
            return None
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return None
    # A body ends with a brace, as its stamp was looked at, so each is an object.
    if any(tuple(each) != _FIELDS or type(each["payload"]) is not dict for each in found):
        return None
    return found


def _fields(body: bytes) -> dict[str, Any]:
    """A body as an object; raises BadLine where it is not canonical or not an entry's."""
    try:
        fields = orjson.loads(body)
        if orjson.dumps(fields, option=_STRICT) != body or tuple(fields) != _FIELDS or type(fields["payload"]) is not dict:
            check_body(fields, body)
    except orjson.JSONDecodeError as error:
        raise BadLine("entry", "canonical JSON", f"{shown(body)} ({error})") from error
    except orjson.JSONEncodeError as error:  # an integer that others would read as another number
        raise BadLine("entry", "canonical JSON (RFC 8785)", f"{shown(body)} ({error})") from error
    return cast("dict[str, Any]", fields)


def _batch_size(line: bytes, end: int) -> int:
    digits = line[line.rfind(b",", 0, end) + 1 : end] if end > 0 else b""
    return int(digits) if digits.isdigit() and len(digits) < 10 else 0


def _checked_stamp(line: bytes, body: bytes, due: _Due) -> bytes:
    """The time of an entry, looked at closely; raises BadLine where it cannot be that."""
    stamp = stamp_of(body)
    if not is_moment(stamp):
        parts = split_line(line)
        if parts is None or not parts.fits_itself:
            raise _fault(line, due)
        raise BadLine("timestamp", "UTC with microseconds, e.g. 2026-02-18T10:30:00.000001+00:00", shown(stamp))
    if stamp[:26] < due.timestamp[:26]:
        raise BadLine("timestamp", f"not before {due.timestamp.decode()}", stamp.decode())
    return stamp


def is_moment(stamp: bytes) -> bool:
    """Whether this is the time of an entry: UTC with microseconds, on a day that there is."""
    if _STAMP.fullmatch(stamp) is None:
        return False
    try:
        datetime.fromisoformat(stamp.decode())
    except ValueError:
        return False
    return True


def check_body(fields: dict[str, Any], body: bytes) -> None:
    """The long way for a body that the fast encoder does not give back byte for byte."""
    if sorted(fields) != [*_FIELDS] or not isinstance(fields["payload"], dict):
        raise BadLine("entry", "entity_id, entry_type, payload and timestamp", shown(body))
    try:
        canonical = rfc8785.dumps(fields)
    except (ValueError, RecursionError) as error:
        raise BadLine("entry", "canonical JSON (RFC 8785)", str(error)) from error
    if canonical != body:
        raise BadLine("entry", "canonical JSON (RFC 8785)", shown(body))


def _fault(line: bytes, due: _Due) -> BadLine:
    """What exactly is wrong with a line that is not what it has to be."""
    parts = split_line(line)
    if parts is None:
        return BadLine("framing", f"entry {due.seq} of {due.ledger_id} on a line of its own", shown(line))
    found_hash = hashlib.sha256(parts.body).hexdigest()
    entry_id = f"E-{stamp_of(parts.body)[:10].decode('ascii', 'replace')}-{due.seq:012d}"
    size = parts.batch[2] if due.size is None else due.size
    link = chain_hash(due.chain, due.ledger_id, due.seq, entry_id, found_hash)
    for field, expected, found in (
        ("ledger_id", due.ledger_id, parts.ledger_id),
        ("seq", str(due.seq), str(parts.seq)),
        ("entry_hash", f"sha256:{parts.entry_hash}", f"sha256:{found_hash}"),
        ("entry_id", entry_id, parts.entry_id),
        ("batch", f"[{due.batch}, {due.place}, {size}]", str([*parts.batch])),
        ("chain_hash", f"sha256:{link}", f"sha256:{parts.chain_hash}"),
    ):
        if expected != found:
            return BadLine(field, expected, found)
    return BadLine("framing", "the line as it was written", shown(line))


def stamp_of(body: bytes) -> bytes:
    """The time of an entry, as its body ends with it."""
    return body[-29:-2] if body[-3:] == b'Z"}' else body[-34:-2]
