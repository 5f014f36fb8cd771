"""Whatever changes between recording and replay is caught, and told by turn and field."""

import hashlib
import json
import shutil
from collections.abc import Callable
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest

from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.tools.tool import tool
from kitchener.config import RuntimeConfig
from kitchener.errors import ConfigError, LedgerDamaged, PromptError, UnknownSession
from kitchener.ledger.format.lines import StoredEntry, render_batch
from kitchener.replaying import ReplayReport, replay_session
from kitchener.runtime import open_runtime
from tests.acceptance.stack import QUICK
from tests.replay.shared.recorded_sessions import TOOLS, record
from tests.replay.tools import break_down

ENFORCE: dict[str, Any] = {"context_mode": "enforce", "intent_mode": "classified"}
LEARNING: dict[str, Any] = {"ho3_enabled": True, "ho3_gate_count_threshold": 3, "ho3_gate_session_threshold": 1}
PLAIN = QUICK.model_copy(update={"seal": False})
"""Words that somebody without a key can forge."""
HO1M, HO2M, CONTEXT = Path("HO1/ADMIN/ho1m.jsonl"), Path("HO2/ADMIN/ho2m.jsonl"), Path("HO2/ADMIN/context.jsonl")


def changed(config: RuntimeConfig, **admin: Any) -> RuntimeConfig:
    """The same configuration with other settings of ADMIN."""
    agent = config.agents["ADMIN"].model_copy(update=admin)
    return config.model_copy(update={"agents": {"ADMIN": agent}})


