"""A scan follows many lines at a time where they are right; a look at each alone must come to the same (docs/ledger.md)."""

from random import Random

import pytest

from kitchener.ledger.format.checks import Follower
from kitchener.ledger.format.lines import NO_HASH, START, BadLine, follow
from tests.ledger.format.test_bulk import LEDGER, PAYLOADS, body_of, forged, stamp_at
from tests.shared.property_examples import examples

Facts = tuple[int, int, str, list[tuple[int, bytes, str]], list[tuple[int, str]], str]


def ledger(seed: int, days: int = 1) -> bytes:
    """About 300 entries in commits of many sizes."""
    random = Random(seed)
    commits = [random.choice((1, 1, 2, 7, 12, 101)) for _ in range(20)]
    step = days * 80_000_000_000 // sum(commits)
    return forged([body_of(random.choice(PAYLOADS), stamp_at(number * step)) for number in range(sum(commits))], commits)


def followed(data: bytes, sizes: tuple[int, ...]) -> Facts:
    """How far lines were followed, their entries, the numbers of those whose bodies are wrong, and why it ended."""
    follower, why = Follower(LEDGER, START), ""
    entries, wrong, rest, at = list[tuple[int, bytes, str]](), list[tuple[int, str]](), Random(str(sizes)), 0
    lines = data.splitlines(keepends=True)
    try:
        while at < len(lines):
            size = rest.choice(sizes)
            for run in follower.feed(b"".join(lines[at : at + size])):
                assert len(run.bodies) == len(run.hashes)
                entries += zip(range(run.before.seq + 1, follower.at.seq + 1), run.bodies, run.hashes, strict=True)
                if run.fault is not None:
                    wrong.append((run.before.seq + 1, run.fault.field))
            at += size
    except BadLine as fault:
        why = str(fault)
    return follower.at.seq, follower.at.offset, follower.at.chain, entries, wrong, why


def alone(data: bytes) -> tuple[int, int, str]:
    """How far the chain leads, by the close look."""
    seq, offset, chain = 0, 0, NO_HASH
    for line in data.split(b"\n")[:-1]:
        try:
            chain = follow(line, LEDGER, seq + 1, chain)
        except BadLine:
            break
        seq, offset = seq + 1, offset + len(line) + 1
    return seq, offset, chain


@pytest.mark.parametrize("days", [1, 5])
def test_lines_follow_however_they_are_fed(days: int) -> None:
    data = ledger(1, days)
    one_by_one = followed(data, (1,))
    assert one_by_one[:3] == alone(data)
    assert one_by_one[1] == len(data)
    assert (one_by_one[4], one_by_one[5]) == ([], "")
    for sizes in ((1_000,), (100,), (7, 90), (1, 3, 200)):
        assert followed(data, sizes) == one_by_one


@pytest.mark.hypothesis
def test_a_damaged_line_is_followed_as_far_as_alone_and_its_body_is_not_given_as_right() -> None:
    """Any byte, anywhere. A body that is not what its line says does not end the chain, as nobody may want that entry."""
    random = Random(2)
    data = ledger(2)
    whole = followed(data, (1_000,))
    ends, rounds = {"far": 0, "short": 0}, examples(few=40, many=120)
    for _ in range(rounds):
        at = random.randrange(len(data) // 3, len(data) // 2)
        damaged = data[:at] + bytes([data[at] ^ random.choice((1, 2, 0x20))]) + data[at + 1 :]
        if damaged.count(b"\n") != data.count(b"\n"):
            continue
        for sizes in ((1_000,), (1, 60)):
            seq, offset, chain, entries, wrong, why = followed(damaged, sizes)
            assert (seq, offset, chain) == alone(damaged)
            assert [entry for entry in entries if entry[0] not in dict(wrong)] == [
                entry for entry in whole[3][:seq] if entry[0] not in dict(wrong)
            ]
            assert bool(why) != (seq == whole[0])
            assert why or len(wrong) <= 1
        ends["short" if why else "far"] += 1
    assert min(ends.values()) > rounds // 15
