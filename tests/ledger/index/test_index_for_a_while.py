"""An index that cannot be opened, read or written for a while is no damaged one: it is kept, and used again (docs/ledger.md).

The limits are the system's own, of this process.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from kitchener.config import LedgerConfig
from kitchener.errors import LedgerDiskError, LedgerPathError, LedgerTailMissing
from kitchener.ledger.index.index import open_index
from tests.ledger.support import LEDGER, CountedReads, fact, fill, index_of, numbers, open_ledger
from tests.shared.logs import captured_logs
from tests.shared.system_limits import descriptors, file_size

QUICK = LedgerConfig(linger_ms=0)


def indexed(path: Path) -> int:
    """Number of the last entry that the index has."""
    with closing(sqlite3.connect(index_of(path))) as index:
        return int(index.execute("SELECT seq FROM head").fetchone()[0])


async def test_an_index_that_no_descriptor_is_left_for_is_kept(tmp_path: Path) -> None:
    """Regression: it was taken for a damaged one and deleted, with what it knew of the ledger's end."""
    path = tmp_path / "l.jsonl"
    await fill(path, [3, 2])
    index = index_of(path)
    refused = list[LedgerPathError]()
    while True:
        try:
            with captured_logs() as logs, descriptors(len(refused)):
                open_index(index, LEDGER, "").close()
            break
        except LedgerPathError as error:
            refused.append(error)
        assert (logs, indexed(path)) == ([], 5)
    assert len(refused) > 1, "it was refused after the first file, too"
    for each in refused:
        assert (each.path, "open files" in each.problem, "ulimit" in each.problem) == (str(index), True, True)

    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:3]))
    with pytest.raises(LedgerTailMissing):
        async with open_ledger(path):
            pytest.fail("it was opened")


async def test_a_read_that_no_descriptor_is_left_for_finds_its_entries_and_keeps_the_index(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    await fill(path, [3, 2])
    with captured_logs() as logs:
        async with open_ledger(path) as ledger:
            with descriptors(0):
                assert await numbers(ledger.read(session_id="SES-0a1b2c3d")) == [1, 2, 3, 4, 5]
    assert ([each["event"] for each in logs if "index" in each["event"]], indexed(path)) == ([], 5)


async def test_an_index_that_another_program_has_locked_is_kept(tmp_path: Path) -> None:
    """A shell of SQLite in which somebody looks at it; whoever starts the process again may be luckier."""
    path = tmp_path / "l.jsonl"
    await fill(path, [3])
    with closing(sqlite3.connect(index_of(path))) as shell:
        shell.execute("PRAGMA locking_mode = EXCLUSIVE")
        shell.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerDiskError, match="another program uses it") as refused:
            open_index(index_of(path), LEDGER, "")
        assert refused.value.path == str(index_of(path))
    assert indexed(path) == 3


async def test_an_index_that_had_no_room_for_a_while_is_written_when_there_is_room(tmp_path: Path) -> None:
    """Regression: after one write that failed, each read went through all later entries until the process was restarted."""
    path, disk = tmp_path / "l.jsonl", CountedReads()
    with captured_logs() as logs:
        async with open_ledger(path, config=QUICK, file_ops=disk) as ledger:

            async def write(commits: int, entries: int = 1, session: str = "SES-00000001") -> None:
                for _ in range(commits):
                    for _ in range(entries):
                        await ledger.write(fact(ledger.position + 1, session))
                    await ledger.commit()

            async def read(session: str) -> tuple[int, int]:
                before = disk.bytes_read
                return len(await numbers(ledger.read(session_id=session))), disk.bytes_read - before

            await write(60)
            log = index_of(path).with_name(f"{index_of(path).name}-wal")
            with file_size(log.stat().st_size):
                await write(30)
                await write(1, session="SES-00000002")
                assert path.stat().st_size < log.stat().st_size, "only the index is refused"
                found, size = await read("SES-00000002")
                assert (found, size < 2_000) == (1, True), "reading one session does not look at others"
            await write(12, entries=200, session="SES-00000003")
            found, size = await read("SES-00000002")
            assert (found, size < 2_000) == (1, True)
            await write(80, entries=200, session="SES-00000003")
            assert indexed(path) > 16_384, "it has the entries that were written meanwhile"
            found, size = await read("SES-00000001")
            assert (found, size < 200_000) == (90, True)
    told = [(each["log_level"], each["event"]) for each in logs if "index" in each["event"]]
    assert told == [("warning", "index not written"), ("info", "index written again")]
    async with open_ledger(path) as ledger:
        assert ledger.opened_from == "checkpoint"
        assert len(await numbers(ledger.read(session_id="SES-00000001"))) == 90
        assert len(await numbers(ledger.read(session_id="SES-00000002"))) == 1
