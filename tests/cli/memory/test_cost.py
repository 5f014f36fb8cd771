"""`kitchener memory cost`, and the cost in `memory explain`: docs/commands.md."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.config import HO2Config, HO3MemoryConfig, LedgerConfig, RouterConfig, RuntimeConfig
from kitchener.errors import ProviderError
from kitchener.records.prompt import PromptRequest
from kitchener.runtime import open_runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.memory.memory_kit import LESSON
from tests.acceptance.stack import QUESTION
from tests.cli.conftest import Cli
from tests.cli.memory.memories import learned

LINE_TOKENS = 9
"""Of the lesson's line, at three bytes to the token."""


def lines(cli: Cli, *more: str) -> list[dict[str, Any]]:
    """The table's lines as JSON."""
    outcome = cli("memory", "cost", "--json", *more)
    assert outcome.code == 0
    found: list[dict[str, Any]] = outcome.json["lines"]
    return found


class Model(ScriptedProvider):
    """Fails to learn once, then learns; answers each message at the second attempt."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        super().__init__(self._answer)

    def _answer(self, request: PromptRequest) -> Any:
        self.seen.append(request.wo_type)
        if request.wo_type == "consolidate":
            return ProviderError("scripted", "bad_request", "no") if self.seen.count("consolidate") == 1 else LESSON
        if request.wo_type == "classify":
            return QUESTION
        return {"response_text": f"echo: {request.variables['user_message']}"}


async def teach(root: Path, keyring: str | None = None, gates: int = 1) -> None:
    """Ada's first messages are learned from, at the second attempt; two later messages are answered with the line.

    Args:
        root: where
        keyring: the path of the keys
        gates: 2: a second message opens the gate anew before the second attempt
    """
    config = RuntimeConfig(
        plane_root=str(root),
        ledger=LedgerConfig(durability="none", keyring=keyring),
        memory=HO3MemoryConfig(gate_count_threshold=1, gate_session_threshold=1),
        router=RouterConfig(default_provider="scripted"),
        agents={"ADMIN": HO2Config(ho3_enabled=True, consolidation="manual")},
    )
    async with open_runtime(config, providers={"scripted": Model()}) as runtime:
        supervisor = runtime.supervisor()
        result = await supervisor.handle_turn("one", subject_id="ada")
        failed = await supervisor.run_consolidation(result.consolidation_candidates)
        if gates == 2:
            result = await supervisor.handle_turn("one more", subject_id="ada")
        done = await supervisor.run_consolidation(result.consolidation_candidates)
        assert [wo.state for wo in (*failed, *done)] == ["failed", "completed"]
        for message in ("two", "three"):
            await supervisor.handle_turn(message, subject_id="ada")


@pytest.mark.parametrize("sealed", [False, True])
def test_what_a_line_cost_is_what_its_calls_and_its_consolidations_took(cli: Cli, tmp_path: Path, sealed: bool) -> None:
    """The failed attempt to learn it counts; with a keyring, its signal is found by its stored id."""
    keyring = str(tmp_path / "keys") if sealed else None
    anyio.run(teach, tmp_path / ".kitchener", keyring)
    if keyring is not None:
        Path("kitchener.toml").write_text(f"[ledger]\nkeyring = {json.dumps(keyring)}\n", encoding="utf-8")
    (line,) = lines(cli)
    assert (line["subject_id"], line["line"], line["line_tokens"]) == ("ada", LESSON["context_line"], LINE_TOKENS)
    assert (line["turns"], line["calls"], line["tokens_shown"]) == (2, 2, 2 * LINE_TOKENS)
    assert line["consolidations"] == 2
    assert line["consolidation_input_tokens"] > 0
    assert line["consolidation_output_tokens"] > 0
    explained = cli("memory", "explain", line["artifact_id"], "--subject", "ada", "--json")
    assert explained.json["cost"] == {name: value for name, value in line.items() if name in explained.json["cost"]}
    told = cli("memory", "explain", line["artifact_id"], "--subject", "ada").out
    assert f"cost: shown {LINE_TOKENS} tokens in 2 model calls: {2 * LINE_TOKENS} tokens (estimated); learned with" in told
    assert told.endswith("in 2 consolidations\n")


def test_an_attempt_that_failed_before_a_later_one_learned_counts_once(cli: Cli, tmp_path: Path) -> None:
    """Regression: where the gate opened anew, both were "without a result", too, and their tokens in two sums."""
    anyio.run(partial(teach, tmp_path / ".kitchener", gates=2))
    (line,) = lines(cli)
    assert line["consolidations"] == 2
    found = cli("memory", "cost", "--json").json
    assert found["without_result"] == {"consolidations": 0, "input_tokens": 0, "output_tokens": 0}
    assert "without a result" not in cli("memory", "cost").out


def test_the_table_has_every_subjects_lines_and_the_most_expensive_first(taught: Cli) -> None:
    found = lines(taught)
    assert {each["subject_id"] for each in found} == {"ada", "bo"}
    assert [each["tokens_shown"] for each in found] == sorted((each["tokens_shown"] for each in found), reverse=True)
    ada = lines(taught, "--subject", "ada")
    assert ada == [each for each in found if each["subject_id"] == "ada"]
    assert {each["artifact_id"] for each in ada} == {each["artifact_id"] for each in learned(taught).values()}
    for each in ada:
        shown = taught("memory", "explain", each["artifact_id"], "--subject", "ada", "--json").json
        assert each["turns"] == len(shown["shown_in"])
        assert each["calls"] >= each["turns"]
    first, *_, last = taught("memory", "cost").out.splitlines()
    assert first.split()[:4] == ["artifact", "subject", "state", "line"]
    assert last.endswith("tokens to learn them")


def test_an_imported_line_has_no_consolidation(taught: Cli, tmp_path: Path) -> None:
    older = {
        "overlay_id": "OVL-old",
        "signal_id": "domain:old",
        "salience_weight": 0.9,
        "decay_modifier": 0.9,
        "source_event_ids": ["EVT-old"],
        "content": {"bias": "Once asked about old things.", "category": "topic"},
        "window_start": "2026-01-01T00:00:00+00:00",
        "window_end": "2026-01-02T00:00:00+00:00",
        "created_at": "2026-01-02T00:00:00+00:00",
    }
    (tmp_path / "old.jsonl").write_text(json.dumps(older) + "\n", encoding="utf-8")
    assert taught("memory", "import", "old.jsonl", "--subject", "dee").code == 0
    (line,) = lines(taught, "--subject", "dee")
    assert (line["artifact_id"], line["consolidations"], line["tokens_shown"]) == ("OVL-old", 0, 0)
    assert line["line_tokens"] > 0
    assert "no consolidation on record" in taught("memory", "explain", "OVL-old", "--subject", "dee").out


def test_nothing_learned_costs_nothing(cli: Cli) -> None:
    assert cli("memory", "cost").out == "nothing learned yet by ADMIN\n"
    assert cli("memory", "cost", "--subject", "eve").out == "nothing learned yet about 'eve' by ADMIN\n"
    assert cli("memory", "cost", "--json").json == {
        "agent_class": "ADMIN",
        "lines": [],
        "totals": {"tokens_shown": 0, "consolidation_input_tokens": 0, "consolidation_output_tokens": 0},
        "without_result": {"consolidations": 0, "input_tokens": 0, "output_tokens": 0},
    }
