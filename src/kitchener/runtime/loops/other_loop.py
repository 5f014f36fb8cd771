"""Decides what to do if something is closed on another event loop of asyncio than it was opened on.

Its tasks run on the first loop only. If that one was closed, as by `loop.close()`, none of them runs any more: what they hold
is released without them, and the mistake is told. If it was not, nothing is closed, and the error says how to close it there.
Explained in `docs/runtime.md`.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial, wraps
from types import TracebackType
from typing import Final, Generic, ParamSpec, TypeVar

import anyio
import anyio.to_thread

from kitchener.errors import CallerError
from kitchener.lanes.own_loop import asyncio_loop

P = ParamSpec("P")
T = TypeVar("T")
_RELEASE_S: Final = 30.0
"""Longest wait for the disk when something is released, seconds, as for a ledger that closes."""


class OnOwnLoop(AbstractAsyncContextManager[T], Generic[T]):
    """Opens and closes something on one event loop.

    Args:
        opened: what is opened and closed
        release: releases what was opened without its tasks; blocks
    """

    def __init__(self, opened: AbstractAsyncContextManager[T], release: Callable[[T], None]) -> None:
        self._opened, self._release = opened, release
        self._loop: object = None
        self._held: T
        self._is_released = False

    async def __aenter__(self) -> T:
        self._loop = asyncio_loop()
        self._held = await self._opened.__aenter__()
        return self._held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if self._loop is None or asyncio_loop() is self._loop:
            return await self._opened.__aexit__(kind, error, traceback)
        if self._is_released:
            return None
        if not _is(self._loop, "is_closed"):
            how = "asyncio.run_coroutine_threadsafe(…, loop)" if _is(self._loop, "is_running") else "loop.run_until_complete(…)"
            raise CallerError(
                "the runtime was opened on another event loop, and can be closed only there: open and close it in one call of"
                f" `asyncio.run`, or call `__aexit__` by `{how}`. It is still open"
            ) from error
        self._is_released, outcome = True, f"its ledgers could not be closed within {_RELEASE_S:g} s"
        with anyio.move_on_after(_RELEASE_S, shield=True):
            await anyio.to_thread.run_sync(partial(self._release, self._held), abandon_on_cancel=True)
            outcome = "its ledgers are closed, with all that was written"
        raise CallerError(
            "the event loop of the runtime was closed before the runtime, which cut off its running turns as a crash does;"
            f" {outcome}. Close a runtime before its event loop, as `async with open_runtime(…)` in `asyncio.run` does"
        ) from error


def on_own_loop(
    release: Callable[[T], None],
) -> Callable[[Callable[P, AbstractAsyncContextManager[T]]], Callable[P, AbstractAsyncContextManager[T]]]:
    """Has the context managers that a function returns closed on their own event loops only.

    Args:
        release: releases what such a context manager gives if its event loop was closed; blocks
    """

    def decorated(function: Callable[P, AbstractAsyncContextManager[T]]) -> Callable[P, AbstractAsyncContextManager[T]]:
        @wraps(function)
        def opened(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T]:
            return OnOwnLoop(function(*args, **kwargs), release)

        return opened

    return decorated


def _is(loop: object, state: str) -> bool:
    """What an event loop of asyncio answers; a method by its name, because trio's token, which is no loop, has none."""
    return bool(getattr(loop, state)())
