"""The turn of a lone session beside the same turn among many: CPU time, system calls that sync, and what each thread takes.

    python -m benchmarks.lone                                    # five rounds: 50 sessions one by one, then 1,000 at once
    python -m benchmarks.lone --rounds 9 --context enforce --memory

Each session has begun and taken one turn before its turns count, so both kinds take the same turns. The rounds of both kinds
alternate in one process, so a change of the machine's speed meets both. Other options are those of `sessions.py`. The last line
of stdout is one JSON object with `--json`.
"""

import argparse
import json
import resource
import statistics
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from benchmarks import sessions
from kitchener import open_runtime
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.runtime import tune_gc

_LONE_SESSIONS = 50
"""Sessions of a round of lone turns, one after the other."""


class Usage:
    """What the process and the event loop's thread have used so far."""

    def __init__(self, fsyncs: int) -> None:
        whole, loop = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_THREAD)
        self.fsyncs = fsyncs
        self.cpu, self.loop = whole.ru_utime + whole.ru_stime, loop.ru_utime + loop.ru_stime
        self.waits = whole.ru_nvcsw

    def since(self, before: "Usage", turns: int) -> dict[str, float]:
        """What was used since then, of one turn."""
        cpu, loop = self.cpu - before.cpu, self.loop - before.loop
        return {
            "cpu_us": cpu / turns * 1e6,
            "loop_us": loop / turns * 1e6,
            "other_threads_us": (cpu - loop) / turns * 1e6,
            "waits": (self.waits - before.waits) / turns,
            "fsyncs": (self.fsyncs - before.fsyncs) / turns,
        }


async def begin(supervisor: HO2Supervisor, number: int) -> str:
    """A session that has taken its first turn."""
    session_id = await supervisor.start_session(subject_id=f"subject-{number}")
    await supervisor.handle_turn(sessions.MESSAGES[number % len(sessions.MESSAGES)], session_id=session_id)
    return session_id


async def talk(supervisor: HO2Supervisor, session_id: str, turns: int) -> None:
    """The turns that count."""
    for turn in range(turns):
        result = await supervisor.handle_turn(sessions.MESSAGES[turn % len(sessions.MESSAGES)], session_id=session_id)
        if result.error is not None:
            raise SystemExit(f"turn {result.turn_id} failed: {result.error}")


async def one_by_one(supervisor: HO2Supervisor, options: argparse.Namespace, now: Callable[[], Usage]) -> dict[str, float]:
    """Turns of lone sessions."""
    begun = [await begin(supervisor, number) for number in range(_LONE_SESSIONS)]
    before = now()
    for session_id in begun:
        await talk(supervisor, session_id, options.turns)
    return now().since(before, _LONE_SESSIONS * options.turns)


async def at_once(supervisor: HO2Supervisor, options: argparse.Namespace, now: Callable[[], Usage]) -> dict[str, float]:
    """The same turns of many sessions at once."""
    begun = list[str]()

    async def begin_one(number: int) -> None:
        begun.append(await begin(supervisor, number))

    async with anyio.create_task_group() as tasks:
        for number in range(options.sessions):
            tasks.start_soon(begin_one, number)
    before = now()
    async with anyio.create_task_group() as tasks:
        for session_id in begun:
            tasks.start_soon(talk, supervisor, session_id, options.turns)
    return now().since(before, options.sessions * options.turns)


async def measure(options: argparse.Namespace, rounds: int) -> dict[str, Any]:
    """Alternating rounds, their medians, and the ratios of each pair."""
    counter = sessions.FsyncCounter()
    kinds: dict[str, Callable[..., Awaitable[dict[str, float]]]] = {"lone": one_by_one, "among_many": at_once}
    found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    with tempfile.TemporaryDirectory(dir=options.dir) as root:
        async with open_runtime(sessions.config(root, options), providers=sessions.provider(options)) as runtime:
            supervisor = runtime.supervisor("ADMIN")
            await sessions.warm_up(supervisor)
            tune_gc()
            for number in range(rounds + 1):
                for kind, take in kinds.items():
                    used = await take(supervisor, options, lambda: Usage(counter.count))
                    if number:  # the first round warms up
                        found[kind].append(used)
    ratios = sorted(lone["cpu_us"] / among["cpu_us"] for lone, among in zip(*found.values(), strict=True))
    medians = {
        kind: {name: round(statistics.median(each[name] for each in rows), 3) for name in rows[0]}
        for kind, rows in found.items()
    }
    return {
        **medians,
        "ratio": round(statistics.median(ratios), 2),
        "ratio_lowest": round(ratios[0], 2),
        "ratio_highest": round(ratios[-1], 2),
    }


def main() -> None:
    """Runs the rounds and prints them."""
    parser = argparse.ArgumentParser(description="The turn of a lone session beside the same turn among many.")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each kind (default 5)")
    options, rest = parser.parse_known_args()
    settings = sessions.parse(["--turns", "4", *rest])
    figures = anyio.run(measure, settings, options.rounds, backend="trio" if settings.backend == "trio" else "asyncio")
    for name, value in figures.items():
        print(f"{name:>14}  {value}")
    if settings.json:
        print(json.dumps(figures))


if __name__ == "__main__":
    main()
