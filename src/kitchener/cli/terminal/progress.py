"""Shows a progress bar on standard error."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_LOOK_EVERY_S: Final = 0.2
"""Time between two updates of the bar, seconds."""


class Tally:
    """Counts finished items, for a progress bar."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def add(self, _: object = None) -> None:
        """Counts one more item."""
        self.count += 1


@asynccontextmanager
async def progress_bar(what: str, total: int | None, done: Callable[[], int] | None = None) -> AsyncIterator[Tally]:
    """Shows a progress bar within the block, if standard error is a terminal.

    Args:
        what: name of the counted items
        total: number of items; None: unknown
        done: returns the number of finished items; None: the block counts them with the yielded tally
    """
    tally = Tally()
    if not sys.stderr.isatty():
        yield tally
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(what, markup=False), TimeElapsedColumn(), TimeRemainingColumn())
    async with anyio.create_task_group() as tasks:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("", total=total)

            async def look() -> None:
                while True:
                    progress.update(bar, completed=tally.count if done is None else done())
                    await anyio.sleep(_LOOK_EVERY_S)

            tasks.start_soon(look)
            try:
                yield tally
            finally:
                tasks.cancel_scope.cancel()
