"""Waiting in tests without sleeping: until everything stands still, in virtual time, or until the test lets time pass."""

from collections.abc import Callable

import anyio
import pytest
import trio
from trio.testing import MockClock

in_virtual_time = pytest.mark.parametrize(
    "anyio_backend", [pytest.param(("trio", {"clock": MockClock(autojump_threshold=0)}), id="virtual-time")]
)
"""Time passes only when every task waits for it. On trio alone, and never where a worker thread takes part."""

in_stopped_time = pytest.mark.parametrize("anyio_backend", [pytest.param(("trio", {"clock": MockClock()}), id="stopped-time")])
"""Time passes only by `pass_time`, so a limit is reached when the test wants it to be. On trio alone; threads may take part."""

_BACK_OFF_S = 1e-5
_ROUNDS = 40
"""More rounds of the event loop than any chain of wake-ups here is long."""


def pass_time(seconds: float) -> None:
    """Lets so much time pass at once, in a test that is `in_stopped_time`."""
    clock = trio.lowlevel.current_clock()
    assert isinstance(clock, MockClock)
    clock.jump(seconds)


async def pass_time_after(is_reached: Callable[[], bool], seconds: float) -> None:
    """Lets so much time pass once it is so. Before, time creeps, so that back-offs of microseconds end."""
    while not is_reached():
        pass_time(_BACK_OFF_S)
        await anyio.lowlevel.checkpoint()
    pass_time(seconds)


async def settle() -> None:
    """Returns when every other task waits for something that only the test can bring about."""
    for _ in range(_ROUNDS):  # wait_all_tasks_blocked alone polls every 0.1 s on asyncio
        await anyio.lowlevel.checkpoint()
    await anyio.wait_all_tasks_blocked()


async def settle_then(action: Callable[[], object]) -> None:
    """Does something from a task of its own, once everything stands still."""
    await settle()
    action()
