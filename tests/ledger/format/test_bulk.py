"""Checking many lines at once (`ledger.format.bulk`) must give the same verdict as checking each line by itself."""

from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kitchener.canonical import canonical_bytes
from kitchener.ledger.format.bulk import LinePosition, check_lines
from kitchener.ledger.format.checks import LineBatch, Verifier
from kitchener.ledger.format.lines import NO_HASH, START, BadLine, Mark, chain_hash
from tests.shared.property_examples import examples

LEDGER = "HO2M:ADMIN"
PAYLOADS: tuple[dict[str, object], ...] = (
    {},
    {"v": 1, "session_id": "SES-00000001", "targets": [], "intent_id": None, "is_new": True},
    {"text": 'Grüße 🥗 \\ " \n \r\n \u2028 \x7f \x00', "ключ": ["é", {"🥗": 1}]},
    {"score": 0.1, "small": 1e-7, "large": 1e21, "half": -0.5, "list": [1.5, [2.25, []]]},
    {"most": 2**53 - 1, "least": 1 - 2**53, "zero": 0},
    {"entry": {"timestamp": "2026-02-18T10:30:00.000001+00:00"}, "line": '],"entry_hash":"sha256:'},
    {"\ufb33": 1, "😀": 2, "€": 3},
    {"long": "x" * 3_000},
)


def stamp_at(microseconds: int) -> str:
    seconds, fraction = divmod(microseconds, 1_000_000)
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return f"2026-02-{18 + day:02d}T{hour:02d}:{minute:02d}:{second:02d}.{fraction:06d}+00:00"


def body_of(payload: object, stamp: str) -> bytes:
    return canonical_bytes({"entity_id": "WO-1", "entry_type": "NOTE", "payload": payload, "timestamp": stamp})


def forged(bodies: Iterable[bytes], commits: Sequence[int], day: str = "") -> bytes:
    """Lines of which every hash and number is right, whatever the bodies are."""
    lines, chain, seq = list[bytes](), NO_HASH, 0
    rest = iter(bodies)
    for batch, size in enumerate(commits, 1):
        for place in range(1, size + 1):
            body, seq = next(rest), seq + 1
            date = day or (body[-29:-19] if body.endswith(b'Z"}') else body[-34:-24]).decode("ascii", "replace")
            entry_id, entry_hash = f"E-{date}-{seq:012d}", sha256(body).hexdigest()
            chain = chain_hash(chain, LEDGER, seq, entry_id, entry_hash)
            head = (
                f'{{"ledger_id":"{LEDGER}","seq":{seq},"entry_id":"{entry_id}","batch":[{batch},{place},{size}],'
                f'"entry_hash":"sha256:{entry_hash}","chain_hash":"sha256:{chain}","entry":'
            )
            lines.append(head.encode() + body + b"}\n")
    return b"".join(lines)


class Verdict:
    """What a verifier made of some lines."""

    def __init__(self) -> None:
        self.commits: list[tuple[Mark, LineBatch]] = []
        self.verifier = Verifier(LEDGER, START, lambda mark, entries: self.commits.append((mark, entries)))
        self.fault: tuple[str, str, str] | None = None

    def facts(self) -> tuple[object, ...]:
        return self.verifier.seq, self.verifier.offset, self.verifier.whole, self.fault, self.commits


def many_at_a_time(data: bytes) -> Verdict:
    verdict = Verdict()
    try:
        verdict.verifier.feed(data)
        verdict.verifier.end()
    except BadLine as error:
        verdict.fault = (error.field, error.expected, error.found)
    return verdict


def one_by_one(data: bytes) -> Verdict:
    verdict = Verdict()
    try:
        for line in data.split(b"\n")[:-1]:
            verdict.verifier.take(line)
        verdict.verifier.end()
    except BadLine as error:
        verdict.fault = (error.field, error.expected, error.found)
    return verdict


def agreed(data: bytes) -> tuple[str, str, str] | None:
    """The fault that both ways name; None: both find all of it right."""
    many, one = many_at_a_time(data), one_by_one(data)
    assert many.facts() == one.facts()
    quiet = Verifier(LEDGER)  # nobody wants the entries: another way to take note of them
    try:
        quiet.feed(data)
    except BadLine:
        assert many.fault is not None
    assert (quiet.seq, quiet.offset, quiet.whole) == (many.verifier.seq, many.verifier.offset, many.verifier.whole)
    return many.fault


def passes_in_bulk(data: bytes) -> bool:
    """Whether all lines are found right without a close look."""
    at, before = 0, LinePosition(0, 0, NO_HASH, 0, 0, 0, "")
    while at < len(data):
        found = check_lines(data, at, LEDGER, before)
        if found is None:
            return False
        at, before = found.stops[-1] + 1, found.after
    return True


