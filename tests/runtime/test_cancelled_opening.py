"""A runtime whose opening is cancelled, at each step of the event loop: what was open is closed, and nothing waits for ever."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from kitchener import open_runtime
from kitchener.config import HO2Config, RuntimeConfig
from kitchener.runtime import Runtime
from tests.lanes.test_thread_calls import in_all_ways


@asynccontextmanager
async def opened(root: Path) -> AsyncIterator[Runtime]:
    agents = {"ADMIN": HO2Config(ho3_enabled=True)}
    async with open_runtime(RuntimeConfig(plane_root=str(root), agents=agents), admin_socket=True) as runtime:
        yield runtime


@in_all_ways
@pytest.mark.parametrize("first", [0, *(pytest.param(each, marks=pytest.mark.soak) for each in (1, 2))])
async def test_it_ends_and_the_root_can_be_opened_again(tmp_path: Path, how: str, first: int) -> None:
    """Regression: the task that opens a runtime is shielded, and whoever cancelled its opening waited for it for ever.

    After every third step in `make test`, after each in `make soak`.
    """

    async def use() -> None:
        async with opened(tmp_path):
            await anyio.sleep_forever()

    for steps in range(first, 45, 3):
        with anyio.fail_after(20):
            if how == "scope":
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(use)
                    await _steps(steps)
                    tasks.cancel_scope.cancel()
            else:
                task = asyncio.ensure_future(use())
                await _steps(steps)
                for _ in how.split():
                    task.cancel()
                    await anyio.lowlevel.checkpoint()
                with suppress(asyncio.CancelledError):
                    await task
    with anyio.fail_after(20):
        async with opened(tmp_path) as runtime:
            assert (await runtime.supervisor().handle_turn("hello")).error is None


async def _steps(count: int) -> None:
    for _ in range(count):
        await anyio.lowlevel.checkpoint()
    await anyio.sleep(count / 5_000)


async def test_a_deadline_ends_it_too(tmp_path: Path) -> None:
    with anyio.move_on_after(0) as deadline:
        async with opened(tmp_path):
            await anyio.sleep_forever()
    assert deadline.cancelled_caught
    async with opened(tmp_path):
        pass
