"""A wake-up from one task to another, on every backend. See docs/actors.md."""

from collections.abc import Callable
from contextvars import ContextVar

import anyio
import pytest
from anyio.lowlevel import checkpoint

from kitchener.lanes.wakeups import EventSignal, FutureLike, Parking, Wakeup, parkings, signals
from tests.actors.time_control import settle


@pytest.fixture(params=["the loop's own", "any backend's"])
async def make(request: pytest.FixtureRequest) -> Callable[[], FutureLike]:
    return signals() if request.param == "the loop's own" else EventSignal


async def test_a_signal_is_done_once_it_is_set(make: Callable[[], FutureLike]) -> None:
    signal = make()
    assert not signal.done()
    signal.set_result(None)
    assert signal.done()


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
    assert parkings() is EventSignal


MINE: ContextVar[str] = ContextVar("MINE")


@pytest.fixture(params=["the loop's own", "any backend's"])
async def park(request: pytest.FixtureRequest) -> Callable[[], Parking]:
    return parkings() if request.param == "the loop's own" else EventSignal


async def test_a_resumed_task_goes_on_as_itself(park: Callable[[], Parking]) -> None:
    """Whether it runs at once or when its turn comes: in its own task, its own context and its own scopes."""
    parking, seen = park(), list[object]()

    async def wait() -> None:
        MINE.set("the parked one's")
        own = anyio.get_current_task().id
        with anyio.CancelScope() as scope:
            await parking
            seen.extend((anyio.get_current_task().id == own, MINE.get()))
            scope.cancel()
            await checkpoint()
            seen.append("not reached")
        seen.append(scope.cancelled_caught)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            MINE.set("the caller's")
            tasks.start_soon(wait)
            await settle()
            own = anyio.get_current_task().id
            assert parking.resume() is False
            assert (anyio.get_current_task().id, MINE.get()) == (own, "the caller's")
    assert seen == [True, "the parked one's", True]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # trio has no way to run a task at once
async def test_on_asyncio_a_resumed_task_has_run_to_its_next_wait() -> None:
    parking, gate, seen = parkings()(), anyio.Event(), list[str]()

    async def wait() -> None:
        await parking
        seen.append("resumed")
        await gate.wait()
        seen.append("gone on")

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await settle()
            parking.resume()
            assert seen == ["resumed"]
            gate.set()
    assert seen == ["resumed", "gone on"]


async def test_what_a_resumed_task_raises_does_not_reach_the_task_that_resumed_it(park: Callable[[], Parking]) -> None:
    parking, seen = park(), list[str]()

    async def wait() -> None:
        try:
            await parking
            raise ValueError("mine")
        except ValueError as error:
            seen.append(str(error))
            raise

    async def resume() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await settle()
            parking.resume()
            seen.append("the caller goes on")

    with anyio.fail_after(5), pytest.raises(ExceptionGroup):
        await resume()
    assert sorted(seen) == ["mine", "the caller goes on"]


async def test_a_parked_task_can_be_cancelled(park: Callable[[], Parking]) -> None:
    parking = park()
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_sleep_at, parking)
            await settle()
            tasks.cancel_scope.cancel()


async def test_a_resumed_task_that_cancels_its_caller_is_told_apart(park: Callable[[], Parking]) -> None:
    """Such a caller must not go on to another wait of its own outside the scope that was cancelled."""
    parking, after = park(), list[str]()

    async def wait(scope: anyio.CancelScope) -> None:
        await parking
        scope.cancel()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            with anyio.CancelScope() as scope:
                tasks.start_soon(wait, scope)
                await settle()
                if parking.resume():
                    assert scope.cancel_called
                await settle()
                after.append("not reached")
            await settle()  # raises nothing: the cancellation was delivered inside its scope
    assert scope.cancelled_caught
    assert after == []


async def _sleep_at(parking: Parking) -> None:
    await parking
