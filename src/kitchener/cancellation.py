"""Tells a failure of code that was called from a cancellation of its caller.

On asyncio, a tool or provider that awaits a task raises `CancelledError` if something else cancels that task. A cancelled
caller gets the same exception. A task group closes without an error if one of its tasks ends with it. And code that is
cancelled may raise another error in place of the cancellation, as where it closes a connection that is broken. So every caller
of foreign code checks here what the exception means. It cancels nothing itself: turns are cut off by `actors/turn/runner.py`.
Explained in `docs/actors.md`.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Final

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from kitchener.errors import ActorStopped, KitchenerError, LedgerError
from kitchener.errors.nested import errors_in
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of

_log = get_logger(__name__)
_MOST_HIDDEN: Final = 100
"""Errors in the context of one that are looked at for a hidden cancellation."""


def is_scope_cancelled() -> bool:
    """Whether a cancel scope around the running code is cancelled."""
    return anyio.current_effective_deadline() == float("-inf")


def is_cancellation(error: BaseException) -> bool:
    """Whether this is the cancellation of asyncio or of trio. Foreign code may run the other event loop in a thread."""
    return not isinstance(error, Exception) and type(error).__module__.partition(".")[0] in ("asyncio", "trio")


def is_interrupt(error: BaseException) -> bool:
    """Whether a user pressed Ctrl-C, also if other errors stand beside that."""
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def is_own_failure(error: BaseException) -> bool:
    """Whether an exception is a failure of the called code itself, even if a cancel scope around its caller is cancelled.

    False if the exception only tells the caller to end: one of its cancel scopes is cancelled, its task was cancelled, or a
    user pressed Ctrl-C. A caller that continues after True ends at its next wait if a scope is cancelled; `failed_alone` ends
    it at once.
    """
    if is_scope_cancelled():
        return not is_interrupt(error) and not _is_cancellation_alone(error)
    return not ends_caller(error)


def ends_caller(error: BaseException, *, in_own_task: bool = False) -> bool:
    """Whether the caller of code that raised an exception has to end: it is cancelled, or a user pressed Ctrl-C.

    Code that is cancelled may fail while it cleans up. Its error hides the cancellation, which its caller still has to follow.

    Args:
        error: what the called code raised
        in_own_task: whether the running task is one of Kitchener's, which only its cancel scopes may cancel; False: it may be
            the task of a program, which may also cancel it by `Task.cancel`
    """
    if is_interrupt(error) or is_scope_cancelled():
        return True
    return not in_own_task and _is_task_cancelled() and (_is_cancellation_alone(error) or _hides_cancellation(error))


async def failed_alone(error: BaseException, *, in_own_task: bool = False) -> bool:
    """Whether an exception is a failure of the called code alone, so that its caller goes on. Call it in the handler.

    If not, the caller raises the exception again, as `if not await failed_alone(error): raise`.

    Args:
        error: what the called code raised
        in_own_task: as for `ends_caller`

    Raises:
        BaseException: the caller's cancellation, if the error hides it
    """
    try:
        if not ends_caller(error, in_own_task=in_own_task):
            return True
        if not is_interrupt(error) and not isinstance(error, anyio.get_cancelled_exc_class()):
            log_hidden(error)
            await anyio.lowlevel.checkpoint_if_cancelled()
            raise anyio.get_cancelled_exc_class() from error  # on asyncio, which does not repeat what `Task.cancel` did
        return False
    finally:
        del error  # this frame, which a traceback may hold, must not hold the error


class _EndedBy(AbstractContextManager[anyio.CancelScope]):
    """The block of `ended_by`.

    A class, because an error that a generator has caught and its frames form a cycle on CPython 3.12.1 and 3.13.0.
    """

    def __init__(self, scope: anyio.CancelScope) -> None:
        self._scope = scope

    def __enter__(self) -> anyio.CancelScope:
        return self._scope.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if error is None or not self._scope.cancel_called or _is_passed_on(error):
            return self._scope.__exit__(kind, error, traceback)
        self._scope.__exit__(None, None, None)
        log_hidden(error)
        return True


def _is_passed_on(error: BaseException) -> bool:
    return is_interrupt(error) or _is_cancellation_alone(error) or _is_of_ledgers(error)


def ended_by(scope: anyio.CancelScope) -> AbstractContextManager[anyio.CancelScope]:
    """Runs the block in a cancel scope, which ends it even if called code raises an error in place of the cancellation.

    A scope alone lets such an error out, and what was stopped then looks like something that failed. Errors of ledgers pass,
    because they are about more than the block; so does Ctrl-C.

    Args:
        scope: stops the block; `cancel_called` says afterwards whether it did
    """
    return _EndedBy(scope)


def start_apart(tasks: TaskGroup, work: Callable[[], Awaitable[object]], name: str) -> None:
    """Starts a task in a shared task group. An error of this task does not end the other tasks.

    An error is logged: the work should have handled it. A cancellation that no scope asked for ends the task alone.

    Args:
        tasks: runs the task
        work: what the task does
        name: the task, for lists of tasks and for the log
    """

    async def run() -> None:
        try:
            await work()
        except BaseException as error:
            if not await failed_alone(error, in_own_task=True):
                raise
            _log.error("task failed, and others continue", task=name, error=origin_of(error))

    tasks.start_soon(run, name=name)


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
    """Lets a task end by cancellation only if one of its scopes is cancelled, or with the task that its task group belongs to.

    Whoever cancels both stops the program: `asyncio.run` does so with all tasks that are left after its own has ended, and
    after a second Ctrl-C.

    Args:
        what: the task, for the error

    Raises:
        ActorStopped: something else cancelled the task; otherwise the task group would close without an error
    """
    try:
        yield
    except anyio.get_cancelled_exc_class() as cancelled:
        if is_scope_cancelled() or _is_host_stopped():
            raise
        raise ActorStopped(f"{what} was cancelled by something other than the runtime") from cancelled


def log_hidden(error: BaseException) -> None:
    """Logs an error that no caller gets, because a cancellation is raised in its place."""
    for each in errors_in(error):
        if not isinstance(each, KitchenerError) and not is_cancellation(each):  # ours say what was stopped, and that is known
            _log.warning("failed while it was cancelled", error=origin_of(each))


def _is_task_cancelled() -> bool:
    """Whether the running task was cancelled by `Task.cancel` of asyncio."""
    if not _is_on_asyncio():
        return False
    # asyncio is already loaded if it runs; on trio it is not loaded. anyio has no interface for this.
    from asyncio import current_task  # noqa: TID251 - whether the task was cancelled by `Task.cancel`

    task = current_task()
    return task is not None and task.cancelling() > 0


def _is_host_stopped() -> bool:
    """Whether the task that the running task's group belongs to was cancelled by `Task.cancel` of asyncio, or has ended."""
    if not _is_on_asyncio():
        return False
    from asyncio import all_tasks  # noqa: TID251 - as above

    host_id = anyio.get_current_task().parent_id
    if host_id is None:
        return False
    host = next((each for each in all_tasks() if id(each) == host_id), None)
    return host is None or host.cancelling() > 0


def _is_on_asyncio() -> bool:
    return anyio.get_cancelled_exc_class().__module__.startswith("asyncio")


def _hides_cancellation(error: BaseException) -> bool:
    """Whether called code was cancelled and raised this in its place."""
    return any(isinstance(each, anyio.get_cancelled_exc_class()) for each in _before(error))


def _before(error: BaseException) -> Iterator[BaseException]:
    """The errors that were being handled when an error was raised; of a group, also the ones behind its errors."""
    waiting = [error]
    for _ in range(_MOST_HIDDEN):
        if not waiting:
            return
        each = waiting.pop()
        if isinstance(each, BaseExceptionGroup):
            waiting.extend(each.exceptions)
        if each.__context__ is not None:
            waiting.append(each.__context__)
            yield each.__context__


def _is_cancellation_alone(error: BaseException) -> bool:
    """Whether this is a cancellation by the running event loop, or a group of such."""
    cancelled = anyio.get_cancelled_exc_class()
    return all(isinstance(each, cancelled) for each in errors_in(error))


def _is_of_ledgers(error: BaseException) -> bool:
    return any(isinstance(each, LedgerError) for each in errors_in(error))
