"""Reading beside a writer, without a lock and without touching a file (docs/ledger.md)."""

import os
from functools import partial
from pathlib import Path

import anyio
import pytest

from kitchener.config import LedgerConfig
from kitchener.errors import CallerError, LedgerClosed, LedgerDamaged, LedgerPathError, LedgerTailMissing
from kitchener.ledger import LedgerEntry, LedgerReader, verify_file
from kitchener.records.index_keys import index_keys
from tests.cli.shared.commands import start_program
from tests.ledger.killed_writer import PROGRAM
from tests.ledger.support import LEDGER, change, fact, fill, forget_index, numbers, open_ledger
from tests.shared.event_loops import ON_ASYNCIO, ON_TRIO

QUICK = LedgerConfig(durability="os")


def everything(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {str(each): (each.read_bytes(), each.stat().st_mtime_ns) for each in directory.rglob("*") if each.is_file()}


async def test_a_reader_sees_what_was_committed_by_now(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path) as ledger:
        await ledger.write(fact(1))
        await ledger.commit()
        async with LedgerReader.open(path) as reader:
            assert (reader.ledger_id, reader.position, reader.head()) == (LEDGER, 1, ledger.head())
            await ledger.write(fact(2))
            assert await numbers(reader.read()) == [1], "not what is only in the writer's memory"
            await ledger.commit()
            assert await numbers(reader.read(session_id="SES-0a1b2c3d")) == [1, 2]
            assert [entry.seq for entry in await reader.last()] == [2]
            assert (reader.position, reader.head()) == (2, ledger.head())
            report = await reader.verify()
            assert (report.ok, report.entries) == (True, 2)


@pytest.mark.parametrize("index", ["there", "lost"])
async def test_a_reader_creates_and_changes_nothing(tmp_path: Path, index: str) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path, config=QUICK, index_keys=index_keys) as ledger:
        for number in range(300):
            await ledger.write(LedgerEntry("SESSION_START", "x", {"session_id": f"SES-{number % 3:08x}"}))
    if index == "lost":
        forget_index(path)
    before, names = everything(tmp_path), sorted(os.listdir(tmp_path))
    for file in tmp_path.rglob("*"):
        file.chmod(0o500 if file.is_dir() else 0o400)
    async with LedgerReader.open(path, index_keys=index_keys) as reader:
        assert await numbers(reader.read(session_id="SES-00000001")) == list(range(2, 301, 3))
        assert len(await numbers(reader.read(key="sessions"))) == 300
        assert [entry.seq for entry in await reader.last(limit=2)] == [299, 300]
        assert (await reader.verify(from_seq=100)).ok
    assert everything(tmp_path) == before
    assert sorted(os.listdir(tmp_path)) == names
    for file in tmp_path.rglob("*"):
        file.chmod(0o700)


@ON_TRIO
async def test_a_reader_finds_an_index_above_the_file(tmp_path: Path) -> None:
    """As a plane root has it: ledgers two levels down, one directory of indexes for all."""
    path = tmp_path / "HO2" / "ADMIN" / "ho2m.jsonl"
    async with open_ledger(path, index_dir=tmp_path / "index", index_keys=index_keys, config=QUICK) as ledger:
        for number in range(3_000):
            await ledger.write(fact(number, f"SES-{number % 100:08x}"))
            if number % 1_000 == 0:
                await ledger.commit()
    change(path, lambda data: data.replace(b'"n":5,', b'"n":6,'))  # a reader that trusts the index does not come by here
    async with LedgerReader.open(path, index_keys=index_keys) as reader:
        assert len(await numbers(reader.read(session_id="SES-00000001"))) == 30
    with pytest.raises(LedgerDamaged):
        async with LedgerReader.open(path, index_keys=index_keys, index_dir=tmp_path / "none"):
            pytest.fail("it was opened")


async def test_an_index_made_with_other_keys_does_not_answer_for_keys(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path) as ledger:
        await ledger.write(LedgerEntry("SESSION_START", "x", {"session_id": "SES-00000001"}))
    async with LedgerReader.open(path, index_keys=index_keys) as reader:
        assert await numbers(reader.read(key="sessions")) == [1]
    async with LedgerReader.open(path) as reader:
        with pytest.raises(CallerError, match="index_keys"):
            reader.read(key="sessions")
        with pytest.raises(CallerError, match="index_keys"):
            await reader.last(key="sessions")


