"""A `kitchener serve` process under load: what a served turn costs, and what becomes of clients at limits and of attackers.

    make load
    python -m benchmarks.serving --clients 100 --turns 10 --rounds 3 --only turns
    python -m benchmarks.serving --only attacks --json

`turns`: so many clients at once, each with a connection and a conversation of its own, stream chat completions of the built-in
model. Every reply is checked, every turn must stand in the ledger once, and the ledgers must verify. The same turns then run
in a process without HTTP, by `stream_turn`: `times_library` is what serving costs (medians of so many rounds, each measures
both). `limited`: so many clients at once ask for replies of an endpoint that lets few calls a second through and answers the
others with 429 and `Retry-After`: once without and once with `requests_per_minute` of the provider. `attacks`:
`benchmarks/shared/attacks.py`, with a well-behaved client beside each.

CPU time is user plus system of the process that serves or runs the turns. The last line of stdout is one JSON object with
`--json`. The exit code is 1 if a turn was lost, a reply was wrong, or an attack did what it should not. Ctrl-C ends everything.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, Final

import anyio

from benchmarks.sessions import cpu_s
from benchmarks.shared.attacks import attack
from benchmarks.shared.instant_server import serving as endpoint
from benchmarks.shared.served_root import checked_ledgers, clients, served
from kitchener import RuntimeConfig, open_runtime
from kitchener.runtime import load_config, tune_gc

PARTS: Final = ("turns", "limited", "attacks")
_SETTINGS: Final = "[serve]\nmax_requests = 8192\n"
_LIMITED: Final = """[serve]
max_requests = 8192
[agents.ADMIN]
classify = "rules"
turn_deadline_s = 120
[router]
default_provider = "local"
[router.providers.local]
base_url = "{url}"
model = "m"
max_concurrency = 32
"""
_WARM_CLIENTS: Final = 20
_CALLS_A_SECOND: Final = 50


def percentile(values: list[float], share: float) -> float:
    """The value below which so large a share lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


async def in_process(config: RuntimeConfig, sessions: int, turns: int) -> float:
    """CPU microseconds of a turn by `stream_turn`, so many sessions at once."""

    async def converse(name: str, count: int) -> None:
        session_id = await supervisor.start_session(subject_id="local", external_id=name)
        for turn in range(count):
            async for _ in supervisor.stream_turn(
                f"Message {turn} of client {name}: is there a hotel in that area?", session_id=session_id
            ):
                pass

    async with open_runtime(config) as runtime:
        supervisor = runtime.supervisor("ADMIN")
        tune_gc()
        for names, count in (([f"warm-{each}" for each in range(_WARM_CLIENTS)], 2), (list(map(str, range(sessions))), turns)):
            before = cpu_s()
            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(converse, name, count)
        return (cpu_s() - before) / (sessions * turns) * 1e6


def library(folder: Path, options: argparse.Namespace) -> float:
    """The same turns in a process without HTTP."""
    arguments = ["--in-process", str(folder), "--clients", str(options.clients), "--turns", str(options.turns)]
    told = subprocess.run(
        [sys.executable, "-m", "benchmarks.serving", *arguments], capture_output=True, text=True, check=True, timeout=1_800
    )
    return float(told.stdout.splitlines()[-1])


