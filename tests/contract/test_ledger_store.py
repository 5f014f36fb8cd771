"""What every way of reading a ledger owes its callers: from memory, from disk, with an index, without, beside a writer.

One suite, run over each of them (docs/ledger.md, reading).
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from kitchener.config import LedgerConfig
from kitchener.ledger import LedgerClient, LedgerEntry, LedgerReader, compute_trace_hash
from kitchener.records.index_keys import external_index_key, index_keys
from tests.ledger.support import SetClock, bodies, forget_index, numbers, segments_of

Store = LedgerClient | LedgerReader
ENTRIES = 120


def entry(number: int) -> LedgerEntry:
    session_id = f"SES-{number % 3:08x}"
    if number <= 3:
        return LedgerEntry(
            "SESSION_START", session_id, {"session_id": session_id, "subject_id": "ada", "external_id": f"x{number % 2}"}
        )
    return LedgerEntry(("A", "B")[number % 2], f"X-{number % 5}", {"session_id": session_id, "n": number})


def opened(path: Path, segment_bytes: int = 0) -> AbstractAsyncContextManager[LedgerClient]:
    config = segments_of(segment_bytes, durability="os") if segment_bytes else LedgerConfig(durability="os")
    return LedgerClient.open(path, ledger_id="L", clock=SetClock(), index_keys=index_keys, config=config)


async def write(ledger: LedgerClient, *, commit_every: int) -> None:
    for number in range(1, ENTRIES + 1):
        await ledger.write(entry(number))
        if commit_every and number % commit_every == 0:
            await ledger.commit()


@asynccontextmanager
async def pending(path: Path) -> AsyncIterator[Store]:
    async with opened(path) as ledger:
        await write(ledger, commit_every=0)
        yield ledger


@asynccontextmanager
async def half_pending(path: Path) -> AsyncIterator[Store]:
    async with opened(path) as ledger:
        await write(ledger, commit_every=50)
        yield ledger


@asynccontextmanager
async def reopened(path: Path) -> AsyncIterator[Store]:
    async with opened(path) as ledger:
        await write(ledger, commit_every=7)
    async with opened(path) as ledger:
        yield ledger


@asynccontextmanager
async def reopened_without_index(path: Path) -> AsyncIterator[Store]:
    async with opened(path) as ledger:
        await write(ledger, commit_every=7)
    forget_index(path)
    async with opened(path) as ledger:
        yield ledger


@asynccontextmanager
async def reader(path: Path) -> AsyncIterator[Store]:
    async with opened(path) as ledger:
        await write(ledger, commit_every=7)
    async with LedgerReader.open(path, index_keys=index_keys) as store:
        yield store


@asynccontextmanager
async def reader_without_index(path: Path) -> AsyncIterator[Store]:
    async with opened(path) as ledger:
        await write(ledger, commit_every=7)
    forget_index(path)
    async with LedgerReader.open(path, index_keys=index_keys) as store:
        yield store


@asynccontextmanager
async def reader_beside_writer(path: Path) -> AsyncIterator[Store]:
    async with opened(path) as ledger:
        await write(ledger, commit_every=ENTRIES // 2)
        async with LedgerReader.open(path, index_keys=index_keys) as store:
            yield store


@asynccontextmanager
async def segments(path: Path) -> AsyncIterator[Store]:
    async with opened(path, 2_000) as ledger:
        await write(ledger, commit_every=7)
        yield ledger


@asynccontextmanager
async def segments_without_index(path: Path) -> AsyncIterator[Store]:
    async with opened(path, 2_000) as ledger:
        await write(ledger, commit_every=7)
    forget_index(path)
    async with opened(path, 2_000) as ledger:
        yield ledger


@asynccontextmanager
async def reader_of_segments(path: Path) -> AsyncIterator[Store]:
    async with opened(path, 2_000) as ledger:
        await write(ledger, commit_every=8)
        async with LedgerReader.open(path, index_keys=index_keys) as store:
            yield store


STORES: list[Callable[[Path], AbstractAsyncContextManager[Store]]] = [
    pending,
    half_pending,
    reopened,
    reopened_without_index,
    reader,
    reader_without_index,
    reader_beside_writer,
    segments,
    segments_without_index,
    reader_of_segments,
]
everywhere = pytest.mark.parametrize("store", STORES, ids=lambda store: store.__name__)
ALL = range(1, ENTRIES + 1)


@everywhere
async def test_all_entries_come_in_order(tmp_path: Path, store: Callable[[Path], AbstractAsyncContextManager[Store]]) -> None:
    async with store(tmp_path / "l.jsonl") as ledger:
        found = [each async for each in ledger.read()]
        assert [each.seq for each in found] == list(ALL)
        assert [each.payload for each in found] == [entry(number).payload for number in ALL]
        assert [(each.entry_type, each.entity_id) for each in found] == [entry(number)[:2] for number in ALL]
        assert {each.ref.ledger_id for each in found} == {"L"}
        assert ledger.position == ENTRIES


@everywhere
async def test_a_session_is_found_whole_and_in_bounds(
    tmp_path: Path, store: Callable[[Path], AbstractAsyncContextManager[Store]]
) -> None:
    async with store(tmp_path / "l.jsonl") as ledger:
        for rest in range(3):
            session_id = f"SES-{rest:08x}"
            expected = [number for number in ALL if number % 3 == rest]
            assert await numbers(ledger.read(session_id=session_id)) == expected
            for after, up_to in ((0, 1), (49, 51), (50, 50), (48, 120), (119, 500)):
                found = await numbers(ledger.read(session_id=session_id, after_seq=after, up_to_seq=up_to))
                assert found == [number for number in expected if after < number <= up_to]
            assert [each.seq for each in await ledger.last(session_id=session_id, limit=5)] == expected[-5:]
        assert await numbers(ledger.read(session_id="SES-ffffffff")) == []
        assert await ledger.last(session_id="SES-ffffffff") == []


@everywhere
async def test_keys_types_and_entities_are_found(
    tmp_path: Path, store: Callable[[Path], AbstractAsyncContextManager[Store]]
) -> None:
    async with store(tmp_path / "l.jsonl") as ledger:
        assert await numbers(ledger.read(key="sessions")) == [1, 2, 3]
        assert await numbers(ledger.read(key=external_index_key("ada", "x1"))) == [1, 3]
        assert await numbers(ledger.read(key=external_index_key("ada", "x1"), session_id="SES-00000000")) == [3]
        assert [each.seq for each in await ledger.last(key="sessions", limit=2)] == [2, 3]
        assert await numbers(ledger.read(entry_type="A", limit=3)) == [4, 6, 8]
        assert await numbers(ledger.read(entry_type=("SESSION_START", "B"), up_to_seq=7)) == [1, 2, 3, 5, 7]
        assert await numbers(ledger.read(entity_id="X-0", after_seq=100)) == [105, 110, 115, 120]


@everywhere
async def test_single_and_last_entries_are_found(
    tmp_path: Path, store: Callable[[Path], AbstractAsyncContextManager[Store]]
) -> None:
    async with store(tmp_path / "l.jsonl") as ledger:
        for seq in (1, 50, 51, 119, 120):
            found = await ledger.get(seq)
            assert found is not None
            assert (found.seq, found.entry_id[-12:]) == (seq, f"{seq:012d}")
        assert await ledger.get(ENTRIES + 1) is None
        assert [each.seq for each in await ledger.last(limit=75)] == list(range(46, 121))


@everywhere
async def test_bodies_are_the_same_bytes_wherever_they_come_from(
    tmp_path: Path, store: Callable[[Path], AbstractAsyncContextManager[Store]]
) -> None:
    async with store(tmp_path / "l.jsonl") as ledger:
        found = [each async for each in ledger.read(session_id="SES-00000001")]
    async with pending(tmp_path / "other.jsonl") as other:
        same = [each async for each in other.read(session_id="SES-00000001")]
    assert bodies(found) == bodies(same)
    assert [each.entry_hash for each in found] == [each.entry_hash for each in same]
    assert compute_trace_hash(found) == compute_trace_hash(same)
