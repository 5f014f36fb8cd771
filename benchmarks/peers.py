"""What a turn of Kitchener costs beside the same turn of other runtimes, measured alternately on one machine.

    make peers
    make peers ARGS="--wire whole streamed"
    python -m benchmarks.peers --peer-python .venv-peers/bin/python --only langgraph pydantic-ai --rounds 3 --sessions 200

A turn is two model calls, classify and reply, of one message in a session with a history. Without `--wire` they are answered
at once within each process, by a model of each runtime's own interface. With `--no-model`, LangGraph's and AutoGen's nodes have
the answers themselves and call no model, as a lower limit of what these runtimes cost. With `--wire` the calls go over HTTP to
an endpoint on loopback that answers at once (`benchmarks/shared/instant_server.py`, a process of its own), and each runtime
uses its usual client. With `streamed`, replies are streams.

Kitchener runs with its defaults (content sealed, every entry on disk before the reply), and as `kitchener init` sets it up: it
then classifies by rules and makes one model call. Over HTTP it also runs with a scripted model, which shows what HTTP costs.
The column "keeps" says what of a turn is stored when its reply is delivered, and whether it was synced to the disk.

Each round runs all of them, one after the other, each in a process of its own. CPU time is user plus system of that process. A
ratio is that of the medians; the lowest and highest are of single rounds, because a machine's speed changes between rounds.

The other runtimes are installed apart, from `requirements/peers.txt`, because Kitchener needs none of them.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio

from benchmarks.shared.commands import run_command
from benchmarks.shared.instant_server import serving

HERE: Final = Path(__file__).parent
OURS: Final = "all records; synced"
_VERSIONS: Final = """
import json, sys
from importlib.metadata import PackageNotFoundError, version
def found(name):
    try:
        return version(name)
    except PackageNotFoundError:
        return None
print(json.dumps({name: found(name) for name in sys.argv[1:]}))
"""


@dataclass(frozen=True)
class Peer:
    """Another runtime."""

    name: str
    script: str
    """In `peer_turns/`."""
    keeps: str
    """What is stored when a reply is delivered."""
    packages: tuple[str, ...]
    """What must be installed. The version of the first one is shown."""
    has_own_nodes: bool = False
    """Whether code of the script calls the model, and can have the answer itself."""


PEERS: Final = {
    "langgraph": Peer(
        "LangGraph",
        "langgraph_sqlite.py",
        "every step; synced",
        ("langgraph", "langgraph-checkpoint-sqlite", "langchain-openai"),
        has_own_nodes=True,
    ),
    "pydantic-ai": Peer("Pydantic AI", "pydantic_ai_sqlite.py", "messages; synced", ("pydantic-ai-slim", "aiosqlite")),
    "agent-framework": Peer(
        "Agent Framework",
        "agent_framework_files.py",
        "messages; not synced",
        ("agent-framework-core", "agent-framework-openai"),
    ),
    "autogen": Peer("AutoGen core", "autogen_memory.py", "nothing", ("autogen-core", "autogen-ext"), has_own_nodes=True),
}


@dataclass
class Row:
    """One runtime in one way of calling the model."""

    runtime: str
    keeps: str
    wire: str | None
    """`whole`, `streamed`, or None: the model answers within the process."""
    command: list[str]
    rounds: list[float]
    """CPU microseconds a turn, round by round."""

    def figures(self, ours: "Row") -> dict[str, Any]:
        """The row as it is printed, compared with Kitchener's own."""
        ratios = [theirs / mine for theirs, mine in zip(self.rounds, ours.rounds, strict=True)]
        middle = statistics.median(self.rounds)
        return {
            "runtime": self.runtime,
            "wire": self.wire,
            "keeps": self.keeps,
            "cpu_us_per_turn": middle,
            "times_kitchener": middle / statistics.median(ours.rounds),
            "lowest": min(ratios),
            "highest": max(ratios),
        }


