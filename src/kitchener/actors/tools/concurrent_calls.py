"""Decides which tool calls of one round may run at the same time, and runs them.

`execution.py` records them. This module knows neither tools nor ledgers. Explained in `docs/tools.md`.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import anyio
from anyio.abc import TaskGroup

from kitchener.actors.tools.progress_queue import ProgressQueue
from kitchener.actors.tools.results import ToolOutcome

_CUT_OFF: Final = ToolOutcome(error="the tool's task was cancelled by something other than the turn")

ToolRequested = tuple[str, Mapping[str, object]]
"""A tool id and the arguments, as a model asked for them."""


def concurrent_groups(
    uses: Sequence[ToolRequested], limit: int, is_read_only: Callable[[str], bool]
) -> Iterator[list[ToolRequested]]:
    """Splits calls, in order, into groups that may run at the same time: one call, or at most `limit` that are read-only."""
    group = list[ToolRequested]()
    for use in uses:
        if group and not (len(group) < limit and is_read_only(group[-1][0]) and is_read_only(use[0])):
            yield group
            group = []
        group.append(use)
    if group:
        yield group


async def run_all(
    runs: Sequence[Callable[[], Awaitable[ToolOutcome]]], progress: ProgressQueue | None = None
) -> list[ToolOutcome]:
    """Runs the calls at the same time. Returns when all have ended and their progress was delivered.

    A call's failure is its outcome and ends no other call. A cancellation of the caller cancels all calls and passes through;
    so does an exception of a call, such as KeyboardInterrupt.
    """
    if len(runs) == 1 and progress is None:
        return [await runs[0]()]
    outcomes, failures = [_CUT_OFF] * len(runs), list[BaseException]()

    async def run(place: int) -> None:
        outcomes[place] = await runs[place]()

    def start_all(calls: TaskGroup) -> None:
        for place in range(len(runs)):
            calls.start_soon(kept, partial(run, place))

    async def kept(work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except BaseException as error:  # raised below: asyncio ends its event loop at once on a KeyboardInterrupt in a task
            if isinstance(error, anyio.get_cancelled_exc_class()):
                raise
            failures.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        if progress is None:
            start_all(tasks)
        else:
            tasks.start_soon(kept, progress.deliver)
            async with anyio.create_task_group() as calls:
                start_all(calls)
            progress.end()
    if failures:
        raise failures[0]
    return outcomes
