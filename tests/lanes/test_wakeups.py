"""A wake-up from one task to another, on every backend. See docs/actors.md."""

from collections.abc import Callable

import anyio
import pytest
from anyio.lowlevel import checkpoint

from kitchener.lanes.wakeups import EventSignal, FutureLike, Wakeup, signals
from tests.actors.waiting import settle


@pytest.fixture(params=["the loop's own", "any backend's"])
async def make(request: pytest.FixtureRequest) -> Callable[[], FutureLike]:
    return signals() if request.param == "the loop's own" else EventSignal


async def test_a_waiter_sleeps_until_it_is_called(make: Callable[[], FutureLike]) -> None:
    wakeup, seen = Wakeup(make()), []

    async def wait() -> None:
        await wakeup
        seen.append("woken")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await settle()
            assert (seen, wakeup.is_set) == ([], False)
            wakeup.set()
    assert (seen, wakeup.is_set) == (["woken"], True)


async def test_a_call_that_came_first_is_not_lost(make: Callable[[], FutureLike]) -> None:
    wakeup = Wakeup(make())
    wakeup.set()
    wakeup.set()
    with anyio.fail_after(5):
        await wakeup


async def test_a_waiter_that_is_cancelled_leaves_a_wakeup_that_can_still_be_set(make: Callable[[], FutureLike]) -> None:
    wakeup = Wakeup(make())
    with anyio.CancelScope() as scope:
        scope.cancel()
        await wakeup
    assert scope.cancelled_caught
    assert not wakeup.is_set
    wakeup.set()
    assert wakeup.is_set


async def test_a_call_in_the_same_moment_as_a_cancellation_is_seen_by_the_waiter(make: Callable[[], FutureLike]) -> None:
    """Whoever is cancelled looks at `is_set` to know whether what it waited for is its own by now."""
    wakeup, seen = Wakeup(make()), []

    async def wait(scope: anyio.CancelScope) -> None:
        with scope:
            try:
                await wakeup
            finally:
                seen.append(wakeup.is_set)

    with anyio.fail_after(5):
        for first in ("call", "cancel"):
            wakeup, scope = Wakeup(make()), anyio.CancelScope()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(wait, scope)
                await settle()
                for act in (wakeup.set, scope.cancel)[:: 1 if first == "call" else -1]:
                    act()
                await checkpoint()
    assert seen == [True, True]


def test_without_an_event_loop_there_are_signals_for_any() -> None:
    assert signals() is EventSignal
