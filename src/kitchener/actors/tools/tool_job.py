"""Runs a tool once, in its own task or in a worker thread. Threads are limited, and one subject cannot use all of them.

A thread cannot be stopped. If its tool ran out of time, it outlives the call, stays occupied, and counts until the tool
returns. `registry.py` limits the time.
"""

from collections.abc import Awaitable, Callable
from contextvars import copy_context
from dataclasses import replace
from threading import Lock, current_thread
from typing import cast

import anyio
import anyio.lowlevel
import anyio.to_thread
from anyio.lowlevel import RunVar

from kitchener.actors.tools.results import ToolOutcome, failure, outcome_of
from kitchener.cancellation import is_interrupt, is_scope_cancelled, log_hidden
from kitchener.lanes.askers import ASKERS_CONTEXT
from kitchener.lanes.calling_chain import enter_tool


class ToolJob:
    """One run of a tool, in its own task or in a thread that may outlive the call.

    The tool runs with a copy of the caller's context variables, so its changes to them end with the run. In its own task, it
    cannot harm the next work order by never leaving a cancel scope or task group, or by cancelling itself.
    """

    def __init__(self, work: Callable[[], object], max_result_bytes: int, subject_id: str, tool_id: str) -> None:
        self.subject_id, self.tool_id = subject_id, tool_id
        self._work, self._max_result_bytes = work, max_result_bytes
        asker = ASKERS_CONTEXT.get()
        self._context = asker.copy() if asker is not None else copy_context()
        self.tool_run = enter_tool(self._context)
        self._lock = Lock()
        self._is_given_up = False
        self.has_begun = self.has_ended = False
        self._outcome: ToolOutcome | None = None
        self._interrupt: BaseException | None = None

    def with_cost(self, outcome: ToolOutcome) -> ToolOutcome:
        """The outcome with the cost of the turns that the tool ran."""
        run = self.tool_run
        if run.cost is None:
            return outcome
        turns, untrusted = tuple(run.turns), run.untrusted_source
        return replace(outcome, nested_cost=run.cost, nested_turns=turns, untrusted_source=untrusted)

    async def run_async(self, deadline: float) -> ToolOutcome | None:
        """Runs a coroutine function and returns its outcome, or None if it was stopped at the deadline.

        Args:
            deadline: on the event loop's clock, seconds
        """
        self.has_begun = True
        try:
            async with anyio.create_task_group() as own:
                scope = own.cancel_scope
                scope.deadline = deadline  # a scope around the group would cost as much as the group
                self._context.run(own.start_soon, self._finish)
        except BaseExceptionGroup as group:  # the task ended badly, for example inside a task group that it never left
            if _is_late(scope) or is_scope_cancelled():
                log_hidden(group)
            else:
                self._outcome = self._outcome or failure(group)
        if self._interrupt is not None:
            raise self._interrupt
        if self._outcome is None:
            await anyio.lowlevel.checkpoint_if_cancelled()
            if _is_late(scope):
                return None
        return self._outcome or ToolOutcome(error="the tool's task was cancelled by something other than the turn")

    async def _finish(self) -> None:
        try:
            self._outcome = outcome_of(await cast(Awaitable[object], self._work()), self._max_result_bytes)
        except BaseException as error:  # any error of a tool is its outcome, for the model
            if is_interrupt(error):
                self._interrupt = error  # raised here, it would end the event loop at once
            elif not is_scope_cancelled():
                self._outcome = failure(error)
            elif isinstance(error, anyio.get_cancelled_exc_class()):
                raise
            else:  # raised, it would end the tool's turn, too
                log_hidden(error)

    def run(self) -> ToolOutcome:
        """Runs a synchronous function in the worker thread and returns its outcome. Does nothing if the caller has given up."""
        with self._lock:
            if self._is_given_up:
                return ToolOutcome(error="not started")
            self.has_begun = True
        thread = current_thread()
        idle_name, thread.name = thread.name, f"tool {self.tool_id!r}"  # so that a list of threads shows the tool
        try:
            return self._context.run(lambda: outcome_of(self._work(), self._max_result_bytes))
        except BaseException as error:  # noqa: BLE001 - nobody interrupts a thread
            return failure(error)
        finally:
            thread.name = idle_name
            self.has_ended = True

    def is_left_behind(self) -> bool:
        """Gives up the job and returns whether its function still runs. A job that has not begun never starts afterwards."""
        with self._lock:
            self._is_given_up = True
            return self.has_begun and not self.has_ended


def _is_late(scope: anyio.CancelScope) -> bool:
    """Whether a task group has reached its deadline. A task that fails cancels its group at any time."""
    return scope.cancel_called and anyio.current_time() >= scope.deadline


class ToolThreads:
    """The threads in which the synchronous tools of one registry run.

    Args:
        most: most tools that run in threads at the same time. One subject can use at most seven eighths, rounded up
    """

    def __init__(self, most: int) -> None:
        self._most, self._share = most, most - most // 8
        # Each event loop has its own limiter, so that one registry can serve several event loops.
        self._threads = RunVar[anyio.CapacityLimiter]("kitchener tool threads")
        self._threads_of: dict[tuple[object, str], anyio.CapacityLimiter] = {}
        """The thread limiter of each subject that uses threads now, by event loop."""
        self._left_behind: set[ToolJob] = set()

    async def run(self, job: ToolJob, deadline: float) -> ToolOutcome | None:
        """Runs a synchronous tool in a thread, as soon as one is free for its subject. Returns None at the deadline.

        Args:
            job: the run of the tool
            deadline: on the event loop's clock, seconds
        """
        threads = self._threads.get(None)
        if threads is None:
            threads = anyio.CapacityLimiter(self._most)
            self._threads.set(threads)
        place = (threads, job.subject_id)
        own = self._threads_of.setdefault(place, anyio.CapacityLimiter(self._share))
        try:
            with anyio.CancelScope(deadline=deadline):
                try:
                    own.acquire_nowait()  # `acquire` gives the event loop a round first
                except anyio.WouldBlock:
                    await own.acquire()
                try:
                    if (problem := self._stuck(job, own.borrowed_tokens)) is not None:
                        return ToolOutcome(error=problem)
                    return await anyio.to_thread.run_sync(job.run, abandon_on_cancel=True, limiter=threads)
                finally:
                    own.release()
            return None
        finally:
            if own.borrowed_tokens == 0 and own.statistics().tasks_waiting == 0:
                self._threads_of.pop(place, None)
            if job.is_left_behind():
                self._left_behind.add(job)

    def _stuck(self, job: ToolJob, running: int) -> str | None:
        """Returns why no thread may be started for this tool, or None. `running`: tools of its subject, including this one."""
        self._left_behind.difference_update([each for each in self._left_behind if each.has_ended])
        stuck = len(self._left_behind)
        held = running + sum(each.subject_id == job.subject_id for each in self._left_behind)
        if stuck < self._most and (held <= self._share or self._share == self._most):
            return None
        return f"tool {job.tool_id!r} was not started: {stuck} tools that ran out of time still occupy their threads"
