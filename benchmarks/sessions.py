"""N concurrent sessions × T turns with an instant scripted model and full durability: what a turn costs, and what it weighs.

    python benchmarks/sessions.py --sessions 1000 --turns 5
    python benchmarks/sessions.py --long 2000
    python benchmarks/sessions.py --sessions 100 --turns 20 --json
    python benchmarks/sessions.py --memory --lines 2
    python -m benchmarks.sessions --sessions 100 --wire streamed
    python benchmarks/sessions.py --long 2000 --context enforce --data messages.jsonl
    python benchmarks/sessions.py --long 200 --context enforce --recall subject --earlier 100

With `--memory` each turn reads its subject's long-term memory and logs its signals; every session is a subject of its own, of
which `--lines` lines were learned before. Nothing is learned during the run: that is measured by `consolidation.py`.

With `--wire` the model is an endpoint on loopback that answers at once (`benchmarks/shared/instant_server.py`, a process of its
own), called over HTTP as a real one would be. With `streamed`, each turn is a stream; with `--apart-ms` its tokens come one by
one. `--url` names an endpoint that runs already.

With `--answer-ms` the model takes that long on average, and each answer another time, as real models do. Sessions then do not
take the same steps together, so a turn finds less of what it needs in the processor's caches.

With `--as-init` the settings are those that `kitchener init` writes: rules classify, long-term memory is on, context `enforce`.

The messages of `--long` are the four below, over and over, so each shares its words with a quarter of all turns: the worst
that a ranking can meet. With `--data` they are those of a file that `kitchener run` takes, one after the other. With
`--earlier` the subject has held so many sessions of 20 turns before, of which `--recall subject` may bring turns back.
Besides the last twenty turns against the first, which have nothing to choose from yet, a long run gives the mean cost of each
tenth of it, and of the last tenth against the second: whether a turn costs more the longer the session is.

CPU time is user plus system of this process, divided by turns: machines are shared, so wall-clock figures are given only beside
it. `yardstick_us` says how fast the machine was around the run: figures of two runs are compared by their ratios to it.
The last line of stdout is one JSON object with `--json`.
"""

import argparse
import json
import math
import os
import random
import resource
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

import anyio
import psutil

from benchmarks.shared.init_settings import settings_as_init
from kitchener import HO2Config, HO2Supervisor, HO3Memory, RuntimeConfig, TurnCompleted, TurnResult, open_runtime
from kitchener.config import LedgerConfig, ProviderConfig, RouterConfig
from kitchener.gateway import PromptRequest, PromptResponse, Usage
from kitchener.runtime import tune_gc
from kitchener.testing import ScriptedProvider

MESSAGES = (
    "Can you find me a one star hotel in that area?",
    "Yes, please make a reservation for two people at half past six.",
    "What is the weather like there on the 12th of this month?",
    "That sounds good. Is there a bus to Long Beach as well?",
)
LEARNED = {
    "artifact_type": "topic_affinity",
    "labels": {"domain": ["travel"], "task": []},
    "weight": 0.7,
    "scope": "agent",
    "context_line": "Often asks for hotels near the sea, and prefers the bus to a taxi.",
    "expires_at_event_ts": None,
    "gate_snapshot": {"count": 5, "sessions": 3},
    "model": "scripted-1",
    "prompt_pack_version": "bench",
    "salience_weight": 0.7,
    "decay_modifier": 0.5,
    "content": {"bias": "The user often asks for hotels near the sea.", "category": "topic_affinity"},
    "consolidation_event_ts": "2026-02-18T10:30:00+00:00",
    "window_start": "2026-02-17T10:30:00+00:00",
    "window_end": "2026-02-18T10:30:00+00:00",
}


class FsyncCounter:
    """Counts the calls of `os.fsync` and `os.fdatasync`, which still take place."""

    def __init__(self) -> None:
        self.count = 0
        for name in ("fsync", "fdatasync"):
            setattr(os, name, self._counting(getattr(os, name)))

    def _counting(self, call: Any) -> Any:
        def counted(fd: int) -> None:
            self.count += 1
            call(fd)

        return counted


