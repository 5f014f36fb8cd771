"""Rows that an index has lost never make an answer shorter (docs/ledger.md).

Each damage hits the index's file behind the back of an open ledger that has used it. Reads then give what a scan gives.
"""

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from kitchener.config import LedgerConfig
from kitchener.ledger import LedgerClient, LedgerEntry, LedgerReader
from tests.ledger.support import fact, forget_index, index_of, numbers, open_ledger
from tests.shared.logs import captured_logs
from tests.shared.property_examples import examples

QUICK = LedgerConfig(durability="os")
ROUNDS = 4
SESSIONS = [f"SES-{number:08x}-{'long' * 180}" for number in range(12)]
"""So long that the index has a dozen pages."""


def keys_of(entry_type: str, payload: Mapping[str, object]) -> tuple[str, ...]:
    return (f"{payload['session_id']}?",)


async def write_round(path: Path) -> None:
    """One entry of each session. The index gets one row for each session and each key."""
    async with open_ledger(path, config=QUICK, index_keys=keys_of) as ledger:
        for session in SESSIONS:
            await ledger.write(LedgerEntry("WO_PLANNED", "WO-1", {"v": 1, "session_id": session}))


@pytest.fixture(scope="module")
async def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger in a directory of its own, and `older.sqlite`, its index of a round ago."""
    path = tmp_path_factory.mktemp("written") / "l.jsonl"
    for number in range(ROUNDS):
        await write_round(path)
        if number == ROUNDS - 2:
            shutil.copy(index_of(path), path.with_name("older.sqlite"))
    return path


@pytest.fixture
def path(written: Path, tmp_path: Path) -> Path:
    shutil.copytree(written.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / written.name


@asynccontextmanager
async def used(path: Path) -> AsyncIterator[LedgerClient]:
    """The ledger, open for writing, whose index has answered a question."""
    async with open_ledger(path, config=QUICK, index_keys=keys_of) as ledger:
        assert await numbers(ledger.read(session_id=SESSIONS[0])) == places_of(SESSIONS[0])
        yield ledger


def places_of(session: str) -> list[int]:
    first = SESSIONS.index(session) + 1
    return [first + number * len(SESSIONS) for number in range(ROUNDS)]


async def check_all(ledger: LedgerClient | LedgerReader) -> None:
    """Asks each kind of question that the index answers: of each session the first kind and one of the other three."""
    keys = [f"{session}?" for session in SESSIONS]
    assert await ledger.known_sessions([*SESSIONS, "SES-never"]) == set(SESSIONS)
    assert await ledger.known_keys([*keys, "SES-never?"]) == set(keys)
    newest, found = await ledger.last_of(keys), await ledger.of_keys(keys)
    for number, (session, key) in enumerate(zip(SESSIONS, keys, strict=True)):
        expected = places_of(session)
        assert await numbers(ledger.read(session_id=session)) == expected
        if number % 3 == 0:
            assert await numbers(ledger.read(session_id=session, after_seq=expected[0])) == expected[1:]
        elif number % 3 == 1:
            assert await numbers(ledger.read(session_id=session, up_to_seq=expected[-2])) == expected[:-1]
        else:
            assert [each.seq for each in await ledger.last(session_id=session, limit=2)] == expected[-2:]
        assert ([each.seq for each in found[key]], newest[key].seq) == (expected, expected[-1])


def by_sql(statement: str) -> Callable[[Path], None]:
    """A change that another program makes with SQLite."""

    def damage(index: Path) -> None:
        with closing(sqlite3.connect(index)) as other:
            assert other.execute(statement).rowcount > 0
            other.commit()

    return damage


def by_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """A change of the file in place, below SQLite."""

    def damage(index: Path) -> None:
        data = change(index.read_bytes())
        with index.open("r+b") as file:
            file.write(data)
            file.truncate()

    return damage


def write_at(index: Path, offset: int, page: bytes) -> None:
    with index.open("r+b") as file:
        file.seek(offset)
        file.write(page)


def replace(index: Path) -> None:
    os.replace(index.parent.parent / "older.sqlite", index)


def overwrite(index: Path) -> None:
    by_bytes(lambda _: (index.parent.parent / "older.sqlite").read_bytes())(index)


def overwrite_without_log(index: Path) -> None:
    """As a restored backup would, which has no write-ahead log."""
    overwrite(index)
    os.truncate(f"{index}-wal", 0)


ROWS = [
    "DELETE FROM places WHERE key LIKE '@%0005-%'",
    "DELETE FROM places WHERE key LIKE '=%0005-%'",
    "DELETE FROM places WHERE key LIKE '@%0005-%' AND after_seq = 0",
    "DELETE FROM places WHERE key LIKE '@%0005-%' AND after_seq = (SELECT max(after_seq) FROM places)",
    "DELETE FROM places WHERE after_seq = 12",
    "DELETE FROM places",
    "UPDATE places SET hash = hash + 1 WHERE key LIKE '@%0005-%' AND after_seq = 12",
    "UPDATE places SET hash = 1 WHERE key LIKE '@%0005-%'",
    "UPDATE places SET key = '@SES-ffffffff' WHERE key LIKE '@%0005-%'",
    "UPDATE places SET after_seq = 1000000 WHERE key LIKE '@%0005-%' AND after_seq = 36",
    "UPDATE places SET after_seq = 13 WHERE key LIKE '@%0005-%' AND after_seq = 12",
    "UPDATE places SET checksum = 1",
    "UPDATE places SET id = id + 1000000 WHERE after_seq = 36",
    "UPDATE places SET checksum = NULL",
    "UPDATE places SET checksum = 1e300",
    "UPDATE places SET key = NULL WHERE key LIKE '@%0005-%'",
    "UPDATE places SET key = x'00' WHERE key LIKE '@%0005-%'",
    "UPDATE places SET hash = NULL WHERE key LIKE '@%0005-%'",
    "UPDATE places SET after_seq = NULL WHERE key LIKE '@%0005-%'",
]
FILES: dict[str, Callable[[Path], None]] = {
    "emptied": by_bytes(lambda _: b""),
    "cut after its first page": by_bytes(lambda data: data[:4096]),
    "cut in half": by_bytes(lambda data: data[: len(data) // 2]),
    "all zeros": by_bytes(lambda data: b"\0" * len(data)),
    "an older copy, by renaming": replace,
    "an older copy, in place": overwrite,
    "an older copy, in place, without the log": overwrite_without_log,
    "deleted": lambda index: index.unlink(),
}
HARMLESS = ("an older copy, by renaming", "deleted")
"""The process has the file open, and goes on reading it."""
DAMAGE = {**{statement: by_sql(statement) for statement in ROWS}, **FILES}


def twice(names: Iterable[str]) -> Iterator[Any]:
    """Each damage to an index that the process has written, and to one that it has not; `make test` takes turns."""
    for number, name in enumerate(names):
        for is_written in (False, True):
            yield pytest.param(name, is_written, marks=[pytest.mark.soak] if is_written == number % 2 else [])


@pytest.mark.parametrize(("damage", "is_written"), list(twice(DAMAGE)))
async def test_damage_under_an_open_ledger_hides_no_entry(path: Path, damage: str, is_written: bool) -> None:
    """Also if the process has written the index, so that SQLite's write-ahead log has newer pages than the file."""
    with captured_logs() as logs:
        async with used(path) as ledger:
            if is_written:
                await ledger.write(LedgerEntry("WO_PLANNED", "WO-1", {"v": 1, "session_id": "SES-new"}))
                await ledger.commit()
            DAMAGE[damage](index_of(path))
            await check_all(ledger)
    told = [each["event"] for each in logs if "index" in each["event"]]
    assert told == ([] if damage in HARMLESS else ["index is damaged"])
    with captured_logs():
        async with used(path) as ledger:
            await check_all(ledger)


