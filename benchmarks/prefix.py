"""Measures which share of a session's prompts a provider's prefix cache can serve.

Plays turns of one session through a real runtime with a scripted model. Each prompt is compared with the newest earlier prompt
of the same type of work order: what they begin with alike, a cache can serve. The size of a prompt is its characters as sent:
the offered tools, then each message with its role. No network; the same data gives the same figures.

    python -m benchmarks.prefix
    python -m benchmarks.prefix --data transitions.jsonl --turns 60 --mode enforce --json
    python -m benchmarks.prefix --data messages.jsonl --intents classified --budget 1000
    python -m benchmarks.prefix --data messages.jsonl --as-init --long 5

`--data` is a file of JSON objects, one a line: with `message`, as `kitchener run` reads it, or with the `turns` of a dialogue
(`speaker`, `text`), whose replies are then the model's. Without it, or without replies, the built-in ones take turns. Messages
are classified by the offline model. Breaks are what the ledgers tell: turns whose prompt does not begin with all that the one
before had up to its moving part, by their first cause. With `--as-init` the settings are those that `kitchener init` writes:
rules classify, long-term memory is on, and messages change the intent. With `--long` each reply is repeated so many times,
because assistants reply at length. With `--json` the last line of stdout is one JSON object.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import anyio

from benchmarks.shared.init_settings import settings_as_init
from kitchener import HO2Config, RuntimeConfig, open_runtime, tool
from kitchener.config import LedgerConfig, RouterConfig
from kitchener.gateway.providers.offline import OfflineProvider
from kitchener.records.prompt import PromptRequest, PromptResponse
from kitchener.runtime.root_layout import open_readers
from kitchener.testing import FakeClock, ScriptedProvider
from kitchener.tuning import CAUSES, read_prefixes, session_breaks

MESSAGES = (
    "Can you find me a one star hotel in that area? It should not be far from the station.",
    "Yes, please make a reservation for two people at half past six.",
    "What is the weather like there on the 12th of this month?",
    "That sounds good. Is there a bus to Long Beach as well?",
    "My sister Maren joins us on Friday. She does not eat fish, so please look for somewhere else.",
    "How much would that be for all of us?",
)
REPLIES = (
    "I found three hotels near the station. The Harbour Inn has a free room for two with breakfast, it is quiet, and the"
    " reviews praise its staff; the Old Mill is cheaper, but a twenty minute walk away.",
    "Done. Your table is booked for half past six, under your name. They hold it for fifteen minutes.",
    "It will be mostly sunny with a light wind from the west and 21 degrees in the afternoon. The evening is cooler, so a"
    " jacket may help. No rain is expected before the 14th.",
    "Yes. Line 47 leaves every half hour from the square in front of the station and needs 35 minutes. The last one goes back"
    " at ten past eleven. A ticket costs 2.40, or 4.00 for the whole day.",
    "Certainly.",
)
TURN_S = 90
"""Seconds between two turns."""


@tool(read_only=True)
def find_place(kind: str, near: str) -> str:
    """Finds hotels, restaurants and shops near an address, with their opening hours and prices."""
    return f"{kind} near {near}: none"


@tool
def book(place: str, people: int, time: str) -> str:
    """Books a table, a room or a seat, and returns the number of the booking."""
    return f"{place} for {people} at {time}"


@tool(read_only=True)
def weather(place: str, day: str) -> str:
    """Gives the forecast for a place and a day."""
    return f"{place} on {day}: sunny"


TOOLS = (find_place, book, weather)


@dataclass(slots=True)
class Prompts:
    """What was sent for one type of work order."""

    count: int = 0
    compared: int = 0
    """Characters of all prompts but the first."""
    system: int = 0
    """Characters of these that are tools and system message."""
    shared: int = 0
    """Characters of these that the newest earlier prompt begins with."""
    newest: str = ""

    def add(self, request: PromptRequest) -> None:
        """Compares the next prompt with the newest."""
        sent = _as_sent(request)
        if self.count:
            self.compared += len(sent)
            self.system += len(_as_sent(request._replace(messages=request.messages[:1])))
            self.shared += shared_chars(sent, self.newest)
        self.count += 1
        self.newest = sent

    def figures(self) -> dict[str, Any]:
        """Size in characters, shares in percent."""
        whole, compared = max(1, self.compared), max(1, self.count - 1)
        return {
            "prompts": self.count,
            "mean_chars": round(self.compared / compared),
            "system_share": round(100 * self.system / whole, 1),
            "cacheable_share": round(100 * self.shared / whole, 1),
            "mean_uncached_chars": round((self.compared - self.shared) / compared),
        }


def shared_chars(text: str, other: str) -> int:
    """The number of characters with which both texts begin."""
    differ = (at for at, (one, two) in enumerate(zip(text, other, strict=False)) if one != two)
    return next(differ, min(len(text), len(other)))


def _as_sent(request: PromptRequest) -> str:
    """A request's text in the order in which vendors build a prompt from it."""
    tools = [json.dumps([each.tool_id, each.description, each.parameters]) for each in request.tools]
    return "\n".join([*tools, *(json.dumps(each.as_mapping(), ensure_ascii=False) for each in request.messages)])


