"""A listener that fails or is cancelled takes its own call with it: the slot is given back, and no provider is blamed."""

from contextlib import aclosing
from typing import Any

import anyio
import pytest

from kitchener.gateway import LLMGateway
from kitchener.records.prompt import Attempt, PromptResponse
from tests.gateway.shared.gateway_kit import Told, ask, failure, gateway_of

ONE_SLOT = {"max_concurrency": 1, "breaker_failures": 2, "max_retries": 0}


class Broken(Exception):
    """What a listener raises."""


async def answer_of(gateway: LLMGateway, on_attempt: Any, *, streams: bool) -> PromptResponse:
    if not streams:
        return await gateway.complete(ask(), on_attempt=on_attempt)
    async with aclosing(gateway.stream(ask(), on_attempt=on_attempt)) as items:
        [*_, last] = [item async for item in items]
    assert isinstance(last, PromptResponse)
    return last


async def check_free(gateway: LLMGateway, *, streams: bool) -> None:
    """The one slot is free, nobody waits, and the circuit is shut: the next call is answered at the first attempt."""
    assert all((each.running, each.waiting) == (0, 0) for each in gateway.statistics().values())
    told = Told()
    with anyio.fail_after(5):
        assert (await answer_of(gateway, told, streams=streams)).text == "well"
    assert told.lines == ["1 started it"]


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("state", ["started", "failed"])
async def test_what_a_listener_raises_reaches_the_caller_and_the_slot_is_free(state: str, *, streams: bool) -> None:
    async def listen(attempt: Attempt) -> None:
        if attempt.state == state:
            raise Broken(state)

    failures = [failure("malformed")] * 4 if state == "failed" else []
    async with gateway_of(it=([*failures, "well"], ONE_SLOT)).open() as gateway:
        for _ in range(4):
            with anyio.fail_after(5), pytest.raises(Broken, match=state):
                await answer_of(gateway, listen, streams=streams)
        await check_free(gateway, streams=streams)


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("state", ["started", "failed"])
async def test_a_call_that_is_cancelled_while_its_listener_waits_gives_the_slot_back(state: str, *, streams: bool) -> None:
    waits = anyio.Event()

    async def listen(attempt: Attempt) -> None:
        if attempt.state == state:
            waits.set()
            await anyio.sleep_forever()

    async with gateway_of(it=([failure("malformed"), "well"] if state == "failed" else ["well"], ONE_SLOT)).open() as gateway:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: answer_of(gateway, listen, streams=streams))
                await waits.wait()
                tasks.cancel_scope.cancel()
        await check_free(gateway, streams=streams)
