"""Tells a failure of code that was called from a cancellation of its caller.

On asyncio, a tool or provider that awaits a task raises `CancelledError` if something else cancels that task. A cancelled
caller gets the same exception. A task group closes without an error if one of its tasks ends with it. So every caller of
foreign code checks here what the exception means. Explained in `docs/actors.md`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import anyio

from kitchener.errors import ActorStopped


def is_scope_cancelled() -> bool:
    """Whether a cancel scope around the running code is cancelled."""
    return anyio.current_effective_deadline() == float("-inf")


def is_cancellation(error: BaseException) -> bool:
    """Whether this is the cancellation of asyncio or of trio. Foreign code may run the other event loop in a thread."""
    return not isinstance(error, Exception) and type(error).__module__.partition(".")[0] in ("asyncio", "trio")


def is_own_failure(error: BaseException) -> bool:
    """Whether an exception is a failure of the called code itself.

    False if the exception is meant for the caller and must pass: one of its cancel scopes is cancelled, its task was
    cancelled, or a user pressed Ctrl-C.
    """
    if isinstance(error, Exception):
        return True
    if isinstance(error, KeyboardInterrupt):
        return False
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is None and not _is_caller_cancelled()
    return not isinstance(error, anyio.get_cancelled_exc_class()) or not _is_caller_cancelled()


def cut_off(what: str, error: BaseException) -> ActorStopped:
    """Returns an `ActorStopped` in place of an exception of called code that would have ended the caller's task.

    Args:
        what: the work that was cut off
        error: a cancellation of something else, or an exit; `is_own_failure` is true for it
    """
    stopped = ActorStopped(f"{what} was cut off: {type(error).__name__} from something that it called")
    stopped.__cause__ = error
    return stopped


@contextmanager
def raises_cut_off(what: str) -> Iterator[None]:
    """Raises `ActorStopped` instead of a cancellation that is not the caller's.

    Args:
        what: the work inside, for the error

    Raises:
        ActorStopped: the block raised a cancellation of something else
    """
    try:
        yield
    except anyio.get_cancelled_exc_class() as error:
        if not is_own_failure(error):
            raise
        raise cut_off(what, error) from error


@contextmanager
def ends_when_told(what: str) -> Iterator[None]:
    """Lets a task end by cancellation only if one of its scopes is cancelled.

    Args:
        what: the task, for the error

    Raises:
        ActorStopped: something else cancelled the task; otherwise the task group would close without an error
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
    # asyncio is already loaded if it runs; on trio it is not loaded. anyio has no interface for this.
    from asyncio import current_task  # noqa: TID251 - whether the task was cancelled by `Task.cancel`

    task = current_task()
    return task is not None and task.cancelling() > 0


def sole_error(error: BaseException) -> BaseException:
    """The only error in nested exception groups, as task groups raise them; a group of several errors as it is."""
    found = list(islice(errors_in(error), 2))
    return found[0] if len(found) == 1 else error


def errors_in(error: BaseException) -> Iterator[BaseException]:
    """The errors in nested exception groups, in order; an error that is no group itself."""
    waiting = [error]
    while waiting:
        each = waiting.pop()
        if isinstance(each, BaseExceptionGroup):
            waiting.extend(reversed(each.exceptions))
        else:
            yield each
