"""Whether learning after the reply delays other replies: consolidation off, on, with a slow model, with one that always fails.

    python benchmarks/consolidation.py
    python benchmarks/consolidation.py --rounds 7 --turns 900 --json

Sessions of three turns follow one another; each is a new subject whose gates open at its second turn, so that consolidations
start all the time. The model of a turn takes `--model-ms` for each call; the one that consolidates has a route of its own.
`lane idle` and `lane saturated` compare turns whose own gates stay shut, without and with other subjects' consolidations that
fill the background lane. The variants take turns within each round, and what is shown is the median of the rounds.
"""

import argparse
import gc
import json
import math
import resource
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Literal

import anyio

from kitchener import HO2Config, HO2Supervisor, Runtime, RuntimeConfig, open_runtime
from kitchener.config import HO3MemoryConfig, LedgerConfig, LimitsConfig, Route, RouterConfig
from kitchener.errors import ProviderError
from kitchener.gateway import PromptRequest, PromptResponse, Usage
from kitchener.testing import ScriptedProvider

MESSAGES = (
    "Can you find me a one star hotel in that area?",
    "Yes, please make a reservation for two people at half past six.",
    "Is there a bus to Long Beach as well?",
)
EXCLUDED = ("intent:question", "task:planning", "outcome:success")
"""One gate a subject is left, so that there is a consolidation for every third turn: many times what conversations give."""
OTHERS = 40
"""Subjects whose consolidations fill the lane before `lane saturated` is measured."""
LESSON = {
    "bias": "The user often asks about travel.",
    "category": "topic_affinity",
    "salience_weight": 0.6,
    "decay_modifier": 0.5,
    "labels": {"domain": ["travel"], "task": []},
    "context_line": "Often asks about travel.",
}


@dataclass(frozen=True)
class Variant:
    """One row."""

    name: str
    teacher: Literal["instant", "slow", "failing"] = "instant"
    consolidation: Literal["auto", "manual"] = "auto"
    gate_count: int = 2
    saturated: bool = False

    def check(self, facts: dict[str, int]) -> None:
        """What the row is named after must have happened."""
        started, learned, failed = facts["started"], facts["learned"], facts["failed"]
        expected = {
            "off": facts["crossed"] > 0 == started,
            "on": facts["crossed"] > 0 < learned == started and not failed,
            "on, 30 s": facts["crossed"] > 0 < facts["pending"] and started > 0 == learned,
            "on, failing": facts["crossed"] > 0 < failed and not learned,
            "lane idle": facts["crossed"] == started == facts["pending"] == 0,
            "lane saturated": facts["crossed"] == 0 < facts["waiting"] and facts["running"] == 2 and not learned,
        }
        if not expected[self.name]:
            raise SystemExit(f"{self.name}: not what this row is about: {facts}")


VARIANTS = (
    Variant("off", consolidation="manual"),
    Variant("on"),
    Variant("on, 30 s", teacher="slow"),
    Variant("on, failing", teacher="failing"),
    Variant("lane idle", teacher="slow", gate_count=5),
    Variant("lane saturated", teacher="slow", gate_count=5, saturated=True),
)


def providers(variant: Variant, model_ms: float) -> dict[str, Any]:
    """The model of the turns, and the one that consolidates."""
    labels = {"domain": "travel", "task": "planning"}
    classified = answer(
        {"speech_act": "question", "ambiguity": "low", "labels": labels, "intent_relation": "continue", "confidence": 0.9}
    )
    replied, lesson = text_answer("Certainly. I have noted that down."), answer(LESSON)
    failure = ProviderError("teacher", "bad_request", "scripted to fail")

    def talk(request: PromptRequest) -> PromptResponse:
        return classified if request.wo_type == "classify" else replied

    def teach(request: PromptRequest) -> PromptResponse | ProviderError:
        return failure if variant.teacher == "failing" else lesson

    return {
        "talker": ScriptedProvider(talk, provider_id="talker", record=False, latency_s=model_ms / 1e3),
        "teacher": ScriptedProvider(
            teach, provider_id="teacher", record=False, latency_s=30.0 if variant.teacher == "slow" else 0.0
        ),
    }


def answer(said: dict[str, Any]) -> PromptResponse:
    """A model's answer, made once."""
    return PromptResponse(provider_id="scripted", model_id="m", text=json.dumps(said), structured=said, usage=Usage(20, 20))


def text_answer(text: str) -> PromptResponse:
    """A model's reply, made once."""
    return PromptResponse(provider_id="scripted", model_id="m", text=text, usage=Usage(20, 20))


def config(root: str, variant: Variant, options: argparse.Namespace) -> RuntimeConfig:
    """Memory on in every row; what differs is who consolidates, and when gates open."""
    return RuntimeConfig(
        plane_root=root,
        ledger=LedgerConfig(durability=options.durability),
        router=RouterConfig(default_provider="talker", domain_tag_routes={"consolidation": Route(provider_id="teacher")}),
        memory=HO3MemoryConfig(gate_count_threshold=variant.gate_count, gate_session_threshold=1, gate_exclude=EXCLUDED),
        limits=LimitsConfig(shutdown_grace_s=0.1),
        agents={"ADMIN": HO2Config(ho3_enabled=True, consolidation=variant.consolidation)},
    )


