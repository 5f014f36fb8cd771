"""Long-term memory needs nothing but the configuration file.

Explained in docs/memory.md.
"""

import json
from pathlib import Path

import anyio
import pytest

from kitchener.errors import CallerError
from kitchener.records import events
from kitchener.runtime import open_runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.memory.memory_kit import (
    ADA,
    LESSON,
    QUESTIONS,
    Pause,
    asked,
    check_all,
    knows,
    ledger_entries,
    lives,
    overlays,
    say,
    signal_ids,
    student,
)

ENABLED = """
plane_root = "plane"
[router]
default_provider = "everyday"
[agents.ADMIN]
ho3_enabled = true
"""

EASY = f"""{ENABLED}
ho3_gate_count_threshold = 2
ho3_gate_session_threshold = 2
"""

LEGIBLE = """
[ledger]
seal = false
"""
"""For a lesson that is read in the file itself."""

ROUTED = f"""{EASY}
[router.domain_tag_routes.consolidation]
provider_id = "local"
model_id = "small-1"
"""


def written(where: Path, text: str) -> Path:
    """A configuration file."""
    path = where / "kitchener.toml"
    path.write_text(text)
    return path


def providers(**given: ScriptedProvider) -> dict[str, ScriptedProvider]:
    """A model for every day, and what else is given."""
    return {"everyday": student(provider_id="everyday"), **given}


async def test_open_runtime_wires_memory_from_config(tmp_path: Path) -> None:
    """`ho3_enabled` in the file is enough: signals appear, a gate opens by the file's thresholds, the memory is readable."""
    path = written(tmp_path, EASY)
    async with open_runtime(path, providers=providers()) as runtime:
        results = [await say(runtime) for _ in range(2)]
        await runtime.drain()
        (overlay,) = await runtime.memory().read_active_biases(namespace=ADA)
        (accumulated,) = await runtime.memory().read_signals(QUESTIONS, namespace=ADA)
        with pytest.raises(CallerError, match="ho3_enabled"):
            runtime.memory("RESIDENT:other")
    assert signal_ids(tmp_path / "plane") == [QUESTIONS, "outcome:success"] * 2
    assert [result.consolidation_candidates for result in results] == [(), (QUESTIONS,)]
    assert (overlay.line, accumulated.count) == (LESSON["context_line"], 2)
    check_all(tmp_path / "plane")


async def test_without_the_setting_there_is_no_memory(tmp_path: Path) -> None:
    """The default is off: no directory, no signals, and asking for the memory says how to get one."""
    path = written(tmp_path, ENABLED.replace("true", "false"))
    async with open_runtime(path, providers=providers()) as runtime:
        await say(runtime)
        with pytest.raises(CallerError, match="ho3_enabled"):
            runtime.memory()
        with pytest.raises(CallerError, match="ho3_enabled"):
            await runtime.supervisor().run_consolidation([QUESTIONS], namespace=ADA)
    assert not (tmp_path / "plane" / "HOT").exists()


async def test_route_map_from_file_reaches_gateway(tmp_path: Path) -> None:
    """`domain_tag_routes` in the file decides which provider and model a consolidation goes to; turns go where they went."""
    given = providers(local=student(provider_id="local"))
    async with open_runtime(written(tmp_path, ROUTED), providers=given) as runtime:
        for _ in range(2):
            await say(runtime)
        await runtime.drain()
    assert [request.wo_type for request in given["local"].requests] == ["consolidate"]
    assert asked(given["everyday"]) == []
    assert len(asked(given["everyday"], "synthesize")) == 2
    (learned,) = overlays(tmp_path / "plane")
    assert learned["model"] == "small-1"
    (call,) = [
        entry["payload"]
        for entry in ledger_entries(tmp_path / "plane", "ho1m")
        if entry["entry_type"] == events.LLM_CALL and entry["entity_id"].startswith("WO-CONS-")
    ]
    assert (call["provider_id"], call["model_id"]) == ("local", "small-1")


async def test_a_router_file_of_its_own_reaches_gateway(tmp_path: Path) -> None:
    """The same routes out of a JSON file that the configuration names."""
    routes = {
        "default_provider": "everyday",
        "domain_tag_routes": {"consolidation": {"provider_id": "local"}},
    }
    (tmp_path / "router.json").write_text(json.dumps(routes))
    text = EASY.replace('default_provider = "everyday"', 'file = "router.json"')
    given = providers(local=student(provider_id="local"))
    async with open_runtime(written(tmp_path, text), providers=given) as runtime:
        for _ in range(2):
            await say(runtime)
        await runtime.drain()
    assert [request.wo_type for request in given["local"].requests] == ["consolidate"]


