"""Failing calls, dying processes and lost sectors: never a lost acknowledged entry, never silence (docs/ledger.md).

What holds after each fault: every acknowledged entry is there, what is there is a prefix of what was written, or else there
is a typed refusal.
"""

import errno
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.config import LedgerConfig
from kitchener.errors import LedgerPathError, LedgerTailMissing, LedgerWriteError
from kitchener.ledger import verify_file
from kitchener.ledger.disk.file_ops import FileOps
from tests.cli.shared.commands import finish, start_program
from tests.ledger.killed_writer import PROGRAM
from tests.ledger.support import Died, FaultFS, ShortWrites, fact, fill, forget_index, numbers, open_ledger, segments_of
from tests.shared.logs import captured_logs
from tests.shared.payloads import payload_of
from tests.shared.property_examples import examples

COMMITS = (1, 3, 2)


IN_SEGMENTS = segments_of(600)
"""Settings with which every commit makes a segment."""


@pytest.fixture(params=[LedgerConfig(), IN_SEGMENTS], ids=["one file", "segments"])
def config(request: pytest.FixtureRequest) -> LedgerConfig:
    """Settings with which a ledger stays in one file, or every commit makes a segment."""
    settings: LedgerConfig = request.param
    return settings


async def write_some(path: Path, ops: FaultFS, acknowledged: list[int], config: LedgerConfig) -> None:
    """Three commits; notes each number that was acknowledged as durable."""
    async with open_ledger(path, file_ops=ops, config=config) as ledger:
        for size in COMMITS:
            for _ in range(size):
                await ledger.write(fact(ledger.position + 1))
            await ledger.commit()
            acknowledged.append(ledger.position)


async def check(path: Path, acknowledged: list[int], config: LedgerConfig | None = None) -> list[int]:
    """Opens what a fault left; asserts the invariant; writes on. Gives the entries that were there."""
    async with open_ledger(path, config=config) as ledger:
        found = [payload_of(entry)["n"] async for entry in ledger.read()]
        assert found == list(range(1, len(found) + 1))
        assert len(found) >= max(acknowledged, default=0)
        await ledger.write(fact(ledger.position + 1))
        await ledger.commit()
    assert verify_file(path).entries == len(found) + 1
    return found


@pytest.mark.hypothesis
@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize(
    ("error", "anyio_backend"),
    [(errno.EIO, "asyncio"), (errno.EIO, "trio"), (errno.ENOSPC, "asyncio"), (errno.EINTR, "trio")],
    ids=lambda value: errno.errorcode.get(value, value),
)
async def test_every_call_may_fail(tmp_path: Path, error: int, forever: bool) -> None:
    """A loop over the calls of opening, three commits and closing: each fails, and is told as what it is."""
    await let_every_call_fail(tmp_path, error, forever, LedgerConfig())


@pytest.mark.hypothesis
@pytest.mark.parametrize(
    ("error", "anyio_backend", "forever"),  # which error it is decides the same as in one file
    [(errno.EIO, "asyncio", False), (errno.EIO, "trio", True), (errno.ENOSPC, "asyncio", True), (errno.EINTR, "trio", False)],
    ids=lambda value: errno.errorcode.get(value, value) if type(value) is int else str(value),
)
async def test_every_call_that_makes_segments_may_fail(tmp_path: Path, error: int, forever: bool) -> None:
    await let_every_call_fail(tmp_path, error, forever, IN_SEGMENTS)


async def let_every_call_fail(tmp_path: Path, error: int, forever: bool, config: LedgerConfig) -> None:
    """Opens, commits three times and closes as often as there are calls to fail.

    In `make test` each kind of failure hits every third call, and another kind hits the next one.
    """
    step = examples(few=3, many=1)
    for at in range(1 + (error + forever) % step, 1_000, step):
        path, acknowledged = tmp_path / str(at) / "l.jsonl", list[int]()
        ops = FaultFS(at, error, forever=forever)
        try:
            await write_some(path, ops, acknowledged, config)
        except (LedgerWriteError, LedgerPathError):
            assert ops.calls >= at
        if ops.calls < at:
            break
        if path.parent.exists():
            await check(path, acknowledged, config)
    assert at > 15
    assert acknowledged == [1, 4, 6]


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_a_failed_call_is_never_tried_again(tmp_path: Path, kind: str) -> None:
    """A failed fsync least of all: the kernel may have dropped the pages, and the next one would succeed and lie."""
    path = tmp_path / "l.jsonl"
    ops = FaultFS(only=[kind])

    async def use() -> None:
        async with open_ledger(path, file_ops=ops) as ledger:
            await ledger.write(fact(1))
            await ledger.commit()
            ops.at, ops.error = ops.calls + 1, errno.EIO
            await ledger.write(fact(2))
            with pytest.raises(LedgerWriteError, match="takes no more entries"):
                await ledger.commit()
            calls = len(ops.log)
            with pytest.raises(LedgerWriteError):
                await ledger.write(fact(3))
            with pytest.raises(LedgerWriteError):
                await ledger.commit()
            assert (ledger.position, ledger.durable_position) == (2, 1)
            assert await numbers(ledger.read()) == [1, 2]
            assert [what for what, _ in ops.log[calls:] if what in ("write", "sync", "truncate")] == []

    with pytest.raises(LedgerWriteError, match="Input/output error") as failure:
        await use()
    assert failure.value.path == str(path)
    assert len(await check(path, [1])) in (1, 2)


