"""Runs a command's coroutine and cancels it in order after an interrupt or a termination."""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from kitchener.cli.exits import INTERRUPTED


def run_to_end(work: Callable[[], Awaitable[int]]) -> int:
    """The exit code of `work`, or 130 where SIGINT or SIGTERM cancelled it. A second signal ends the process at once."""

    async def main() -> int:
        with anyio.CancelScope() as scope:
            async with on_signal(lambda _: scope.cancel()):
                return await work()
        return INTERRUPTED

    return anyio.run(main)


@asynccontextmanager
async def on_signal(first: Callable[[signal.Signals], bool | None]) -> AsyncIterator[None]:
    """Within the block SIGINT and SIGTERM call `first` instead of ending the process.

    It is called again for the next signal only if it returned True; otherwise that one ends the process at once, without
    waiting for what the first had started. The ledgers survive that as they survive a crash.
    """
    before = signal.getsignal(signal.SIGINT)

    async def watch(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            is_last = False
            async for number in signals:
                if is_last:
                    os._exit(INTERRUPTED)
                is_last = first(number) is not True

    async with anyio.create_task_group() as tasks:
        await tasks.start(watch)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()
    # An event loop puts Python's own handler in place of the one that it found.
    if before is not None:
        signal.signal(signal.SIGINT, before)
