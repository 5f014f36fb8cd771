"""What a turn of Kitchener costs beside the same turn of other runtimes, measured alternately on one machine.

    make peers
    python benchmarks/peers.py --peer-python .venv-peers/bin/python --rounds 5 --sessions 1000 --turns 5

A turn is two model calls that answer at once. Kitchener records each turn and makes it durable before the reply; LangGraph
saves its checkpoints in SQLite with its saver's own settings; AutoGen core keeps all in memory and writes nothing. Each round
runs all of them, one after the other, each in a process of its own; a ratio compares figures of one round, since a machine's
speed changes between rounds. CPU time is user plus system of the process.

The other runtimes are installed apart, out of `requirements/peers.txt`, because Kitchener needs none of them.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PEERS = {
    "LangGraph, SQLite saver": ("langgraph_sqlite.py", "durable"),
    "AutoGen core": ("autogen_memory.py", "in memory"),
}


def cost(interpreter: str, script: Path, options: argparse.Namespace) -> float:
    """CPU microseconds a turn, of one run in a process of its own."""
    command = [interpreter, str(script), "--sessions", str(options.sessions), "--turns", str(options.turns)]
    if script.name == "sessions.py":
        command += ["--json", *(["--memory", "--context", "enforce"] if options.whole else [])]
    run = subprocess.run(command, capture_output=True, text=True, timeout=options.timeout, check=False)
    if run.returncode != 0:
        raise SystemExit(f"{script.name} failed under {interpreter}:\n{run.stderr.strip()[-2000:]}")
    return float(json.loads(run.stdout.splitlines()[-1])["cpu_us_per_turn"])


def measure(options: argparse.Namespace) -> dict[str, list[float]]:
    """The cost of each, round by round."""
    costs: dict[str, list[float]] = {"Kitchener": [], **{name: [] for name in PEERS}}
    for number in range(options.rounds):
        print(f"round {number + 1} of {options.rounds} ...", file=sys.stderr)
        costs["Kitchener"].append(cost(sys.executable, HERE / "sessions.py", options))
        for name, (script, _) in PEERS.items():
            costs[name].append(cost(options.peer_python, HERE / "peer_turns" / script, options))
    return costs


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help="an interpreter that has the other runtimes")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, each of which runs all of them (default 5)")
    parser.add_argument("--sessions", type=int, default=1000, help="concurrent sessions (default 1000)")
    parser.add_argument("--turns", type=int, default=5, help="turns of each session (default 5)")
    parser.add_argument("--whole", action="store_true", help="Kitchener with memory on and context in enforce")
    parser.add_argument("--timeout", type=float, default=900, help="seconds that one run may take (default 900)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    return parser.parse_args(arguments)


def main() -> None:
    """Measures and prints."""
    options = parse()
    costs = measure(options)
    ours = costs["Kitchener"]
    rows = []
    for name, each in costs.items():
        ratios = [theirs / mine for theirs, mine in zip(each, ours, strict=True)]
        kept = PEERS[name][1] if name in PEERS else "durable"
        rows.append((name, kept, statistics.median(each), statistics.median(ratios), min(ratios), max(ratios)))
    if options.json:
        keys = ("runtime", "kept", "cpu_us_per_turn", "times_kitchener", "lowest", "highest")
        setting = {"sessions": options.sessions, "turns": options.turns, "rounds": options.rounds, "whole": options.whole}
        print(json.dumps({**setting, "rows": [dict(zip(keys, row, strict=True)) for row in rows]}))
        return
    print(f"{'':<26}{'kept':<12}{'CPU µs a turn':>14}{'times Kitchener':>18}{'lowest':>9}{'highest':>9}")
    for name, kept, middle, ratio, low, high in rows:
        print(f"{name:<26}{kept:<12}{middle:>14.0f}{ratio:>18.2f}{low:>9.2f}{high:>9.2f}")


if __name__ == "__main__":
    main()
