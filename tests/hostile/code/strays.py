"""Cancellations that nobody asked for, as code of somebody else raises them, and the backends on which each can happen."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import pytest

Stray = Callable[[], Awaitable[None]]


async def of_a_kept_one() -> None:
    """Raises a cancellation that belongs to a scope which is over; works on both backends."""
    caught: list[BaseException] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.sleep(1)
        except anyio.get_cancelled_exc_class() as cancelled:
            caught.append(cancelled)
            raise
    raise caught[0]


async def of_a_task() -> None:
    """Awaits a task that something else cancels."""
    task = asyncio.ensure_future(asyncio.sleep(3_600))
    await asyncio.sleep(0)
    task.cancel("by something else")
    await task


async def of_a_scope_elsewhere() -> None:
    """Awaits a task that a scope inside of it cancels; the exception looks like one of our own."""

    async def work() -> None:
        with anyio.CancelScope() as scope:
            scope.cancel()
            try:
                await anyio.sleep(1)
            except asyncio.CancelledError as cancelled:
                raise asyncio.CancelledError(*cancelled.args) from None

    task = asyncio.ensure_future(work())
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    await asyncio.wait([task])
    raise asyncio.CancelledError("Cancelled via cancel scope 7f0000000000 by <Task>")


async def of_its_own_task() -> None:
    """Cancels the very task that runs it."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def of_a_future() -> None:
    """Awaits a future that is cancelled already."""
    pending = asyncio.get_running_loop().create_future()
    pending.cancel()
    await pending


STRAYS: Final[tuple[tuple[str, Stray], ...]] = (
    ("asyncio", of_a_kept_one),
    ("asyncio", of_a_task),
    ("asyncio", of_a_scope_elsewhere),
    ("asyncio", of_a_future),
    ("trio", of_a_kept_one),
)
"""On trio there is but one way to a cancellation that no scope around the task asked for."""

with_strays = pytest.mark.parametrize(
    ("anyio_backend", "stray"), [pytest.param(*each, id=f"{each[0]}-{each[1].__name__}") for each in STRAYS]
)
"""Runs a test once for each, on the backend where it can happen."""

on_asyncio = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""For what only asyncio can do: on trio nobody can cancel a task but by a scope around it."""
