"""A subject is found without reading others, kept in bounded memory, and comes back as it was (docs/memory.md)."""

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from anyio import to_thread, wait_all_tasks_blocked
from anyio.lowlevel import checkpoint

from kitchener.errors import LedgerDamaged
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.memory import HO3Memory, MemoryReader
from tests.ledger.support import CountedReads
from tests.memory.shared.kit import ADA, BO, SetClock, at, learned, open_memory, recur
from tests.memory.shared.oracle import Files, compare
from tests.shared.logs import captured_logs

SUBJECTS = [f"ADMIN/s{n}" for n in range(5)]
SIGNALS = ["tool:read_file", "intent:question"]


async def busy(memory: HO3Memory, rounds: int = 4) -> None:
    """Several subjects by turns, with something learned of each."""
    for n in range(rounds):
        for namespace in SUBJECTS:
            for signal_id in SIGNALS:
                await memory.log_signal(signal_id, f"SES-{n % 3}", metadata={"turn_id": f"T-{n}"}, namespace=namespace)
    for namespace in SUBJECTS:
        [found] = await memory.read_signals("tool:read_file", namespace=namespace)
        await memory.log_overlay(learned(list(found.event_ids)), namespace=namespace)


async def check(root: Path) -> None:
    """Asserts that what is found through the index is what stands in the files."""
    files = Files(root)
    async with open_memory(root) as memory, MemoryReader.open(root, memory.config, clock=SetClock()) as reader:
        for readable in (memory, reader):
            for namespace in [*SUBJECTS, "ADMIN/nobody"]:
                await compare(readable, files, namespace, at(), None, SIGNALS)


def copy_index(root: Path, name: str) -> Path:
    return shutil.copytree(root / "index", root / name)


def restore_index(root: Path, name: str) -> None:
    shutil.rmtree(root / "index")
    (root / name).rename(root / "index")


def missing(root: Path) -> None:
    shutil.rmtree(root / "index")


def spoilt(root: Path) -> None:
    for file in (root / "index").glob("*.sqlite"):
        data = bytearray(file.read_bytes())
        data[200::97] = bytes(byte ^ 0xFF for byte in data[200::97])
        file.write_bytes(data)


def cut_short(root: Path) -> None:
    for file in (root / "index").glob("*.sqlite"):
        file.write_bytes(file.read_bytes()[:5_000])


def no_database(root: Path) -> None:
    for file in (root / "index").glob("*.sqlite"):
        file.write_bytes(b"SIGNALS" * 1_000)


def exchanged(root: Path) -> None:
    one, two = sorted((root / "index").glob("*.sqlite"))
    one.rename(root / "other")
    two.rename(one)
    (root / "other").rename(two)


