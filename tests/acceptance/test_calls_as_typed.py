"""The shortest way to type each call works as it stands: docs/runtime.md, docs/memory.md."""

import copy
import json
import pickle
from pathlib import Path

import pytest

from kitchener import CallerError, HO2Config, HO3Memory, RuntimeConfig, open_runtime, select_biases, tool
from kitchener.records.turn import ConsolidationCandidate, ConsolidationCandidates
from kitchener.testing import FakeClock
from tests.acceptance.memory.remembering import ADA, LESSON, MANUAL, QUESTIONS, say, student
from tests.acceptance.stack import scripted_config

SETTINGS = """
plane_root = "plane"
[ledger]
durability = "fsync"
[memory]
gate_count_threshold = 2
[agents.ADMIN]
instructions = "You look after this machine."
standing_rules = ["Never delete files."]
tools = ["list_packages"]
ho3_enabled = true
context_mode = "enforce"
intent_mode = "classified"
[agents."RESIDENT:bo"]
"""


async def test_a_settings_file_a_tool_and_a_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first program of a user."""
    monkeypatch.chdir(tmp_path)
    Path("kitchener.toml").write_text(SETTINGS, encoding="utf-8")

    @tool(read_only=True)
    async def list_packages() -> list[str]:
        """Lists the installed packages."""
        return ["anyio"]

    async with open_runtime("kitchener.toml", tools=[list_packages]) as runtime:
        supervisor = runtime.supervisor("ADMIN")
        session_id = await supervisor.start_session(subject_id="ada")
        result = await supervisor.handle_turn("which packages are installed?", session_id=session_id)
        assert "anyio" in result.response
        assert result.consolidation_candidates == []
        updates = [update async for update in supervisor.stream_turn("tell me more", session_id=session_id)]
        assert type(updates[-1]).__name__ == "TurnCompleted"
        await supervisor.end_session(session_id)
        assert (await runtime.supervisor("RESIDENT:bo").handle_turn("hello")).response
    assert (tmp_path / "plane" / "HO2" / "RESIDENT%3Abo" / "ho2m.jsonl").exists()


async def test_the_candidates_of_a_result_are_consolidated_as_they_stand(tmp_path: Path) -> None:
    """They know whose memory they count in, and a model sees what was learned from them in the subject's next turn."""
    async with open_runtime(scripted_config(tmp_path, **MANUAL), providers={"scripted": student()}) as runtime:
        supervisor = runtime.supervisor()
        ada, bo = await say(runtime), await say(runtime, subject_id="bo")
        assert ada.consolidation_candidates == [QUESTIONS] == list(bo.consolidation_candidates)
        done = await supervisor.run_consolidation(ada.consolidation_candidates)
        assert [(wo.state, wo.subject_id) for wo in done] == [("completed", "ada")]
        memory = runtime.memory()
        (line,) = await memory.read_active_biases(namespace=ADA)
        assert line["context_line"] == line.context_line == line.get("context_line") == LESSON["context_line"]
        assert not await memory.read_active_biases(namespace="ADMIN/bo")
        both = [*ada.consolidation_candidates, *bo.consolidation_candidates]
        assert [wo.subject_id for wo in await supervisor.run_consolidation(both)] == ["bo"], "ada's gate is closed"
        assert (await say(runtime)).consolidation_candidates == []


async def test_a_repeated_message_gets_candidates_that_know_their_namespace_too(tmp_path: Path) -> None:
    """The result is read from the ledger, after a restart."""
    config = scripted_config(tmp_path, **MANUAL)
    for _ in range(2):
        async with open_runtime(config, providers={"scripted": student()}) as runtime:
            supervisor = runtime.supervisor()
            result = await supervisor.handle_turn("hello", subject_id="ada", idempotency_key="once")
    assert [(each, each.namespace) for each in result.consolidation_candidates if isinstance(each, ConsolidationCandidate)] == [
        (QUESTIONS, ADA)
    ]


