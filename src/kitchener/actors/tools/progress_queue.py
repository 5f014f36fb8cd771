"""Delivers the progress of running tools to the listener of a turn, so that no tool waits for a slow reader.

`concurrent_calls.py` runs the delivery in parallel with the tools. Explained in `docs/tools.md`.
"""

from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from threading import get_ident
from typing import Any, Final

import anyio
from anyio.lowlevel import current_token

from kitchener.records.tools.tool_context import ToolContext
from kitchener.records.turn import ToolProgress

_MOST_WAITING: Final = 16
"""Most updates that wait for a slow reader. A further one replaces the oldest, because the newest shows the progress."""


class ProgressQueue:
    """Queues the progress of tools that run in parallel. Create it in the event loop that delivers it.

    Args:
        tell: sends an update to the listener
    """

    def __init__(self, tell: Callable[[ToolProgress], Awaitable[None]]) -> None:
        self._tell = tell
        self._waiting: deque[ToolProgress] = deque(maxlen=_MOST_WAITING)
        self._arrived, self._is_over = anyio.Event(), False
        self._thread = get_ident()
        loop: Any = current_token().native_token  # asyncio's event loop, or trio's token
        self._soon: Callable[[Callable[[], object]], object] = getattr(loop, "call_soon_threadsafe", None) or loop.run_sync_soon

    def add(self, wo_id: str, tool_id: str, call: int, value: float | None, total: float | None, message: str | None) -> None:
        """Adds a tool's report, from any thread. Drops reports that come after `end`."""
        if self._is_over:
            return
        self._waiting.append(ToolProgress(wo_id, tool_id, call, value, total, message))
        if get_ident() == self._thread:
            self._wake()
            return
        try:
            self._soon(self._wake)
        except RuntimeError:  # the event loop has ended, and the tool was left behind in its thread
            self._is_over = True

    def end(self) -> None:
        """Ends the delivery after the updates that wait. Call it when all calls have ended."""
        self._is_over = True
        self._wake()

    async def deliver(self) -> None:
        """Sends the updates to the listener until the end."""
        while True:
            await self._arrived.wait()
            self._arrived = anyio.Event()
            while self._waiting:
                await self._tell(self._waiting.popleft())
            if self._is_over:
                return

    def _wake(self) -> None:
        self._arrived.set()


async def last_of(steps: AsyncGenerator[object, None], context: ToolContext) -> object:
    """Runs an async generator to its end and returns the last value that it yields; None if it yields nothing.

    Each number or text that it yields is reported as progress. The generator is closed, however it ends.
    """
    last: object = None
    async with aclosing(steps):
        async for last in steps:
            if isinstance(last, str):
                await context.progress(message=last)
            elif type(last) in (int, float):
                await context.progress(last)  # type: ignore[arg-type]  # one of the two types
    return last
