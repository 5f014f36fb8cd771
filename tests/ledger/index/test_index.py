"""The index is derived: it may be missing, behind, damaged or another's; it is never trusted over the file (docs/ledger.md)."""

import resource
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import accumulate, count
from pathlib import Path
from typing import NamedTuple

import pytest

from kitchener.config import LedgerConfig
from kitchener.errors import LedgerDamaged, LedgerDiskError, LedgerPathError
from kitchener.ledger import LedgerEntry
from kitchener.ledger.format.lines import Mark
from kitchener.ledger.index.index import open_index
from kitchener.ledger.index.tail import IndexDamaged, IndexRow, Tail, check_row, hash_of, unpack
from kitchener.records.index_keys import external_index_key, index_keys
from tests.ledger.support import CountedReads, change, fact, fill, forget_index, index_of, numbers, open_ledger
from tests.shared.logs import captured_logs

QUICK = LedgerConfig(durability="os")


def edit(path: Path, statement: str) -> None:
    connection = sqlite3.connect(index_of(path))
    connection.execute(statement)
    connection.commit()
    connection.close()


async def session(path: Path, **options: object) -> tuple[str, list[int]]:
    async with open_ledger(path, **options) as ledger:
        found = await numbers(ledger.read(session_id="SES-00000001"))
        assert found == [entry.seq async for entry in ledger.read() if entry.session_id == "SES-00000001"]
        return ledger.opened_from, found


async def two_sessions(path: Path, entries: int = 40, **options: object) -> list[int]:
    async with open_ledger(path, **{"config": QUICK, **options}) as ledger:
        for number in range(entries):
            await ledger.write(fact(number, f"SES-0000000{number % 2}"))
            if number % 7 == 0:
                await ledger.commit()
    return list(range(2, entries + 1, 2))


async def test_it_says_how_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path) as ledger:
        assert ledger.opened_from == "empty"
    expected = await two_sessions(path)
    assert await session(path) == ("checkpoint", expected)
    assert await session(path, config=LedgerConfig(verify_on_open="full")) == ("full", expected)
    assert await session(path) == ("checkpoint", expected)
    forget_index(path)
    assert await session(path) == ("full", expected)
    assert await session(path) == ("checkpoint", expected)


async def test_opening_with_an_index_reads_the_end_of_the_file_only(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    await two_sessions(path, 2_000)
    size, disk = path.stat().st_size, CountedReads()
    async with open_ledger(path, file_ops=disk) as ledger:
        assert disk.bytes_read < 1_000
        disk.bytes_read = 0
        assert await numbers(ledger.read(session_id="SES-ffffffff")) == []
        assert disk.bytes_read == 0, "reading one session does not look at others"
        assert len(await numbers(ledger.read(session_id="SES-00000001", limit=10))) == 10
        assert disk.bytes_read < size / 4


DAMAGE: dict[str, Callable[[Path], object]] = {
    "no longer a database": lambda file: file.write_bytes(b"garbage" * 1_000),
    "empty": lambda file: file.write_bytes(b""),
    "cut": lambda file: file.write_bytes(file.read_bytes()[:5_000]),
    "overwritten inside": lambda file: file.write_bytes(file.read_bytes()[:4096] + b"\xff" * 8192 + file.read_bytes()[12288:]),
    "a schema that is no text": lambda file: file.write_bytes(file.read_bytes().replace(b"CREATE INDEX", b"CREATE \x97NDEX")),
    "all zeros": lambda file: file.write_bytes(b"\0" * file.stat().st_size),
}


@pytest.mark.parametrize("damage", DAMAGE)
async def test_a_damaged_index_is_rebuilt(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "l.jsonl"
    expected = await two_sessions(path)
    DAMAGE[damage](index_of(path))
    with captured_logs():
        assert (await session(path))[1] == expected
    assert await session(path) == ("checkpoint", expected)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE head SET ledger_id = 'OTHER'",
        "UPDATE head SET format = 'kitchener-index/0'",
        "UPDATE head SET keys = 'other.function'",
        "UPDATE head SET chain = 'ff'",
        "UPDATE head SET offset = offset - 1",
        "UPDATE head SET last_line = last_line + 1",
        "UPDATE head SET batch = batch + 1",
        "UPDATE head SET seq = seq - 1",
        "DELETE FROM head",
        "UPDATE sums SET packed = substr(packed, 2)",
        "UPDATE sums SET packed = NULL",
        "UPDATE sums SET seq = seq - 1",
        "UPDATE sums SET rows = rows - 1",
        "UPDATE sums SET checksum = checksum + 1",
        "DELETE FROM sums",
        "DROP TABLE places",
    ],
)
async def test_an_index_that_does_not_fit_the_file_is_rebuilt(tmp_path: Path, statement: str) -> None:
    path = tmp_path / "l.jsonl"
    expected = await two_sessions(path)
    edit(path, statement)
    with captured_logs():
        assert (await session(path))[1] == expected
    assert await session(path) == ("checkpoint", expected)


