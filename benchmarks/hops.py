"""CPU that one message takes through a mailbox, such as HO1's and the gateway's.

    python -m benchmarks.hops [--messages 20000] [--backend asyncio] [--json]

`mailbox`: a message goes to an idle worker, and the reply comes back. `after a wait`: 16 askers share one worker, so each
message waits in the queue; what the same askers take without a mailbox is subtracted. `gateway`: a model call through the
gateway to a provider that answers at once, less the call of the provider itself. `item`: one piece of a streamed answer, from
the worker to its reader. The last line of stdout is one JSON object with `--json`.
"""

import argparse
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial

import anyio
import anyio.lowlevel

from kitchener.config import RouterConfig
from kitchener.gateway import LLMGateway
from kitchener.lanes.envelope import Outlet
from kitchener.lanes.mailbox import Mailbox
from kitchener.lanes.worker_lane import LaneLimits
from kitchener.model_usage import Usage
from kitchener.records.prompt import Attempt, PromptRequest, PromptResponse
from kitchener.testing import prompt_request

_ASKERS = 16
_ANSWER = PromptResponse(provider_id="p", model_id="m", text="hello", usage=Usage(1, 1))


def mailbox_of(handler: Callable[[int], Awaitable[int]], workers: int) -> Mailbox[int, int]:
    """A mailbox with the bounds of the gateway's."""
    return Mailbox(
        handler,
        name="box",
        lanes={"interactive": LaneLimits(concurrency=workers, capacity=64)},
        max_restarts=1,
        restart_window_s=60.0,
        abort_grace_s=1.0,
        origin=lambda _: "subject",
    )


async def answer(message: int) -> int:
    """Replies at once."""
    return message


async def work(message: int) -> int:
    """Replies after one round of the event loop."""
    await anyio.lowlevel.checkpoint()
    return message


async def mailbox(messages: int) -> float:
    """CPU of one message to an idle worker and its reply, seconds."""
    async with mailbox_of(answer, 64).open() as box:
        begun = time.process_time()
        for number in range(messages):
            await box.ask_within(number)
        return (time.process_time() - begun) / messages


async def contended(messages: int) -> float:
    """CPU of one message that waits for a worker, seconds."""
    async with mailbox_of(work, 1).open() as box:
        far = anyio.current_time() + 3_600
        return max(0.0, await _crowd(messages, partial(box.ask_within, begin_by=far)) - await _crowd(messages, work))


async def _crowd(messages: int, ask: Callable[[int], Awaitable[int]]) -> float:
    async def ask_often() -> None:
        for number in range(messages // _ASKERS):
            await ask(number)

    begun = time.process_time()
    async with anyio.create_task_group() as tasks:
        for _ in range(_ASKERS):
            tasks.start_soon(ask_often)
    return (time.process_time() - begun) / messages


class AtOnce:
    """A provider that answers at once."""

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """The answer."""
        return _ANSWER


async def ignore(attempt: Attempt) -> None:
    """Records nothing."""


async def gateway(messages: int) -> float:
    """CPU of one call through the gateway, without the provider, seconds."""
    provider, request = AtOnce(), prompt_request("hello", within_s=3_600.0)
    async with LLMGateway(RouterConfig(default_provider="p"), {"p": provider}).open() as models:
        begun = time.process_time()
        for _ in range(messages):
            await models.complete(request, on_attempt=ignore)
        between = time.process_time()
        for _ in range(messages):
            await provider.complete(request)
        return (2 * between - begun - time.process_time()) / messages


async def item(messages: int) -> float:
    """CPU of one item from a handler to its reader, seconds."""
    outlet = Outlet[int]()

    async def count(last: int) -> int:
        for number in range(last):
            await outlet.give(number)
        return last

    async with mailbox_of(count, 1).open() as box:
        begun = time.process_time()
        async with aclosing(box.stream(messages, outlet)) as items:
            async for _ in items:
                pass
        return (time.process_time() - begun) / messages


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = {"mailbox": mailbox, "after a wait": contended, "gateway": gateway, "item": item}
    found = {
        name: round(anyio.run(partial(measure, given.messages), backend=given.backend) * 1e6, 1)
        for name, measure in rows.items()
    }
    for name, cpu_us in found.items():
        print(f"{name:<14}{cpu_us:>8.1f} µs CPU")
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
