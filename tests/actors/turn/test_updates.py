"""Updates of a turn on their way to a reader: in order, none lost, and nobody waits for a reader who has left."""

from contextlib import aclosing

import anyio
import pytest

from kitchener.actors.turn.updates import streamed
from kitchener.records.turn import TextDelta, TurnUpdate, UpdateListener


def word(number: int) -> TextDelta:
    return TextDelta("WO-1", 1, str(number))


def numbers(updates: list[TurnUpdate]) -> list[int]:
    return [int(each.text) for each in updates if isinstance(each, TextDelta)]


async def side_by_side(tell: UpdateListener, told: list[int], tasks: int = 4, each: int = 5) -> None:
    """Several tools of one turn that tell of their progress at once."""

    async def tool(number: int) -> None:
        for place in range(each):
            await tell(word(number * each + place))
            told.append(number * each + place)

    async with anyio.create_task_group() as group:
        for number in range(tasks):
            group.start_soon(tool, number)


@pytest.mark.parametrize("capacity", [1, 3, 100])
async def test_updates_of_several_tasks_all_come_each_tasks_in_order(capacity: int) -> None:
    """Whatever the buffer takes: each update comes once, and those of one task in the order in which it told them."""
    told: list[int] = []

    async def run(tell: UpdateListener) -> None:
        await side_by_side(tell, told)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as host:
            found = numbers([update async for update in streamed(run, host, capacity)])
    assert sorted(found) == list(range(20))
    for number in range(4):
        own = [each for each in found if each // 5 == number]
        assert own == sorted(own)


@pytest.mark.parametrize("capacity", [1, 3])
async def test_tasks_wait_while_the_buffer_is_full(capacity: int) -> None:
    """A reader that has taken nothing yet holds all tasks: as many updates as the buffer takes are done, and one waits for each
    task."""
    told: list[int] = []

    async def run(tell: UpdateListener) -> None:
        await side_by_side(tell, told, tasks=2, each=10)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as host:
            async with aclosing(streamed(run, host, capacity)) as updates:
                await anext(updates)
                await anyio.wait_all_tasks_blocked()
                assert capacity <= len(told) <= capacity + 1
                rest = [update async for update in updates]
            assert len(rest) == 19


async def test_a_turn_that_cannot_be_cancelled_does_not_wait_for_a_reader_who_has_left() -> None:
    """What a turn still tells while it records its end, shielded, goes nowhere and does not hold it up."""
    has_ended = anyio.Event()

    async def run(tell: UpdateListener) -> None:
        try:
            await tell(word(0))
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for number in range(10):
                    await tell(word(number))
            has_ended.set()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as host:
            async with aclosing(streamed(run, host, 1)) as updates:
                await anext(updates)
            await has_ended.wait()


async def test_a_turn_that_waits_for_room_goes_on_when_its_reader_leaves() -> None:
    """It waits for room in a shielded place, which the cancellation of the turn does not reach."""
    has_ended = anyio.Event()

    async def run(tell: UpdateListener) -> None:
        with anyio.CancelScope(shield=True):
            for number in range(10):
                await tell(word(number))
        has_ended.set()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as host:
            async with aclosing(streamed(run, host, 1)) as updates:
                await anext(updates)
                await anyio.wait_all_tasks_blocked()
            await has_ended.wait()


async def failing(tell: UpdateListener) -> None:
    await tell(word(0))
    raise ValueError("no such room")


async def test_an_error_comes_after_the_updates_before_it() -> None:
    with anyio.fail_after(10):
        async with anyio.create_task_group() as host:
            updates = streamed(failing, host, 4)
            assert numbers([await anext(updates)]) == [0]
            with pytest.raises(ValueError, match="no such room"):
                await anext(updates)


async def test_an_error_after_the_reader_has_left_harms_nobody() -> None:
    """The turn fails while it is cancelled. Its host, which runs the turns of all users, goes on."""
    has_failed = anyio.Event()

    async def run(tell: UpdateListener) -> None:
        try:
            await tell(word(0))
            await anyio.sleep_forever()
        finally:
            has_failed.set()
            raise ValueError("a tool that breaks while it is cancelled")

    with anyio.fail_after(10):
        async with anyio.create_task_group() as host:
            async with aclosing(streamed(run, host, 4)) as updates:
                await anext(updates)
            await has_failed.wait()
            assert numbers([update async for update in streamed(side_of_one, host, 4)]) == [7]


async def side_of_one(tell: UpdateListener) -> None:
    await tell(word(7))