def forge(root: Path, ledger: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes entries of a ledger and makes all its hashes right again, as only a signed head would tell."""
    batches: dict[int, list[StoredEntry]] = {}
    for text in (root / ledger).read_bytes().splitlines():
        line = json.loads(text)
        entry = line["entry"]
        change(entry)
        body = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
        entry_hash = "sha256:" + hashlib.sha256(body).hexdigest()
        what = (entry["entry_type"], entry["entity_id"], entry["timestamp"])
        stored = StoredEntry(line["ledger_id"], line["seq"], line["entry_id"], entry_hash, *what, body, None, (), None)
        batches.setdefault(line["batch"][0], []).append(stored)
    data, chain = b"", "0" * 64
    for number, entries in batches.items():
        rendered, *_, chain = render_batch(entries, chain, number)
        data += rendered
    (root / ledger).write_bytes(data)
    shutil.rmtree(root / "index")


def found_in(report: ReplayReport) -> tuple[str, str, int]:
    """Entry type, field and turn number of the divergence."""
    found = report.divergence
    assert found is not None, "it came out identical"
    assert found.recorded != found.recomputed
    assert found.field in report.text()
    return found.entry_type, found.field, int(found.turn_id[-6:]) if found.turn_id is not None else 0


POLICIES: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, str, int]]] = {
    "standing rule": ({}, {"standing_rules": ("Be kind.",)}, ("WO_PLANNED", "attention.fragment_refs", 1)),
    "standing rule shown": (ENFORCE, {"standing_rules": ("Be kind.",)}, ("PROJECTION_COMPUTED", "visible", 1)),
    "vocabulary": ({}, {"labels_vocabulary": {"domain": ("garden",)}}, ("WO_PLANNED", "input_hash", 1)),
    "instructions": ({}, {"instructions": "Rhyme."}, ("WO_PLANNED", "input_hash", 1)),
    "turn budget": ({}, {"turn_budget": 12_345}, ("WO_PLANNED", "constraints.token_budget", 1)),
    "recent turns": ({}, {"recent_turns": 1, "attention_matches": 0}, ("WO_PLANNED", "attention.fragment_refs", 3)),
    "context budget": (ENFORCE, {"context_budget": 500}, ("PROJECTION_COMPUTED", "token_budget", 1)),
    "intents": (ENFORCE, {"intent_mode": "bridge"}, ("INTENT_DECLARED", "entry", 0)),
    "gate": (LEARNING, {"ho3_gate_count_threshold": 1}, ("TURN_COMPLETED", "consolidation_candidates", 1)),
    "learned lines": (LEARNING, {"ho3_bias_budget": 0}, ("WO_PLANNED", "attention.biases", 4)),
}


@pytest.mark.parametrize("name", POLICIES)
async def test_changed_policy_is_caught(tmp_path: Path, name: str) -> None:
    """Said up front as the likely cause, and told by the field of the first decision that comes out otherwise."""
    recorded_with, change, expected = POLICIES[name]
    config, (session_id,) = await record(tmp_path, **recorded_with)
    report = await replay_session(session_id, config=changed(config, **change), tools=TOOLS)
    assert found_in(report) == expected
    assert report.divergence is not None
    assert "another policy" in report.divergence.stems_from
    assert report.policy is not None
    assert "was recorded under another policy" in report.text().splitlines()[0]


async def test_policy_without_effect_is_only_mentioned(tmp_path: Path) -> None:
    """Every decision is what it was, so the replay is identical, and says that the policy is not."""
    config, (session_id,) = await record(tmp_path)
    report = await replay_session(session_id, config=changed(config, max_retries=7), tools=TOOLS)
    assert report.is_identical
    assert report.policy is not None
    assert report.policy.turn_id == report.turns[0]


def tampered_answer(entry: dict[str, Any]) -> None:
    if entry["entry_type"] == "LLM_CALL" and "echo: and the weather" in entry["payload"]["response"]["text"]:
        entry["payload"]["response"]["text"] = '{"response_text":"I never said that"}'


def tampered_label(entry: dict[str, Any]) -> None:
    if entry["entry_type"] == "LLM_CALL":
        entry["payload"]["response"]["text"] = entry["payload"]["response"]["text"].replace('"switch"', '"continue"')


def tampered_visible(entry: dict[str, Any]) -> None:
    if entry["entry_type"] == "PROJECTION_COMPUTED" and (run := entry["payload"]["visible_refs"]["eligible"][-1])[1] > 1:
        run[1] -= 1


def tampered_verdict(entry: dict[str, Any]) -> None:
    if entry["entry_type"] == "WO_QUALITY_GATE":
        entry["payload"]["decision"] = "reject"


def tampered_candidates(entry: dict[str, Any]) -> None:
    if entry["entry_type"] == "TURN_COMPLETED":
        entry["payload"]["consolidation_candidates"] = ["intent:question"]


def tampered_trace(entry: dict[str, Any]) -> None:
    if entry["entry_type"] == "WO_CHAIN_COMPLETE":
        entry["payload"]["trace_hash"] = "sha256:" + "0" * 64


def tampered_response(entry: dict[str, Any]) -> None:
    if entry["entry_type"] == "TURN_COMPLETED":
        entry["payload"]["response"] += "!"


def tampered_signal(entry: dict[str, Any]) -> None:
    signals = entry["payload"]["signals"]
    signals |= {event_id: each.replace("software", "hardware") for event_id, each in signals.items()}


def tampered_objective(entry: dict[str, Any]) -> None:
    if entry["entry_type"] == "INTENT_DECLARED":
        entry["payload"]["objective"] = "something else"


SIGNALS = Path("HOT/memory/signals.jsonl")
FORGED: dict[str, tuple[Path, Callable[[dict[str, Any]], None], tuple[str, str, int]]] = {
    "answer": (HO1M, tampered_answer, ("WO_QUALITY_GATE", "trace_hash", 4)),
    "classification": (HO1M, tampered_label, ("WO_COMPLETED", "output_hash", 3)),
    "projection": (CONTEXT, tampered_visible, ("PROJECTION_COMPUTED", "visible", 2)),
    "objective": (HO2M, tampered_objective, ("INTENT_DECLARED", "objective", 1)),
    "verdict": (HO2M, tampered_verdict, ("WO_QUALITY_GATE", "decision", 1)),
    "trace": (HO2M, tampered_trace, ("WO_CHAIN_COMPLETE", "trace_hash", 1)),
    "signal": (SIGNALS, tampered_signal, ("HO3_SIGNAL", "signals", 1)),
    "candidates": (HO2M, tampered_candidates, ("TURN_COMPLETED", "consolidation_candidates", 1)),
    "response": (HO2M, tampered_response, ("TURN_COMPLETED", "response", 1)),
}


@pytest.mark.parametrize("name", FORGED)
async def test_forged_record_is_caught(tmp_path: Path, name: str) -> None:
    """What a ledger says that nobody decided so, though all its hashes are right."""
    ledger, change, expected = FORGED[name]
    config, (session_id,) = await record(tmp_path, ledger=PLAIN, **ENFORCE, **LEARNING)
    forge(tmp_path, ledger, change)
    report = await replay_session(session_id, config=config, tools=TOOLS)
    assert found_in(report) == expected
    assert report.policy is None


async def test_forged_tool_result_is_caught(tmp_path: Path) -> None:
    """The model was asked with another result than the one on record."""

    def other_result(entry: dict[str, Any]) -> None:
        if entry["entry_type"] == "TOOL_CALL":
            entry["payload"]["result"] = ["nothing"]

    config, (session_id,) = await record(tmp_path, ("hello", "tool please"), ledger=PLAIN)
    forge(tmp_path, HO1M, other_result)
    report = await replay_session(session_id, config=config, tools=TOOLS)
    assert found_in(report) == ("LLM_CALL", "request_hash", 2)
    assert report.divergence is not None
    assert report.divergence.entity_id == f"WO-{session_id}-004"
    assert "tool results" in report.divergence.stems_from


async def test_changed_tool_is_caught(tmp_path: Path) -> None:
    """What a model is told of a tool is part of what it was asked."""
    config, (session_id,) = await record(tmp_path)

    @tool(name="list_packages", read_only=True)
    def other(prefix: str = "") -> list[str]:
        """Lists them."""
        return []

    report = await replay_session(session_id, config=config, tools=(other, break_down))
    assert found_in(report) == ("WO_PLANNED", "input_hash", 1)
    assert report.divergence is not None
    assert "the tools' descriptions" in report.divergence.stems_from


async def test_changed_prompt_pack_is_caught(tmp_path: Path) -> None:
    """By the version of the pack that the recorded calls name."""
    config, (session_id,) = await record(tmp_path / "root")
    packs = tmp_path / "packs"
    with as_file(files("kitchener.actors") / "assets" / "prompts") as shipped:
        shutil.copytree(shipped, packs)
    pack = next(path for path in sorted(packs.glob("PRM-*.txt")) if "CLASSIFY" in path.name.upper())
    pack.write_text("Be careful.\n" + pack.read_text(encoding="utf-8"), encoding="utf-8")
    PromptLibrary.write_manifest(str(packs))
    report = await replay_session(session_id, config=changed(config, prompt_dir=str(packs)), tools=TOOLS)
    assert found_in(report) == ("LLM_CALL", "request_hash", 1)
    assert report.divergence is not None
    assert report.divergence.stems_from.startswith(f"the prompt pack: recorded with {pack.stem}@")
    pack.write_text("Neither listed nor right", encoding="utf-8")
    with pytest.raises(PromptError, match=r"as manifest\.json says"):
        await replay_session(session_id, config=changed(config, prompt_dir=str(packs)), tools=TOOLS)


@pytest.mark.parametrize("ledger", [HO1M, HO2M, CONTEXT, SIGNALS], ids=lambda path: path.stem)
async def test_edited_byte_is_damage(tmp_path: Path, ledger: Path) -> None:
    """A ledger is verified from its first entry on before anything of it is replayed, whichever session the entry is of."""
    config, (_, session_id) = await record(tmp_path, ("hello there",), sessions=2, **ENFORCE, **LEARNING)
    data = (tmp_path / ledger).read_bytes()
    at = data.index(b'"v":') + 4
    (tmp_path / ledger).write_bytes(data[:at] + b"9" + data[at + 1 :])
    with pytest.raises(LedgerDamaged, match=ledger.name):
        await replay_session(session_id, config=config, tools=TOOLS)


async def test_unknown_session(tmp_path: Path) -> None:
    """Says which, and where to look."""
    config, _ = await record(tmp_path, ("hello",))
    with pytest.raises(UnknownSession, match="SES-00000000"):
        await replay_session("SES-00000000", config=config, tools=TOOLS)


async def test_a_replay_without_a_tool_that_the_settings_name_says_how_to_give_it(tmp_path: Path) -> None:
    """It takes tools by an argument of its own; `open_runtime` takes no part."""
    config, (session_id,) = await record(tmp_path, ("hello",))
    named = changed(config, tools=("list_packages",))
    with pytest.raises(
        ConfigError, match="a tool given by the argument `tools`, or by `--tool` of a command: none was"
    ) as caught:
        await replay_session(session_id, config=named)
    assert "open_runtime" not in str(caught.value)
    await replay_session(session_id, config=named, tools=TOOLS)
    with pytest.raises(ConfigError, match="a tool given by the argument `tools` of open_runtime: none was"):
        async with open_runtime(named):
            pass
