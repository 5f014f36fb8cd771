"""CPU of one model call over HTTP, to an endpoint that answers at once: our own adapter beside the vendors' library.

    python -m benchmarks.model_calls --calls 2000 --at-once 50

The endpoint is another process on loopback (`benchmarks/shared/instant_server.py`), so CPU time is the client's alone. Each
kind takes turns, round by round, and the medians of the rounds are printed; figures of two kinds are compared by their ratio.
"""

import argparse
import os
import statistics
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio

from benchmarks.sessions import cpu_s
from benchmarks.shared.instant_server import serving
from kitchener.config import ProviderConfig, RouterConfig
from kitchener.gateway import build_providers
from kitchener.records.prompt import Message
from kitchener.testing import prompt_request

PROMPT = (
    Message("system", "You classify. " * 60),
    Message("user", "Can you find me a one star hotel in that area?"),
)


async def complete(provider: Any) -> None:
    """One answer as a whole."""
    await provider.complete(prompt_request("hello", messages=PROMPT, within_s=60.0))


async def stream(provider: Any) -> None:
    """One streamed answer."""
    async for _ in provider.stream(prompt_request("hello", messages=PROMPT, within_s=60.0)):
        pass


async def cpu_us_per_call(one: Callable[[], Awaitable[None]], calls: int, at_once: int) -> float:
    """CPU microseconds of this process for one call."""
    left = iter(range(calls))

    async def work() -> None:
        for _ in left:
            await one()

    before = cpu_s()
    async with anyio.create_task_group() as tasks:
        for _ in range(at_once):
            tasks.start_soon(work)
    return (cpu_s() - before) / calls * 1e6


async def measure(options: argparse.Namespace) -> None:
    """Measures both adapters, whole and streamed, and prints the medians."""
    os.environ["BENCHMARK_KEY"] = "sk-benchmark"
    common = {"api_key": "env:BENCHMARK_KEY", "max_concurrency": options.at_once}
    async with serving() as url:
        kinds = {"our own adapter": ProviderConfig(base_url=url, model="m", **common)}
        if not options.alone:
            kinds["vendors' library"] = ProviderConfig(kind="model", base_url=url, model="openai-chat:m", **common)
        async with build_providers(RouterConfig(providers=dict(kinds))) as providers:
            found: dict[tuple[str, str], list[float]] = {}
            for round_ in range(options.rounds + 1):  # the first one warms up
                calls = options.calls if round_ else options.at_once
                for kind in kinds:
                    for name, way in (("whole", complete), ("streamed", stream)):
                        cost = await cpu_us_per_call(partial(way, providers[kind]), calls, options.at_once)
                        if round_:
                            found.setdefault((kind, name), []).append(cost)
    for (kind, name), costs in found.items():
        print(f"{kind:>17}  {name:<8}  {statistics.median(costs):>8,.0f} µs CPU a call")


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000, help="calls of each kind in a round (default 1000)")
    parser.add_argument("--at-once", type=int, default=50, help="concurrent calls (default 50)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default 3)")
    parser.add_argument("--alone", action="store_true", help="only our own adapter, which needs no extra")
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    options = parser.parse_args()
    anyio.run(measure, options, backend=options.backend)


if __name__ == "__main__":
    main()
