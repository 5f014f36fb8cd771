"""Calls of worker threads whose waiting task is cancelled, by a scope or by asyncio itself: nothing is lost or half done."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from kitchener.lanes.thread_calls import in_own_task, opened_in_thread, to_end_in_thread
from kitchener.ledger import LedgerClient, LedgerEntry, LedgerReader

CANCELLING: dict[str, list[str]] = {"asyncio": ["scope", "task", "task twice"], "trio": ["scope"]}
WAYS = [pytest.param((loop, {}), how, id=f"{loop}-{how}") for loop, ways in CANCELLING.items() for how in ways]
in_all_ways = pytest.mark.parametrize(("anyio_backend", "how"), WAYS)


class Held:
    """Something that a thread opens once it may."""

    def __init__(self) -> None:
        self.begun, self.may_go_on = threading.Event(), threading.Event()
        self.opened = self.closed = 0

    def open(self) -> "Held":
        self.begun.set()
        assert self.may_go_on.wait(20)
        self.opened += 1
        return self

    def close(self) -> None:
        self.closed += 1


Work = Callable[[], Coroutine[Any, Any, object]]


async def cancelled(how: str, work: Work, now: Work) -> None:
    """Begins some work, waits for what should come before, and cancels it. Returns when the work has ended."""
    if how == "scope":
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(work)
            await now()
            tasks.cancel_scope.cancel()
        return
    task = asyncio.ensure_future(work())
    await now()
    for _ in how.split():
        task.cancel()
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
    with suppress(asyncio.CancelledError):
        await task


async def let_go(held: Held) -> None:
    """Waits until the thread has begun, and lets it go on while its caller is cancelled."""
    with anyio.fail_after(20):
        await anyio.to_thread.run_sync(held.begun.wait)
    threading.Timer(0.05, held.may_go_on.set).start()


@in_all_ways
async def test_what_a_thread_opens_for_a_caller_that_has_gone_is_closed_before_it_ends(how: str) -> None:
    """A scope waits for the thread, so the caller gets what was opened, and is cancelled at its next wait."""
    held = Held()

    async def use() -> None:
        (await opened_in_thread(held.open, Held.close)).close()

    await cancelled(how, use, lambda: let_go(held))
    assert (held.opened, held.closed) == (1, 1)


@in_all_ways
async def test_a_caller_that_is_cancelled_waits_for_its_thread(how: str) -> None:
    held = Held()
    await cancelled(how, lambda: to_end_in_thread(held.open), lambda: let_go(held))
    assert held.opened == 1


@in_all_ways
async def test_a_thread_that_has_not_begun_never_does(how: str) -> None:
    limiter, held = anyio.CapacityLimiter(1), Held()
    async with limiter:
        await cancelled(how, lambda: to_end_in_thread(held.open, limiter=limiter), _settle)
    await to_end_in_thread(int, limiter=limiter)
    assert not held.begun.is_set()


@in_all_ways
async def test_clean_up_in_a_task_of_its_own_is_done_before_its_caller_ends(how: str) -> None:
    steps, gate = list[str](), anyio.Event()

    async def clean_up() -> None:
        steps.append("begun")
        await gate.wait()
        await anyio.lowlevel.checkpoint()
        steps.append("ended")

    async def release() -> None:
        await _settle()
        gate.set()

    async def use() -> None:
        try:
            await in_own_task(clean_up)
        finally:
            steps.append("gone")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(release)
        await cancelled(how, use, _settle)
    assert steps == ["begun", "ended", "gone"]


async def _settle() -> None:
    for _ in range(3):
        await anyio.lowlevel.checkpoint()


async def test_what_a_thread_returns_and_raises_comes_through() -> None:
    assert await to_end_in_thread(lambda: 7) == 7
    assert await opened_in_thread(lambda: [1], list.clear) == [1]
    with pytest.raises(ZeroDivisionError):
        await to_end_in_thread(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        await in_own_task(lambda: anyio.to_thread.run_sync(lambda: 1 // 0))
    assert await in_own_task(lambda: anyio.to_thread.run_sync(lambda: 8)) == 8
    with pytest.raises(ZeroDivisionError):
        await opened_in_thread(lambda: 1 // 0, print)


@in_all_ways
async def test_a_ledger_whose_opening_or_closing_is_cancelled_can_be_opened_again_at_once(tmp_path: Path, how: str) -> None:
    """Regression: where asyncio cancelled the task, the file stayed locked by this process until it was collected."""
    path = tmp_path / "ledger.jsonl"

    async def use() -> None:
        async with LedgerClient.open(path, ledger_id="NOTES") as ledger:
            await ledger.write(LedgerEntry("NOTE", "N-1", {"v": 1}))
        async with LedgerReader.open(path) as reader:
            assert [entry async for entry in reader.read()]

    for steps in range(40):
        await cancelled(how, use, lambda steps=steps: _steps(steps))  # type: ignore[misc]
        async with LedgerClient.open(path, ledger_id="NOTES"):
            pass


async def _steps(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()
    await anyio.sleep(count / 20_000)  # the work of the threads takes its time, and each step should be met once
