"""Refuses calls of a runtime from another thread than that of its event loop, and from another event loop of that thread.

Nothing in a runtime is locked against other threads: a call from one of them, such as `asyncio.run` in a thread, would wait for
ever and disturb the event loop. So would a call from another event loop, such as that of a test whose fixture opened the
runtime on the event loop of the whole session. Explained in `docs/runtime.md`.
"""

from collections.abc import Callable
from threading import get_ident

import anyio
from anyio.lowlevel import current_token

from kitchener.errors import CallerError


class OwnThread:
    """The thread, and on asyncio the event loop, that created this object."""

    __slots__ = ("_id", "_loop", "_running_loop")

    def __init__(self) -> None:
        self._id = get_ident()
        self._loop, self._running_loop = loop_and_finder()

    def check(self) -> None:
        """Raises CallerError in any other thread, and on any other event loop.

        Outside of event loops the thread alone counts: whoever has to wait there cannot, and is told so by Python.
        """
        if get_ident() != self._id:
            raise CallerError(
                "the runtime was opened in another thread, and takes calls only there: use `anyio.from_thread.run`,"
                " `asyncio.run_coroutine_threadsafe`, or `call` of `open_sync`"
            )
        running = self._running_loop()
        if running is not self._loop and running is not None:
            raise CallerError(
                "the runtime was opened on another event loop, and takes calls only there: open it on the event loop that calls"
                " it. A program that calls `asyncio.run` for each event opens it in each, or uses one `open_sync`. Tests that"
                " share a runtime run on the event loop of its fixture (with pytest-asyncio: give both the same `loop_scope`)"
            )


def loop_and_finder() -> tuple[object, Callable[[], object]]:
    """The running event loop, and what finds it again; None, and what finds none, unless it is asyncio's."""
    try:
        token = current_token()
    except anyio.NoEventLoopError:
        return None, _none
    if not hasattr(token.native_token, "create_future"):
        return None, _none  # trio has one event loop in a thread at a time
    from asyncio import _get_running_loop  # noqa: TID251  each turn asks, and anyio would make a token each time

    return token.native_token, _get_running_loop


def _none() -> None:
    """Outside of asyncio nothing is compared."""
