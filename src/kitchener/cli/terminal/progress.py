"""A progress bar on standard error, for commands that a person waits for."""

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_LOOK_EVERY_S: Final = 0.2
"""Between two looks at how far it is, seconds."""


@asynccontextmanager
async def progress_bar(what: str, total: int | None, done: Callable[[], int]) -> AsyncIterator[None]:
    """Shows how many of `total` (None: nobody knows) are done, within the block and only where standard error is a terminal.

    The work is asked now and then, so that it need not say so each time.
    """
    if not sys.stderr.isatty():
        yield
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(what, markup=False), TimeElapsedColumn(), TimeRemainingColumn())
    async with anyio.create_task_group() as tasks:
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            bar = progress.add_task("", total=total)

            async def look() -> None:
                while True:
                    progress.update(bar, completed=done())
                    await anyio.sleep(_LOOK_EVERY_S)

            tasks.start_soon(look)
            try:
                yield
            finally:
                tasks.cancel_scope.cancel()
