"""Whose a cancellation is: the caller's passes through, that of something which was called is its failure. docs/actors.md."""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import pytest

from kitchener.cancellation import ends_when_told, is_own_failure, is_scope_cancelled, raises_cut_off
from kitchener.errors import ActorStopped
from tests.hostile.strays import of_a_kept_one


class OfItsOwn(BaseException):
    """What no `except Exception` catches."""


async def judged(call: Callable[[], Awaitable[object]]) -> tuple[bool, bool]:
    """Whether what a call raises is its own failure, and whether a scope was cancelled then."""
    try:
        await call()
    except BaseException as error:  # noqa: BLE001  what is asked about
        return is_own_failure(error), is_scope_cancelled()
    raise AssertionError


async def test_a_cancellation_that_no_scope_around_it_asked_for_is_a_failure() -> None:
    assert await judged(of_a_kept_one) == (True, False)


@pytest.mark.parametrize("shield", [False, True])
async def test_a_cancellation_by_a_scope_around_it_is_the_callers(*, shield: bool) -> None:
    found: list[tuple[bool, bool]] = []
    with anyio.CancelScope() as outer, anyio.CancelScope(shield=shield) as inner:
        (inner if shield else outer).cancel()
        found.append(await judged(lambda: anyio.sleep(1)))
    assert found == [(False, True)]


async def test_behind_a_shield_a_scope_outside_of_it_cancels_nothing() -> None:
    found: list[tuple[bool, bool]] = []
    with anyio.CancelScope() as outer:
        outer.cancel()
        with anyio.CancelScope(shield=True):
            found.append(await judged(of_a_kept_one))
    assert found == [(True, False)]


async def test_after_a_scope_has_done_its_work_a_cancellation_is_a_failure_again() -> None:
    for _ in range(3):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.sleep(1)
        assert await judged(of_a_kept_one) == (True, False)


@pytest.mark.parametrize(
    "error", [ValueError(), SystemExit(), GeneratorExit(), OfItsOwn(), BaseExceptionGroup("", [OfItsOwn()])]
)
async def test_whatever_else_is_raised_is_a_failure(error: BaseException) -> None:
    assert is_own_failure(error)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BaseExceptionGroup("", [ValueError(), KeyboardInterrupt()])])
async def test_an_interrupt_is_the_callers(error: BaseException) -> None:
    assert not is_own_failure(error)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_that_is_cancelled_natively_is_its_callers() -> None:
    task = asyncio.ensure_future(judged(lambda: asyncio.sleep(60)))
    await asyncio.sleep(0)
    task.cancel()
    assert await task == (False, False)


async def test_a_task_that_ends_untold_says_so() -> None:
    told = "the cook was cancelled by something other than the runtime"
    with pytest.raises(ActorStopped, match=told), ends_when_told("the cook"):
        await of_a_kept_one()
    with anyio.CancelScope() as scope:
        scope.cancel()
        with ends_when_told("the cook"):
            await anyio.sleep(1)
    assert scope.cancelled_caught


async def test_work_that_is_cut_off_is_an_error_for_a_caller_who_was_not_cancelled() -> None:
    with pytest.raises(ActorStopped, match="the soup was cut off: Cancelled"), raises_cut_off("the soup"):
        await of_a_kept_one()
    with pytest.raises(ValueError, match="plain"), raises_cut_off("the soup"):
        raise ValueError("plain")
    with anyio.CancelScope() as scope:
        scope.cancel()
        with raises_cut_off("the soup"):
            await anyio.sleep(1)
    assert scope.cancelled_caught