async def test_an_index_of_the_same_ledger_elsewhere_is_not_used(tmp_path: Path) -> None:
    """Two files of one ledger id do not share an index, and one that is copied over is noticed."""
    a, b = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    async with open_ledger(a), open_ledger(b):
        assert len(list((tmp_path / "index").glob("*.sqlite"))) == 2
    await fill(a, [3])
    forget_index(a)
    await two_sessions(b)
    theirs = index_of(b).read_bytes()
    forget_index(b)
    await fill(a, [1])
    index_of(a).write_bytes(theirs)
    edit(a, "UPDATE head SET durable_seq = 0")
    async with open_ledger(a) as ledger:
        assert ledger.opened_from == "full"
        assert await numbers(ledger.read(session_id="SES-0a1b2c3d")) == [1, 2, 3, 4]
        assert await numbers(ledger.read(session_id="SES-00000001")) == []


async def test_an_index_that_is_behind_catches_up(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    await two_sessions(path, 20)
    older = index_of(path).read_bytes()
    async with open_ledger(path) as ledger:
        for number in range(20, 30):
            await ledger.write(fact(number, f"SES-0000000{number % 2}"))
    index_of(path).write_bytes(older)
    assert await session(path) == ("checkpoint", list(range(2, 31, 2)))


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE places SET packed = x'00' || substr(packed, 2)",
        "UPDATE places SET packed = substr(packed, 2)",
        "UPDATE places SET base = base + 1",
        "UPDATE places SET after_seq = after_seq - 1",
        "UPDATE places SET checksum = checksum + 1",
        "UPDATE places SET packed = NULL",
        "UPDATE places SET packed = hex(packed)",
        "DROP TABLE places",
    ],
)
async def test_a_row_that_is_not_what_was_written_sends_readers_to_the_file(tmp_path: Path, statement: str) -> None:
    """Found while reading: the answer is right all the same, and the next opening makes a new index."""
    path = tmp_path / "l.jsonl"
    expected = await two_sessions(path)
    async with open_ledger(path) as ledger:
        connection = sqlite3.connect(index_of(path))
        connection.execute(statement)
        connection.commit()
        connection.close()
        with captured_logs() as logs:
            assert await numbers(ledger.read(session_id="SES-00000001")) == expected
            assert [e.seq for e in await ledger.last(session_id="SES-00000001", limit=2)] == expected[-2:]
        assert [log["event"] for log in logs] == ["index is damaged"]
        await ledger.write(fact(99, "SES-00000001"))
        await ledger.commit()
        assert await numbers(ledger.read(session_id="SES-00000001")) == [*expected, 41]
    assert await session(path) == ("full", [*expected, 41])


async def test_damage_in_the_file_is_found_when_it_is_read(tmp_path: Path) -> None:
    """A checkpoint vouches for what was verified before; each line that is read is still checked against its hash."""
    path = tmp_path / "l.jsonl"
    await two_sessions(path)
    change(path, lambda data: data.replace(b'"n":3,', b'"n":8,'))
    async with open_ledger(path) as ledger:
        assert await numbers(ledger.read(session_id="SES-00000000", limit=2)) == [1, 3]
        with pytest.raises(LedgerDamaged, match="entry_hash") as damaged:
            await numbers(ledger.read(session_id="SES-00000001"))
        assert damaged.value.line == 4
        with pytest.raises(LedgerDamaged):
            await numbers(ledger.read())
        report = await ledger.verify()
        assert report.fault is not None
        assert report.fault.line == 4


