"""Runs a command's coroutine and cancels it in order after an interrupt, a termination, or the end of its terminal."""

import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio

from kitchener.cli.exits import INTERRUPTED


def run_to_end(work: Callable[[], Awaitable[int]]) -> int:
    """Runs `work` and returns its exit code, or 130 if a signal of `on_signal` cancelled it. A second one kills the process."""

    async def main() -> int:
        with anyio.CancelScope() as scope:
            async with on_signal(lambda _: scope.cancel()):
                return await work()
        return INTERRUPTED

    return anyio.run(main)


@asynccontextmanager
async def on_signal(first: Callable[[signal.Signals], bool | None]) -> AsyncIterator[None]:
    """While the block runs, SIGINT, SIGTERM and SIGHUP call `first` instead of ending the process.

    SIGHUP says that the terminal is closed. It stays ignored where it was (`nohup`), and a second one changes nothing, because
    a terminal and its shell may each send one.

    If `first` returns True, it is called for the next signal, too. Otherwise the next signal ends the process at once, without
    waiting for the work that the first one started. The ledgers survive this like a crash.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}

    async def watch(*, task_status: anyio.abc.TaskStatus[None]) -> None:
        with anyio.open_signal_receiver(*numbers) as signals:
            task_status.started()
            is_last = False
            async for number in signals:
                if not is_last:
                    is_last = first(number) is not True
                elif number != signal.SIGHUP:
                    os._exit(INTERRUPTED)

    async with anyio.create_task_group() as tasks:
        await tasks.start(watch)
        try:
            yield
        finally:
            tasks.cancel_scope.cancel()
    # An event loop restores Python's own handlers, not those that it found.
    for number, handler in before.items():
        if handler is not None:
            signal.signal(number, handler)