@ON_TRIO
async def test_a_commit_that_is_only_half_there_ends_the_view(tmp_path: Path) -> None:
    """A writer is at it, or a crash left it so. When the rest arrives, the view grows."""
    path = tmp_path / "l.jsonl"
    data = await fill(path, [2, 3])
    forget_index(path)
    second = len(b"".join(data.splitlines(keepends=True)[:2]))
    async with LedgerReader.open(path) as whole:
        assert whole.position == 5
    for length in range(second, len(data), 50):
        path.write_bytes(data[:length])
        async with LedgerReader.open(path) as reader:
            assert await numbers(reader.read()) == [1, 2]
            assert (await reader.verify()).ok
            path.write_bytes(data)
            assert await numbers(reader.read()) == [1, 2, 3, 4, 5]


async def test_a_file_that_is_just_being_begun_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    data = await fill(path, [1])
    forget_index(path)
    for length in (0, 1, 10, 14, 18, 40, len(data) - 1):
        path.write_bytes(data[:length])
        async with LedgerReader.open(path) as reader:
            assert await numbers(reader.read()) == []
            assert await reader.last() == []
            assert await reader.get(1) is None
            assert (await reader.verify()).ok
            path.write_bytes(data)
            assert await numbers(reader.read()) == [1]


async def test_damage_is_an_error_for_readers_too(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    data = await fill(path, [1, 1, 1])
    forget_index(path)
    for damaged in (data.replace(b'"n":1', b'"n":7'), b"Dear diary,\n" * 20):
        path.write_bytes(damaged)
        with pytest.raises(LedgerDamaged):
            async with LedgerReader.open(path):
                pytest.fail("it was opened")
    path.write_bytes(data)
    with pytest.raises(LedgerDamaged, match="ledger_id"):
        async with LedgerReader.open(path, ledger_id="OTHER"):
            pytest.fail("it was opened")


async def test_a_missing_end_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    data = await fill(path, [1, 1])
    path.write_bytes(b"".join(data.splitlines(keepends=True)[:1]))
    with pytest.raises(LedgerTailMissing):
        async with LedgerReader.open(path):
            pytest.fail("it was opened")


@pytest.mark.parametrize("last", [b"", b"x"])
async def test_a_last_line_without_its_end_is_damage(tmp_path: Path, last: bytes) -> None:
    """With an index that knows the line. Regression: an error that no command knows came through."""
    path = tmp_path / "l.jsonl"
    await fill(path, [2, 3])
    change(path, lambda data: data[:-1] + last)
    with pytest.raises(LedgerDamaged, match="a line that ends with LF"):
        async with LedgerReader.open(path):
            pass
    with pytest.raises(LedgerDamaged, match="a line that ends with LF"):
        async with open_ledger(path):
            pass


async def test_a_path_without_a_ledger_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(LedgerPathError):
            async with LedgerReader.open(path):
                pytest.fail("it was opened")
    with pytest.raises(LedgerPathError, match="no such file"):
        verify_file(tmp_path / "none.jsonl")
    assert os.listdir(tmp_path) == []


async def test_a_closed_reader_says_so(tmp_path: Path) -> None:
    await fill(tmp_path / "l.jsonl", [1])
    async with LedgerReader.open(tmp_path / "l.jsonl") as reader:
        entries = reader.read()
    for use in (reader.last(), reader.get(1), reader.verify(), anext(entries)):
        with pytest.raises(LedgerClosed):
            await use


@ON_ASYNCIO
async def test_readers_beside_a_busy_writer_see_a_growing_prefix(tmp_path: Path) -> None:
    """A writer in another process, killed in the end; its index is never half-seen either."""
    path = tmp_path / "l.jsonl"
    seen = 0
    with start_program(PROGRAM, path, "stream") as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        async with anyio.create_task_group() as tasks:
            # Otherwise the writer would wait for room in the pipe.
            tasks.start_soon(partial(anyio.to_thread.run_sync, process.stdout.read))
            try:
                async with LedgerReader.open(path) as reader:
                    while seen < 3_000:
                        found = [entry.payload["n"] async for entry in reader.read(session_id="SES-0a1b2c3d")]
                        assert found == list(range(1, len(found) + 1))
                        assert len(found) >= seen
                        seen = len(found)
                        [last] = await reader.last()
                        assert last.seq >= seen
            finally:
                process.kill()
    before = everything(tmp_path)
    async with LedgerReader.open(path) as reader:
        assert len(await numbers(reader.read(session_id="SES-0a1b2c3d"))) >= seen
    assert everything(tmp_path) == before, "also what a killed writer left of its index is left alone"


@ON_TRIO
async def test_progress_of_verifying_is_told_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path, config=QUICK) as ledger:
        for number in range(4_000):
            await ledger.write(fact(number, text="x" * 500))
    told: list[tuple[int, int]] = []
    report = verify_file(path, progress=lambda done, total: told.append((done, total)))
    assert report.ok
    assert len(told) > 2
    assert told == sorted(told)
    assert told[-1] == (path.stat().st_size, path.stat().st_size)
    assert report.seconds > 0
