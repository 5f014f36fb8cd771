"""Says what to do if a runtime is closed in another task than it was opened in, as by some fixtures and exit stacks.

A task group cannot be left in another task than it was entered in. Explained in `docs/runtime.md`.
"""

import anyio

from kitchener.errors import CallerError


class OwnTask:
    """The task that created this object."""

    __slots__ = ("_id",)

    def __init__(self) -> None:
        self._id = anyio.get_current_task().id

    def explained(self, error: RuntimeError, body_error: Exception | None) -> Exception:
        """Returns the error, or in another task one that says what to do.

        Args:
            error: what the event loop says
            body_error: what the block raised before; None: nothing
        """
        if anyio.get_current_task().id == self._id:
            return error
        found = CallerError(
            "the runtime was closed in another task than it was opened in: open and close it in one task, as `async with"
            " open_runtime(…)` in one function does. In a fixture, in hooks of a server or in a notebook, let a task of"
            " your own open it, wait for an event and close it, or use `open_sync`. Its ledgers are closed"
        )
        found.__cause__ = body_error or error
        return found
