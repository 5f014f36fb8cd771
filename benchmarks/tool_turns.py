"""CPU of a turn whose model calls tools, beside that of a turn without tools.

    python -m benchmarks.tool_turns [--sessions 20] [--turns 5] [--rounds 9] [--durability fsync] [--json]

Each kind of turn is an agent class of one runtime. Every round runs all kinds, one after the other, so that load on the machine
falls on all of them. A round's ratio is a kind's CPU by that of the plain turn in the same round; the median of the ratios is
the figure to watch. A turn with a tool call also has one model call more, which is part of the figure. The model is a scripted
one that answers at once. The CPU is that of this process; what the MCP server takes, a process of its own, stands apart and is
known on Linux only. The last line of stdout is one JSON object with `--json`.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import anyio

from kitchener import HO2Config, RuntimeConfig, open_runtime, tool
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.config import ApprovalConfig, LedgerConfig, McpServerConfig, RouterConfig
from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptRequest, PromptResponse, ToolUse
from kitchener.runtime import tune_gc
from kitchener.testing import ScriptedProvider


@tool(read_only=True)
async def look(place: str) -> dict[str, str]:
    """Looks somewhere.

    Args:
        place: where to look
    """
    return {"place": place, "found": "three roses and a spade"}


@tool
async def plant(place: str) -> str:
    """Plants a rose somewhere."""
    return f"planted at {place}"


@tool(read_only=True)
def dig(place: str) -> str:
    """Digs somewhere, in a thread."""
    return f"dug at {place}"


class Kind(NamedTuple):
    """A kind of turn."""

    words: str
    """What it is, in the table."""
    tools: tuple[str, ...]
    """The tools that the model is offered."""
    uses: tuple[str, ...] = ()
    """The tools that it calls, in one round."""


KINDS: Final = {
    "plain": Kind("a turn without tools", ()),
    "offered": Kind("tools offered, none called", ("look", "plant", "dig")),
    "read": Kind("one call, read-only, async", ("look",), ("look",)),
    "effect": Kind("one call with an effect, async", ("plant",), ("plant",)),
    "thread": Kind("one call, read-only, in a thread", ("dig",), ("dig",)),
    "four": Kind("four read-only calls side by side", ("look",), ("look",) * 4),
    "mcp": Kind("one call of an MCP server over stdio", ("mcp:garden",), ("garden__look",)),
    "agent": Kind("one call of another agent", ("agent:plain",), ("ask_plain",)),
}
_CLASSIFIED: Final = '{"speech_act":"question","ambiguity":"low","labels":{},"intent_relation":"continue","confidence":0.9}'


def answer(request: PromptRequest) -> PromptResponse:
    """Calls the tools of the kind that the message names, once, and then replies."""
    if request.wo_type == "classify":
        return _response(_CLASSIFIED)
    kind = KINDS.get(str(request.variables["user_message"]).partition(" ")[0])
    if kind is None or not kind.uses or request.messages[-1].role == "tool":
        return _response("There are three roses and a spade in the garden.")
    name = "message" if kind.uses[0].startswith("ask_") else "place"
    return _response("", tuple(ToolUse(f"u{n}", each, {name: f"bed {n}"}) for n, each in enumerate(kind.uses)))


def _response(text: str, uses: tuple[ToolUse, ...] = ()) -> PromptResponse:
    return PromptResponse(provider_id="scripted", model_id="scripted-1", text=text, tool_uses=uses, usage=Usage(20, 10))


def config(root: str, durability: Any) -> RuntimeConfig:
    """A class for each kind."""
    unasked = ApprovalConfig(mcp_default="allow")
    agents = {name: HO2Config(agent_class=name, tools=kind.tools, approval=unasked) for name, kind in KINDS.items()}
    server = McpServerConfig(command=sys.executable, args=("-m", "benchmarks.shared.garden_server"), trust_annotations=True)
    ledger, router = LedgerConfig(durability=durability), RouterConfig(default_provider="scripted")
    return RuntimeConfig(plane_root=root, ledger=ledger, router=router, agents=agents, mcp={"garden": server})


def servers_cpu() -> float:
    """CPU of the processes that this one has started and that still run, seconds; 0 where the system does not tell."""
    found = 0.0
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            found += (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
    return found


async def converse(supervisor: HO2Supervisor, kind: str, number: int, turns: int) -> None:
    """One session of so many turns."""
    session_id = await supervisor.start_session(subject_id=f"subject-{number}")
    for turn in range(turns):
        result = await supervisor.handle_turn(f"{kind} message {turn} about the garden", session_id=session_id)
        if result.error is not None or result.cost_summary["tool_calls"] != len(KINDS[kind].uses):
            raise SystemExit(f"a turn of {kind} went wrong: {result}")


async def measured(supervisor: HO2Supervisor, kind: str, options: argparse.Namespace) -> float:
    """CPU of one turn of a kind, seconds."""
    begun: float = time.process_time()
    async with anyio.create_task_group() as tasks:
        for number in range(options.sessions):
            tasks.start_soon(converse, supervisor, kind, number, options.turns)
    return (time.process_time() - begun) / float(options.sessions * options.turns)


async def compare(options: argparse.Namespace) -> tuple[dict[str, list[float]], float]:
    """CPU of one turn by kind and round, and that of the MCP server for one call, seconds."""
    found: dict[str, list[float]] = {name: [] for name in KINDS}
    tools: tuple[Callable[..., object], ...] = (look, plant, dig)
    with tempfile.TemporaryDirectory() as folder:
        settings = config(str(Path(folder) / "root"), options.durability)
        async with open_runtime(settings, providers={"scripted": ScriptedProvider(answer)}, tools=tools) as runtime:
            tune_gc()
            before = 0.0
            for number in range(options.rounds + 1):
                for kind in KINDS:
                    cpu = await measured(runtime.supervisor(kind), kind, options)
                    if number:  # the first round warms up
                        found[kind].append(cpu)
                before = before if number else servers_cpu()
            calls = options.sessions * options.turns * options.rounds
            return found, (servers_cpu() - before) / calls


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU of turns with tool calls, beside turns without.")
    parser.add_argument("--sessions", type=int, default=20, help="sessions at a time (default 20)")
    parser.add_argument("--turns", type=int, default=5, help="turns of each session and round (default 5)")
    parser.add_argument("--rounds", type=int, default=9, help="rounds (default 9)")
    parser.add_argument("--durability", choices=("fsync", "os", "none"), default="fsync")
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found, server = anyio.run(compare, options, backend=options.backend)
    rows = {
        name: {
            "cpu_us": round(median(cpu) * 1e6),
            "ratio": round(median(one / plain for one, plain in zip(cpu, found["plain"], strict=True)), 2),
        }
        for name, cpu in found.items()
    }
    print(f"{'':34}  CPU a turn  by the plain turn")
    for name, row in rows.items():
        print(f"{KINDS[name].words:34}  {row['cpu_us']:7,} µs  {row['ratio']:15.2f}")
    print(f"{'the MCP server, for one call':34}  {server * 1e6:7,.0f} µs")
    if options.json:
        print(json.dumps({"options": vars(options), "turns": rows, "mcp_server_us": round(server * 1e6)}))


if __name__ == "__main__":
    main()