async def test_a_disk_that_fills_up_in_the_middle_of_a_line(tmp_path: Path) -> None:
    """What was written of the failed commit is cut off at the next opening."""
    path = tmp_path / "l.jsonl"
    data = await fill(path, [2])

    class Filling(FaultFS):
        def write(self, fd: int, data: bytes | memoryview) -> int:
            if self._names[fd] != "l.jsonl":
                return super().write(fd, data)
            if len(data) > 300:
                return super().write(fd, data[:300])
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(LedgerWriteError, match="No space left"):
        async with open_ledger(path, file_ops=Filling()) as ledger:
            await ledger.write(fact(3))
    assert len(path.read_bytes()) == len(data) + 300
    assert len(await check(path, [2])) == 2


async def test_short_writes_are_finished(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    await fill(path, [3, 2], file_ops=ShortWrites())
    assert verify_file(path).entries == 5
    forget_index(path)
    async with open_ledger(path, file_ops=ShortWrites()) as ledger:
        assert await numbers(ledger.read()) == [1, 2, 3, 4, 5]


@pytest.mark.hypothesis
async def test_a_process_may_die_at_every_call(tmp_path: Path, config: LedgerConfig, anyio_backend: str) -> None:
    """In this process: from the n-th call on, nothing reaches the disk. `make test` takes every other n on each event loop."""
    step = examples(few=2, many=1)
    for at in range(1 + (anyio_backend == "trio") % step, 1_000, step):
        path, acknowledged = tmp_path / str(at) / "l.jsonl", list[int]()
        ops = FaultFS(at)
        try:
            await write_some(path, ops, acknowledged, config)
        except* Died:  # a group, where it died inside a commit round
            pass
        if ops.calls < at:
            break
        if path.parent.exists():
            await check(path, acknowledged, config)
    assert at > 15


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # the processes that are killed take turns with both
@pytest.mark.parametrize(("durability", "segment_bytes"), [("fsync", 0), ("os", 0), ("fsync", 600)])
async def test_a_process_that_is_killed_at_any_call_loses_nothing_it_acknowledged(
    tmp_path: Path, durability: str, segment_bytes: int
) -> None:
    """Another process, `kill -9` at its n-th file operation, for every n."""
    outcomes: list[dict[str, Any]] = finish(start_program(PROGRAM, tmp_path, durability, str(segment_bytes))).json
    assert len(outcomes) > 15
    assert [outcome["signal"] for outcome in outcomes[:-1]] == [signal.SIGKILL] * (len(outcomes) - 1)
    assert outcomes[-1] == {"signal": 0, "acknowledged": [1, 4, 6], "path": outcomes[-1]["path"]}
    for outcome in outcomes:
        if Path(outcome["path"]).parent.exists():
            await check(Path(outcome["path"]), outcome["acknowledged"], segments_of(segment_bytes or 10**9))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # on which the process that is killed runs
async def test_a_writer_killed_in_full_flight_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    """Many writers at once, killed without warning after some thousands of entries."""
    path = tmp_path / "l.jsonl"
    for minimum in (1, 700, 3_000):
        with start_program(PROGRAM, path, "stream") as process:
            assert process.stdout is not None
            acknowledged = next(number for line in process.stdout if (number := int(line)) >= minimum)
            process.kill()
        data = path.read_bytes()
        path.write_bytes(b"".join(data.splitlines(keepends=True)[: acknowledged - 1]))
        with pytest.raises(LedgerTailMissing):  # the index has seen on disk whatever was acknowledged
            async with open_ledger(path):
                pytest.fail("it was opened")
        path.write_bytes(data)
        async with open_ledger(path) as ledger:
            found = [entry.payload["n"] async for entry in ledger.read()]
            assert len(found) >= acknowledged
            assert found == list(range(1, len(found) + 1))
        path.unlink()
        forget_index(path)


def lose_sectors(synced: int, data: bytes, sector: int, fates: list[int], length: int) -> bytes:
    """What a disk may hold after a power loss: of what was not synced, each sector is there, empty, or missing at the end."""
    image = bytearray(data[:length])
    first = synced // sector
    for number in range(first, -(-length // sector)):
        start, end = max(number * sector, synced), min((number + 1) * sector, length)
        if fates[(number - first) % len(fates)] == 0:
            image[start:end] = b"\0" * (end - start)
    return bytes(image)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a verdict about files
@settings(max_examples=examples(few=30, many=1_500))
@given(
    commits=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    index=st.sampled_from(["kept", "lost", "older"]),
    sector=st.sampled_from([64, 512, 4096]),
    fates=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    cut=st.floats(0, 1),
)
async def test_a_power_loss_costs_at_most_what_was_not_acknowledged(
    commits: list[int], index: str, sector: int, fates: list[int], cut: float
) -> None:
    """All commits but the last are synced; sectors of the last are lost, zeroed, or written while earlier ones were not."""
    with TemporaryDirectory() as directory:
        path = Path(directory) / "l.jsonl"
        config = LedgerConfig(durability="os")  # the disk is played by this test; saves its syncs
        data = await fill(path, commits[:-1], config=config)
        older = {file: file.read_bytes() for file in (path.parent / "index").iterdir()}
        synced, acknowledged = len(data), sum(commits[:-1])
        async with open_ledger(path, config=config) as ledger:
            for number in range(commits[-1]):
                await ledger.write(fact(acknowledged + number + 1))
        data = path.read_bytes()
        length = synced + round(cut * (len(data) - synced))
        image = lose_sectors(synced, data, sector, fates, length)
        forget_index(path)
        if index != "lost":  # an index that is ahead would be a lie: it is written after the sync
            for file, content in older.items():
                file.write_bytes(content)
        path.write_bytes(image)
        async with open_ledger(path, config=config) as ledger:
            found = [entry.payload["n"] async for entry in ledger.read()]
            assert found == list(range(1, len(found) + 1))
            assert len(found) == (sum(commits) if image == data else acknowledged)
            await ledger.write(fact(len(found) + 1))
        assert verify_file(path).entries == len(found) + 1


async def test_readers_see_a_failed_ledger_as_it_was(tmp_path: Path) -> None:
    """Verifying and looking up go on after a failure."""
    path = tmp_path / "l.jsonl"
    ops = FaultFS()

    async def use() -> None:
        async with open_ledger(path, file_ops=ops) as ledger:
            for number in (1, 2):
                await ledger.write(fact(number))
            await ledger.commit()
            ops.at, ops.error, ops.forever = ops.calls + 1, errno.EIO, False
            await ledger.write(fact(3))
            with pytest.raises(LedgerWriteError):
                await ledger.commit()
            assert (await ledger.verify()).entries == 2
            assert [entry.seq for entry in await ledger.last(session_id="SES-0a1b2c3d", limit=9)] == [1, 2, 3]
            assert ledger.head()[0] == 2

    with pytest.raises(LedgerWriteError):
        await use()


async def test_a_disk_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    await fill(path, [3])
    ops = FaultFS(only=["read"])
    async with open_ledger(path, file_ops=ops) as ledger:
        ops.at, ops.error = ops.calls + 1, errno.EIO
        with pytest.raises(LedgerPathError, match="cannot be read at byte"):
            await numbers(ledger.read(session_id="SES-0a1b2c3d"))
        assert await numbers(ledger.read(session_id="SES-0a1b2c3d")) == [1, 2, 3]


async def test_what_could_not_be_written_is_logged_where_something_else_is_raised(tmp_path: Path) -> None:
    """The caller's own error is not replaced by the ledger's."""
    ops = FaultFS(only=["sync"])

    async def use() -> None:
        async with open_ledger(tmp_path / "l.jsonl", file_ops=ops) as ledger:
            ops.at, ops.error = ops.calls + 1, errno.EIO
            await ledger.write(fact(1))
            raise ZeroDivisionError

    with captured_logs() as logs, pytest.raises(ZeroDivisionError):
        await use()
    assert [log["event"] for log in logs] == ["ledger closed with entries that could not be written"]


class Buggy(FileOps):
    """Fails as a disk never does, once it is told to."""

    is_broken = False

    def write(self, fd: int, data: bytes | memoryview) -> int:
        if self.is_broken:
            raise ZeroDivisionError
        return super().write(fd, data)


async def test_a_bug_in_a_commit_round_wakes_who_waits_and_is_not_hidden(tmp_path: Path) -> None:
    woken, disk = [], Buggy()

    async def use() -> None:
        async with open_ledger(tmp_path / "l.jsonl", file_ops=disk) as ledger:
            disk.is_broken = True
            await ledger.write(fact(1))
            try:
                with anyio.CancelScope(shield=True):
                    await ledger.commit()
            finally:
                woken.append(True)

    with pytest.raises(ExceptionGroup) as raised:
        await use()
    assert woken == [True]
    assert raised.value.subgroup(ZeroDivisionError) is not None
