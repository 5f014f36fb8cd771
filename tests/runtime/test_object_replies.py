"""Packs of users from when a reply was an object keep working for one minor version, with a warning. See docs/prompts.md."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from kitchener import HO2Config, RuntimeConfig, open_runtime
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.config import RouterConfig
from kitchener.records.prompt import PromptRequest
from kitchener.replaying import replay_session
from kitchener.testing import ScriptedProvider
from tests.shared.event_loops import ON_ASYNCIO
from tests.shared.logs import captured_logs

SHIPPED = files("kitchener.actors") / "assets" / "prompts"
WARNING = "replies as objects end with the next minor version"


def answer(request: PromptRequest) -> Any:
    """Classifies; replies with an object where one is asked for."""
    if request.wo_type == "classify":
        return {"speech_act": "question"}
    return {"response_text": "as an object", "completes_intent": True} if request.output_schema else "as text"


def own_prompts(to: Path, *names: str) -> str:
    """A directory with copies of shipped files, each changed a little."""
    to.mkdir()
    for name in names:
        text = (SHIPPED / name).read_text(encoding="utf-8")
        (to / name).write_text(text.replace("and to the point", "at length").replace("2048", "2047"), encoding="utf-8")
    PromptLibrary.write_manifest(str(to))
    return str(to)


async def turn(root: Path, **agent: Any) -> tuple[str, list[PromptRequest], list[str], RuntimeConfig, str]:
    """One turn: the reply, the requests, the warnings of `WARNING`, and what a replay needs."""
    config = RuntimeConfig(
        plane_root=str(root), router=RouterConfig(default_provider="scripted"), agents={"ADMIN": HO2Config(**agent)}
    )
    provider = ScriptedProvider(answer)
    with captured_logs() as lines:
        async with open_runtime(config, providers={"scripted": provider}) as runtime:
            result = await runtime.supervisor().handle_turn("hello?")
    warned = [str(each["agent_class"]) for each in lines if each["event"] == WARNING]
    return result.response, provider.requests, warned, config, result.session_id


async def test_without_packs_of_ones_own_a_reply_is_text_and_nothing_is_warned_of(tmp_path: Path) -> None:
    response, requests, warned, _, _ = await turn(tmp_path / "root")
    assert (response, requests[-1].contract_id, warned) == ("as text", "PRC-SYNTHESIZE-002", [])


@pytest.mark.parametrize("name", ["PRC-SYNTHESIZE-001.json", "PRM-SYNTHESIZE-001.txt"])
async def test_an_own_pack_or_contract_of_then_goes_on_and_replays(tmp_path: Path, name: str) -> None:
    """Its settings name no contract, because the default was that one."""
    prompts = own_prompts(tmp_path / "prompts", name)
    response, requests, warned, config, session_id = await turn(tmp_path / "root", prompt_dir=prompts)
    assert (response, requests[-1].contract_id, warned) == ("as an object", "PRC-SYNTHESIZE-001", ["ADMIN"])
    assert (await replay_session(session_id, config=config)).is_identical


@pytest.mark.parametrize(
    ("names", "settings", "expected"),
    [
        (("PRM-SYNTHESIZE-001.txt", "PRM-SYNTHESIZE-002.txt"), {}, "as text"),
        (("PRM-SYNTHESIZE-001.txt",), {"synthesize_contract_id": "PRC-SYNTHESIZE-002"}, "as text"),
        (("PRM-VERIFY-001.txt",), {}, "as text"),
        (("PRM-VERIFY-001.txt",), {"synthesize_contract_id": "PRC-SYNTHESIZE-001"}, "as an object"),
    ],
)
async def test_what_the_settings_or_newer_packs_say_counts(
    tmp_path: Path, names: tuple[str, ...], settings: dict[str, Any], expected: str
) -> None:
    prompts = own_prompts(tmp_path / "prompts", *names)
    response, _, warned, _, _ = await turn(tmp_path / "root", prompt_dir=prompts, **settings)
    assert (response, warned) == (expected, ["ADMIN"] if expected == "as an object" else [])


@ON_ASYNCIO
async def test_a_direct_call_goes_by_an_own_pack_of_then(tmp_path: Path) -> None:
    """What HO1 could not answer is asked under the contract whose pack the class has."""
    prompts = own_prompts(tmp_path / "prompts", "PRM-DIRECT-001.txt")
    broken = {"synthesize_contract_id": "PRC-NOWHERE-001", "prompt_dir": prompts}
    response, requests, _, config, session_id = await turn(tmp_path / "root", **broken)
    assert (response, requests[-1].contract_id) == ("as an object", "PRC-DIRECT-001")
    assert (await replay_session(session_id, config=config)).is_identical
