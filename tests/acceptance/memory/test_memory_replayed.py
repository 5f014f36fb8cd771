"""A turn records all that it read from memory, and the record alone reproduces it (docs/memory.md)."""

from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from kitchener.config import HO3MemoryConfig
from kitchener.memory import HO3Memory, MemoryReader, select_biases
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.runtime import Runtime
from kitchener.testing import FakeClock
from tests.acceptance.conftest import OpenRuntime
from tests.acceptance.memory.memory_kit import ADA, EASY, LESSON, QUESTIONS, asked, knows, say, signals, student
from tests.acceptance.stack import QUESTION, QUICK, read_all
from tests.shared.payloads import payload_of

LABELS = ("one", "two", "three")

LEGIBLE = QUICK.model_copy(update={"seal": False})
"""The candidates on record name labels as they were said, so the verdict on each can be asked for by its name."""


def classified(message: str) -> dict[str, Any]:
    """A message's last word is its domain."""
    return {**QUESTION, "labels": {"domain": message.split()[-1]}}


async def recorded(runtime: Runtime) -> list[tuple[dict[str, Any], list[str], dict[str, Any]]]:
    """Of each turn: how it began, which lines it was shown, how it ended."""
    ledger = runtime.ledgers().ho2m
    entries = await read_all(ledger)
    begun = {each.payload["turn_id"]: each.payload for each in entries if each.entry_type == events.TURN_STARTED}
    ended = {each.payload["turn_id"]: each.payload for each in entries if each.entry_type == events.TURN_COMPLETED}
    shown = {
        payload_of(each)["turn_id"]: payload_of(each)["attention"].get("biases", [])
        for each in entries
        if each.entry_type == events.WO_PLANNED and each.payload["wo_type"] == "synthesize"
    }
    return [(begun[turn_id], shown[turn_id], ended[turn_id]) for turn_id in begun]


async def check(memory: HO3Memory | MemoryReader, turns: list[tuple[dict[str, Any], list[str], dict[str, Any]]]) -> None:
    """The memory says of each turn what its record says."""
    for begun, shown, ended in turns:
        active = await memory.read_active_biases(begun["turn_ts"], up_to=begun["read_positions"], namespace=ADA)
        label = {"domain": begun["user_message"].split()[-1]}
        chosen = select_biases([each.as_mapping() for each in active], label, 2_000, begun["turn_ts"])
        assert [each["artifact_id"] for each in chosen] == shown
        candidates = []
        for signal_id in (QUESTIONS, f"domain:{label['domain']}", "outcome:success"):
            gate = await memory.check_gate(signal_id, ended["gate_ts"], up_to=ended["read_positions"], namespace=ADA)
            candidates += [signal_id] if gate.crossed else []
        assert candidates == ended["consolidation_candidates"]


async def test_concurrent_turns_of_one_subject_are_told_apart_by_their_positions(tmp_path: Path, scripted: OpenRuntime) -> None:
    """The clock stands still, so all timestamps tie; ten sessions at once, consolidations between; each turn replays."""
    clock = FakeClock()
    provider = student(
        lambda request: {
            **LESSON,
            "context_line": f"Asks about {request.variables['signal_id'].partition(':')[2]}.",
            "labels": {"domain": [request.variables["signal_id"].partition(":")[2]], "task": []},
        },
        classified,
    )
    config = HO3MemoryConfig(gate_count_threshold=4, gate_session_threshold=3)
    thresholds = {**EASY, "ho3_gate_count_threshold": 4, "ho3_gate_session_threshold": 3}
    async with scripted(provider, clock=clock, ledger=LEGIBLE, **thresholds) as runtime:

        async def talk(n: int, turn: int) -> None:
            await say(runtime, f"message {turn} of {n} about {LABELS[(n + turn) % 3]}")

        with anyio.fail_after(40):
            for turn in range(4):
                async with anyio.create_task_group() as tasks:
                    for n in range(10):
                        tasks.start_soon(talk, n, turn)
                if turn == 1:
                    await runtime.drain()
            await runtime.drain()
            turns = await recorded(runtime)
            await check(runtime.memory(), turns)
    assert len(turns) == 40
    assert {begun["turn_ts"] for begun, _, _ in turns} == {"2026-01-01T00:00:00.000000+00:00"}
    assert len({len(shown) for _, shown, _ in turns}) == 2
    assert any(ended["consolidation_candidates"] for _, _, ended in turns)
    assert len(signals(tmp_path)) == 120
    async with MemoryReader.open(tmp_path, config, clock=clock) as reader:
        await check(reader, turns)


async def test_what_is_learned_while_a_turn_runs_is_for_the_next_one(tmp_path: Path, scripted: OpenRuntime) -> None:
    """A turn has begun and not yet recalled: a line learned at that very moment is not shown to it, and the record says so."""
    begun, learned = anyio.Event(), anyio.Event()

    async def gate(request: PromptRequest) -> None:
        if request.wo_type == "classify" and request.variables["user_message"].startswith("held"):
            begun.set()
            await learned.wait()

    lesson = {**LESSON, "labels": {"domain": [], "task": []}}
    provider, clock = student(lesson, classified, gate=gate), FakeClock()
    settings = {**EASY, "ho3_gate_count_threshold": 2, "ho3_gate_session_threshold": 2}
    async with scripted(provider, clock=clock, ledger=LEGIBLE, **settings) as runtime:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(say, runtime, "held about one")
                await begun.wait()
                for _ in range(2):
                    await say(runtime, "quick about two")
                await runtime.supervisor().run_consolidation([QUESTIONS], namespace=ADA)
                while len(await runtime.memory().read_active_biases(namespace=ADA)) < 2:
                    await anyio.lowlevel.checkpoint()
                learned.set()
            await say(runtime, "next about one")
            await runtime.drain()
            turns = await recorded(runtime)
            await check(runtime.memory(), turns)
    held, *_, after = turns
    assert held[0]["user_message"] == "held about one"
    assert (held[1], len(after[1])) == ([], 2)
    assert knows()(next(each for each in asked(provider, "synthesize") if "held" in each.variables["user_message"]))