def plain_bodies(count: int, step_us: int = 7) -> Iterator[bytes]:
    for number in range(count):
        yield body_of({"v": 1, "n": number, "text": "Grüße"}, stamp_at(step_us * number))


@pytest.mark.parametrize("commits", [(1_105,), (1,) * 12, (9, 10, 11, 99, 100, 101), (3, 1_000, 102), (7,) * 150], ids=str)
def test_what_a_writer_writes_is_found_right_without_a_close_look(commits: tuple[int, ...]) -> None:
    """Numbers and places of all lengths, on both sides of where they become longer."""
    data = forged(plain_bodies(sum(commits)), commits)
    assert passes_in_bulk(data)
    assert agreed(data) is None


@pytest.mark.parametrize("step_us", [0, 250_000, 61_000_000, 3_000_000_000])
def test_times_may_lie_any_way_apart(step_us: int) -> None:
    data = forged(plain_bodies(230, step_us), (230,))
    assert passes_in_bulk(data) == (step_us < 1_000_000_000)  # lines of two days are looked at one by one
    assert agreed(data) is None


def damaged(data: bytes, lines: list[bytes], random: Random) -> bytes:
    at, line, other = random.randrange(len(data)), random.randrange(len(lines)), random.randrange(len(lines))
    match random.randrange(9):
        case 0:
            return data[:at] + bytes((data[at] ^ 1 << random.randrange(8),)) + data[at + 1 :]
        case 1:
            return data[:at] + random.choice((b"\0", b"\r", b"\n", b'"', b"}", b" ", b"0")) + data[at + 1 :]
        case 2:
            return data[:at] + data[at + 1 :]
        case 3:
            return data[:at] + random.choice((b"\n", b"\r\n", b" ", b"0", b"\xff", b"}\n{", b"\xef\xbb\xbf")) + data[at:]
        case 4:
            return data[:at]
        case 5:
            return b"".join(lines[:line] + lines[line + 1 :])
        case 6:
            return b"".join([*lines[: line + 1], lines[line], *lines[line + 1 :]])
        case 7:
            moved = [*lines]
            moved[line], moved[other] = moved[other], moved[line]
            return b"".join(moved)
        case _:
            return data.replace(b"\n", b"\r\n")


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(12, 40))])
def test_a_changed_byte_line_or_end_is_told_alike(seed: int) -> None:
    random = Random(seed)
    commits = [random.choice((1, 2, 3, 12, 60)) for _ in range(random.randint(1, 5))]
    bodies = [body_of(random.choice(PAYLOADS), stamp_at(1_000_000 * number)) for number in range(sum(commits))]
    data = forged(bodies, commits)
    assert agreed(data) is None
    lines = data.splitlines(keepends=True)
    for _ in range(30):
        result = damaged(data, lines, random)
        result = result[: result.rfind(b"\n") + 1]  # the rest has no LF, and that is told before anybody looks at it
        if result and not data.startswith(result) and result != data:
            assert agreed(result) is not None
        else:
            agreed(result)


def odd_body(
    start: str = '{"entity_id":"a","entry_type":"b",', payload: str = '"payload":{}', stamp: str = "12:00:00.000000"
) -> str:
    return f'{start}{payload},"timestamp":"2026-02-18T{stamp}+00:00"}}'