def measure_turns(folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """One round: the turns served, checked, and run again without HTTP."""
    wanted = options.clients * options.turns
    with served(folder, _SETTINGS) as server:
        clients(server.port, "--clients", str(_WARM_CLIENTS), "--turns", "2", "--name", "warm")
        cpu, memory = server.cpu_s(), server.rss_mib()
        seen = clients(server.port, "--clients", str(options.clients), "--turns", str(options.turns))
        cpu = (server.cpu_s() - cpu) / wanted * 1e6
        memory_after, files = server.rss_mib(), server.open_files()
    found = anyio.run(checked_ledgers, folder)
    repeated = {said: times for said, times in found["messages"].items() if times > 1}
    inside = library(folder, options)
    return {
        "served_us": cpu,
        "library_us": inside,
        "seconds": seen["seconds"],
        "p50_ms": percentile(seen["latencies"], 0.5) * 1e3,
        "p99_ms": percentile(seen["latencies"], 0.99) * 1e3,
        "memory_mib": memory_after,
        "kib_per_client": (memory_after - memory) * 1024 / options.clients,
        "open_files_after": files,
        "wrong": seen["wrong"],
        "told_to_wait": seen["refused"],
        "lost": wanted + 2 * _WARM_CLIENTS - found["turns"],
        "twice": len(found["twice"]) + len(repeated),
    }


def of_rounds(rounds: list[dict[str, Any]], options: argparse.Namespace) -> dict[str, Any]:
    """The medians of all rounds, and what went wrong in any of them."""
    middle = {name: statistics.median(each[name] for each in rounds) for name in rounds[0] if name != "wrong"}
    ratios = [each["served_us"] / each["library_us"] for each in rounds]
    return {
        "clients": options.clients,
        "turns_each": options.turns,
        "served_cpu_us": round(middle["served_us"]),
        "library_cpu_us": round(middle["library_us"]),
        "times_library": round(statistics.median(ratios), 2),
        "lowest": round(min(ratios), 2),
        "highest": round(max(ratios), 2),
        "requests_per_s": round(options.clients * options.turns / middle["seconds"]),
        "p50_ms": round(middle["p50_ms"]),
        "p99_ms": round(middle["p99_ms"]),
        "p99_of_p50": round(middle["p99_ms"] / middle["p50_ms"], 2),
        "memory_mib": round(middle["memory_mib"]),
        "kib_per_client": round(middle["kib_per_client"]),
        "told_to_wait": int(middle["told_to_wait"]),
        "wrong": [what for each in rounds for what in each["wrong"]][:5],
        "lost": sum(each["lost"] for each in rounds),
        "twice": sum(each["twice"] for each in rounds),
    }


async def measure_limited(folder: Path, options: argparse.Namespace, more: str = "") -> dict[str, Any]:
    """What each of so many sessions gets where the provider lets few calls through.

    Args:
        folder: an empty folder
        options: the command line
        more: further settings of the provider
    """
    async with endpoint(calls_per_s=_CALLS_A_SECOND) as url:
        settings = _LIMITED.format(url=url) + more
        seen = await anyio.to_thread.run_sync(_limited_clients, folder, settings, options.clients)
    found = await checked_ledgers(folder)
    texts = Counter("reply" if each.startswith("Certainly") else "apology" for each in seen["texts"])
    return {
        "clients": options.clients,
        "calls_per_s": _CALLS_A_SECOND,
        "got_a_reply": texts["reply"],
        "got_an_apology": texts["apology"],
        "told_to_wait": seen["refused"],
        "seconds": round(seen["seconds"], 1),
        "p50_s": round(percentile(seen["latencies"], 0.5), 1),
        "p99_s": round(percentile(seen["latencies"], 0.99), 1),
        "wrong": seen["wrong"][:5],
        "lost": options.clients - found["turns"],
        "twice": len(found["twice"]),
    }


def _limited_clients(folder: Path, settings: str, count: int) -> dict[str, Any]:
    with served(folder, settings) as server:
        return clients(server.port, "--clients", str(count), "--turns", "1", "--texts")


def show(name: str, figures: dict[str, Any]) -> None:
    """Prints a part."""
    print(f"\n{name}")
    for key, value in figures.items():
        print(f"{key:>20}  {value}")
    sys.stdout.flush()


def run(options: argparse.Namespace) -> dict[str, Any]:
    """All parts that were chosen, each in a root of its own."""
    found = dict[str, Any]()
    with tempfile.TemporaryDirectory(dir=options.dir) as base:
        if "turns" in options.only:
            rounds = list[dict[str, Any]]()
            for number in range(options.rounds):
                rounds.append(measure_turns(Path(base) / f"turns-{number}", options))
                print(f"round {number + 1} of {options.rounds} is done", file=sys.stderr, flush=True)
            found["turns"] = of_rounds(rounds, options)
            show(f"{options.clients} clients that stream", found["turns"])
        if "limited" in options.only:
            found["limited"] = anyio.run(measure_limited, Path(base) / "limited", options)
            show("a provider at its rate limit, of which the settings know nothing", found["limited"])
            known = f"requests_per_minute = {_CALLS_A_SECOND * 54}\n"  # a little less than it lets through
            found["paced"] = anyio.run(measure_limited, Path(base) / "paced", options, known)
            show("the same with the provider's requests_per_minute", found["paced"])
        if "attacks" in options.only:
            found["attacks"] = anyio.run(attack, Path(base) / "attacks", options.attackers)
            show("attacks", found["attacks"])
    return found


def is_bad(found: dict[str, Any]) -> bool:
    """Whether something was lost, wrong or disturbed."""
    return any(part.get(key) for part in found.values() for key in ("wrong", "lost", "twice"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000, help="clients at the same time (default 1000)")
    parser.add_argument("--turns", type=int, default=3, help="messages of each (default 3)")
    parser.add_argument("--rounds", type=int, default=1, help="rounds of `turns`, which give medians (default 1)")
    parser.add_argument("--attackers", type=int, default=100, help="connections of each attack (default 100)")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts to run (default: all)")
    parser.add_argument("--dir", help="where the ledgers are written (default: the system's temporary directory)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--in-process", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.in_process is not None:
        overrides = {"plane_root": f"{options.in_process}/library"}
        config = load_config(options.in_process / "kitchener.toml", overrides=overrides).config
        print(anyio.run(in_process, config, options.clients, options.turns))
        return
    try:
        found = run(options)
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    if options.json:
        print(json.dumps(found))
    raise SystemExit(is_bad(found))


if __name__ == "__main__":
    main()
