"""Whether many lines in a row are right, told fast; never why one is not.

The quick half of `verifier`, which looks closely at whatever is not found right here. So all that this has to be is strict: a
line may pass only if the close look would let it pass. Pure.
"""

import hashlib
from collections.abc import Sequence
from datetime import date
from typing import Any, Final, NamedTuple

import orjson

from kitchener.ledger.format.lines import AFTER_BATCH, OPENING, TO_BODY

AT_ONCE: Final = 100
"""Lines that are checked together, at most. Two numbers of such a run differ in their last three digits only."""
STRICT: Final = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER
"""How the fast encoder writes a body."""
FIELDS: Final = ("entity_id", "entry_type", "payload", "timestamp")
"""What a body holds."""
STAMP_BYTES: Final = len("2026-02-18T10:30:00.000001+00:00")

_LAST_DIGITS: Final = tuple(f"{number:03d}" for number in range(1_000))
_TO_STAMP: Final = STAMP_BYTES + len('"}}')
_AS_ZEROS: Final = bytes.maketrans(b"123456789", b"000000000")
_ZERO_STAMP: Final = b"0000-00-00T00:00:00.000000+00:00"


class Standing(NamedTuple):
    """A place between two lines, and what the next line follows on."""

    seq: int
    """Number of the last entry before it."""
    offset: int
    """Byte offset of the next line."""
    chain: str
    """Hex digits of the last entry's chain hash."""
    batch: int
    """Number of the last entry's commit."""
    place: int
    """Its place in that commit."""
    size: int
    """How many entries that commit has; the same where the commit ends here."""
    timestamp: str
    """Its time; "" at the start."""


class Found(NamedTuple):
    """Some lines that are right."""

    after: Standing
    """The place after them."""
    fields: Sequence[dict[str, Any]]
    """Their bodies, decoded."""
    stops: Sequence[int]
    """Where in the block each line ends, which is where its LF stands."""
    ends: Sequence[tuple[int, str, int]]
    """How many of them there are up to each end of a commit, the chain hash there, and the number of the commit."""
    hashes: Sequence[str]
    """The entry hash of each, hex digits."""


class Heads(NamedTuple):
    """Some lines of which all but the bodies is right, and whose bodies have the hashes that the lines give."""

    bodies: Sequence[bytes]
    """Their bodies, as they stand there."""
    stops: Sequence[int]
    """Where in the block each line ends, which is where its LF stands."""
    ends: Sequence[tuple[int, str, int]]
    """As of `Found`."""
    hashes: Sequence[str]
    """The entry hash of each, hex digits."""
    chain: str
    """Hex digits of the last chain hash."""
    batch: int
    place: int
    size: int
    """As of `Standing`, after the last line."""


def check_lines(block: bytes, at: int, ledger_id: str, before: Standing) -> Found | None:
    """Some of the next lines, if all of them are right; None: one is wrong, or takes a closer look to be told right.

    Args:
        block: whole lines, each with its LF
        at: where in it the first of these lines begins
        ledger_id: whose lines they must be
        before: the place before them
    """
    day = day_of(block, at)
    heads = check_heads(block, at, ledger_id, before, day)
    fields = _decoded(heads.bodies) if heads is not None else None
    last = _last_stamp(fields, day, before.timestamp) if fields is not None else None
    if heads is None or fields is None or last is None:
        return None
    stops, (chain, batch, place, size) = heads.stops, heads[4:]
    after = Standing(before.seq + len(stops), before.offset + stops[-1] + 1 - at, chain, batch, place, size, last)
    return Found(after, fields, stops, heads.ends, heads.hashes)


def size_of_commit(line: bytes, at: int, end: int) -> int:
    """How many entries the commit of a line has, as its numbers say, which end at `end`; 0 where they do not say it."""
    digits = line[line.rfind(b",", at, end) + 1 : end] if end > at else b""
    return int(digits) if digits.isdigit() and len(digits) < 10 else 0


def _run_length(seq: int) -> int:
    """How many numbers after this one have as many digits, and the same ones but for the last three."""
    return 9 - seq if seq < 9 else AT_ONCE - (seq + 1) % AT_ONCE


def day_of(block: bytes, at: int) -> str:
    """The day on which an entry was written, as its line ends with it; some other text where that line is not right.

    Args:
        block: whole lines, each with its LF
        at: where in it the line begins
    """
    line_end = block.find(b"\n", at)
    return block[line_end - _TO_STAMP : line_end - _TO_STAMP + 10].decode("ascii", "replace")


