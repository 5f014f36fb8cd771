"""What code of somebody else does while it is stopped: it fails in many ways, lingers, or goes on as if nothing had been asked.

And a place where such code waits until it is stopped, for several callers at once, each with another behaviour.
"""

import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio

from kitchener.errors import ProviderError
from tests.shared.logs import captured_logs

Behaviour = Callable[[], Coroutine[Any, Any, None]]
"""Waits until it is stopped."""


def raises(error: Callable[[], BaseException]) -> Behaviour:
    """Raises an error in place of its cancellation, as where a connection is closed that is broken."""

    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise error()

    return wait


async def in_parts() -> None:
    """Two tasks that fail while they are stopped, beside one that does not. On trio, the group also holds the cancellation."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(raises(lambda: ValueError("no connection to close")))
        tasks.start_soon(raises(lambda: OSError("no file to close")))
        tasks.start_soon(anyio.sleep_forever)


async def lingers() -> None:
    """Closes in order, which takes a moment in which it cannot be cancelled."""
    try:
        await anyio.sleep_forever()
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.01)


async def lingers_in_vain() -> None:
    """The same, and fails then."""
    try:
        await lingers()
    finally:
        raise ValueError("it could not be closed")


async def goes_on() -> None:
    """Takes no notice."""
    try:
        await anyio.sleep_forever()
    except anyio.get_cancelled_exc_class():
        return


BEHAVIOURS: Final[dict[str, Behaviour]] = {
    "an error": raises(lambda: ValueError("no connection to close")),
    "a group": raises(lambda: ExceptionGroup("two", [ValueError("a"), OSError("b")])),
    "tasks": in_parts,
    "an exit": raises(lambda: SystemExit(3)),
    "a group with an exit": raises(lambda: BaseExceptionGroup("two", [SystemExit(3), ValueError("b")])),
    "a timeout": raises(lambda: TimeoutError("the connection did not close in time")),
    "an error of ours": raises(lambda: ProviderError("foreign", "server_error", "the connection broke")),
    "a lingering end": lingers,
    "a lingering error": lingers_in_vain,
    "no end": goes_on,
}
"""What it does while it is stopped, by name."""


class Foreign:
    """A place where code of somebody else waits until it is stopped: once for each caller that names a behaviour.

    Args:
        without: a behaviour that is left out; "": none
    """

    def __init__(self, without: str = "") -> None:
        self.names = tuple(name for name in BEHAVIOURS if name != without)
        self._met = {name: anyio.Event() for name in self.names}

    def arrive(self, said: str) -> Behaviour | None:
        """The behaviour that the last words of a text name, once; None: there is none, or it was here before."""
        name = next((each for each in self.names if said.endswith(f": {each}")), None)
        if name is None or self._met[name].is_set():
            return None
        self._met[name].set()
        return BEHAVIOURS[name]

    async def meet(self, said: str) -> None:
        """Waits if `arrive` gives a behaviour for the text."""
        behave = self.arrive(said)
        if behave is not None:
            await behave()

    async def wait_met(self, name: str) -> None:
        """Returns when the code with this behaviour waits."""
        await self._met[name].wait()

    async def wait_all_met(self) -> None:
        """Returns when all have come to the place."""
        for each in self.names:
            await self.wait_met(each)

    @property
    def are_all_met(self) -> bool:
        """Whether all have come to the place; a time limit may stop some before."""
        return all(each.is_set() for each in self._met.values())


class _Told(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@asynccontextmanager
async def nothing_goes_wrong(*, but: tuple[str, ...] = ()) -> AsyncIterator[None]:
    """Asserts that the block ends soon, and that neither Kitchener nor asyncio logged an error.

    asyncio logs a task whose exception nobody retrieved, and an error in a callback.

    Args:
        but: the errors that Kitchener may log, as what leads to the attacked place
    """
    told, logger = _Told(), logging.getLogger("asyncio")
    logger.addHandler(told)
    try:
        with captured_logs(logging.WARNING) as events, anyio.fail_after(20):
            yield
    finally:
        logger.removeHandler(told)
    assert told.texts == []
    assert [each for each in events if each["log_level"] == "error" and each["event"] not in but] == []
