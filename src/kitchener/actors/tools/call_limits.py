"""Bounds how many calls of one tool run at a time, and how many start in a minute. A call waits within its own time limit.

`registry.py` uses it for tools that have such limits. Explained in `docs/tools.md`.
"""

from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from fnmatch import fnmatchcase
from typing import Final

import anyio
from anyio.lowlevel import RunVar

from kitchener.config import ToolLimits

_MINUTE_S: Final = 60.0


class ToolCallLimits:
    """The limits of the tools of one registry.

    Args:
        rules: limits by name or pattern; the first one that matches a tool overrides its author's limits
    """

    def __init__(self, rules: Mapping[str, ToolLimits]) -> None:
        self._rules = rules
        # Each event loop has its own counts, so that one registry can serve several event loops.
        self._by_tool = RunVar[dict[str, _LimitedCalls]]("kitchener calls of tools")

    def limits_of(self, own: ToolLimits, *names: str) -> ToolLimits:
        """The limits of a tool: those set for one of its names; if they leave one out, its author's."""
        for pattern, given in self._rules.items():
            if any(fnmatchcase(name, pattern) for name in names):
                return own.model_copy(update={name: value for name, value in given if value is not None})
        return own

    def place(
        self, tool_id: str, limits: ToolLimits, deadline: float, limit_s: float
    ) -> AbstractAsyncContextManager[str | None]:
        """Waits until the tool may run, and keeps its place while it runs. Yields why it must not run, or None.

        Args:
            tool_id: the tool
            limits: its limits
            deadline: the call's deadline, on the event loop's clock, seconds
            limit_s: the tool's time limit, for the reason
        """
        if limits.concurrency is None and limits.rate_per_minute is None:
            return nullcontext()
        by_tool = self._by_tool.get(None)
        if by_tool is None:
            by_tool = dict[str, _LimitedCalls]()
            self._by_tool.set(by_tool)
        calls = by_tool.get(tool_id)
        if calls is None or calls.limits != limits:
            calls = by_tool[tool_id] = _LimitedCalls(tool_id, limits)
        return calls.place(deadline, limit_s)


class _LimitedCalls:
    """Tracks the running calls of one tool, and when the last calls started."""

    def __init__(self, tool_id: str, limits: ToolLimits) -> None:
        self._tool_id, self.limits = tool_id, limits
        self._places = anyio.Semaphore(limits.concurrency) if limits.concurrency is not None else None
        self._starts: deque[float] = deque(maxlen=limits.rate_per_minute or 0)

    @asynccontextmanager
    async def place(self, deadline: float, limit_s: float) -> AsyncGenerator[str | None]:
        """Implements `ToolCallLimits.place`."""
        if self._places is not None:
            with anyio.CancelScope(deadline=deadline) as wait:
                await self._places.acquire()
            if wait.cancelled_caught:
                why = f"{self.limits.concurrency} calls of it ran all the time {within_limit(limit_s)}"
                yield waited_too_long(self._tool_id, why)
                return
        try:
            yield await self._wait_for_start(deadline)
        finally:
            if self._places is not None:
                self._places.release()

    async def _wait_for_start(self, deadline: float) -> str | None:
        rate, now = self.limits.rate_per_minute, anyio.current_time()
        if rate is None:
            return None
        start = now if len(self._starts) < rate else max(now, self._starts[0] + _MINUTE_S)
        if start >= deadline:
            return waited_too_long(self._tool_id, f"it may start {rate} times a minute, next in {start - now:.0f} s")
        self._starts.append(start)  # before the wait, so that no other call takes it
        await anyio.sleep_until(start)
        return None


def within_limit(limit_s: float) -> str:
    """The end of an error text: how long a call could have waited or run."""
    return f"within its time limit of {limit_s:g} s or the turn's deadline"


def waited_too_long(tool_id: str, why: str) -> str:
    """The error text for a call that waited too long."""
    return f"tool {tool_id!r} was not started: {why}. Call it again later, or go on without it."