def check_heads(block: bytes, at: int, ledger_id: str, before: Standing, day: str) -> Heads | None:
    """What comes before and after each body: it must be what the writer would write for a body with this hash.

    Args as of `check_lines`, and the day of all these lines.
    """
    # Millions of lines go through here: names are local, and what stays the same for a run or a commit is put together once.
    sha256, find, last = hashlib.sha256, block.find, len(block) - 1
    chain, batch, place, size = before[2:6]
    thousands, first = divmod(before.seq + 1, 1_000)
    longs = _LAST_DIGITS[first : first + _run_length(before.seq)]
    shorts = longs if thousands else [*map(str, range(first, first + len(longs)))]
    opening = f'{OPENING.decode()}{ledger_id}","seq":{thousands or ""}'
    again = "}\n" + opening
    id_start = f"E-{day}-{thousands:09d}"
    middle = f',"entry_id":"{id_start}'
    link, link_id = f"|{ledger_id}|{thousands or ''}", f"|{id_start}"
    commit, rest = f'","batch":[{batch},', f',{size}],"entry_hash":"sha256:'
    to_body, longer_from = find(AFTER_BATCH, at) + TO_BODY - at, int(10 ** len(str(place + 1)))
    bodies, stops, ends, hashes = list[bytes](), list[int](), list[tuple[int, str, int]](), list[str]()
    edge, stop = at, at - 1
    for short, long in zip(shorts, longs, strict=False):
        if place == size:
            if bodies:
                ends.append((len(bodies), chain, batch))
            end = find(AFTER_BATCH, stop + 1)
            batch, place, size = batch + 1, 0, size_of_commit(block, stop + 1, end)
            commit, rest = f'","batch":[{batch},', f',{size}],"entry_hash":"sha256:'
            to_body, longer_from = end + TO_BODY - stop - 1, 10
        place += 1
        if place == longer_from:
            to_body, longer_from = to_body + 1, longer_from * 10
        start = stop + 1 + to_body
        stop = find(b"\n", start)
        body = block[start : stop - 1]
        entry_hash = sha256(body).hexdigest()
        chain = sha256(f"kitchener/1|sha256:{chain}{link}{short}{link_id}{long}|sha256:{entry_hash}".encode()).hexdigest()
        head = (
            f'{opening}{short}{middle}{long}{commit}{place}{rest}{entry_hash}","chain_hash":"sha256:{chain}","entry":'
        ).encode()
        if block[edge:start] != head:
            return None
        # From the second line on, the comparison takes in how the line before it ends.
        edge, opening = stop - 1, again
        bodies.append(body)
        stops.append(stop)
        hashes.append(entry_hash)
        if stop == last:
            break
    if block[edge : stop + 1] != b"}\n" or place > size:
        return None
    if place == size:
        ends.append((len(bodies), chain, batch))
    return Heads(bodies, stops, ends, hashes, chain, batch, place, size)


def _decoded(bodies: Sequence[bytes]) -> Sequence[dict[str, Any]] | None:
    """The bodies as objects, if each is what the fast encoder makes of it; None: they need a closer look."""
    try:
        found = [*map(orjson.loads, bodies)]
        # Encoded together: no JSON object begins with another whole one, so equal texts have equal parts.
        if orjson.dumps(found, option=STRICT) != b"[%b]" % b",".join(bodies):
            return None
        if {*map(tuple, found)} != {FIELDS} or {type(each["payload"]) for each in found} != {dict}:
            return None
    except (orjson.JSONDecodeError, orjson.JSONEncodeError, TypeError):
        return None
    return found


def _last_stamp(found: Sequence[dict[str, Any]], day: str, before: str) -> str | None:
    """The time of the last entry, if all are times of one day, none before the one before it; else None."""
    stamps: list[str] = [each["timestamp"] for each in found]
    if {*map(type, stamps)} != {str} or {*map(len, stamps)} != {STAMP_BYTES}:
        return None
    text, first, last = "".join(stamps), stamps[0], stamps[-1]
    # They have one form and one length, so the order of the texts is the order of the times.
    if text.encode().translate(_AS_ZEROS) != _ZERO_STAMP * len(stamps) or sorted(stamps) != stamps or first[:26] < before[:26]:
        return None
    # Between two texts that begin with one day all do, and no hour is later than the last; but a minute may have any tens.
    tens = text[14::STAMP_BYTES] + text[17::STAMP_BYTES]
    if first[:10] != day or last[:13] > f"{day}T23" or tens.strip("012345"):
        return None
    try:
        date.fromisoformat(day)
    except ValueError:
        return None
    return last
