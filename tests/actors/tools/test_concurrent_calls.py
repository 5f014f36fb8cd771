"""Calls that run at the same time end together, whatever one of them does."""

import anyio
import pytest

from kitchener.actors.tools.concurrent_calls import concurrent_groups, run_all
from kitchener.actors.tools.results import ToolOutcome


async def test_an_interrupt_in_one_call_ends_the_others_and_reaches_the_caller() -> None:
    """As itself: neither in a group, nor past the caller into the event loop."""
    begun, cancelled = anyio.Event(), list[str]()

    async def waits() -> ToolOutcome:
        begun.set()
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append("waits")
            raise
        raise AssertionError

    async def interrupted() -> ToolOutcome:
        await begun.wait()
        raise KeyboardInterrupt

    with anyio.fail_after(5), pytest.raises(KeyboardInterrupt):
        await run_all([waits, interrupted])
    assert cancelled == ["waits"]


async def test_a_call_whose_task_is_cancelled_from_elsewhere_has_an_error_for_an_outcome() -> None:
    async def cut_off() -> ToolOutcome:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.lowlevel.checkpoint()
        return ToolOutcome(error="cut off")

    async def fine() -> ToolOutcome:
        return ToolOutcome(result=1)

    assert await run_all([cut_off, fine]) == [ToolOutcome(error="cut off"), ToolOutcome(result=1)]


def test_calls_keep_their_order_and_only_read_only_neighbours_share_a_group() -> None:
    calls = [(name, dict[str, object]()) for name in ("r1", "r2", "r3", "w", "w", "r4")]
    groups = [[name for name, _ in group] for group in concurrent_groups(calls, 2, lambda name: name.startswith("r"))]
    assert groups == [["r1", "r2"], ["r3"], ["w"], ["w"], ["r4"]]
    assert list(concurrent_groups([], 2, lambda _: True)) == []
