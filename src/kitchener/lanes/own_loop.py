"""Refuses calls of a runtime that come from another event loop than its own, whether in another thread or in the same one.

Nothing in a runtime is locked against other threads. A call from one of them, such as `asyncio.run` in a thread, would wait for
ever and disturb the event loop. So would a call from another event loop of the same thread, such as that of a test whose
fixture opened the runtime on the event loop of the whole test session. Explained in `docs/runtime.md`.
"""

from threading import get_ident

import anyio
from anyio.lowlevel import current_token

from kitchener.errors import CallerError


class OwnLoop:
    """The event loop on which this object was made, and its thread."""

    __slots__ = ("_loop", "_thread_id")

    def __init__(self) -> None:
        self._thread_id = get_ident()
        self._loop = asyncio_loop()

    def check(self) -> None:
        """Raises CallerError on any other event loop, and in any other thread.

        A call of the same thread that runs on no event loop passes: Python itself raises an error as soon as such a call waits.
        """
        if get_ident() != self._thread_id:
            raise CallerError(
                "the runtime was opened in another thread, and takes calls only there: use `anyio.from_thread.run`,"
                " `asyncio.run_coroutine_threadsafe`, or `call` of `open_sync`"
            )
        if self._loop is not None and asyncio_loop() not in (self._loop, None):
            raise CallerError(
                "the runtime was opened on another event loop, and takes calls only there: open it on the event loop that calls"
                " it. A program that calls `asyncio.run` for each event opens it in each, or uses one `open_sync`. Tests that"
                " share a runtime run on the event loop of its fixture (with pytest-asyncio: give both the same `loop_scope`)"
            )


def asyncio_loop() -> object:
    """The running event loop of asyncio; None where no event loop runs, and on trio, which has one in a thread at a time."""
    try:
        loop: object = current_token().native_token
    except anyio.NoEventLoopError:
        return None
    return loop if hasattr(loop, "create_future") else None
