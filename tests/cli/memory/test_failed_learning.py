"""`kitchener memory signals` and `cost` say when learning failed, and why (docs/commands.md, docs/memory.md)."""

import json
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import pytest

from kitchener.config import HO2Config, HO3MemoryConfig, LedgerConfig, RouterConfig, RuntimeConfig
from kitchener.records.prompt import PromptRequest
from kitchener.runtime import open_runtime
from kitchener.testing import ScriptedAnswer, ScriptedProvider
from tests.cli.conftest import Cli

MEMORY: Final = HO3MemoryConfig(enabled=True, gate_count_threshold=1, gate_session_threshold=1)
LABELS: Final = {"speech_act": "question", "labels": {"domain": ["gardens"], "task": []}}


def no_lesson(request: PromptRequest) -> ScriptedAnswer:
    """A model that never writes a lesson as it is asked to."""
    return LABELS if request.wo_type == "classify" else {"no": "lesson"} if request.wo_type == "consolidate" else "Fine."


async def try_to_learn(root: Path, *, keyring: str | None) -> None:
    """A turn whose lessons fail, each twice."""
    config = RuntimeConfig(
        plane_root=str(root),
        ledger=LedgerConfig(keyring=keyring, seal=keyring is not None),
        router=RouterConfig(default_provider="scripted"),
        memory=MEMORY,
        agents={"ADMIN": HO2Config(ho3_enabled=True, consolidation="manual")},
    )
    async with open_runtime(config, providers={"scripted": ScriptedProvider(no_lesson)}) as runtime:
        supervisor = runtime.supervisor()
        result = await supervisor.handle_turn("hello", subject_id="ada")
        for _ in range(2):
            done = await supervisor.run_consolidation(result.consolidation_candidates)
            assert {wo.state for wo in done} == {"failed"}


@pytest.mark.parametrize("sealed", [False, True])
def test_an_open_gate_says_why_nothing_was_learned(cli: Cli, tmp_path: Path, sealed: bool) -> None:
    """It said that the signal was going to be learned from, however often that had failed, and that nothing had been spent."""
    keyring = str(tmp_path / "keys") if sealed else None
    anyio.run(partial(try_to_learn, tmp_path / ".kitchener", keyring=keyring))
    settings = "[memory]\ngate_count_threshold = 1\ngate_session_threshold = 1\n"
    ledger = f"[ledger]\nkeyring = {json.dumps(keyring)}\n" if sealed else ""
    Path("kitchener.toml").write_text(settings + ledger, encoding="utf-8")
    found = {each["signal_id"]: each for each in cli("memory", "signals", "ada", "--json").json["signals"]}
    assert set(found) == {"domain:gardens", "intent:question", "outcome:success"}
    failed = found["domain:gardens"]["failed"]
    assert (failed["attempts"], failed["reason"]) == (2, "OUTPUT_SCHEMA")
    assert "output_schema" in failed["detail"]
    assert found["outcome:success"]["failed"] is None
    told = cli("memory", "signals", "ada").out
    assert "2 attempts to learn from domain:gardens failed, at " in told
    assert f"({failed['wo_id']}) because the output breaks" in told
    before = cli("memory", "signals", "ada", "--as-of", "2020-01-01T00:00:00+00:00")
    assert (before.code, "attempt" in before.out) == (0, False)
    cost = cli("memory", "cost").out
    assert cost.startswith("nothing learned yet by ADMIN\n4 consolidations without a result: ")
    spent = cli("memory", "cost", "--json").json["without_result"]
    assert (spent["consolidations"], spent["input_tokens"] > 0, spent["output_tokens"] > 0) == (4, True, True)
    assert cli("memory", "cost", "bo", "--json").json["without_result"]["consolidations"] == 0
