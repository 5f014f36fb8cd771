"""Starts the consolidations of one agent class: on request, and in the background after a reply, for each gate that the turn
found open."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import anyio
from anyio.abc import TaskGroup

from kitchener.actors.consolidation.consolidator import Consolidator
from kitchener.actors.turn_memory import OpenGates
from kitchener.cancellation import ended_by, failed_alone, raises_cut_off, start_apart
from kitchener.errors import CallerError
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of
from kitchener.records.work_order import WorkOrder

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
        start_apart(self._tasks, partial(self._run, work, scope), "consolidation")

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
            with ended_by(scope):
                await work()
        except BaseException as error:  # a failed consolidation must not reach a reply
            if not await failed_alone(error, in_own_task=True):
                raise
            logger.error("consolidation failed", error=origin_of(error))
        finally:
            self.pending -= 1
            self._scopes.discard(scope)
            if self.pending == 0 and self._idle is not None:
                self._idle.set()
                self._idle = None


class ConsolidationTriggers:
    """Starts consolidations. `consolidator.py` runs them.

    Args:
        agent_class: the agent class
        consolidator: runs a consolidation; None: the class has no long-term memory
        background: runs the consolidations that turns start; None: turns start none
    """

    def __init__(self, agent_class: str, consolidator: Consolidator | None, background: BackgroundJobs | None) -> None:
        self._agent_class, self._consolidator, self._background = agent_class, consolidator, background

    async def run(self, by_namespace: Mapping[str, Sequence[str]], gate_ts: str | None) -> list[WorkOrder]:
        """Consolidates the signals of each namespace whose gates are open, and returns the finished work orders.

        Raises:
            CallerError: the class has no long-term memory, or a namespace belongs to another class
        """
        if self._consolidator is None:
            raise CallerError(f"agent class {self._agent_class!r} has no long-term memory; set ho3_enabled")
        with raises_cut_off("the consolidation"):
            runs = [
                await self._consolidator.run(signals, namespace=each, gate_ts=gate_ts) for each, signals in by_namespace.items()
            ]
        return [wo for done in runs for wo in done]

    def start(self, gates: OpenGates | None) -> None:
        """Starts the consolidation of a turn's open gates in the background. Call it after the reply was delivered."""
        if gates is not None and gates.signal_ids and self._background is not None and self._consolidator is not None:
            run = partial(self._consolidator.run, gates.signal_ids, is_asked_for=False)
            self._background.start(partial(run, namespace=gates.namespace, gate_ts=gates.gate_ts))

    async def recover(self) -> None:
        """Ends the consolidations that a crash left open."""
        if self._consolidator is not None:
            await self._consolidator.recover()
