"""What a writer of a ledger can rely on: references, refusals, heads, watching, reading what it wrote (docs/ledger.md)."""

import json
import math
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.config import LedgerConfig
from kitchener.errors import (
    CallerError,
    EntryRefused,
    EntryTooLarge,
    LedgerClockError,
    LedgerClosed,
    StaleHead,
)
from kitchener.ids import EntryId
from kitchener.ledger import LedgerEntry, verify_file
from tests.ledger.support import LEDGER, NOON, SetClock, fact, numbers, open_ledger
from tests.shared.event_loops import ON_TRIO

HOUR = 3_600_000_000


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"a": value}
    return value


async def test_a_reference_names_the_entry_that_is_read_back(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        ref = await ledger.write(fact(1, text="é “漢” 😀\u2028\r\n\0"))
        entry = await ledger.get(1)
        assert entry is not None
        assert entry.ref == ref == (LEDGER, "E-2026-02-18-000000000001", entry.entry_hash)
        assert entry.payload == {"v": 1, "session_id": "SES-0a1b2c3d", "n": 1, "text": "é “漢” 😀\u2028\r\n\0"}
        assert (entry.entry_type, entry.entity_id, entry.seq) == ("WO_PLANNED", "WO-001", 1)
        assert entry.timestamp == "2026-02-18T11:00:00.000000+00:00"


async def test_a_payload_may_be_changed_after_it_was_written(tmp_path: Path) -> None:
    payload: dict[str, Any] = {"session_id": "SES-00000000", "list": [1]}
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        await ledger.write(LedgerEntry("NOTE", "x", payload))
        payload["list"].append(2)
        payload["session_id"] = "SES-11111111"
        await ledger.commit()
        [entry] = [entry async for entry in ledger.read(session_id="SES-00000000")]
        assert entry.payload["list"] == [1]


async def test_what_is_written_is_read_at_once_and_again_when_it_is_durable(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        await ledger.write(fact(1))
        await ledger.commit()
        await ledger.write(fact(2))
        assert (ledger.position, ledger.durable_position) == (2, 1)
        assert await numbers(ledger.read(session_id="SES-0a1b2c3d")) == [1, 2]
        await ledger.commit()
        assert (ledger.position, ledger.durable_position) == (2, 2)
        assert await numbers(ledger.read(session_id="SES-0a1b2c3d")) == [1, 2]


async def test_a_read_shows_the_ledger_as_of_the_call(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        for number in range(1, 4):
            await ledger.write(fact(number))
        before = ledger.read()
        await ledger.write(fact(4))
        await ledger.commit()
        assert await numbers(before) == [1, 2, 3]


async def test_a_read_may_be_left_early_and_resumed(tmp_path: Path) -> None:
    """Longer than what is fetched at once, and left without closing anything."""
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        for number in range(1, 701):
            await ledger.write(fact(number))
        await ledger.commit()
        entries = ledger.read()
        async for entry in entries:
            if entry.seq == 300:
                break
        assert await numbers(entries) == list(range(301, 701))
        assert await numbers(entries) == []


async def test_filters_narrow_and_combine(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        for number in range(1, 13):
            kind = ("A", "B", "C")[number % 3]
            await ledger.write(LedgerEntry(kind, f"X-{number % 4}", {"session_id": f"SES-0000000{number % 2}"}))
            if number == 6:
                await ledger.commit()
        assert await numbers(ledger.read(entry_type="A")) == [3, 6, 9, 12]
        assert await numbers(ledger.read(entry_type=("A", "B"), after_seq=6)) == [7, 9, 10, 12]
        assert await numbers(ledger.read(entity_id="X-1")) == [1, 5, 9]
        assert await numbers(ledger.read(session_id="SES-00000001", up_to_seq=8)) == [1, 3, 5, 7]
        assert await numbers(ledger.read(session_id="SES-00000001", entry_type="A")) == [3, 9]
        assert await numbers(ledger.read(session_id="SES-00000001", limit=2)) == [1, 3]
        assert await numbers(ledger.read(entry_type=())) == []
        assert await numbers(ledger.read(limit=0)) == []
        assert await numbers(ledger.read(session_id="SES-ffffffff")) == []


async def test_the_last_entries_come_in_ascending_order(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        assert await ledger.last(session_id="SES-00000000") == []
        for number in range(1, 9):
            await ledger.write(fact(number, f"SES-0000000{number % 2}"))
            if number in (3, 6):
                await ledger.commit()
        assert [e.seq for e in await ledger.last()] == [8]
        assert [e.seq for e in await ledger.last(limit=4)] == [5, 6, 7, 8]
        assert [e.seq for e in await ledger.last(limit=99)] == list(range(1, 9))
        assert [e.seq for e in await ledger.last(session_id="SES-00000001", limit=3)] == [3, 5, 7]
        assert [e.seq for e in await ledger.last(session_id="SES-00000000", limit=99)] == [2, 4, 6, 8]


async def test_known_sessions_are_found_in_memory_and_on_disk(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        await ledger.write(fact(1, "SES-00000001"))
        await ledger.commit()
        await ledger.write(fact(2, "SES-00000002"))
        asked = ["SES-00000001", "SES-00000002", "SES-00000003"]
        assert await ledger.known_sessions(asked) == {"SES-00000001", "SES-00000002"}


async def test_an_entry_that_is_not_there_is_none(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        await ledger.write(fact(1))
        assert await ledger.get(0) is None
        assert await ledger.get(2) is None


@pytest.mark.parametrize(
    ("payload", "place"),
    [
        ({"a": math.nan}, "payload.a"),
        ({"a": [1, math.inf]}, "payload.a[1]"),
        ({"a": 2**53}, "payload.a"),
        ({"a": -(2**53)}, "payload.a"),
        ({"a": float(2**53)}, "payload.a"),
        ({"a": "\ud800"}, "payload.a"),
        ({"\udfff": 1}, "payload"),
        ({1: 1}, "payload"),
        ({"a": {1, 2}}, "payload.a"),
        ({"a": object}, "payload.a"),
        (nested(65), "payload" + ".a" * 64),
        ([1], "payload"),
        (None, "payload"),
    ],
)
async def test_a_payload_without_a_canonical_form_is_refused_and_leaves_no_trace(
    tmp_path: Path, payload: Any, place: str
) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        with pytest.raises(EntryRefused) as refused:
            await ledger.write(LedgerEntry("NOTE", "x", payload))
        assert refused.value.path == place
        assert ledger.position == 0
        await ledger.write(LedgerEntry("NOTE", "x", nested(64)))
        await ledger.commit()
    assert verify_file(tmp_path / "l.jsonl").entries == 1


@pytest.mark.parametrize(("entry_type", "entity_id"), [("\ud800", "x"), ("NOTE", "\ud800"), (7, "x"), ("NOTE", None)])
async def test_type_and_entity_are_text(tmp_path: Path, entry_type: Any, entity_id: Any) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        with pytest.raises(EntryRefused):
            await ledger.write(LedgerEntry(entry_type, entity_id, {}))
        assert ledger.position == 0


async def test_an_entry_may_be_as_large_as_the_limit_and_no_larger(tmp_path: Path) -> None:
    path, config = tmp_path / "l.jsonl", LedgerConfig(max_entry_bytes=2_048)
    async with open_ledger(path, config=config) as ledger:
        sizes = iter(range(1_500, 2_100))

        async def write_larger_ones() -> None:
            for length in sizes:
                await ledger.write(LedgerEntry("NOTE", "x", {"text": "y" * length}))

        with pytest.raises(EntryTooLarge) as refused:
            await write_larger_ones()
        error = refused.value
        assert (error.size, error.limit, error.entry_type, error.ledger_id) == (2_049, 2_048, "NOTE", LEDGER)
        assert ledger.position == next(sizes) - 1_501 > 0
    longest = max(len(line) for line in path.read_bytes().splitlines(keepends=True))
    assert 1_900 < longest <= 2_048


async def test_the_default_limit_is_one_mebibyte(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        await ledger.write(LedgerEntry("NOTE", "x", {"text": "y" * 1_000_000}))
        with pytest.raises(EntryTooLarge):
            await ledger.write(LedgerEntry("NOTE", "x", {"text": "y" * 1_048_576}))


async def test_an_expected_head_fences_a_session(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path) as ledger:
        first = await ledger.write(fact(1), expected_head=EntryId(""))
        await ledger.write(fact(2, "SES-ffffffff"))
        second = await ledger.write(fact(3), expected_head=EntryId(first.entry_id))
        with pytest.raises(StaleHead) as stale:
            await ledger.write(fact(4), expected_head=EntryId(first.entry_id))
        assert (stale.value.expected, stale.value.found) == (first.entry_id, second.entry_id)
        with pytest.raises(StaleHead):
            await ledger.write(fact(4), expected_head=EntryId(""))
        assert ledger.position == 3
        with pytest.raises(EntryRefused, match="session"):
            await ledger.write(LedgerEntry("NOTE", "x", {}), expected_head=EntryId(""))
    async with open_ledger(path) as ledger:  # the head is looked up now
        with pytest.raises(StaleHead):
            await ledger.write(fact(4), expected_head=EntryId(first.entry_id))
        await ledger.write(fact(4), expected_head=EntryId(second.entry_id))


async def test_of_two_writers_who_expect_the_same_head_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path) as ledger:
        head = await ledger.write(fact(1))
    outcomes: list[str] = []
    async with open_ledger(path) as ledger:

        async def write(number: int) -> None:
            try:
                await ledger.write(fact(number), expected_head=EntryId(head.entry_id))
            except StaleHead:
                outcomes.append("stale")
            else:
                outcomes.append("written")

        async with anyio.create_task_group() as tasks:
            for number in (2, 3):
                tasks.start_soon(write, number)
    assert sorted(outcomes) == ["stale", "written"]


@pytest.mark.soak
async def test_heads_of_more_sessions_than_are_remembered(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl", config=LedgerConfig(durability="os")) as ledger:
        first = await ledger.write(fact(1, "SES-00000000"))
        await ledger.commit()
        for number in range(1, 16_500):
            await ledger.write(fact(number, f"SES-{number:08x}"))
        with pytest.raises(StaleHead):
            await ledger.write(fact(2, "SES-00000000"), expected_head=EntryId(""))
        await ledger.write(fact(2, "SES-00000000"), expected_head=EntryId(first.entry_id))


async def test_watchers_see_their_session_while_they_watch(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        await ledger.write(fact(1))
        with ledger.watch("SES-0a1b2c3d") as seen:
            await ledger.write(fact(2))
            with ledger.watch("SES-0a1b2c3d") as also:
                await ledger.write(fact(3))
                await ledger.write(fact(4, "SES-ffffffff"))
            await ledger.write(fact(5))
        await ledger.write(fact(6))
        assert [e.seq for e in seen] == [2, 3, 5]
        assert [e.seq for e in also] == [3]
        assert seen[0].payload["n"] == 2


async def test_the_clock_may_stand_still_or_step_back(tmp_path: Path) -> None:
    """The last time is repeated, so times never decrease."""
    clock, path = SetClock(), tmp_path / "l.jsonl"
    async with open_ledger(path, clock=clock) as ledger:
        for step in (0, 0, -HOUR // 2, 5):
            clock.now = NOON + step
            await ledger.write(fact(step))
        times = [entry.timestamp async for entry in ledger.read()]
    assert times == ["2026-02-18T11:00:00.000000+00:00"] * 3 + ["2026-02-18T11:00:00.000005+00:00"]
    assert verify_file(path).ok


async def test_a_clock_that_leaps_ahead_stops_writing_until_it_is_right(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_ledger(tmp_path / "l.jsonl", clock=clock) as ledger:
        await ledger.write(fact(1))
        clock.now = NOON + HOUR - 1
        await ledger.write(fact(2))
        clock.now = NOON + 3 * HOUR
        with pytest.raises(LedgerClockError, match="restart this process if it is right now"):
            await ledger.write(fact(3))
        clock.now = NOON + HOUR
        await ledger.write(fact(3))
        assert ledger.position == 3
    clock.now = NOON + 3 * HOUR
    async with open_ledger(tmp_path / "l.jsonl", clock=clock) as ledger:
        await ledger.write(fact(4))
        assert ledger.position == 4


async def test_a_leap_within_a_second_is_one_where_the_limit_is_shorter(tmp_path: Path) -> None:
    clock, limit = SetClock(), LedgerConfig(max_clock_jump_s=0.2)
    async with open_ledger(tmp_path / "l.jsonl", clock=clock, config=limit) as ledger:
        for step in (100_000, 200_000):
            clock.now = NOON + step
            await ledger.write(fact(step))
        clock.now = NOON + 900_000
        with pytest.raises(LedgerClockError, match=r"max_clock_jump_s = 0\.2"):
            await ledger.write(fact(3))
        clock.now = NOON + 300_000
        await ledger.write(fact(4))
        times = [entry.timestamp[17:26] async for entry in ledger.read()]
    assert times == ["00.100000", "00.200000", "00.300000"]


async def test_a_leap_can_be_accepted(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_ledger(tmp_path / "l.jsonl", clock=clock, config=LedgerConfig(accept_clock_jump=True)) as ledger:
        await ledger.write(fact(1))
        clock.now = NOON + 100 * HOUR
        await ledger.write(fact(2))
        assert ledger.position == 2


@pytest.mark.soak
async def test_a_long_pause_is_no_leap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock that nobody sets went on as well."""
    elapsed = [0]
    monkeypatch.setattr("kitchener.ledger.write.stamper.elapsed_us", lambda: elapsed[0])
    clock = SetClock()
    async with open_ledger(tmp_path / "l.jsonl", clock=clock) as ledger:
        for _ in range(3):
            await ledger.write(fact(1))
            clock.now += 30 * HOUR
            elapsed[0] += 30 * HOUR
        await ledger.write(fact(1))
        clock.now += 2 * HOUR
        with pytest.raises(LedgerClockError):
            await ledger.write(fact(1))


async def test_a_ledger_from_the_future_is_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path, clock=SetClock(NOON + 2 * HOUR)) as ledger:
        await ledger.write(fact(1))
    with pytest.raises(LedgerClockError, match="7200 s ahead"):
        async with open_ledger(path, clock=SetClock(NOON)):
            pytest.fail("it was opened")
    async with open_ledger(path, clock=SetClock(NOON), config=LedgerConfig(accept_clock_jump=True)) as ledger:
        await ledger.write(fact(2))
        assert [e.timestamp[:19] async for e in ledger.read()] == ["2026-02-18T13:00:00"] * 2
    async with open_ledger(path, clock=SetClock(NOON + HOUR + 1)):  # a little ahead is an ordinary step back of the clock
        pass


@pytest.mark.parametrize("ledger_id", ["", "a|b", 'a"b', "a\\b", "é", "a\nb", "x" * 1_025])
async def test_a_ledger_id_that_cannot_be_one(tmp_path: Path, ledger_id: str) -> None:
    with pytest.raises(CallerError, match="ledger id"):
        async with open_ledger(tmp_path / "l.jsonl", ledger_id=ledger_id):
            pytest.fail("it was opened")
    assert not (tmp_path / "l.jsonl").exists()


async def test_a_very_long_ledger_id(tmp_path: Path) -> None:
    path, ledger_id = tmp_path / "l.jsonl", "HO2M:RESIDENT%3A" + "%F0%9F%98%80" * 64
    for number in range(2):
        async with open_ledger(path, ledger_id=ledger_id) as ledger:
            await ledger.write(fact(number))
            assert ledger.position == number + 1
    assert verify_file(path).ledger_id == ledger_id


async def test_a_key_needs_the_function_that_gives_keys(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        with pytest.raises(CallerError, match="index_keys"):
            ledger.read(key="sessions")
        with pytest.raises(CallerError, match="index_keys"):
            await ledger.last(key="sessions")


async def test_a_closed_ledger_says_so(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        await ledger.write(fact(1))
        entries = ledger.read()
    for use in (ledger.write(fact(2)), ledger.commit(), ledger.last(), ledger.get(1), ledger.verify(), anext(entries)):
        with pytest.raises(LedgerClosed, match="was closed"):
            await use
    ledger.request_commit()
    assert verify_file(tmp_path / "l.jsonl").entries == 1


async def test_closing_commits_what_is_pending(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        await ledger.write(fact(1))
    assert verify_file(tmp_path / "l.jsonl").entries == 1


async def test_what_is_raised_inside_arrives_as_it_is(tmp_path: Path) -> None:
    """Not wrapped into a group of exceptions, and everything written before it is kept."""

    async def use() -> None:
        async with open_ledger(tmp_path / "l.jsonl") as ledger:
            await ledger.write(fact(1))
            ledger.request_commit()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await use()
    assert verify_file(tmp_path / "l.jsonl").entries == 1


async def test_cancellation_passes_through_and_keeps_what_was_written(tmp_path: Path) -> None:
    with anyio.CancelScope() as scope:
        async with open_ledger(tmp_path / "l.jsonl") as ledger:
            await ledger.write(fact(1))
            scope.cancel()
            await anyio.sleep(60)
    assert scope.cancelled_caught
    assert verify_file(tmp_path / "l.jsonl").entries == 1
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        assert ledger.position == 1


async def test_writers_wait_while_too_much_is_pending(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl", config=LedgerConfig(max_pending_entries=10)) as ledger:
        for number in range(1, 26):
            await ledger.write(fact(number))
            assert ledger.position - ledger.durable_position <= 10
        assert ledger.durable_position == 20


@pytest.mark.parametrize("waiting", [0, 9, 10])
async def test_entries_that_belong_together_stand_in_one_commit(tmp_path: Path, waiting: int) -> None:
    """Also where the queue is full, and where there are more of them than may wait at all."""
    path = tmp_path / "l.jsonl"
    async with open_ledger(path, config=LedgerConfig(max_pending_entries=10)) as ledger:
        for number in range(waiting):
            await ledger.write(fact(number))
        for count in (3, 25, 0, 1):
            first = ledger.position + 1
            stored = await ledger.write_all([fact(number) for number in range(count)])
            assert [each.seq for each in stored] == list(range(first, first + count))
            assert [each.ref async for each in ledger.read(after_seq=first - 1)] == [each.ref for each in stored]
    batches = [json.loads(line)["batch"] for line in path.read_bytes().splitlines()]
    assert len(batches) == waiting + 29
    for begin, count in ((waiting, 3), (waiting + 3, 25)):
        assert len({number for number, _, _ in batches[begin : begin + count]}) == 1
    assert verify_file(path).ok


@ON_TRIO
async def test_a_commit_that_is_full_does_not_part_them(tmp_path: Path) -> None:
    """A queue that is too long for one commit is cut in front of them or behind them, not among them."""
    path = tmp_path / "l.jsonl"
    async with open_ledger(path) as ledger:
        for number in range(8_190):
            await ledger.write(fact(number))
        await ledger.write_all([fact(number) for number in range(5)])
        await ledger.write(fact(1))
    batches = [json.loads(line)["batch"] for line in path.read_bytes().splitlines()]
    assert len({number for number, _, _ in batches}) == 2
    assert len({number for number, _, _ in batches[8_190:8_195]}) == 1
    assert verify_file(path).ok


async def test_of_entries_that_belong_together_none_is_written_where_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path) as ledger:
        head = await ledger.write(fact(1, session_id="SES-1"))
        with ledger.watch("SES-1") as watched:
            with pytest.raises(EntryRefused):
                await ledger.write_all([fact(2, session_id="SES-1"), fact(3, session_id="SES-2"), fact(4, text="\ud800")])
            assert (watched, ledger.position) == ([], 1)
            await ledger.write(fact(5, session_id="SES-1"), expected_head=EntryId(head.entry_id))
            await ledger.write(fact(6, session_id="SES-2"), expected_head=EntryId(""))
            assert [each.payload["n"] for each in watched] == [5]
    assert verify_file(path).entries == 3


async def test_the_head_is_that_of_the_last_durable_entry(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path) as ledger:
        assert ledger.head() == (0, "sha256:" + "0" * 64)
        await ledger.write(fact(1))
        assert ledger.head()[0] == 0
        await ledger.commit()
        assert ledger.head() == (1, verify_file(path).head)


async def test_a_ledger_verifies_itself_from_any_entry_on(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path) as ledger:
        for number in range(1, 400):
            await ledger.write(fact(number, text="x" * 1_000))
            if number % 10 == 0:
                await ledger.commit()
        await ledger.commit()
    async with open_ledger(path) as ledger:
        whole, part = await ledger.verify(), await ledger.verify(from_seq=300)
        assert whole.ok
        assert (whole.entries, whole.batches, whole.head) == (399, 40, ledger.head()[1])
        assert part.ok
        assert 100 <= part.entries < 399
        assert part.head == whole.head


@pytest.mark.parametrize("durability", ["fsync", "os", "none"])
async def test_every_durability_keeps_the_order_and_the_chain(tmp_path: Path, durability: str) -> None:
    path, config = tmp_path / "l.jsonl", LedgerConfig.model_validate({"durability": durability})
    async with open_ledger(path, config=config) as ledger:
        for number in range(1, 6):
            await ledger.write(fact(number))
            await ledger.commit()
        assert await numbers(ledger.read()) == [1, 2, 3, 4, 5]
    assert verify_file(path).entries == 5
    async with open_ledger(path, config=config) as ledger:
        assert ledger.position == 5


async def test_content_has_a_plain_digest_where_nothing_is_sealed(tmp_path: Path) -> None:
    async with open_ledger(tmp_path / "l.jsonl") as ledger:
        assert ledger.content_digest("ada", b"abc") == (
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        )
