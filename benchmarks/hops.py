"""CPU that one message takes to enter and leave a lane of the gateway, and the mailbox of HO1.

    python -m benchmarks.hops [--messages 20000] [--backend asyncio] [--json]

`free`: a call takes a place at once. `after a wait`: 16 callers share one place, so each call waits for its turn; what the
same callers take without a lane is subtracted. `mailbox`: a message goes to an idle worker of a mailbox as HO1 has it, and the
reply comes back. The last line of stdout is one JSON object with `--json`.
"""

import argparse
import json
import time
from functools import partial

import anyio
import anyio.lowlevel

from kitchener.lanes.lane import Lane
from kitchener.lanes.mailbox import Mailbox
from kitchener.lanes.worker_lane import LaneLimits

_CALLERS = 16


async def free(messages: int) -> float:
    """CPU of one call that takes a free place, seconds."""
    lane, deadline = Lane("lane", 1, 64), anyio.current_time() + 3_600
    begun = time.process_time()
    for _ in range(messages):
        await lane.enter("subject", deadline)
        lane.leave("subject")
    return (time.process_time() - begun) / messages


async def contended(messages: int) -> float:
    """CPU of one call that waits for its place, seconds."""
    return max(0.0, await _crowd(messages, Lane("lane", 1, 64)) - await _crowd(messages, None))


async def _crowd(messages: int, lane: Lane | None) -> float:
    deadline = anyio.current_time() + 3_600

    async def call_often() -> None:
        for _ in range(messages // _CALLERS):
            if lane is not None:
                await lane.enter("subject", deadline)
            await anyio.lowlevel.checkpoint()
            if lane is not None:
                lane.leave("subject")

    begun = time.process_time()
    async with anyio.create_task_group() as tasks:
        for _ in range(_CALLERS):
            tasks.start_soon(call_often)
    return (time.process_time() - begun) / messages


async def mailbox(messages: int) -> float:
    """CPU of one message to a mailbox and its reply, seconds."""

    async def answer(message: int) -> int:
        return message

    box = Mailbox(
        answer,
        name="box",
        lanes={"interactive": LaneLimits(concurrency=64, capacity=64)},
        max_restarts=1,
        restart_window_s=60.0,
        abort_grace_s=1.0,
        origin=lambda _: "subject",
    )
    async with box.open():
        deadline, begun = anyio.current_time() + 3_600, time.process_time()
        for number in range(messages):
            await box.ask(number, deadline=deadline)
        return (time.process_time() - begun) / messages


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--backend", choices=["asyncio", "trio"], default="asyncio")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = {"free": free, "after a wait": contended, "mailbox": mailbox}
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
