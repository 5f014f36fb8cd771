"""A turn of a request hands its updates to one reader, and needs none to go on (docs/server.md)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from kitchener.records.turn import TextDelta, UpdateListener
from kitchener.serve.access.allowances import RequestPlace
from kitchener.serve.metrics.server_counts import ServerCounts
from kitchener.serve.served_turns import ServedTurn, ServedTurns
from tests.actors.time_control import in_virtual_time

FEW = 2
"""Updates that wait for a reader."""


@asynccontextmanager
async def served() -> AsyncIterator[ServedTurns]:
    async with anyio.create_task_group() as tasks:
        turns = ServedTurns(tasks, FEW, 10.0, cancels=False, counts=ServerCounts(["ADMIN"]))
        tasks.start_soon(turns.run)
        yield turns
        tasks.cancel_scope.cancel()


async def say(tell: UpdateListener, *words: str) -> None:
    for word in words:
        await tell(TextDelta("WO-1", 1, word))


async def test_a_turn_goes_on_without_waiting_for_a_reader_that_has_stopped() -> None:
    async def begin(tell: UpdateListener) -> None:
        await say(tell, *"abcdefgh")

    async def read_little(turn: ServedTurn) -> None:
        async for _ in turn:
            break

    with anyio.fail_after(5):
        async with served() as turns:
            turn = turns.begin_kept(RequestPlace([]), "ADMIN", "SES-1", begin, read_little)
            assert await turn.result() is None


@in_virtual_time
async def test_text_waits_for_its_beat_again_once_a_slow_reader_has_taken_what_was_too_much() -> None:
    """Else a reader that was slow once would cost a write for each piece of text."""

    async def begin(tell: UpdateListener) -> None:
        await say(tell, "a")
        await anyio.sleep(1)
        await say(tell, "b", "c", "d")
        await anyio.sleep(1)
        await say(tell, "e")

    batches = list[str]()
    async with served() as turns:
        async for batch in turns.begin(RequestPlace([]), "ADMIN", "SES-1", begin):
            batches.append("".join([each.text for each in batch if isinstance(each, TextDelta)]))
            await anyio.sleep(0.1)
    assert batches == ["a", "bc", "de"]
