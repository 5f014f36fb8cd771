"""The shortest form of each call works (docs/runtime.md, docs/memory.md)."""

import copy
import json
import pickle
from pathlib import Path

import pytest

from kitchener import (
    CallerError,
    HO2Config,
    HO2Supervisor,
    HO3Memory,
    RuntimeConfig,
    open_runtime,
    replay_session,
    tool,
)
from kitchener.actors import AttentionRetriever, ContextFragment, QualityGate, TokenBudgeter, WorkOrder
from kitchener.config import HO3MemoryConfig, LedgerConfig, RouterConfig
from kitchener.context import Ruleset, SessionIntents, resolve_intent_transition
from kitchener.errors import InvalidSignal
from kitchener.ids import EntryId
from kitchener.ledger import LedgerClient, LedgerEntry, compute_trace_hash, open_ledgers
from kitchener.memory import compute_artifact_id, select_biases
from kitchener.records.entries import IntentDeclaredPayload, payload_as
from kitchener.records.outputs import Classification
from kitchener.records.turn import ConsolidationCandidate, ConsolidationCandidates
from kitchener.records.work_order import Cost
from kitchener.testing import FakeClock
from tests.acceptance.memory.memory_kit import ADA, LESSON, MANUAL, QUESTIONS, say, student
from tests.acceptance.stack import QUICK, places, scripted_config

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


async def test_intents_are_changed_by_the_shortest_calls(tmp_path: Path) -> None:
    """All through the session's queue, like turns."""
    config = scripted_config(tmp_path, context_mode="enforce", intent_mode="classified")
    async with open_runtime(config, providers={"scripted": student()}) as runtime:
        supervisor = runtime.supervisor("ADMIN")
        session_id = await supervisor.start_session(subject_id="ada")
        project = await supervisor.declare_intent(session_id, "the house", scope="PROJECT", targets=["roof"])
        intent = await supervisor.declare_intent(session_id, "the roof", scope="SESSION", parent_intent_id=project)
        left, right = await supervisor.fork_intent(session_id, intent, ["tiles", "gutters"])
        await supervisor.resolve_conflict(session_id, keep=left)
        assert (await supervisor.handle_turn("which ones?", session_id=session_id)).intent_id == left
        await supervisor.close_intent(session_id, left, "bought")
        await supervisor.reopen_intent(session_id, left, "too few")
        await supervisor.abandon_intent(session_id, left, "too dear")
        ledgers = runtime.ledgers("ADMIN")
        seen = [each.entry_type async for each in ledgers.ho2m.read(session_id=session_id)]
        assert {"INTENT_FORKED", "INTENT_SUPERSEDED", "INTENT_CLOSED", "INTENT_REOPENED", "INTENT_ABANDONED"} <= set(seen)
        assert right in [each.entity_id async for each in ledgers.ho2m.read(entry_type="INTENT_DECLARED")]
        await runtime.drain()
        assert runtime.gateway is not None
    assert (await replay_session(session_id, config=config)).is_identical


async def test_a_memory_is_used_without_naming_a_namespace(tmp_path: Path) -> None:
    """A program of one user needs none: each call takes the same default."""
    at = "2026-01-01T00:00:00+00:00"
    config = HO3MemoryConfig(gate_count_threshold=1, gate_session_threshold=1)
    async with HO3Memory.open(tmp_path, config, clock=FakeClock()) as memory:
        event = await memory.log_signal("tool:read_file", "SES-00000001")
        again = await memory.log_signal("tool:read_file", "SES-00000002", None, {"turn_id": "T-00000002-000001"})
        (counted,) = await memory.read_signals("tool:read_file", 1)
        assert (counted.signal_id, counted.count, counted.event_ids) == ("tool:read_file", 2, (event, again))
        assert counted.decay == pytest.approx(1)
        assert (await memory.check_gate("tool:read_file")).crossed
        overlay = {
            "artifact_id": compute_artifact_id(["tool:read_file"], "a window", "m", "p"),
            "signal_id": "tool:read_file",
            "artifact_type": "topic_affinity",
            "labels": {"domain": [], "task": []},
            "weight": 0.8,
            "scope": "global",
            "context_line": "Often reads files.",
            "source_signal_ids": ["tool:read_file"],
            "source_event_ids": [event],
            "gate_snapshot": {"count": 2, "sessions": 2},
            "model": "m",
            "prompt_pack_version": "p",
            "consolidation_event_ts": at,
            "salience_weight": 0.8,
            "decay_modifier": 0.9,
            "content": {"bias": "files", "category": "topic_affinity"},
            "window_start": at,
            "window_end": at,
            "created_at": at,
        }
        await memory.log_overlay(overlay)
        (kept,) = await memory.read_overlays("tool:read_file")
        assert kept["artifact_id"] == kept.artifact_id == overlay["artifact_id"]
        await memory.update_overlay_weight(kept.key, 0.4, "less often", at)
        (active,) = await memory.read_active_biases()
        assert active["weight"] == active.weight == 0.4
        await memory.deactivate_overlay(kept.key, "wrong", at)
        assert await memory.read_active_biases() == []
        assert len(await memory.read_overlays(active_only=False)) == 1
        with pytest.raises(InvalidSignal):
            await memory.log_signal("no kind", "SES-00000001")