def cpu_s() -> float:
    """CPU seconds of this process, user and system, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def yardstick_us() -> float:
    """CPU microseconds of an empty `fail_after` block with a checkpoint on asyncio, right now; 14 on a quiet machine."""

    async def measure(blocks: int = 4_000) -> float:
        before = cpu_s()
        for _ in range(blocks):
            with anyio.fail_after(5):
                await anyio.lowlevel.checkpoint()
        return (cpu_s() - before) / blocks * 1e6

    return anyio.run(measure)


def rss_kib() -> float:
    """Resident memory of this process, KiB."""
    return float(psutil.Process().memory_info().rss) / 1024


def bytes_under(root: Path) -> int:
    """Bytes of all ledger files under the root."""
    return sum(path.stat().st_size for kind in ("*.jsonl", "*.segment") for path in root.rglob(kind))


def config(root: str, options: argparse.Namespace) -> RuntimeConfig:
    """The runtime under test: defaults, but for the durability and the scripted model."""
    if options.as_init:
        return config_as_init(Path(root), options)
    return RuntimeConfig(
        plane_root=root,
        ledger=LedgerConfig(durability=options.durability, seal=not options.plain),
        router=_router(options),
        agents={
            "ADMIN": HO2Config(
                context_mode=options.context,
                ho3_enabled=options.memory,
                consolidation="manual",
                recall_scope=options.recall,
                classify=options.classify,
            )
        },
    )


def config_as_init(folder: Path, options: argparse.Namespace) -> RuntimeConfig:
    """The settings that `kitchener init` writes, with the benchmark's model."""
    chosen = ("--provider", options.url, "--model", "m") if options.wire else ()
    at_once = {"providers": {"local": {"max_concurrency": max(64, options.sessions)}}}
    router = at_once if options.wire else {"default_provider": "scripted"}
    ledger = {"durability": options.durability, "seal": not options.plain}
    return settings_as_init(folder, {"router": router, "ledger": ledger}, *chosen)


def _router(options: argparse.Namespace) -> RouterConfig:
    if not options.wire:
        return RouterConfig(default_provider="scripted")
    wire = ProviderConfig(base_url=options.url, model="m", max_concurrency=max(64, options.sessions))
    return RouterConfig(default_provider="wire", providers={"wire": wire})


async def take_turn(supervisor: HO2Supervisor, message: str, session_id: str, *, streams: bool) -> TurnResult:
    """One turn, as a stream if asked to."""
    if not streams:
        return await supervisor.handle_turn(message, session_id=session_id)
    *_, last = [each async for each in supervisor.stream_turn(message, session_id=session_id)]
    assert isinstance(last, TurnCompleted)
    return last.result


async def converse(
    supervisor: HO2Supervisor, number: int, turns: int, latencies: list[float], *, streams: bool = False
) -> None:
    """One session of so many turns, one after the other."""
    session_id = await supervisor.start_session(subject_id=f"subject-{number}")
    for turn in range(turns):
        started = time.perf_counter()
        message = MESSAGES[(number + turn) % len(MESSAGES)]
        result = await take_turn(supervisor, message, session_id, streams=streams)
        latencies.append(time.perf_counter() - started)
        if result.error is not None:
            raise SystemExit(f"turn {result.turn_id} failed: {result.error}")