@pytest.fixture(scope="module")
def busy_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A memory with something of each subject, whose index is right; not to be changed."""
    root = tmp_path_factory.mktemp("busy")

    async def fill() -> None:
        async with open_memory(root) as memory:
            await busy(memory)
        await check(root)

    anyio.run(fill)
    return root


@pytest.mark.parametrize("harm", [missing, spoilt, cut_short, no_database, exchanged])
async def test_a_bad_index_costs_time_and_nothing_else(busy_root: Path, tmp_path: Path, harm: Callable[[Path], None]) -> None:
    root = shutil.copytree(busy_root, tmp_path / "root")
    harm(root)
    with captured_logs():
        await check(root)
        await check(root)


async def test_an_older_copy_of_the_index_is_caught_up(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await busy(memory)
    copy_index(tmp_path, "older")
    async with open_memory(tmp_path) as memory:
        await busy(memory, 9)
    restore_index(tmp_path, "older")
    await check(tmp_path)


async def test_the_index_of_another_memory_is_not_believed_and_told(tmp_path: Path) -> None:
    async with open_memory(tmp_path / "a") as memory:
        await busy(memory)
    async with open_memory(tmp_path / "b") as memory:
        await recur(memory, count=70, namespace=SUBJECTS[0])
        await busy(memory, 2)
    shutil.rmtree(tmp_path / "b" / "index")
    shutil.copytree(tmp_path / "a" / "index", tmp_path / "b" / "index")
    with pytest.raises(LedgerDamaged, match="delete the index"):  # as if somebody had built the ledger anew under it
        await check(tmp_path / "b")
    shutil.rmtree(tmp_path / "b" / "index")
    await check(tmp_path / "b")


async def test_an_index_that_breaks_while_it_is_open_costs_time_and_nothing_else(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await busy(memory)
    with captured_logs():
        async with open_memory(tmp_path) as memory:
            spoilt(tmp_path)
            await memory.log_signal("tool:read_file", "SES-9", namespace=SUBJECTS[3])
            await memory.commit()
            files = Files(tmp_path)
            for namespace in SUBJECTS:
                await compare(memory, files, namespace, at(), None, SIGNALS)
        await check(tmp_path)


async def test_reading_a_subject_does_not_read_the_others(tmp_path: Path) -> None:
    disk = CountedReads()
    async with open_memory(tmp_path) as memory:
        await recur(memory, count=3, namespace=ADA)
        await busy(memory, 100)
        await recur(memory, count=3, namespace=ADA)
    size = sum(file.stat().st_size for file in (tmp_path / "HOT" / "memory").iterdir())
    async with open_memory(tmp_path, disk=disk) as memory:
        disk.bytes_read = 0
        assert [each.count for each in await memory.read_signals(namespace=ADA)] == [6]
        own, disk.bytes_read = disk.bytes_read, 0
        assert 0 < own < size / 50
        assert await memory.read_signals(namespace="ADMIN/nobody") == []
        assert disk.bytes_read == 0
        assert await memory.read_signals(namespace=ADA) != []
        await memory.check_gate("tool:read_file", namespace=ADA)
        await recur(memory, count=3, namespace=ADA)
        assert disk.bytes_read == 0, "what was read once is kept, and kept up to date"


async def test_many_subjects_in_little_memory_come_back_as_they_were(tmp_path: Path) -> None:
    """The events of the one used last are in memory; those of one used long ago have to be read again."""
    disk = CountedReads()
    async with open_memory(tmp_path, resident_events=1_000, disk=disk) as memory:
        names = [f"ADMIN/many{n}" for n in range(30)]
        for n, namespace in enumerate(names * 3):
            await recur(memory, count=10 + n % 7, sessions=3, namespace=namespace)
        for namespace in names[::7]:
            [found] = await memory.read_signals(namespace=namespace)
            await memory.log_overlay(learned(list(found.event_ids)), namespace=namespace)
        await memory.commit()
        read = []
        for namespace in (names[27], names[1]):
            disk.bytes_read = 0
            await memory.read_signals(namespace=namespace)
            read.append(disk.bytes_read > 0)
        assert read == [False, True]
        files = Files(tmp_path)
        for namespace in names:
            await compare(memory, files, namespace, at(), None, ["tool:read_file"])


async def test_long_learned_lines_count_as_well_as_events(tmp_path: Path) -> None:
    """Few events, much learned text: the subject of long ago is no longer in memory, the one used last is."""
    disk = CountedReads()
    async with open_memory(tmp_path, resident_events=1_000, disk=disk) as memory:
        names = [f"ADMIN/long{n}" for n in range(20)]
        for namespace in names:
            await recur(memory, count=5, sessions=3, namespace=namespace)
            [found] = await memory.read_signals(namespace=namespace)
            line = {**learned(list(found.event_ids)), "content": {"bias": "comes back", "category": "x", "notes": "b" * 20_000}}
            await memory.log_overlay(line, namespace=namespace)
        await memory.commit()
        read = []
        for namespace in (names[-1], names[0]):
            disk.bytes_read = 0
            await memory.read_signals(namespace=namespace)
            read.append(disk.bytes_read > 0)
        assert read == [False, True]


async def test_a_subject_larger_than_the_memory_for_all_is_read_all_the_same(tmp_path: Path) -> None:
    async with open_memory(tmp_path, resident_events=1_000) as memory:
        await recur(memory, count=1_200, namespace=ADA)
        await recur(memory, count=5, namespace=BO)
        for _ in range(2):
            assert [each.count for each in await memory.read_signals(namespace=ADA)] == [1_200]
            assert [each.count for each in await memory.read_signals(namespace=BO)] == [5]


class Held(FileOps):
    """Holds reads of ledgers back while it is told to."""

    def __init__(self) -> None:
        self.open_gate = threading.Event()
        self.open_gate.set()
        self.arrived = threading.Event()
        self.reads = 0

    async def asked(self) -> None:
        """Returns when a read is held back and no task can go on."""
        assert await to_thread.run_sync(self.arrived.wait, 10)
        await wait_all_tasks_blocked()

    def close_gate(self) -> None:
        self.arrived.clear()
        self.open_gate.clear()

    def read(self, fd: int, size: int, offset: int) -> bytes:
        self.reads += 1
        self.arrived.set()
        self.open_gate.wait(10)
        return super().read(fd, size, offset)


async def test_many_first_reads_at_once_fold_once(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await recur(memory, count=7, namespace=ADA)
    disk = Held()
    async with open_memory(tmp_path, disk=disk) as memory:
        disk.reads = 0
        await memory.read_signals(namespace=ADA)
        once = disk.reads
    counts: list[int] = []

    async def read() -> None:
        [found] = await memory.read_signals(namespace=ADA)
        counts.append(found.count)

    async with open_memory(tmp_path, disk=disk) as memory:
        disk.reads = 0
        disk.close_gate()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(read)
                await disk.asked()
                assert counts == []
                disk.open_gate.set()
        assert counts == [7] * 20
        assert disk.reads == once > 0


async def test_a_signal_logged_while_its_subject_is_being_read_is_not_missed(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        logged = await recur(memory, count=7, namespace=ADA)
        await memory.log_overlay(learned(logged), namespace=ADA)
    disk = Held()
    async with open_memory(tmp_path, disk=disk) as memory:
        disk.close_gate()
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read_all, memory)
                await disk.asked()
                for n in range(5):
                    tasks.start_soon(log_one, memory, n)
                tasks.start_soon(put_in_quarantine, memory, logged[0])
                await wait_all_tasks_blocked()
                disk.open_gate.set()
        [found] = await memory.read_signals(namespace=ADA)
        assert found.count == 11
        await memory.commit()
        await compare(memory, Files(tmp_path), ADA, at(), None, SIGNALS)


async def test_a_reader_that_gives_up_leaves_the_subject_to_the_others(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await recur(memory, count=7, namespace=ADA)
    disk = Held()
    async with open_memory(tmp_path, disk=disk) as memory:
        disk.close_gate()
        counts: list[int] = []

        async def impatient(scope: anyio.CancelScope) -> None:
            with scope:
                await memory.read_signals(namespace=ADA)

        async def patient() -> None:
            counts.extend(each.count for each in await memory.read_signals(namespace=ADA))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                scope = anyio.CancelScope()
                tasks.start_soon(impatient, scope)
                await disk.asked()
                tasks.start_soon(patient)
                await wait_all_tasks_blocked()
                scope.cancel()
                disk.open_gate.set()
        assert counts == [7]


async def read_all(memory: HO3Memory) -> None:
    await memory.read_active_biases(namespace=ADA)


async def log_one(memory: HO3Memory, n: int) -> None:
    await memory.log_signal("tool:read_file", f"SES-{n}", f"EVT-late{n}", namespace=ADA)


async def put_in_quarantine(memory: HO3Memory, event_id: str) -> None:
    await memory.quarantine(event_id, "tested", namespace=ADA)


async def test_logging_and_reading_at_once_in_little_memory_loses_nothing(tmp_path: Path) -> None:
    """Subjects come and go while others log: what a subject was put away with is what it comes back with."""
    async with open_memory(tmp_path, resident_events=1_000) as memory:
        logged: dict[str, int] = dict.fromkeys(SUBJECTS, 0)

        async def write(worker: int) -> None:
            for n in range(60):
                namespace = SUBJECTS[(worker * 3 + n) % len(SUBJECTS)]
                await memory.log_signal("tool:read_file", f"SES-{worker}", f"EVT-{worker}-{n}", namespace=namespace)
                logged[namespace] += 1
                await checkpoint()
                [found] = await memory.read_signals(namespace=namespace)
                assert found.count >= 1
                if n % 10 == 0:
                    await memory.commit()

        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                for filler in range(4):
                    tasks.start_soon(fill, memory, filler)
                for worker in range(6):
                    tasks.start_soon(write, worker)
        assert {
            namespace: (await memory.read_signals("tool:read_file", namespace=namespace))[0].count for namespace in SUBJECTS
        } == logged
        await memory.commit()
        files = Files(tmp_path)
        for namespace in SUBJECTS:
            await compare(memory, files, namespace, at(), None, SIGNALS)


async def fill(memory: HO3Memory, number: int) -> None:
    """Needs so much memory that others are put away."""
    await recur(memory, count=400, namespace=f"ADMIN/filler{number}")
    await checkpoint()
    await memory.read_signals(namespace=f"ADMIN/filler{number}")
