"""A write that has to wait, here for its subject's key, loses nothing and is not lost (docs/memory.md)."""

import threading
from pathlib import Path

import anyio
from anyio import to_thread, wait_all_tasks_blocked

from kitchener.memory import HO3Memory
from kitchener.records.events import SEALED_FIELDS
from kitchener.sealing import Keyring, Sealer, SubjectKey
from tests.memory.shared.kit import ADA, at, learned, open_memory, recur
from tests.memory.shared.oracle import Files, compare


class SlowKeyring(Keyring):
    """A keyring on a slow disk: a key that is not in memory comes when it is let through."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.arrived, self.let_through = threading.Event(), threading.Event()
        self.is_slow = True

    def has(self, subject_id: str) -> bool:
        return super().has(subject_id) and not (self.is_slow and subject_id == "ada")

    async def asked(self) -> None:
        """Returns when somebody waits for the key and nobody else does anything."""
        assert await to_thread.run_sync(self.arrived.wait, 10)
        await wait_all_tasks_blocked()

    def get(self, subject_id: str, key_file: bytes | None = None) -> SubjectKey:
        if subject_id == "ada" and self.is_slow:
            self.arrived.set()
            self.let_through.wait(10)
            self.is_slow = False
        return super().get(subject_id, key_file)


async def test_a_subject_is_not_put_away_while_an_entry_of_it_waits(tmp_path: Path) -> None:
    keyring = SlowKeyring(tmp_path / "keys")
    counts: list[int] = []

    async def count(memory: HO3Memory) -> None:
        counts.extend(each.count for each in await memory.read_signals(namespace=ADA))

    async with open_memory(tmp_path, resident_events=1_000, sealer=Sealer(keyring, SEALED_FIELDS)) as memory:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(log, memory, "EVT-1")
                await keyring.asked()
                await recur(memory, count=1_500, namespace="ADMIN/bo")
                await count(memory)
                assert counts == [], "it is not written yet"
                keyring.let_through.set()
            await count(memory)
            assert counts == [1]
            await memory.commit()
            await compare(memory, Files(tmp_path), ADA, at(), None, ["tool:read_file"])


async def test_two_events_at_once_get_two_ids(tmp_path: Path) -> None:
    keyring = SlowKeyring(tmp_path / "keys")
    async with open_memory(tmp_path, sealer=Sealer(keyring, SEALED_FIELDS)) as memory:
        other = memory.configured(memory.config)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for each in (memory, memory, other):
                    tasks.start_soon(log, each, None)
                await keyring.asked()
                keyring.let_through.set()
        await log(memory, None)
        [found] = await memory.read_signals(namespace=ADA)
        assert (found.count, len(set(found.event_ids))) == (4, 4)
        assert memory.signals.position == 4


async def test_one_event_logged_twice_at_once_counts_once(tmp_path: Path) -> None:
    keyring = SlowKeyring(tmp_path / "keys")
    async with open_memory(tmp_path, sealer=Sealer(keyring, SEALED_FIELDS)) as memory:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(log, memory, "EVT-1")
                await keyring.asked()
                keyring.let_through.set()
        assert [each.count for each in await memory.read_signals(namespace=ADA)] == [1]
        await memory.commit()
        await compare(memory, Files(tmp_path), ADA, at(), None, ["tool:read_file"])


async def test_one_artifact_logged_by_many_at_once_is_written_once(tmp_path: Path) -> None:
    keyring = SlowKeyring(tmp_path / "keys")
    keyring.is_slow = False
    async with open_memory(tmp_path, sealer=Sealer(keyring, SEALED_FIELDS)) as memory:
        sources = await recur(memory, namespace=ADA)
        keyring.is_slow = True
        ids: list[str] = []

        async def learn(each: HO3Memory) -> None:
            ids.append(await each.log_overlay(learned(sources), namespace=ADA))

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for each in [memory, memory.configured(memory.config)] * 5:
                    tasks.start_soon(learn, each)
                await keyring.asked()
                keyring.let_through.set()
        assert (len(ids), len(set(ids)), memory.overlays.position) == (10, 1, 1)


async def test_a_writer_that_gives_up_leaves_nothing_or_all(tmp_path: Path) -> None:
    keyring = SlowKeyring(tmp_path / "keys")
    async with open_memory(tmp_path, sealer=Sealer(keyring, SEALED_FIELDS)) as memory:
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(log, memory, "EVT-1")
                await keyring.asked()
                keyring.let_through.set()
                tasks.cancel_scope.cancel()
        await log(memory, "EVT-2")
        await memory.commit()
        await compare(memory, Files(tmp_path), ADA, at(), None, ["tool:read_file"])


async def log(memory: HO3Memory, event_id: str | None) -> None:
    """One event of the subject whose key is slow to come."""
    await memory.log_signal("tool:read_file", "SES-1", event_id, {"turn_id": "T-1"}, namespace=ADA)