async def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs the benchmark, beside an endpoint if it needs one."""
    run = long if options.long else many
    if not options.wire or options.url:
        return await run(options)
    from benchmarks.shared.instant_server import serving  # needs `python -m`

    async with serving(apart_s=options.apart_ms / 1e3) as options.url:
        return await run(options)


async def many(options: argparse.Namespace) -> dict[str, Any]:
    """All sessions at once."""
    fsyncs, talk = FsyncCounter(), partial(converse, streams=options.wire == "streamed")
    with tempfile.TemporaryDirectory(dir=options.dir) as root:
        async with open_runtime(config(root, options), providers=provider(options)) as runtime:
            supervisor = runtime.supervisor("ADMIN")
            await warm_up(supervisor)
            if options.memory:
                await teach(runtime.memory("ADMIN"), options)
            tune_gc()
            before = (cpu_s(), time.perf_counter(), fsyncs.count, bytes_under(Path(root)), rss_kib())
            latencies: list[float] = []
            async with anyio.create_task_group() as tasks:
                for number in range(options.sessions):
                    tasks.start_soon(talk, supervisor, number, options.turns, latencies)
            resident = rss_kib()
            seconds = time.perf_counter() - before[1]
            cpu = cpu_s() - before[0]
            synced = fsyncs.count - before[2]
            grown = bytes_under(Path(root)) - before[3]
    count = options.sessions * options.turns
    latencies.sort()
    p50, p99 = latencies[len(latencies) // 2], latencies[min(len(latencies) - 1, math.ceil(len(latencies) * 0.99) - 1)]
    return {
        "sessions": options.sessions,
        "turns": options.turns,
        "turns_per_s": round(count / seconds, 1),
        "cpu_us_per_turn": round(cpu / count * 1e6, 1),
        "p50_ms": round(p50 * 1e3, 2),
        "p99_ms": round(p99 * 1e3, 2),
        "p99_over_p50": round(p99 / p50, 2),
        "rss_mib": round(resident / 1024, 1),
        "rss_kib_per_session": round((resident - before[4]) / options.sessions, 1),
        "fsyncs_per_turn": round(synced / count, 4),
        "bytes_per_turn": round(grown / count, 1),
        **_common(options),
    }


async def long(options: argparse.Namespace) -> dict[str, Any]:
    """One session of many turns: what the last ones cost against the first ones."""
    with tempfile.TemporaryDirectory(dir=options.dir) as root:
        async with open_runtime(config(root, options), providers=provider(options)) as runtime:
            supervisor = runtime.supervisor("ADMIN")
            await warm_up(supervisor)
            said = messages(options.data)
            for _ in range(options.earlier):
                await hold(supervisor, said, 20)
            tune_gc()
            session_id = await supervisor.start_session(subject_id="long")
            costs: list[tuple[float, float]] = []
            for message in islice(said, options.long):
                size, before = bytes_under(Path(root)), cpu_s()  # looking at the files is no part of the turn
                await supervisor.handle_turn(message, session_id=session_id)
                costs.append((cpu_s() - before, bytes_under(Path(root)) - size))
    edge = max(1, min(20, options.long // 2))
    first, last = costs[:edge], costs[-edge:]
    bounds = [options.long * n // 10 for n in range(11)]
    tenths = [sum(c for c, _ in costs[a:b]) / max(1, b - a) * 1e6 for a, b in pairwise(bounds)]
    return {
        "long": options.long,
        "cpu_us_first": round(sum(c for c, _ in first) / edge * 1e6, 1),
        "cpu_us_last": round(sum(c for c, _ in last) / edge * 1e6, 1),
        "cpu_growth": round(sum(c for c, _ in last) / sum(c for c, _ in first), 3),
        "cpu_us_tenths": [round(mean, 1) for mean in tenths],
        "cpu_growth_tenths": round(tenths[-1] / tenths[1], 3) if tenths[1] else None,
        "bytes_first": round(sum(b for _, b in first) / edge, 1),
        "bytes_last": round(sum(b for _, b in last) / edge, 1),
        "bytes_growth": round(sum(b for _, b in last) / sum(b for _, b in first), 3),
        **_common(options),
    }


def messages(data: Path | None) -> Iterator[str]:
    """What the user says, without end: the same four messages, or those of a file as `kitchener run` reads it."""
    if data is None:
        return cycle(MESSAGES)
    with data.open(encoding="utf-8") as lines:
        return cycle([json.loads(line)["message"] for line in lines])


async def hold(supervisor: HO2Supervisor, said: Iterator[str], turns: int) -> None:
    """An earlier session of the subject, closed when it is over."""
    session_id = await supervisor.start_session(subject_id="long")
    for message in islice(said, turns):
        await supervisor.handle_turn(message, session_id=session_id)
    await supervisor.end_session(session_id)


async def teach(memory: HO3Memory, options: argparse.Namespace) -> None:
    """What was learned about each subject before the run."""
    for number in range(options.sessions):
        namespace = f"ADMIN/subject-{number}"
        for line in range(options.lines):
            signal_id = f"domain:topic-{line}"
            event_id = await memory.log_signal(signal_id, "SES-00000000", metadata={"turn_id": "T-1"}, namespace=namespace)
            learned = {**LEARNED, "signal_id": signal_id, "source_signal_ids": [signal_id], "source_event_ids": [event_id]}
            await memory.log_overlay(learned, namespace=namespace)
    await memory.commit()


async def warm_up(supervisor: HO2Supervisor) -> None:
    """A few turns that are not counted: imports, first files, first threads."""
    for _ in range(20):
        await supervisor.handle_turn(MESSAGES[0])


class PacedProvider(ScriptedProvider):
    """A scripted model whose answers take 0.2 to 1.8 times `mean_s` seconds."""

    mean_s = 0.0
    _chance = random.Random(1)

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """Answers a call."""
        if self.mean_s:
            await anyio.sleep(self.mean_s * self._chance.uniform(0.2, 1.8))
        return await super().complete(request)


def provider(options: argparse.Namespace) -> dict[str, Any]:
    """The instant or paced model; with memory it labels each message, so that a turn gives the usual four signals."""
    text = "Certainly. I have noted that down and will look into it right away."
    if options.wire:
        return {}
    if not options.memory:
        return {"scripted": _paced(PacedProvider.replies(text), options)}
    label = {"labels": {"domain": "travel", "task": "planning"}, "intent_relation": "continue", "confidence": 0.9}
    classified = _answer({"speech_act": "question", "ambiguity": "low", **label})
    replied = PromptResponse(provider_id="scripted", model_id="scripted-1", text=text, usage=Usage(20, 20))
    scripted = PacedProvider(lambda asked: classified if asked.wo_type == "classify" else replied, record=False)
    return {"scripted": _paced(scripted, options)}


def _paced(model: PacedProvider, options: argparse.Namespace) -> PacedProvider:
    model.mean_s = options.answer_ms / 1_000
    return model


def _answer(said: dict[str, Any]) -> PromptResponse:
    return PromptResponse(
        provider_id="scripted", model_id="scripted-1", text=json.dumps(said), structured=said, usage=Usage(20, 20)
    )


def _common(options: argparse.Namespace) -> dict[str, Any]:
    return {
        "backend": options.backend,
        "durability": options.durability,
        "context": options.context,
        "memory": options.memory,
        **({"lines": options.lines} if options.memory else {}),
        **({"recall": options.recall, "earlier": options.earlier} if options.recall or options.earlier else {}),
        **({"wire": options.wire} if options.wire else {}),
        **({"data": options.data.name} if options.data else {}),
    }


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=1000, help="concurrent sessions (default 1000)")
    parser.add_argument("--turns", type=int, default=5, help="turns of each session (default 5)")
    parser.add_argument("--long", type=int, metavar="T", help="instead: one session of T turns, last 20 against first 20")
    parser.add_argument("--backend", choices=("asyncio", "uvloop", "trio"), default="asyncio")
    parser.add_argument("--durability", choices=("fsync", "os", "none"), default="fsync")
    modes = ("off", "shadow", "enforce")
    parser.add_argument("--context", choices=modes, default="off", help="context mode (default off)")
    scopes = ("intent", "session", "subject")
    parser.add_argument("--recall", choices=scopes, help="recall_scope (default: with --memory subject, otherwise intent)")
    parser.add_argument("--classify", choices=("model", "rules", "off"), default="model", help="who classifies (default model)")
    parser.add_argument("--wire", choices=("whole", "streamed"), help="call the model over HTTP, on loopback")
    parser.add_argument(
        "--apart-ms", type=float, default=0.0, help="with --wire streamed: time between two tokens (default 0: one write)"
    )
    parser.add_argument(
        "--answer-ms", type=float, default=0.0, help="mean time of an answer in the process (default 0: at once)"
    )
    parser.add_argument("--url", help="with --wire: base_url of an endpoint (default: one is started)")
    parser.add_argument("--as-init", action="store_true", help="the settings that `kitchener init` writes")
    parser.add_argument("--earlier", type=int, default=0, help="with --long: earlier sessions of the subject (default 0)")
    parser.add_argument("--data", type=Path, help="with --long: the users' messages, a JSON object with `message` a line")
    parser.add_argument("--dir", help="where the ledgers are written (default: the system's temporary directory)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--plain", action="store_true", help="store content in plain text: [ledger] seal = false")
    parser.add_argument("--memory", action="store_true", help="turns read and write long-term memory")
    parser.add_argument("--lines", type=int, default=2, help="with --memory: lines known of each subject (default 2)")
    return parser.parse_args(arguments)


def main() -> None:
    """Runs one benchmark and prints it."""
    options = parse()
    backend = "trio" if options.backend == "trio" else "asyncio"
    backend_options = {"use_uvloop": True} if options.backend == "uvloop" else {}
    before = yardstick_us()
    figures = anyio.run(measure, options, backend=backend, backend_options=backend_options)
    figures["yardstick_us"] = round((before + yardstick_us()) / 2, 1)
    if options.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:>22}  {value}")


if __name__ == "__main__":
    main()