async def test_a_signal_that_names_no_memory_or_another_is_refused(tmp_path: Path) -> None:
    """Nothing is learned about the wrong person."""
    async with open_runtime(scripted_config(tmp_path, **MANUAL), providers={"scripted": student()}) as runtime:
        supervisor, candidates = runtime.supervisor(), (await say(runtime)).consolidation_candidates
        with pytest.raises(CallerError, match="pass namespace="):
            await supervisor.run_consolidation([QUESTIONS])
        with pytest.raises(CallerError, match="counts in 'ADMIN/ada', not in 'ADMIN/bo'"):
            await supervisor.run_consolidation(candidates, namespace="ADMIN/bo")
        assert await supervisor.run_consolidation([]) == []
        (wo,) = await supervisor.run_consolidation([*candidates, QUESTIONS], namespace=ADA)
        assert wo.state == "completed"


def test_candidates_are_plain_text_on_record_and_survive_a_copy() -> None:
    """So a program can store a result as it likes."""
    found = ConsolidationCandidates.of([QUESTIONS], ADA)
    assert found == [QUESTIONS] == found == (QUESTIONS,)
    assert found not in ([], QUESTIONS)
    assert ConsolidationCandidates() == []
    assert [] == ConsolidationCandidates() == ()
    assert hash(found) == hash((QUESTIONS,))
    assert json.dumps(found) == f'["{QUESTIONS}"]'
    for (each,) in (pickle.loads(pickle.dumps(found)), copy.deepcopy(found)):
        assert isinstance(each, ConsolidationCandidate)
        assert (each, each.namespace) == (QUESTIONS, ADA)


async def test_lines_are_selected_from_what_the_memory_returns(tmp_path: Path) -> None:
    """Overlays as they are read; the chosen ones are the given ones."""
    at = "2026-01-01T00:00:00+00:00"
    async with HO3Memory.open(tmp_path, clock=FakeClock()) as memory:
        for name in ("packages", "weather"):
            event = await memory.log_signal(f"domain:{name}", "SES-00000001", namespace=ADA)
            overlay = {
                "artifact_id": f"ART-{'0' * 11}{len(name)}",
                "signal_id": f"domain:{name}",
                "artifact_type": "topic_affinity",
                "labels": {"domain": [name], "task": []},
                "weight": 0.8,
                "scope": "agent",
                "context_line": f"Often asks about {name}.",
                "source_signal_ids": [f"domain:{name}"],
                "source_event_ids": [event],
                "gate_snapshot": {"count": 1, "sessions": 1},
                "model": "m",
                "prompt_pack_version": "p",
                "consolidation_event_ts": at,
                "salience_weight": 0.8,
                "decay_modifier": 0.9,
                "content": {"bias": "topics", "category": "topic_affinity"},
                "window_start": at,
                "window_end": at,
                "created_at": at,
            }
            await memory.log_overlay(overlay, namespace=ADA)
        active = await memory.read_active_biases(namespace=ADA)
        (chosen,) = select_biases(await memory.read_active_biases(namespace=ADA), {"domain": "weather"}, 200, as_of_ts=at)
    assert chosen["context_line"] == "Often asks about weather."
    assert chosen in active
    assert select_biases([each.as_mapping() for each in active], {"domain": "weather"}, 200, at) == [chosen.as_mapping()]
    with pytest.raises(KeyError, match="line_of_context"):
        chosen["line_of_context"]


async def test_a_runtime_needs_no_settings_file(tmp_path: Path) -> None:
    """A configuration object, or only a root."""
    async with open_runtime(RuntimeConfig(plane_root=str(tmp_path / "a"), agents={"ADMIN": HO2Config()})) as runtime:
        assert (await runtime.supervisor("ADMIN").handle_turn("hello")).response
    async with open_runtime(root=tmp_path / "b") as runtime:
        assert (await runtime.supervisor().handle_turn("hello")).response