async def test_a_ledger_is_written_read_and_verified_on_its_own(tmp_path: Path) -> None:
    async with LedgerClient.open(
        tmp_path / "notes.jsonl", ledger_id="NOTES", config=LedgerConfig(), clock=FakeClock()
    ) as ledger:
        ref = await ledger.write(LedgerEntry("NOTE", "N-1", {"session_id": "SES-00000001", "n": 1}))
        await ledger.write(LedgerEntry("NOTE", "N-2", {"session_id": "SES-00000001"}), expected_head=EntryId(ref.entry_id))
        await ledger.commit()
        found = [each async for each in ledger.read(session_id="SES-00000001", entry_type="NOTE", after_seq=1, limit=1)]
        assert [each.entity_id for each in found] == ["N-2"]
        assert (await ledger.verify(from_seq=1)).ok
        assert ledger.head()[0] == 2
        assert compute_trace_hash(found).startswith("sha256:")


async def test_attention_needs_a_reader_and_the_settings_only() -> None:
    """The template is the shipped one of the agent class."""

    class Shelf:
        async def read_ledger_entries(self, session_id: str, *, limit: int) -> list[ContextFragment]:
            return [ContextFragment("HO2M", f"{session_id} newest", "hello", 2)]

        async def search_text(self, session_id: str, query: str, *, limit: int) -> list[ContextFragment]:
            return [ContextFragment("HO2M", "found", query, 2)]

        async def read_registry(self) -> list[ContextFragment]:
            return [ContextFragment("standing_rule", "INV-1", "Be brief.", 2)]

    attention = AttentionRetriever(Shelf(), HO2Config(agent_class="ADMIN"))
    horizontal = await attention.horizontal_scan("SES-00000001", "which one?")
    priority = await attention.priority_probe()
    context = attention.assemble_wo_context(horizontal, priority, "which one?", {"speech_act": "question"})
    assert (context.template_id, context.budget_used.cut_by) == ("ATT-ADMIN-001", None)
    assert {each.source_id for each in context.fragments} == {"SES-00000001 newest", "found", "INV-1"}
    assert context.as_assembled()["context_hash"] == context.context_hash


def test_verdicts_and_budgets_are_plain_calls() -> None:
    gate = QualityGate(HO2Config())
    assert gate.verify({"response_text": "Fine."}, ["min_chars:3"], "WO-SES-00000001-002").decision == "accept"
    rejected = gate.verify(None, [], "WO-SES-00000001-002")
    assert (rejected.decision, rejected.wo_id) == ("reject", "WO-SES-00000001-002")
    budgeter, scope = TokenBudgeter(), ("SES-00000001", "T-00000001-000001")
    budgeter.allocate(scope, 100)
    budgeter.debit(scope, Cost(input_tokens=30, output_tokens=10))
    budget = budgeter.check(scope)
    assert (budget.remaining, budget.limit) == (60, 100)
    budgeter.release(scope)
    assert budgeter.check(scope).limit is None


def test_a_message_decides_about_an_intent_without_a_session() -> None:
    """A pure function of what a model said."""
    said: Classification = {"intent_relation": "continue", "candidate_objective": "the roof", "confidence": 0.9}
    session = SessionIntents("SES-00000001", "T-00000001-000001", {})
    decision = resolve_intent_transition(
        None, said, Ruleset(intent_mode="classified"), message="which tiles?", session_intents=session
    )
    assert (decision.action, decision.flags) == ("DECLARE", ())
    (declared,) = decision.events
    assert declared.entry_type == "INTENT_DECLARED"
    assert payload_as(IntentDeclaredPayload, declared.payload)["objective"] == "the roof"
    assert decision.reason


def test_a_router_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "router_config.json"
    path.write_text(json.dumps({"default_provider": "offline", "default_model": "offline-1"}), encoding="utf-8")
    router = RouterConfig.from_config_file(path)
    assert (router.default_provider, router.default_model) == ("offline", "offline-1")


async def test_a_degraded_call_answers_with_three_arguments(tmp_path: Path) -> None:
    """For a supervisor that somebody assembled without a gateway."""

    async def degraded(message: str, *, session_id: str, deadline: float) -> str:
        return f"later: {message} ({session_id}, {deadline > 0})"

    class Broken:
        async def execute(self, work_order: WorkOrder) -> WorkOrder:
            raise RuntimeError("broken")

    async with open_ledgers(**places(tmp_path), config=QUICK) as ledgers:
        supervisor = HO2Supervisor(
            agent_class="ADMIN",
            ho1_executor=Broken(),
            ledgers=ledgers,
            token_budgeter=TokenBudgeter(),
            config=HO2Config(),
            degraded_call=degraded,
        )
        result = await supervisor.handle_turn("hello")
    assert result.response == f"later: hello ({result.session_id}, True)"
    assert result.degraded
