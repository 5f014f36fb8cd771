"""An agent class that could not be opened is tried again by the next call; nothing is left half open (docs/runtime.md)."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from kitchener.config import LedgerConfig, RuntimeConfig
from kitchener.errors import KitchenerError, LedgerDamaged, LedgerLocked, LedgerPathError, RuntimeClosed
from kitchener.ledger import LedgerClient
from kitchener.runtime import Runtime, open_runtime
from tests.shared.event_loops import ON_TRIO

GUEST = "RESIDENT:bo"
CLASS = "RESIDENT%3Abo"
QUICK = LedgerConfig(durability="os", linger_ms=0)


def ledger_of(root: Path, ledger: str) -> Path:
    """Where a ledger of the guest's class is: it is opened as the second of three, or as the last."""
    return root / "HO2" / CLASS / f"{ledger}.jsonl"


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[Runtime]:
    """A runtime in which only ADMIN is configured, so that others are opened on first use."""
    with anyio.fail_after(20):
        async with open_runtime(RuntimeConfig(plane_root=str(root), ledger=QUICK)) as runtime:
            yield runtime


async def said(runtime: Runtime, message: str = "hello", agent_class: str = GUEST) -> str:
    return (await runtime.supervisor(agent_class).handle_turn(message, subject_id="ada")).response


def held_by_this_process(root: Path) -> list[str]:
    """The files of the guest's class that are open in this process, and so may be locked."""
    held = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]
    return sorted(path for path in held if path.startswith(str(root)) and CLASS in path)


def tasks_of_the_guest() -> list[str | None]:
    return [task.name for task in anyio.get_running_tasks() if task.name == f"ledgers of {GUEST}"]


async def refused(runtime: Runtime, expected: type[KitchenerError]) -> None:
    """The guest's call fails, every time for the same reason; nothing of its ledgers is held, and ADMIN goes on."""
    supervisor = runtime.supervisor(GUEST)
    for _ in range(2):
        with pytest.raises(expected):
            await said(runtime)
        await anyio.wait_all_tasks_blocked()
        assert tasks_of_the_guest() == []
        assert held_by_this_process(runtime.root) == []
    assert await said(runtime, agent_class="ADMIN")
    assert runtime.supervisor(GUEST) is supervisor


@pytest.mark.parametrize("ledger", ["context", "ho2m"])
async def test_a_ledger_that_another_one_held_is_opened_once_he_lets_go(tmp_path: Path, ledger: str) -> None:
    async with opened(tmp_path) as runtime:
        name = {"context": "CONTEXT", "ho2m": "HO2M"}[ledger]
        async with LedgerClient.open(ledger_of(tmp_path, ledger), ledger_id=f"{name}:{CLASS}"):
            with pytest.raises(LedgerLocked):
                await said(runtime)
            with pytest.raises(LedgerLocked):
                await said(runtime)
            await anyio.wait_all_tasks_blocked()
            assert tasks_of_the_guest() == []
            # What was opened before the one that is held was given back: another process can have it.
            async with LedgerClient.open(tmp_path / "HO1" / CLASS / "ho1m.jsonl", ledger_id=f"HO1M:{CLASS}"):
                pass
        assert await said(runtime)
        assert len(tasks_of_the_guest()) == 1
    assert held_by_this_process(tmp_path) == []


async def test_a_place_that_could_not_be_written_is_tried_again(tmp_path: Path) -> None:
    blocked = tmp_path / "HO2" / CLASS
    blocked.parent.mkdir()
    blocked.write_text("a file where the directory belongs")
    async with opened(tmp_path) as runtime:
        await refused(runtime, LedgerPathError)
        blocked.unlink()
        assert await said(runtime)
        assert await said(runtime, "once more")


@ON_TRIO
async def test_a_damaged_ledger_is_opened_when_it_was_put_right(tmp_path: Path) -> None:
    path = ledger_of(tmp_path, "ho2m")
    async with opened(tmp_path) as runtime:
        await said(runtime, "before")
        await said(runtime, "after")
    good = path.read_bytes()
    path.write_bytes(good.replace(b'"ada"', b'"eda"', 1))
    for index in (tmp_path / "index").iterdir():
        index.unlink()
    async with opened(tmp_path) as runtime:
        await refused(runtime, LedgerDamaged)
        path.write_bytes(good)
        assert await said(runtime)


async def test_callers_that_come_together_share_one_attempt(tmp_path: Path) -> None:
    blocked = tmp_path / "HO2" / CLASS
    blocked.parent.mkdir()
    blocked.write_text("a file where the directory belongs")
    outcomes: list[str] = []

    async def call(runtime: Runtime) -> None:
        try:
            await said(runtime)
        except LedgerPathError:
            outcomes.append("refused")
        else:
            outcomes.append("answered")

    async with opened(tmp_path) as runtime:
        for is_blocked in (True, False):
            if not is_blocked:
                blocked.unlink()
            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(call, runtime)
        assert outcomes == ["refused"] * 5 + ["answered"] * 5
        assert len(tasks_of_the_guest()) == 1


async def test_a_runtime_closes_with_a_class_that_was_never_opened(tmp_path: Path) -> None:
    (tmp_path / "HO2").mkdir()
    (tmp_path / "HO2" / CLASS).write_text("a file where the directory belongs")
    async with opened(tmp_path) as runtime:
        await refused(runtime, LedgerPathError)
        supervisor = runtime.supervisor(GUEST)
    with pytest.raises(RuntimeClosed):
        await supervisor.handle_turn("too late")
    assert held_by_this_process(tmp_path) == []
