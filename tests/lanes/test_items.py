"""A handler that gives items before its reply: an asker holds and cancels its own worker only; docs/actors.md."""

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from kitchener.errors import ActorStopped, CallerError
from kitchener.lanes.envelope import Outlet
from kitchener.lanes.mailbox import INTERACTIVE, Mailbox
from kitchener.lanes.worker_lane import LaneLimits
from tests.actors.time_control import settle


@dataclass(eq=False)
class Count:
    """A message: give the numbers below `last`, then reply or fail."""

    last: int
    error: Exception | None = None
    outlet: Outlet[int | str] = field(default_factory=Outlet[int | str])
    given: list[int] = field(default_factory=list)
    ended: bool = False


async def count(message: Count) -> str:
    try:
        for number in range(message.last):
            message.given.append(number)
            await message.outlet.give(number)
        if message.error is not None:
            raise message.error
        return f"{message.last} numbers"
    finally:
        await anyio.lowlevel.cancel_shielded_checkpoint()
        message.ended = True


@asynccontextmanager
async def counter(places: int = 2) -> AsyncIterator[Mailbox[Count, str]]:
    box = Mailbox(
        count,
        name="the counter",
        lanes={INTERACTIVE: LaneLimits(places, 8)},
        max_restarts=10,
        restart_window_s=60.0,
        abort_grace_s=60.0,
    )
    with anyio.fail_after(10):
        async with box.open():
            yield box
    assert box.statistics()[INTERACTIVE].running == 0


async def read(box: Mailbox[Count, str], message: Count) -> list[Any]:
    async with aclosing(box.stream(message, message.outlet)) as items:
        return [item async for item in items]


async def test_items_come_in_order_and_the_reply_last() -> None:
    async with counter() as box:
        assert await read(box, Count(3)) == [0, 1, 2, "3 numbers"]
        assert await read(box, Count(0)) == ["0 numbers"]


async def test_an_error_comes_after_the_items_that_were_given() -> None:
    async with counter() as box:
        seen: list[Any] = []
        message = Count(2, CallerError("no more"))

        async def read_into() -> None:
            async for item in box.stream(message, message.outlet):
                seen.append(item)  # noqa: PERF401  what came before the failure has to be kept

        with pytest.raises(CallerError, match="no more"):
            await read_into()
        assert seen == [0, 1]


async def test_an_asker_that_does_not_read_on_holds_its_own_worker_and_no_other() -> None:
    async with counter() as box:
        slow = Count(9)
        async with aclosing(box.stream(slow, slow.outlet)) as items:
            assert await anext(items) == 0
            await settle()
            assert slow.given == [0], "not one item ahead of its asker"
            assert await read(box, Count(3)) == [0, 1, 2, "3 numbers"]
            assert await anext(items) == 1
            assert box.statistics()[INTERACTIVE].running == 1
        assert slow.ended, "the asker leaves when its handler has ended"
        assert slow.given == [0, 1]


@pytest.mark.parametrize("place", ["in line", "holding an item"])
async def test_an_asker_that_is_cancelled_takes_its_own_handler_with_it(place: str) -> None:
    async with counter(places=1) as box, anyio.create_task_group() as tasks:
        first, gone = Count(2), Count(2)
        items = box.stream(first, first.outlet)
        if place == "in line":
            assert await anext(items) == 0

        async def read_slowly() -> None:
            async with aclosing(box.stream(gone, gone.outlet)) as found:
                async for _ in found:
                    await anyio.sleep_forever()

        with anyio.CancelScope() as scope:
            tasks.start_soon(_cancel_when_settled, scope)
            await read_slowly()
        assert gone.given == ([] if place == "in line" else [0])
        assert gone.ended is (place != "in line")
        assert [item async for item in items] == ([1, "2 numbers"] if place == "in line" else [0, 1, "2 numbers"])


async def _cancel_when_settled(scope: anyio.CancelScope) -> None:
    await settle()
    scope.cancel()


async def test_an_asker_that_reads_on_after_the_mailbox_has_closed_is_told() -> None:
    message = Count(9)
    box = Mailbox(
        count,
        name="the counter",
        lanes={INTERACTIVE: LaneLimits(1, 1)},
        max_restarts=1,
        restart_window_s=1.0,
        abort_grace_s=1.0,
    )
    async with box.open():
        items = box.stream(message, message.outlet)
        assert await anext(items) == 0
    with pytest.raises(ActorStopped, match="the counter has stopped"):
        await anext(items)
    assert message.ended
