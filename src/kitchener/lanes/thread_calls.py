"""Runs blocking functions and clean-up to their end, whatever cancels the task that waits for them.

`anyio.to_thread.run_sync` suffices where a function neither opens, uses nor closes anything that outlives its call. It leaves
the thread running if asyncio cancels the waiting task itself, as `asyncio.timeout` does: what the thread opens is then lost,
with its lock, and what it uses is closed under it.
"""

import threading
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar, cast

import anyio
import anyio.to_thread

T = TypeVar("T")


class _ThreadCall(Generic[T]):
    """A function that a worker thread runs, and whether it still runs."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work, self._lock = work, threading.Lock()
        self._is_begun = self._is_unwanted = False
        self.ended: threading.Event = threading.Event()

    def run(self) -> T | None:
        """Runs the function, unless its caller has gone."""
        with self._lock:
            if self._is_unwanted:
                return None
            self._is_begun = True
        try:
            return self._work()
        finally:
            self.ended.set()

    def is_running(self) -> bool:
        """Whether it runs. If it has not begun, it never will."""
        with self._lock:
            self._is_unwanted = True
            return self._is_begun and not self.ended.is_set()


async def to_end_in_thread(work: Callable[[], T], *, limiter: anyio.CapacityLimiter | None = None) -> T:
    """Returns or raises what a function does in a worker thread, once it has ended, or will never begin."""
    call = _ThreadCall(work)
    try:
        return cast(T, await anyio.to_thread.run_sync(call.run, limiter=limiter))
    except BaseException:
        if call.is_running():
            await in_own_task(lambda: anyio.to_thread.run_sync(call.ended.wait))
        raise


async def in_own_task(work: Callable[[], Awaitable[T]]) -> T:
    """Returns or raises what `work` does, in a task of its own that nothing cancels, and only when it has ended.

    A shield alone keeps a scope away, but not asyncio's cancellation of the task itself. The work must have a bound of its own.
    """
    done, failed = list[T](), list[BaseException]()

    async def run() -> None:
        with anyio.CancelScope(shield=True):
            try:
                done.append(await work())
            except Exception as error:  # noqa: BLE001  raised below, outside the task group, which would wrap it
                failed.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
    if failed:
        raise failed.pop()  # so that this frame, which its traceback holds, does not hold the error
    return done.pop()


async def opened_in_thread(open_it: Callable[[], T], close: Callable[[T], object]) -> T:
    """Returns what a function opens in a worker thread. If the caller is cancelled meanwhile, it is closed, or never opened.

    Args:
        open_it: opens something; blocks
        close: closes it; called in the event loop, so it must not take long
    """
    opened = list[T]()
    try:
        await to_end_in_thread(lambda: opened.append(open_it()))
    except BaseException:
        for each in opened:
            close(each)
        raise
    return opened.pop()
