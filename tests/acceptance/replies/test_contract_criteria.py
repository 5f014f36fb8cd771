"""Acceptance criteria that the contract of replies carries: planned, applied, recorded, replayed, and refused where unknown."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.errors import PromptError
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.replaying import read_prompts, replay_session
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUESTION, open_scripted, read_all, scripted_config

REPLY, CLASSIFY = "PRC-SYNTHESIZE-002", "PRC-CLASSIFY-001"


def contract_with(folder: Path, acceptance: Any, contract_id: str = REPLY) -> str:
    """A folder with a shipped contract that carries these criteria."""
    folder.mkdir(exist_ok=True)
    shipped = files("kitchener.actors").joinpath("assets", "prompts", f"{contract_id}.json").read_text(encoding="utf-8")
    (folder / f"{contract_id}.json").write_text(json.dumps({**json.loads(shipped), "acceptance": acceptance}), encoding="utf-8")
    PromptLibrary.write_manifest(str(folder))
    return str(folder)


def model(request: PromptRequest) -> Any:
    """Names the currency only where it is told that the last reply lacked it."""
    if request.wo_type == "classify":
        return QUESTION
    return "12 EUR" if "did not meet these criteria:\n- contains:EUR" in request.variables.get("requirements", "") else "twelve"


async def test_criteria_of_the_contract_hold_for_every_reply_and_a_retry_is_told_which_failed(tmp_path: Path) -> None:
    """Between those of the class and of the caller, each once. The record replays, also where the file has gone."""
    root, prompts = tmp_path / "root", contract_with(tmp_path / "prompts", ["contains:EUR", "max_chars:90"])
    settings: dict[str, Any] = {"prompt_dir": prompts, "acceptance": ("max_chars:90",)}
    async with open_scripted(root, ScriptedProvider(model), **settings) as runtime:
        for subject in ("ada", "bob"):
            result = await runtime.supervisor().handle_turn("price?", subject_id=subject, acceptance=["contains:1"])
            assert (result.response, result.quality_gate_passed) == ("12 EUR", True)
        planned = await read_all(runtime.ledgers().ho2m, entry_type=events.WO_PLANNED)
        starts = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_STARTED)
    replies = [each.payload["acceptance"] for each in planned if each.payload["wo_type"] == "synthesize"]
    assert replies == [["max_chars:90", "contains:EUR", "contains:1"]] * 4
    config = scripted_config(root, **settings)
    report = await replay_session(result.session_id, config=config)
    assert report.is_identical, report.text()
    without = scripted_config(root, acceptance=("max_chars:90",))
    rebuilt = await read_prompts(starts[-1].entity_id, config=without)
    assert rebuilt.problem is None
    assert [each.is_verified for each in rebuilt.calls] == [True] * 3
    report = await replay_session(result.session_id, config=without)
    assert report.divergence is not None
    assert report.divergence.field in ("ruleset_hash", "acceptance")


async def test_criteria_are_part_of_the_policy(tmp_path: Path) -> None:
    hashes = []
    for number, criteria in enumerate(([], ["contains:EUR"])):
        prompts = contract_with(tmp_path / "prompts", criteria)
        async with open_scripted(tmp_path / str(number), ScriptedProvider(model), prompt_dir=prompts) as runtime:
            await runtime.supervisor().handle_turn("price?")
            (started,) = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_STARTED)
        hashes.append((started.payload["ruleset_hash"], started.payload["config_hash"]))
    (rules, config), (other_rules, other_config) = hashes
    assert rules != other_rules
    assert config != other_config


@pytest.mark.parametrize("criterion", ["contains:", "max_chars:-1", "max_chars:1234567890", "", 7])
def test_an_unknown_criterion_is_refused_when_the_contract_is_loaded(tmp_path: Path, criterion: Any) -> None:
    folder = contract_with(tmp_path / "prompts", ["contains:EUR", criterion])
    with pytest.raises(PromptError, match=f"{REPLY}.json: acceptance"):
        PromptLibrary.load(folder)


async def test_a_statement_needs_a_model_that_verifies(tmp_path: Path) -> None:
    prompts = contract_with(tmp_path / "prompts", ["names the price"])
    with pytest.raises(PromptError, match="needs verify_with_model"):
        async with open_scripted(tmp_path / "one", prompt_dir=prompts):
            raise AssertionError("it was opened")
    async with open_scripted(tmp_path / "two", prompt_dir=prompts, verify_with_model=True):
        pass


async def test_criteria_in_a_contract_of_no_reply_are_refused(tmp_path: Path) -> None:
    """Nobody would apply them."""
    prompts = contract_with(tmp_path / "prompts", ["contains:EUR"], CLASSIFY)
    with pytest.raises(PromptError, match=f"{CLASSIFY}: acceptance: expected none"):
        async with open_scripted(tmp_path / "root", prompt_dir=prompts):
            raise AssertionError("it was opened")