class Model:
    """The scripted model: classifies as the offline model does, and replies with what the data says."""

    def __init__(self) -> None:
        self.reply = ""
        self.prompts: dict[str, Prompts] = {}
        self._rules = OfflineProvider()

    async def answer(self, request: PromptRequest) -> PromptResponse | dict[str, object] | str:
        """The answer to the next request."""
        self.prompts.setdefault(request.wo_type, Prompts()).add(request)
        if request.wo_type == "classify":
            return await self._rules.complete(request)
        return {"response_text": self.reply} if request.output_schema is not None else self.reply


def exchanges(data: Path | None) -> Iterator[tuple[str, str]]:
    """Messages and replies, without end."""
    replies = cycle(REPLIES)
    if data is None:
        yield from zip(cycle(MESSAGES), replies)
    rows = [json.loads(line) for line in data.read_text(encoding="utf-8").splitlines() if line.strip()] if data else []
    for row in cycle(rows):
        if "message" in row:
            yield row["message"], next(replies)
            continue
        turns = row["turns"]
        for turn, after in zip(turns, [*turns[1:], {}], strict=True):
            if turn["speaker"] == "user":
                yield turn["text"], after.get("text") or next(replies)


def _config(folder: Path, options: argparse.Namespace) -> RuntimeConfig:
    budget = {"context_budget": options.budget} if options.budget is not None else {}
    if options.as_init:
        plain: dict[str, object] = {"seal": False, "durability": "none"}
        changed = {"router": {"default_provider": "scripted"}, "ledger": plain, "agents": {"ADMIN": budget}}
        return settings_as_init(folder, changed)
    agent = HO2Config(
        context_mode=options.mode,
        intent_mode=options.intents,
        prompt_layout=options.layout,
        tools=("*",) if options.tools else None,
        **budget,
    )
    return RuntimeConfig(
        plane_root=str(folder / "root"),
        ledger=LedgerConfig(seal=False, durability="none"),
        router=RouterConfig(default_provider="scripted"),
        agents={"ADMIN": agent},
    )


async def play(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the session, and returns the figures of each type of work order."""
    model, clock = Model(), FakeClock()
    with tempfile.TemporaryDirectory() as folder:
        config = _config(Path(folder), options)
        agent = config.agents["ADMIN"]
        providers = {"scripted": ScriptedProvider(model.answer, record=False)}
        async with open_runtime(config, providers=providers, tools=TOOLS if options.tools else (), clock=clock) as runtime:
            supervisor = runtime.supervisor("ADMIN")
            session_id = await supervisor.start_session(subject_id="ada")
            for message, reply in islice(exchanges(options.data), options.turns):
                model.reply = " ".join([reply] * options.long)
                clock.set(clock.time_us() + TURN_S * 1_000_000)
                result = await supervisor.handle_turn(message, session_id=session_id)
                if result.error is not None:
                    raise SystemExit(f"turn {result.turn_id} failed: {result.error}")
        async with open_readers(config, "ADMIN") as readers:
            breaks = session_breaks(await read_prefixes(readers, session_id))
    firsts = [causes[0] for causes in breaks.values() if causes]
    return {
        "mode": agent.context_mode,
        "intents": agent.intent_mode,
        "turns": options.turns,
        "tools": len(TOOLS) if options.tools else 0,
        "budget": agent.context_budget,
        "data": options.data.name if options.data else None,
        "work_orders": {wo_type: each.figures() for wo_type, each in model.prompts.items()},
        "breaks": {cause: firsts.count(cause) for cause in CAUSES if cause in firsts},
    }


def main() -> None:
    """Prints a table, one row for each type of work order."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="messages or dialogues, one JSON object a line (default: built-in ones)")
    parser.add_argument("--turns", type=int, default=60, help="turns of the session (default 60)")
    parser.add_argument("--budget", type=int, help="context_budget, tokens (default: that of the settings)")
    parser.add_argument("--mode", choices=("off", "enforce"), default="enforce", help="context_mode (default enforce)")
    parser.add_argument("--intents", choices=("bridge", "classified"), default="bridge", help="intent_mode (default bridge)")
    parser.add_argument("--layout", choices=("chat", "block"), default="chat", help="prompt_layout (default chat)")
    parser.add_argument("--tools", action="store_true", help="offer three tools, which the model does not call")
    parser.add_argument("--as-init", action="store_true", help="the settings that `kitchener init` writes, not those above")
    parser.add_argument("--long", type=int, default=1, metavar="N", help="each reply N times (default 1)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args()
    report = anyio.run(play, options)
    print(f"{options.turns} turns, context {report['mode']}, intents {report['intents']}, budget {report['budget']}")
    for wo_type, row in report["work_orders"].items():
        print(
            f"  {wo_type:<11} {row['prompts']:>4} prompts  mean {row['mean_chars']:>6,} characters"
            f"  system message {row['system_share']:5.1f} %  cacheable {row['cacheable_share']:5.1f} %"
            f"  not cacheable {row['mean_uncached_chars']:>6,} characters"
        )
    breaks = ", ".join(f"{count} × {CAUSES[cause]}" for cause, count in report["breaks"].items())
    print(f"  breaks of the reply's prompt, by their first cause: {breaks or 'none'}")
    if options.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
