"""Runs synchronous tools in a bounded number of threads, of which one subject cannot use all.

A thread cannot be stopped. If its tool ran out of time, it stays occupied, and counts until the tool returns.
"""

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar

from kitchener.actors.tools.results import ToolOutcome
from kitchener.actors.tools.tool_job import ToolJob


class ToolThreads:
    """The threads of one registry.

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

    async def run(self, job: ToolJob) -> ToolOutcome:
        """Runs a synchronous tool in a thread, as soon as one is free for its subject."""
        threads = self._threads.get(None)
        if threads is None:
            threads = anyio.CapacityLimiter(self._most)
            self._threads.set(threads)
        place = (threads, job.subject_id)
        own = self._threads_of.setdefault(place, anyio.CapacityLimiter(self._share))
        try:
            async with own:
                if (problem := self._stuck(job, own.borrowed_tokens)) is not None:
                    return ToolOutcome(error=problem)
                return await anyio.to_thread.run_sync(job.run, abandon_on_cancel=True, limiter=threads)
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
