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

    def place(self, tool_id: str, limits: ToolLimits, deadline: float) -> AbstractAsyncContextManager[str | None]:
        """Waits until the tool may run, and keeps its place while it runs. Yields why it must not run, or None.

        The wait for a place has no deadline of its own: the caller's scope ends it.

        Args:
            tool_id: the tool
            limits: its limits
            deadline: the call's deadline, on the event loop's clock, seconds
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
        return calls.place(deadline)


class _LimitedCalls:
    """Tracks the running calls of one tool, and when the last calls started."""

    def __init__(self, tool_id: str, limits: ToolLimits) -> None:
        self._tool_id, self.limits = tool_id, limits
        self._places = anyio.Semaphore(limits.concurrency) if limits.concurrency is not None else nullcontext()
        self._starts: deque[float] = deque(maxlen=limits.rate_per_minute or 0)

    @asynccontextmanager
    async def place(self, deadline: float) -> AsyncGenerator[str | None]:
        """Implements `ToolCallLimits.place`."""
        async with self._places:
            yield await self._wait_for_start(deadline)

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


def waited_too_long(tool_id: str, why: str) -> str:
    """The error text for a call that waited too long."""
    return f"tool {tool_id!r} was not started: {why}. Call it again later, or go on without it."