GOOD = odd_body()
ODD_BODIES = {
    "spaces": odd_body('{"entity_id": "a","entry_type":"b",'),
    "order": odd_body('{"entry_type":"b","entity_id":"a",'),
    "order in the payload": odd_body(payload='"payload":{"b":1,"a":2}'),
    "a key twice": odd_body(payload='"payload":{"a":1,"a":1}'),
    "an escape too many": odd_body('{"entity_id":"\\u0061","entry_type":"b",'),
    "a raw control": odd_body('{"entity_id":"\x01","entry_type":"b",'),
    "half a pair": odd_body('{"entity_id":"\\ud83e","entry_type":"b",'),
    "a long number": odd_body(payload='"payload":{"n":9007199254740992}'),
    "a longer number": odd_body(payload='"payload":{"n":123456789012345678901234567890}'),
    "a plus": odd_body(payload='"payload":{"n":+1}'),
    "a zero before": odd_body(payload='"payload":{"n":01}'),
    "a zero behind": odd_body(payload='"payload":{"n":0.50}'),
    "no number": odd_body(payload='"payload":{"n":NaN}'),
    "a list for a payload": odd_body(payload='"payload":[]'),
    "no payload": odd_body(payload='"extra":{}'),
    "three fields": odd_body('{"entity_id":"a",'),
    "a field too many": odd_body(payload='"payload":{},"source":"c"'),
    "another field first": odd_body('{"about":"a","entry_type":"b",'),
    "another field second": odd_body('{"entity_id":"a","entry":"b",'),
    "half an object": odd_body(payload='"payload":{"list":[{"a":1}'),
    "two objects": f"{GOOD},{GOOD}",
    "no object": '["2026-02-18T12:00:00.000000+00:00"}',
    "a list of the fields": '["entity_id","entry_type","payload","timestamp"]',
    "text before the time": GOOD.replace("2026", "on 2026"),
    "a time in an object": GOOD.replace('"2026', '{"a":"2026') + "}",
    "a time as text": GOOD.replace("2026", '\\"timestamp\\":\\"2026'),
    "no time": '{"entity_id":"a","entry_type":"b","payload":{},"timestamp":"2026-02-18"}',
    "a number for a time": '{"entity_id":"a","entry_type":"b","payload":{},"timestamp":20260218}',
    "hour 24": odd_body(stamp="24:00:00.000000"),
    "hour 30": odd_body(stamp="30:00:00.000000"),
    "minute 60": odd_body(stamp="12:60:00.000000"),
    "second 60": odd_body(stamp="12:00:60.000000"),
    "letters": odd_body(stamp="12:00:00.00000O"),
    "other digits": odd_body(stamp="12:00:00.00000٣"),
    "another zone": GOOD.replace("+00:00", "+01:00"),
    "no day": GOOD.replace("2026-02-18", "2026-02-30"),
    "a second back": odd_body(stamp="11:59:59.000000"),
    "a day back": GOOD.replace("2026-02-18", "2026-02-17"),
}


@pytest.mark.parametrize("before", [0, 5, 150])
@pytest.mark.parametrize("odd", ODD_BODIES)
def test_a_body_that_no_writer_writes_is_refused_though_all_hashes_fit(odd: str, before: int) -> None:
    """Whoever computes the hashes anew must still keep to the form (docs/ledger.md, format)."""
    body = ODD_BODIES[odd].encode()
    good = body_of({}, "2026-02-18T12:00:00.000000+00:00")
    bodies, commits = [good] * before + [body] + [good] * 60, (before + 61,)
    day = "" if b'"2026-' in body[-40:] and body.endswith(b':00"}') else "2026-02-18"
    fault = agreed(forged(bodies, commits, day))
    if odd in ("a second back", "a day back") and before == 0:
        assert fault is None  # nothing came before it
    else:
        assert fault is not None


def test_bodies_that_are_right_only_together_are_refused() -> None:
    """Two of four hold half an object and one more, so that one after another they read as four whole ones."""
    half, rest, both = (
        odd_body(payload='"payload":{"x":[{"a":1}'),
        '{}]},"timestamp":"2026-02-18T12:00:00.000000+00:00"}',
        f"{GOOD},{GOOD}",
    )
    assert agreed(forged([half.encode(), rest.encode(), both.encode()], (3,))) is not None


@pytest.mark.parametrize("stamps", [("Z", "+00:00"), ("+00:00", "Z"), ("Z", "Z")])
def test_both_spellings_of_utc_pass(stamps: tuple[str, str]) -> None:
    bodies = [body_of({}, f"2026-02-18T12:00:00.00000{n}{zone}") for n, zone in enumerate(stamps * 40) if n < 10]
    assert agreed(forged(bodies, (4, 6))) is None


@pytest.mark.parametrize("size", [0, 2, 5])
def test_a_commit_that_is_not_as_long_as_it_says_is_refused(size: int) -> None:
    data = forged(plain_bodies(6), (3, 3))
    assert agreed(data.replace(b",3],", b",%d]," % size)) is not None


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
numbers = st.integers(1 - 2**53, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False).filter(
    lambda number: not number.is_integer() or abs(number) < 2**53
)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=examples(few=15, many=1_000))
@given(
    payloads=st.lists(st.dictionaries(words, json_values, max_size=4), min_size=1, max_size=12),
    step_us=st.sampled_from([0, 1, 999_999, 40_000_000_000]),
)
@example(payloads=[{"n": 1.0}, {"n": -0.0}, {"n": 1e21}, {"n": 1e-7}], step_us=1)
def test_whatever_a_payload_holds_it_passes(payloads: list[dict[str, object]], step_us: int) -> None:
    bodies = [body_of(each, stamp_at(step_us * number)) for number, each in enumerate(payloads)]
    assert agreed(forged(bodies, (len(bodies),))) is None
