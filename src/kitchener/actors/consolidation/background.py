"""Runs jobs in the background after a reply was delivered. Today all jobs are consolidations."""

from collections.abc import Awaitable, Callable

import anyio
from anyio.abc import TaskGroup

from kitchener.cancellation import is_own_failure
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of

logger = get_logger(__name__)


class BackgroundJobs:
    """Runs jobs that start after a reply was delivered. `Runtime.drain` waits for them; a shutdown cancels them.

    Args:
        tasks: the task group that runs the jobs, each in its own task
        limit: most pending jobs; further jobs are dropped with a warning in the log
    """

    def __init__(self, tasks: TaskGroup, limit: int) -> None:
        self._tasks, self._limit = tasks, limit
        self._scopes: set[anyio.CancelScope] = set()
        self._is_closed = False
        self._idle: anyio.Event | None = None
        self.pending = 0

    def start(self, work: Callable[[], Awaitable[object]]) -> None:
        """Starts a job in a new task, or drops it if the limit is reached or `cancel` was called."""
        if self.pending >= self._limit or self._is_closed:
            logger.warning("consolidation left out", pending=self.pending, limit=self._limit)
            return
        self.pending += 1
        scope = anyio.CancelScope()
        self._scopes.add(scope)  # now, not in the task's first step, because a shutdown may come first
        self._tasks.start_soon(self._run, work, scope)

    async def wait_idle(self) -> None:
        """Returns when no job is pending."""
        while self.pending:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    def cancel(self) -> None:
        """Cancels all pending jobs and accepts no more."""
        self._is_closed = True
        for scope in self._scopes:
            scope.cancel()

    async def _run(self, work: Callable[[], Awaitable[object]], scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await work()
        except BaseException as error:  # a failed consolidation must not reach a reply
            if not is_own_failure(error):
                raise
            logger.error("consolidation failed", error=origin_of(error))
        finally:
            self.pending -= 1
            self._scopes.discard(scope)
            if self.pending == 0 and self._idle is not None:
                self._idle.set()
                self._idle = None
