"""The time until a reply's first text, beside the bare client: what Kitchener adds to what a user waits for.

    python -m benchmarks.first_token
    python -m benchmarks.first_token --sessions 1 --turns 20 --classify model

The endpoint is another process on loopback that begins each answer after 300 ms. The bare client is the adapter that a turn
uses too, and makes as many calls: one where rules classify; where a model does, the classification and then the reply. Both
take turns, round by round. Each session sends its next message `--pause-ms` after it has read a reply, and the sessions begin
one after the other, as people do. The ratio is that of the medians of one round; printed is the median of the rounds.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio

from benchmarks.model_calls import PROMPT, complete
from benchmarks.shared.instant_server import serving
from kitchener import HO2Config, HO2Supervisor, RuntimeConfig, TextDelta, open_runtime
from kitchener.config import ProviderConfig, RouterConfig
from kitchener.gateway import build_providers
from kitchener.runtime import tune_gc
from kitchener.testing import prompt_request

MESSAGE = "Can you find me a one star hotel in that area?"

Take = Callable[[], Awaitable[float]]
"""Takes a turn to its end, and returns the seconds until its first text."""


def router(url: str, sessions: int) -> RouterConfig:
    """The endpoint as the only provider, with a place for every session."""
    return RouterConfig(
        default_provider="wire", providers={"wire": ProviderConfig(base_url=url, model="m", max_concurrency=max(64, sessions))}
    )


async def bare_turn(provider: Any, *, classifies: bool) -> float:
    """The calls of a turn without a turn."""
    began, first = time.perf_counter(), 0.0
    if classifies:
        await complete(provider)
    async for chunk in provider.stream(prompt_request("hello", messages=PROMPT, within_s=60.0)):
        first = first or (time.perf_counter() - began if chunk.text else 0.0)
    return first


async def turn(supervisor: HO2Supervisor, session_id: str) -> float:
    """A whole turn."""
    began, first = time.perf_counter(), 0.0
    async for update in supervisor.stream_turn(MESSAGE, session_id=session_id):
        if isinstance(update, TextDelta):
            first = first or time.perf_counter() - began
    return first


async def firsts(takes: list[Take], turns: int, pause_s: float) -> list[float]:
    """The seconds until the first text of all turns of all sessions."""
    found = list[float]()

    async def session(number: int, take: Take) -> None:
        await anyio.sleep(pause_s * number / len(takes))
        for _ in range(turns):
            found.append(await take())
            await anyio.sleep(pause_s)

    async with anyio.create_task_group() as tasks:
        for number, take in enumerate(takes):
            tasks.start_soon(session, number, take)
    return found


async def compare(options: argparse.Namespace, sessions: int, classify: Literal["rules", "model"]) -> dict[str, Any]:
    """Alternates the bare client and turns, with so many sessions."""
    pause_s, rows = options.pause_ms / 1e3, list[tuple[float, float]]()
    async with serving(options.delay_ms / 1e3) as url:
        with tempfile.TemporaryDirectory(dir=options.dir) as folder:
            agent = HO2Config(context_mode="enforce", ho3_enabled=True, consolidation="manual", classify=classify)
            config = RuntimeConfig(plane_root=str(Path(folder) / "root"), router=router(url, sessions), agents={"ADMIN": agent})
            async with build_providers(config.router) as providers, open_runtime(config) as runtime:
                supervisor = runtime.supervisor("ADMIN")
                ids = [await supervisor.start_session(subject_id=f"subject-{number}") for number in range(sessions)]
                bare: list[Take] = [partial(bare_turn, providers["wire"], classifies=classify == "model")] * sessions
                ours: list[Take] = [partial(turn, supervisor, each) for each in ids]
                tune_gc()
                for round_ in range(options.rounds + 1):  # the first one warms up
                    turns = options.turns if round_ else 2
                    one = statistics.median(await firsts(bare, turns, pause_s))
                    two = statistics.median(await firsts(ours, turns, pause_s))
                    if round_:
                        rows.append((one, two))
    return {
        "sessions": sessions,
        "classify": classify,
        "bare_ms": round(statistics.median(one for one, _ in rows) * 1e3, 1),
        "turn_ms": round(statistics.median(two for _, two in rows) * 1e3, 1),
        "more_ms": round(statistics.median(two - one for one, two in rows) * 1e3, 1),
        "ratio": round(statistics.median(two / one for one, two in rows), 3),
        "ratios": [round(two / one, 3) for one, two in rows],
    }


async def measure(options: argparse.Namespace) -> None:
    """Measures each number of sessions with each classifier, and prints a row for each."""
    rows = []
    for sessions in options.sessions:
        for classify in options.classify:
            rows.append(row := await compare(options, sessions, classify))
            print(
                "{sessions:>5} sessions  classify {classify:<5}  bare {bare_ms:>7} ms  turn {turn_ms:>7} ms"
                "  +{more_ms} ms  {ratio}×".format(**row),
                flush=True,
            )
    if options.json:
        print(json.dumps(rows))


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, nargs="+", default=[1, 100], help="sessions at once (default 1 100)")
    parser.add_argument("--classify", nargs="+", default=["rules", "model"], choices=("rules", "model"))
    parser.add_argument("--turns", type=int, default=5, help="turns of each session in a round (default 5)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default 5)")
    parser.add_argument("--delay-ms", type=float, default=300.0, help="the endpoint's time to its first token (default 300)")
    parser.add_argument("--pause-ms", type=float, default=700.0, help="a session's wait before its next turn (default 700)")
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--dir", help="where the ledgers go (default: the temporary folder)")
    parser.add_argument("--json", action="store_true", help="also print one JSON value as the last line")
    options = parser.parse_args()
    anyio.run(measure, options, backend=options.backend)


if __name__ == "__main__":
    main()
