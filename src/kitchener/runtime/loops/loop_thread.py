"""Holds an asynchronous context manager open in a thread with an event loop of its own, for threads that have none.

A child of `fork` has no such thread: there every call is refused, and closing does nothing, because nothing is open.
"""

import atexit
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import AbstractAsyncContextManager, suppress
from threading import Thread, get_ident
from typing import Generic, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from kitchener.errors import CallerError, RuntimeClosed

T = TypeVar("T")
HeldT = TypeVar("HeldT")


class LoopThread(Generic[HeldT]):
    """A thread whose event loop holds something open until `close` is called, or the interpreter exits.

    Args:
        opened: what is held open; entered and left in the thread
        backend: the event loop, `asyncio` or `trio`
        name: the thread, for debuggers

    Raises:
        Exception: whatever entering raises
    """

    def __init__(self, opened: AbstractAsyncContextManager[HeldT], backend: str, name: str) -> None:
        self._opened, self._backend, self._process_id = opened, backend, os.getpid()
        self._begun: Future[tuple[BlockingPortal, anyio.CancelScope, anyio.Event]] = Future()
        self._entered: Future[HeldT] = Future()
        self._left: Future[None] = Future()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
            self.held: HeldT = self._entered.result()
            """What entering gave."""
        except BaseException as error:  # such as Ctrl-C, which only the main thread notices
            if isinstance(error, RuntimeError) and not self._begun.done():
                raise  # no thread can be started
            portal, scope, _ = self._begun.result()
            with suppress(RuntimeError):  # the thread has ended
                portal.start_task_soon(scope.cancel)
            self._wait()
            raise
        self._portal, _, self._stop = self._begun.result()
        self.is_closed = False
        """Whether `close` was called."""
        atexit.register(self.close)  # later, the thread would run no more and could not be waited for

    @property
    def is_of_parent(self) -> bool:
        """Whether this process is a child of `fork`, whose parent has the thread."""
        return os.getpid() != self._process_id

    def call(self, function: Callable[..., Awaitable[T]], *args: object) -> T:
        """Runs a coroutine function in the thread, and returns its result. Ctrl-C cancels it, and waits until it has ended.

        Raises:
            RuntimeClosed: `close` was called
            CallerError: the caller is a child of `fork`, or runs on the event loop of the thread, which would wait for itself
        """
        if self.is_of_parent:
            raise CallerError(
                f"the runtime was opened in process {self._process_id}, from which this process was forked, and takes calls"
                " only there: open one after the fork, and one process for each root"
            )
        if self.is_closed:
            raise RuntimeClosed("the runtime is closed: call it inside the block of `open_sync`, or before `close()`")
        if get_ident() == self._thread.ident:
            raise CallerError(
                "the call comes from the event loop of the runtime itself, which would wait for ever: await the coroutine"
                " functions of the runtime there, such as `handle_turn`"
            )
        ended: Future[None] = Future()

        async def run() -> T:
            try:
                return await function(*args)
            finally:
                ended.set_result(None)

        try:
            running = self._portal.start_task_soon(run)
        except RuntimeError as error:
            raise RuntimeClosed("the runtime is closed: its thread has ended") from error
        try:
            return running.result()
        except KeyboardInterrupt:
            if running.cancel() or not running.done():
                wait([ended])
            raise

    def close(self) -> None:
        """Leaves the context manager, and returns when that is done; raises what leaving raises.

        A later call only waits, as the end of the interpreter does after a Ctrl-C during the first one.
        """
        was_closed, self.is_closed = self.is_closed, True
        if self.is_of_parent:
            return
        if get_ident() == self._thread.ident:  # the garbage collector may run anywhere; nobody can wait here
            self._stop.set()
            return
        if not was_closed:
            with suppress(RuntimeError):  # the thread has ended
                self._portal.start_task_soon(self._stop.set)
        self._wait()
        atexit.unregister(self.close)
        if not was_closed:
            self._left.result()

    def _wait(self) -> None:
        """Returns when the thread has ended. Until Python 3.13, `join` takes a thread for ended after a Ctrl-C during it."""
        wait([self._left])
        self._thread.join()

    def _run(self) -> None:
        try:
            anyio.run(self._hold, backend=self._backend)
        except BaseException as error:  # noqa: BLE001  raised again in the thread that waits
            for waiting in (self._begun, self._entered, self._left):
                if not waiting.done():
                    waiting.set_exception(error)
        else:
            self._left.set_result(None)

    async def _hold(self) -> None:
        with anyio.CancelScope() as scope:
            async with BlockingPortal() as portal:
                stop = anyio.Event()
                self._begun.set_result((portal, scope, stop))
                error: Exception | None = None
                try:
                    async with self._opened as held:
                        self._entered.set_result(held)
                        await stop.wait()
                except Exception as each:  # noqa: BLE001  raised below, outside the task group, which would wrap it
                    error = each
                await portal.stop(cancel_remaining=True)
            if error is not None:
                raise error