def peer_versions(peer_python: str, chosen: list[str]) -> dict[str, str]:
    """The installed version of each chosen peer.

    Raises:
        SystemExit: the interpreter or a package is missing
    """
    packages = [package for name in chosen for package in PEERS[name].packages]
    try:
        probe = subprocess.run(
            [peer_python, "-c", _VERSIONS, *packages], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise SystemExit(f"cannot run the interpreter with the other runtimes, {peer_python!r}: {error}") from None
    found: dict[str, str | None] = json.loads(probe.stdout)
    missing = {name: [each for each in PEERS[name].packages if not found[each]] for name in chosen}
    if any(missing.values()):
        lacking = "; ".join(f"{name} needs {', '.join(each)}" for name, each in missing.items() if each)
        there = " ".join(name for name, each in missing.items() if not each)
        raise SystemExit(
            f"not installed under {peer_python!r}: {lacking}. Install requirements/peers.txt there"
            + (f", or measure the others: --only {there}" if there else "")
        )
    return {name: str(found[PEERS[name].packages[0]]) for name in chosen}


def planned(options: argparse.Namespace, versions: dict[str, str], url: str | None, folder: str) -> list[Row]:
    """What each round runs, in this order."""
    common = ["--sessions", str(options.sessions), "--turns", str(options.turns), "--dir", folder]
    kitchener = [sys.executable, "-m", "benchmarks.sessions", "--json", *common]
    rows = []
    for wire in options.wire or (None,):
        ours = [*kitchener, "--wire", wire, "--url", str(url)] if wire else kitchener
        rows.append(Row("Kitchener", OURS, wire, ours, []))
        rows.append(Row("Kitchener as init sets it up", OURS, wire, [*ours, "--as-init"], []))
        if wire:
            rows.append(Row("Kitchener, scripted model", OURS, wire, kitchener, []))
        for name, version in versions.items():
            peer = PEERS[name]
            theirs = [options.peer_python, str(HERE / "peer_turns" / peer.script), *common]
            theirs += ["--url", str(url)] if wire else []
            theirs += ["--streamed"] if wire == "streamed" else []
            rows.append(Row(f"{peer.name} {version}", peer.keeps, wire, theirs, []))
            if options.no_model and peer.has_own_nodes and not wire:
                rows.append(Row(f"{peer.name}, no model", peer.keeps, wire, [*theirs, "--no-model"], []))
    return rows


async def cost(row: Row, timeout_s: float) -> float:
    """CPU microseconds a turn, of one run in a process of its own.

    Raises:
        SystemExit: the run failed or took too long
    """
    try:
        with anyio.fail_after(timeout_s):
            run = await run_command(row.command, cwd=HERE.parent)
    except TimeoutError:
        raise SystemExit(f"{row.runtime} took longer than {timeout_s:.0f} s; raise --timeout, or lower --sessions") from None
    if run.returncode != 0:
        said = run.stderr.decode(errors="replace").strip()[-2000:]
        raise SystemExit(f"{row.runtime} failed: {' '.join(row.command)}\n{said}")
    return float(json.loads(run.stdout.splitlines()[-1])["cpu_us_per_turn"])


async def measure(options: argparse.Namespace) -> list[Row]:
    """Runs all rounds, and tells on stderr how far it is."""
    versions = peer_versions(options.peer_python, options.only)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving()) if options.wire else None
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=options.dir))
        rows = planned(options, versions, url, folder)
        for number in range(options.rounds):
            for row in rows:
                what = f"{row.runtime}, {row.wire}" if row.wire else row.runtime
                print(f"round {number + 1} of {options.rounds}: {what} ... ", end="", file=sys.stderr, flush=True)
                row.rounds.append(await cost(row, options.timeout))
                print(f"{row.rounds[-1]:,.0f} µs", file=sys.stderr)
    return rows


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help="an interpreter that has the other runtimes")
    ways = ("whole", "streamed")
    parser.add_argument("--wire", nargs="*", choices=ways, help="call the model over HTTP; without a value: both ways")
    parser.add_argument("--no-model", action="store_true", help="without --wire: LangGraph and AutoGen also without a model")
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS), help="the peers to run (default: all)")
    parser.add_argument("--rounds", type=_positive, default=5, help="rounds, each of which runs all of them (default 5)")
    parser.add_argument("--sessions", type=_positive, help="concurrent sessions (default 1000; with --wire 200)")
    parser.add_argument("--turns", type=_positive, default=5, help="turns of each session (default 5)")
    parser.add_argument("--dir", help="where all of them write (default: the system's temporary directory)")
    parser.add_argument("--timeout", type=float, default=900, help="seconds that one run may take (default 900)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args(arguments)
    options.wire = (options.wire or list(ways)) if options.wire is not None else []
    options.sessions = options.sessions or (200 if options.wire else 1000)
    return options


def _positive(text: str) -> int:
    if (value := int(text)) < 1:
        raise ValueError
    return value


def figures(rows: list[Row]) -> list[dict[str, Any]]:
    """The rows as they are printed. The first row of each way is Kitchener."""
    ours: dict[str | None, Row] = {}
    return [row.figures(ours.setdefault(row.wire, row)) for row in rows]


def show(rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Prints a table for each way of calling the model."""
    setting = f"{options.sessions} sessions of {options.turns} turns, {options.rounds} rounds"
    for wire in dict.fromkeys(row["wire"] for row in rows):
        print(f"\n{f'over HTTP, {wire}' if wire else 'model within the process'}; {setting}")
        print(f"{'':<30}{'keeps':<22}{'CPU µs a turn':>14}{'times Kitchener':>17}{'lowest':>9}{'highest':>9}")
        for row in rows:
            if row["wire"] == wire:
                ratios = f"{row['times_kitchener']:>17.2f}{row['lowest']:>9.2f}{row['highest']:>9.2f}"
                print(f"{row['runtime']:<30}{row['keeps']:<22}{row['cpu_us_per_turn']:>14,.0f}{ratios}")


def main() -> None:
    """Measures and prints."""
    options = parse()
    try:
        rows = figures(anyio.run(measure, options))
    except KeyboardInterrupt:
        raise SystemExit("\nstopped") from None
    if options.json:
        setting = {name: getattr(options, name) for name in ("sessions", "turns", "rounds", "wire")}
        print(json.dumps({**setting, "rows": rows}))
        return
    show(rows, options)


if __name__ == "__main__":
    main()
