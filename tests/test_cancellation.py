"""Whose a cancellation is: the caller's passes through, that of something which was called is its failure. docs/actors.md."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import anyio
import pytest

from kitchener.cancellation import (
    ended_by,
    ends_when_told,
    failed_alone,
    is_own_failure,
    is_scope_cancelled,
    raises_cut_off,
    start_apart,
)
from kitchener.errors import ActorStopped, LedgerWriteError
from tests.hostile.code.stopped_code import BEHAVIOURS
from tests.hostile.code.strays import of_a_kept_one, of_its_own_task
from tests.shared.logs import captured_logs


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


async def handled(call: Callable[[], Awaitable[object]]) -> str:
    """Whether who calls something goes on after what it raises."""
    try:
        await call()
    except BaseException as error:
        if not await failed_alone(error):
            raise
        return "failed"
    return "went on"


FAILING = [each for each in BEHAVIOURS if each != "no end"]


@pytest.mark.parametrize("behaviour", FAILING)
async def test_a_caller_that_a_scope_cancels_ends_whatever_the_called_code_raises(behaviour: str) -> None:
    with anyio.CancelScope() as scope:
        scope.cancel()
        await handled(BEHAVIOURS[behaviour])
        raise AssertionError
    assert scope.cancelled_caught


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("behaviour", FAILING)
async def test_a_caller_whose_task_is_cancelled_natively_ends_as_well(behaviour: str) -> None:
    task = asyncio.ensure_future(handled(BEHAVIOURS[behaviour]))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_error_in_a_task_that_was_cancelled_before_is_a_failure() -> None:
    """As where a program cleans up after a cancellation: nothing was cancelled in the call."""

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("no connection to close")

    async def clean_up() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return await handled(fail)

    task = asyncio.ensure_future(clean_up())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "failed"


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
async def test_a_scope_ends_its_block_whatever_the_called_code_raises(behaviour: str) -> None:
    with ended_by(anyio.CancelScope()) as scope:
        scope.cancel()
        await BEHAVIOURS[behaviour]()
    assert scope.cancel_called


async def test_what_a_block_raises_before_its_scope_ends_it_and_what_is_about_a_ledger_passes() -> None:
    with pytest.raises(ValueError, match="plain"), ended_by(anyio.CancelScope()):
        raise ValueError("plain")
    is_over = anyio.CancelScope(deadline=anyio.current_time())
    with pytest.raises(LedgerWriteError, match="the disk is full"), ended_by(is_over):
        raise LedgerWriteError("ho2m.jsonl", "the disk is full")
    is_over = anyio.CancelScope(deadline=anyio.current_time())
    with pytest.raises(KeyboardInterrupt), ended_by(is_over):
        raise KeyboardInterrupt


async def test_a_scope_around_it_is_not_taken_for_its_own() -> None:
    with anyio.CancelScope() as outer:
        with ended_by(anyio.CancelScope()) as inner:
            outer.cancel()
            await anyio.sleep(1)
        raise AssertionError
    assert outer.cancelled_caught
    assert not inner.cancel_called


async def fails_at_once() -> None:
    await anyio.lowlevel.checkpoint()
    raise ValueError("a bug")


async def test_an_error_of_a_task_reaches_no_other_task_of_its_group_and_is_logged() -> None:
    ended = anyio.Event()

    async def other() -> None:
        await anyio.wait_all_tasks_blocked()
        ended.set()

    with captured_logs() as logs:
        async with anyio.create_task_group() as tasks:
            start_apart(tasks, fails_at_once, "the cook")
            start_apart(tasks, of_a_kept_one, "the waiter")
            tasks.start_soon(other)
    assert ended.is_set()
    assert {each["event"] for each in logs} == {"task failed, and others continue"}
    assert sorted(each["task"] for each in logs) == ["the cook", "the waiter"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_that_cancels_itself_ends_alone() -> None:
    ended = anyio.Event()

    async def other() -> None:
        await anyio.wait_all_tasks_blocked()
        ended.set()

    async with anyio.create_task_group() as tasks:
        start_apart(tasks, of_its_own_task, "the cook")
        tasks.start_soon(other)
    assert ended.is_set()


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
async def test_a_task_that_fails_while_its_group_is_cancelled_ends_it_without_an_error(behaviour: str) -> None:
    """Its error is logged, because nobody else is told of it. Regression: it left no trace."""
    with captured_logs() as logs:
        async with anyio.create_task_group() as tasks:
            start_apart(tasks, BEHAVIOURS[behaviour], "the cook")
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    told = {(each["event"], each["log_level"]) for each in logs}
    says_nothing = behaviour in ("an error of ours", "a lingering end", "no end")
    assert told == (set() if says_nothing else {("failed while it was cancelled", "warning")})