@pytest.mark.hypothesis
async def test_no_page_is_lost_unnoticed(path: Path) -> None:
    """Each page of the file in turn, in `make test` every third one, becomes zeros, or what it was a round ago."""
    index, older = index_of(path), path.with_name("older.sqlite").read_bytes()
    intact = index.read_bytes()
    pages = range(0, len(intact), 4096)
    assert len(pages) > 10
    for start in pages[:: examples(few=3, many=1)]:
        for page in (bytes(4096), older[start : start + 4096]):
            index.write_bytes(intact)
            with captured_logs():
                async with used(path) as ledger:
                    write_at(index, start, page)
                    await check_all(ledger)
            forget_index(path)


@pytest.mark.parametrize(
    "statement",
    [pytest.param(each, marks=[pytest.mark.soak] if number % 3 else []) for number, each in enumerate(ROWS)],
)
async def test_rows_that_were_lost_while_the_ledger_was_closed_are_missed(path: Path, statement: str) -> None:
    by_sql(statement)(index_of(path))
    async with LedgerReader.open(path, index_keys=keys_of) as reader:
        await check_all(reader)
    with captured_logs() as logs:
        async with open_ledger(path, config=QUICK, index_keys=keys_of) as ledger:
            await check_all(ledger)
    assert [each["event"] for each in logs if "index" in each["event"]] == ["index is damaged"]
    async with used(path) as ledger:
        assert ledger.opened_from == "full", "the index was made anew"
        await check_all(ledger)