async def test_an_index_that_cannot_be_written_costs_speed_and_not_truth(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    expected = await two_sessions(path)
    async with open_ledger(path, config=QUICK) as ledger:
        blocker = sqlite3.connect(index_of(path), isolation_level=None)
        blocker.execute("DROP TABLE stops")
        blocker.execute("DROP TABLE head")
        with captured_logs() as logs:
            for number in range(40, 16_500):
                await ledger.write(fact(number, f"SES-0000000{number % 2}"))
            await ledger.commit()
        blocker.close()
        assert "index not written" in [log["event"] for log in logs]
        assert await numbers(ledger.read(session_id="SES-00000001", limit=25)) == list(range(2, 52, 2))
        assert [e.seq for e in await ledger.last(session_id="SES-00000001")] == [16_500]
    assert expected == list(range(2, 41, 2))
    with captured_logs():
        assert (await session(path))[1] == list(range(2, 16_501, 2))


async def test_many_entries_move_from_memory_into_the_index(tmp_path: Path) -> None:
    """More than are kept in memory, read while they are on both sides."""
    path = tmp_path / "l.jsonl"
    async with open_ledger(path, config=QUICK) as ledger:
        for number in range(20_000):
            await ledger.write(fact(number, f"SES-{number % 50:08x}"))
            if number % 500 == 0:
                await ledger.commit()
        assert await numbers(ledger.read(session_id="SES-00000001")) == list(range(2, 20_001, 50))
        assert [e.seq for e in await ledger.last(session_id="SES-00000001", limit=200)] == list(range(10_002, 20_001, 50))
        assert [e.seq for e in await ledger.last(limit=3)] == [19_998, 19_999, 20_000]
        entry = await ledger.get(12_345)
        assert entry is not None
        assert entry.payload["n"] == 12_344
    async with open_ledger(path) as ledger:
        assert ledger.opened_from == "checkpoint"
        assert await numbers(ledger.read(session_id="SES-00000001", after_seq=9_990, up_to_seq=10_060)) == [10_002, 10_052]


async def test_keys_find_entries_without_a_scan_and_survive_a_rebuild(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"

    def start(number: int) -> LedgerEntry:
        session_id = f"SES-{number:08x}"
        return LedgerEntry(
            "SESSION_START", session_id, {"session_id": session_id, "subject_id": "ada", "external_id": f"x{number % 3}"}
        )

    for lost in (False, True):
        async with open_ledger(path, index_keys=index_keys) as ledger:
            first = ledger.position
            for number in range(first, first + 6):
                await ledger.write(start(number))
                await ledger.commit()
            assert await numbers(ledger.read(key="sessions")) == list(range(1, first + 7))
            assert await numbers(ledger.read(key=external_index_key("ada", "x1"))) == list(range(2, first + 7, 3))
            assert [e.seq for e in await ledger.last(key=external_index_key("ada", "x1"), session_id=f"SES-{4:08x}")] == [5]
            assert await numbers(ledger.read(key="SES-00000001")) == [], "keys and sessions are apart"
        if not lost:
            forget_index(path)
    async with open_ledger(path) as ledger:  # made with other keys, so not to be used
        assert ledger.opened_from == "full"


async def test_an_index_directory_that_cannot_be_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "index").write_text("a file")
    with pytest.raises(LedgerPathError, match="index"):
        async with open_ledger(tmp_path / "l.jsonl"):
            pytest.fail("it was opened")
    async with open_ledger(tmp_path / "l.jsonl", index_dir=tmp_path / "elsewhere"):
        assert list((tmp_path / "elsewhere").glob("*.sqlite"))


class Indexed(NamedTuple):
    entry_hash: str
    session_id: str | None
    keys: tuple[str, ...]


def test_a_disk_that_fills_while_an_index_is_made_leaves_no_part_of_it(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    path, room = tmp_path / "i.sqlite", 0
    while True:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
        try:
            open_index(path, "L", "").close()
            break
        except LedgerDiskError:
            room += 4_096
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        with closing(sqlite3.connect(path)) as left:
            assert left.execute("SELECT name FROM sqlite_master").fetchall() == []
    assert room > 8_192, "it was refused in the middle, too"


def test_places_come_out_of_the_index_as_they_went_into_it() -> None:
    """Far behind the ledger's begin, where numbers and offsets have more than 32 bits."""
    tail = Tail(Mark(1 << 40, 1 << 50, "ab", 9, "then"))
    hashes = [f"{number:x}" * 64 for number in range(4)]
    about = [("a", ("x",)), (None, ("x", "y")), ("b", ()), ("a", ())]
    entries = [Indexed(f"sha256:{entry_hash}", *each) for entry_hash, each in zip(hashes, about, strict=True)]
    lengths, kept = [100, 20, (1 << 30) - 120, 7], [bytes.fromhex(entry_hash[:32]) for entry_hash in hashes]
    at = list(zip(count((1 << 40) + 1), accumulate(lengths, initial=1 << 50), lengths, kept, strict=False))
    expected = {"@a": [at[0], at[3]], "@b": [at[2]], "=x": [at[0], at[1]], "=y": [at[1]]}
    tail.extend(entries[:2], lengths[:2], Mark((1 << 40) + 2, (1 << 50) + 120, "cd", 10, "now"))
    assert not tail.is_full
    tail.extend(entries[2:], lengths[2:], Mark((1 << 40) + 4, (1 << 50) + (1 << 30) + 7, "ef", 11, "now"))
    assert tail.is_full
    assert (tail.last_line, tail.last_hash) == (at[3][1], f"sha256:{'3' * 64}")
    assert {key: tail.find(key, 0, 1 << 60) for key in expected} == expected
    found = {}
    for hashed, key, after_seq, base, checksum, packed in tail.rows():
        row = IndexRow(key, after_seq, base, checksum, bytes(packed))
        check_row(row)
        found[key] = [*unpack(row)]
        assert hashed == hash_of(key)
        for damaged in (row._replace(key="@c"), row._replace(after_seq=1), row._replace(base=1), row._replace(checksum=1)):
            with pytest.raises(IndexDamaged):
                check_row(damaged)
    assert found == expected
