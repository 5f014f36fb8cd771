"""Decides what to do if a runtime is closed in another task than it was opened in, as by fixtures, hooks and exit stacks.

A task group cannot be left in another task than it was entered in. If the first task has ended, as that of a fixture of
pytest-asyncio or of a notebook's cell, nothing of it can be disturbed any more: the runtime closes like any other. If it still
runs, it would keep a cancel scope that is never left, so the mistake is told. Explained in `docs/runtime.md`.
"""

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

import anyio
from anyio.abc import TaskStatus

from kitchener.cancellation import failed_alone
from kitchener.errors import ActorStopped, CallerError
from kitchener.errors.nested import errors_in, first_error, sole_error

ValueT = TypeVar("ValueT")
ValueT_co = TypeVar("ValueT_co", covariant=True)


class Work(Protocol[ValueT_co]):
    """What a task does that tells when it has started."""

    def __call__(self, *, task_status: TaskStatus[ValueT_co]) -> Awaitable[None]:
        """Returns when the task has ended."""
        ...


class OwnTask:
    """The task that created this object, and that opens a runtime."""

    __slots__ = ("_has_ended", "_id", "_work_error")

    def __init__(self) -> None:
        self._id = anyio.get_current_task().id
        self._has_ended = _end_of_running_task()
        self._work_error: BaseException | None = None

    async def keeps(self, work: Work[ValueT], *, task_status: TaskStatus[ValueT]) -> None:
        """Does the work, and keeps its error: a task group that is left in another task does not tell it."""
        try:
            await work(task_status=task_status)
        except Exception as error:
            self._work_error = error
            raise

    async def explained(
        self, error: BaseExceptionGroup[BaseException] | RuntimeError, body_error: Exception | None
    ) -> BaseException | None:
        """Returns the error to raise in place of the task group's; None: there is nothing wrong.

        Args:
            error: what the task group says
            body_error: what the block raised before; None: nothing

        Raises:
            BaseException: the cancellation of the task that closes the runtime, if the error hides it
        """
        if isinstance(error, BaseExceptionGroup):
            return _with_context(_only(error), body_error)
        if anyio.get_current_task().id == self._id:
            return error
        if self._has_ended():
            await failed_alone(error)
            return None if self._work_error is None else _only(self._work_error)
        misplaced = CallerError(
            "the runtime was closed in another task than it was opened in, which still runs: open and close it in one task, as"
            " `async with open_runtime(…)` in one function does, or let a task of your own open it, wait for an event and close"
            " it. Its ledgers are closed"
        )
        misplaced.__cause__ = body_error or error
        return misplaced


def _only(error: BaseException) -> BaseException:
    """The only error in nested groups; the first error, if all are stopped actors; otherwise the error as it is."""
    if all(isinstance(each, ActorStopped) for each in errors_in(error)):
        return first_error(error)
    return sole_error(error)


def _with_context(error: BaseException, before: BaseException | None) -> BaseException:
    """The error, with what was raised before it at the end of its causes, unless both follow from one error."""
    causes = _causes(error)
    if before is not None and not {id(each) for each in causes} & {id(each) for each in _causes(before)}:
        causes[-1].__context__ = before
    return error


def _causes(error: BaseException) -> list[BaseException]:
    """An error and its causes, the last one at the end."""
    found = [error]
    while (cause := found[-1].__cause__) is not None and cause not in found:
        found.append(cause)
    return found


def _end_of_running_task() -> Callable[[], bool]:
    """Returns what says whether the running task has ended. On trio, where no other task can leave its scopes, it says no."""
    if not anyio.get_cancelled_exc_class().__module__.startswith("asyncio"):
        return lambda: False
    from asyncio import current_task  # noqa: TID251  anyio tells of a task by its id, which another may have afterwards

    task = current_task()
    return task.done if task is not None else lambda: False