async def test_rows_that_another_program_adds_are_not_believed(path: Path) -> None:
    row = "SELECT hash, key, after_seq + 1, base, checksum, packed FROM places WHERE after_seq = 12"
    with captured_logs() as logs:
        async with used(path) as ledger:
            by_sql(f"INSERT INTO places (hash, key, after_seq, base, checksum, packed) {row}")(index_of(path))
            await check_all(ledger)
            await ledger.write(fact(1, "SES-new"))
        async with used(path) as ledger:
            assert ledger.opened_from == "checkpoint", "the index was written nevertheless"
            await check_all(ledger)
            assert await numbers(ledger.read(session_id="SES-new")) == [len(SESSIONS) * ROUNDS + 1]
    assert [each["event"] for each in logs if "index" in each["event"]] == []


async def test_a_row_among_thousands_is_missed(tmp_path: Path) -> None:
    """More rows than an index has while its sums are mostly zero."""
    path = tmp_path / "l.jsonl"
    for first in (0, 5_000):
        async with open_ledger(path, config=QUICK) as ledger:
            for number in range(first, first + 5_000):
                await ledger.write(fact(number, f"SES-{number:08x}"))
    async with open_ledger(path, config=QUICK) as ledger:
        assert ledger.opened_from == "checkpoint"
        assert await ledger.known_sessions(["SES-00000007", "SES-never"]) == {"SES-00000007"}
        by_sql("DELETE FROM places WHERE key = '@SES-00000007'")(index_of(path))
        with captured_logs() as logs:
            assert await numbers(ledger.read(session_id="SES-00000008")) == [9]
            assert await ledger.known_sessions(["SES-00000007", "SES-never"]) == {"SES-00000007"}
            assert await numbers(ledger.read(session_id="SES-00000007")) == [8]
        assert [each["event"] for each in logs if "index" in each["event"]] == ["index is damaged"]


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM stops",
        "DELETE FROM stops WHERE seq > 300",
        "UPDATE stops SET offset = offset + 1",
        "UPDATE stops SET seq = seq - 5",
        "UPDATE stops SET seq = seq + 5",
        "UPDATE stops SET chain = 'ff'",
        "UPDATE stops SET batch = batch + 1",
        "UPDATE stops SET timestamp = NULL",
    ],
)
async def test_damaged_places_where_a_scan_can_start_hide_no_entry(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path, config=QUICK) as ledger:
        for number in range(500):
            await ledger.write(fact(number, text="long " * 200))
            if number % 40 == 0:
                await ledger.commit()
    async with open_ledger(path, config=QUICK) as ledger:
        assert await numbers(ledger.read(after_seq=400)) == [*range(401, 501)]
        by_sql(statement)(index_of(path))
        with captured_logs():
            assert await numbers(ledger.read(after_seq=400)) == [*range(401, 501)]
            assert await numbers(ledger.read(entity_id="WO-333")) == [334]
            assert [each.seq for each in await ledger.last(limit=3)] == [498, 499, 500]
            entry = await ledger.get(250)
            assert (entry and entry.seq, (await ledger.verify(200)).ok) == (250, True)