async def measure(variant: Variant, options: argparse.Namespace) -> dict[str, float]:
    """One round of one variant, in a runtime of its own."""
    with tempfile.TemporaryDirectory(dir=options.dir) as root:
        async with open_runtime(config(root, variant, options), providers=providers(variant, options.model_ms)) as runtime:
            supervisor = runtime.supervisor()
            await warm_up(supervisor, variant)
            gc.collect()
            latencies: list[float] = []
            waiting = iter(range(options.turns // len(MESSAGES)))
            crossed: list[int] = []
            cpu = cpu_s()

            async def worker() -> None:
                own = [await converse(supervisor, f"subject-{number}", len(MESSAGES), latencies) for number in waiting]
                crossed.extend(own)

            async with anyio.create_task_group() as tasks:
                for _ in range(options.sessions):
                    tasks.start_soon(worker)
            cpu = cpu_s() - cpu
            facts = {"crossed": sum(crossed), **await outcome(runtime, variant)}
    variant.check(facts)
    latencies.sort()
    return {
        "n": len(latencies),
        "p50_ms": latencies[len(latencies) // 2] * 1e3,
        "p99_ms": latencies[math.ceil(len(latencies) * 0.99) - 1] * 1e3,
        "cpu_us": cpu / len(latencies) * 1e6,
        **facts,
    }


async def warm_up(supervisor: HO2Supervisor, variant: Variant) -> None:
    """Turns that are not counted: first files and threads, and what fills the lane."""
    for _ in range(20):
        await supervisor.handle_turn(MESSAGES[0], memory=False)
    if variant.saturated:
        async with anyio.create_task_group() as tasks:
            for number in range(OTHERS):
                tasks.start_soon(converse, supervisor, f"other-{number}", variant.gate_count, [])


async def converse(supervisor: HO2Supervisor, subject_id: str, turns: int, latencies: list[float]) -> int:
    """One session; returns how many of its turns found a gate open."""
    session_id, crossed = await supervisor.start_session(subject_id=subject_id), 0
    for turn in range(turns):
        began = time.perf_counter()
        result = await supervisor.handle_turn(MESSAGES[turn % len(MESSAGES)], session_id=session_id)
        latencies.append(time.perf_counter() - began)
        if result.error is not None:
            raise SystemExit(f"turn {result.turn_id} failed: {result.error}")
        crossed += bool(result.consolidation_candidates)
    return crossed


async def outcome(runtime: Runtime, variant: Variant) -> dict[str, int]:
    """What became of the consolidations; those of a model that answers are waited for, outside the measurement."""
    statistics = runtime.statistics()
    lane = statistics["mailboxes"]["ADMIN"]["background"]
    if variant.teacher != "slow":
        await runtime.drain()
    ended: dict[str, int] = {}
    async for entry in runtime.ledgers().ho2m.read(entry_type=("WO_PLANNED", "WO_COMPLETED", "WO_FAILED")):
        if str(entry.session_id).startswith("CONS-"):
            ended[entry.entry_type] = ended.get(entry.entry_type, 0) + 1
    return {
        "started": ended.get("WO_PLANNED", 0),
        "learned": ended.get("WO_COMPLETED", 0),
        "failed": ended.get("WO_FAILED", 0),
        "pending": statistics["pending_consolidations"],
        "running": lane.running,
        "waiting": lane.waiting,
    }


def cpu_s() -> float:
    """CPU seconds of this process, user and system, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """All variants, round by round."""
    rounds: dict[str, list[dict[str, float]]] = {variant.name: [] for variant in VARIANTS}
    await measure(VARIANTS[0], argparse.Namespace(**{**vars(options), "turns": 30}))  # imports and first threads do not count
    for number in range(options.rounds):
        first = number % len(VARIANTS)
        for variant in VARIANTS[first:] + VARIANTS[:first]:
            rounds[variant.name].append(await measure(variant, options))
            print(f"round {number + 1} of {options.rounds}: {variant.name}", file=sys.stderr)
    rows = [{"name": name, **medians(found)} for name, found in rounds.items()]
    added = {
        f"added_{figure}_percent_{name.replace(', ', '_').replace(' ', '_')}": compared(
            rounds[name], rounds[base], f"{figure}_ms"
        )
        for name, base in (("on", "off"), ("on, 30 s", "off"), ("on, failing", "off"), ("lane saturated", "lane idle"))
        for figure in ("p50", "p99")
    }
    return {"backend": options.backend, "durability": options.durability, "rounds": options.rounds, "rows": rows, **added}


def medians(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure."""
    return {name: round(statistics.median(each[name] for each in rounds), 2) for name in rounds[0]}


def compared(rounds: list[dict[str, float]], base: list[dict[str, float]], figure: str) -> float:
    """By how many percent a figure's median is above that of another variant."""
    medians = [statistics.median(each[figure] for each in found) for found in (rounds, base)]
    return round((medians[0] / medians[1] - 1) * 100, 1)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="rounds over all variants (default 5)")
    parser.add_argument("--turns", type=int, default=600, help="turns a round and variant (default 600)")
    parser.add_argument("--sessions", type=int, default=8, help="sessions at the same time (default 8)")
    parser.add_argument("--model-ms", type=float, default=20.0, help="what each call of a turn's model takes (default 20)")
    parser.add_argument("--durability", choices=("fsync", "os", "none"), default="fsync")
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--dir", help="where the ledgers are written (default: the system's temporary directory)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args()
    figures = anyio.run(run, options, backend=options.backend)
    if options.json:
        print(json.dumps(figures))
        return
    columns = ("n", "p50_ms", "p99_ms", "cpu_us", "crossed", "started", "learned", "failed", "pending")
    print(f"{'':16}" + "".join(f"{name:>10}" for name in columns))
    for row in figures.pop("rows"):
        print(f"{row['name']:16}" + "".join(f"{row[name]:>10,.10g}" for name in columns))
    for name, value in figures.items():
        print(f"{name:>40}  {value}")


if __name__ == "__main__":
    main()
