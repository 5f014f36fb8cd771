"""Refuses calls of a runtime from other threads than that of its event loop.

Nothing in a runtime is locked against other threads: a call from one of them, such as `asyncio.run` in a thread, would wait for
ever and disturb the event loop. Explained in `docs/runtime.md`.
"""

from threading import get_ident

from kitchener.errors import CallerError


class OwnThread:
    """The thread that created this object."""

    __slots__ = ("_id",)

    def __init__(self) -> None:
        self._id = get_ident()

    def check(self) -> None:
        """Raises CallerError in any other thread."""
        if get_ident() != self._id:
            raise CallerError(
                "the runtime was opened in another thread, and takes calls only there: use `anyio.from_thread.run`,"
                " `asyncio.run_coroutine_threadsafe`, or `call` of `open_sync`"
            )
