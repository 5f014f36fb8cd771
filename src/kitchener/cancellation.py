"""Tells a failure of code that was called from a cancellation of its caller.

On asyncio, a tool or a provider that awaits a task which somebody else cancels raises the very exception that a cancelled
caller gets, and a task group whose task ends with it closes in silence. So whoever calls foreign code asks here what the
exception means before letting it pass. Explained in `docs/actors.md`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import anyio

from kitchener.errors import ActorStopped


def is_scope_cancelled() -> bool:
    """Whether a cancel scope around the running task is cancelled, so that a cancellation is to be expected here."""
    return anyio.current_effective_deadline() == float("-inf")


def is_cancellation(error: BaseException) -> bool:
    """Whether an event loop cancels by this exception: the running one, or the other one in a thread of somebody's own."""
    return not isinstance(error, Exception) and type(error).__module__.partition(".")[0] in ("asyncio", "trio")


def is_own_failure(error: BaseException) -> bool:
    """Whether the code that was called failed by itself, whatever it raised.

    False where the caller is meant, and the error has to pass: one of its cancel scopes is cancelled, its task was
    cancelled by whoever holds it, or somebody pressed Ctrl-C.
    """
    if isinstance(error, Exception):
        return True
    if isinstance(error, KeyboardInterrupt):
        return False
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is None and not _is_caller_cancelled()
    return not isinstance(error, anyio.get_cancelled_exc_class()) or not _is_caller_cancelled()


def cut_off(what: str, error: BaseException) -> ActorStopped:
    """What somebody is told whose own task goes on: something that was called raised what would have ended that task.

    Args:
        what: which work was cut off
        error: a cancellation of something else, or what tells a program to exit; `is_own_failure` is true of it
    """
    stopped = ActorStopped(f"{what} was cut off: {type(error).__name__} from something that it called")
    stopped.__cause__ = error
    return stopped


class raises_cut_off:
    """A context manager that lets no cancellation reach a caller who was not cancelled.

    A class, because entering a generator costs every turn four times as much.

    Args:
        what: the work inside, for the error

    Raises:
        ActorStopped: something that was called raised a cancellation of something else
    """

    __slots__ = ("_what",)

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is not None and isinstance(error, anyio.get_cancelled_exc_class()) and is_own_failure(error):
            raise cut_off(self._what, error) from error


@contextmanager
def ends_when_told(what: str) -> Iterator[None]:
    """Lets a task end by cancellation only if one of its scopes is cancelled.

    Args:
        what: the task, for the error

    Raises:
        ActorStopped: something else cancelled the task; left as it is, its task group would close in silence
    """
    try:
        yield
    except anyio.get_cancelled_exc_class() as cancelled:
        if is_scope_cancelled():
            raise
        raise ActorStopped(f"{what} was cancelled by something other than the runtime") from cancelled


def _is_caller_cancelled() -> bool:
    if is_scope_cancelled():
        return True
    if not anyio.get_cancelled_exc_class().__module__.startswith("asyncio"):
        return False
    # Where this runs, asyncio is loaded already; on trio it stays unloaded. No interface of anyio tells this.
    from asyncio import current_task  # noqa: TID251 - whether the task was cancelled by `Task.cancel`

    task = current_task()
    return task is not None and task.cancelling() > 0