async def test_auto_consolidation_runs_without_a_caller(tmp_path: Path) -> None:
    """Crossing the gate is enough: nobody calls anything, and the line stands in the next reply's input."""
    given = providers()
    async with open_runtime(written(tmp_path, EASY + LEGIBLE), providers=given) as runtime:
        for n in range(2):
            assert overlays(tmp_path / "plane") == []
            await say(runtime, f"message {n}")
        await runtime.drain()
        await say(runtime, "and now?")
    (learned,) = overlays(tmp_path / "plane")
    assert (learned["signal_id"], learned["context_line"]) == (QUESTIONS, LESSON["context_line"])
    assert list(lives(tmp_path / "plane").values()) == [["WO_PLANNED", "WO_DISPATCHED", "WO_COMPLETED"]]
    shown = asked(given["everyday"], "synthesize")
    assert [knows()(request) for request in shown] == [True, True, False]
    assert knows(LESSON["context_line"])(shown[-1])


async def test_manual_in_the_file_leaves_it_to_the_program(tmp_path: Path) -> None:
    """`consolidation = "manual"`: the gate is named and nothing starts until the program asks."""
    given = providers()
    path = written(tmp_path, f'{EASY}consolidation = "manual"')
    async with open_runtime(path, providers=given) as runtime:
        results = [await say(runtime) for _ in range(2)]
        await anyio.wait_all_tasks_blocked()
        assert (runtime.statistics()["pending_consolidations"], asked(given["everyday"])) == (0, [])
        candidates = results[-1].consolidation_candidates
        (wo,) = await runtime.supervisor().run_consolidation(candidates, namespace=ADA)
    assert (candidates, wo.state) == ((QUESTIONS,), "completed")


async def test_reply_resolves_before_consolidation(tmp_path: Path) -> None:
    """The reply is there, on disk, while the consolidation's model still hangs; and so are the next ones."""
    pause = Pause()
    given = {"everyday": student(gate=pause)}
    async with open_runtime(written(tmp_path, EASY), providers=given) as runtime:
        with anyio.fail_after(20):
            results = [await say(runtime, f"message {n}") for n in range(2)]
            assert results[-1].consolidation_candidates == (QUESTIONS,)
            await pause.arrived.wait()
            ledger = runtime.ledgers().ho2m
            completed = [entry async for entry in ledger.read(entry_type=events.TURN_COMPLETED)]
            assert completed[-1].payload["response"] == "echo: message 1"
            assert completed[-1].seq <= ledger.durable_position
            assert (await say(runtime, "message 2")).response == "echo: message 2"
            assert overlays(tmp_path / "plane") == []
            pause.released.set()
            await runtime.drain()
    assert len(overlays(tmp_path / "plane")) == 1


async def test_thresholds_of_the_memory_hold_where_a_class_sets_none(tmp_path: Path) -> None:
    """`[memory]` is for all classes, `ho3_*` of a class for itself; they share the ledgers."""
    text = f"""{EASY}
[agents."RESIDENT:b"]
ho3_enabled = true
consolidation = "manual"
[memory]
gate_count_threshold = 3
gate_session_threshold = 1
"""
    async with open_runtime(written(tmp_path, text), providers=providers()) as runtime:
        own = [await say(runtime) for _ in range(2)]
        shared = [await say(runtime, agent_class="RESIDENT:b") for _ in range(3)]
        await runtime.drain()
    assert [bool(result.consolidation_candidates) for result in own] == [False, True]
    assert [bool(result.consolidation_candidates) for result in shared] == [False, False, True]
    assert len(signal_ids(tmp_path / "plane")) == 10


async def test_a_place_of_its_own_in_the_file_is_used(tmp_path: Path) -> None:
    """`ho3_memory_dir` is relative to the file, and then nothing is under the plane."""
    path = written(tmp_path, f'{ENABLED}ho3_memory_dir = "elsewhere/memory"')
    async with open_runtime(path, providers=providers()) as runtime:
        await say(runtime)
    assert (tmp_path / "elsewhere" / "memory" / "signals.jsonl").read_text().count("\n") == 1
    assert not (tmp_path / "plane" / "HOT").exists()
