"""The provider and model of each work order of a turn: by the tag of its type, by the tags and models of its class.

The rules are those of `docs/gateway.md`; everything here goes through `open_runtime`, and the ledgers say the same.
"""

from pathlib import Path
from typing import Any, Final

import pytest

from kitchener import tool
from kitchener.config import RouterConfig, RuntimeConfig
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.replaying import replay_session
from kitchener.runtime import open_runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.memory.memory_kit import LESSON, MANUAL
from tests.acceptance.stack import QUESTION, echo, read_all, scripted_config
from tests.shared.payloads import payload_of

TYPES: Final = {"classification": "classify", "synthesis": "synthesize", "verification": "verify"}
NIGHT: Final = "RESIDENT:night"


def settings_of(root: Path, routes: dict[str, Any] | None = None, **config: Any) -> RuntimeConfig:
    """Two agent classes whose replies a model verifies, with routes by tag."""
    night = {"verify_with_model": True, **config.pop("night", {})}
    config = {"verify_with_model": True, "agents": {NIGHT: night}, **config}
    router = {"default_provider": "scripted", "domain_tag_routes": routes or {}}
    return scripted_config(root, **config).model_copy(update={"router": RouterConfig.model_validate(router)})


async def turn_of(config: RuntimeConfig, agent_class: str = "ADMIN") -> tuple[list[str], list[dict[str, Any]]]:
    """The types that the second provider was asked for in one turn, and all answers on record; the turn replays identical."""
    providers = {"scripted": ScriptedProvider(echo), "second": ScriptedProvider(echo, provider_id="second")}
    async with open_runtime(config, providers=providers) as runtime:
        result = await runtime.supervisor(agent_class).handle_turn("hello")
        attempts = await read_all(runtime.ledgers(agent_class).ho1m, entry_type=events.LLM_CALL)
    assert result.error is None
    report = await replay_session(result.session_id, config=config, agent_class=agent_class)
    assert report.is_identical, report.text()
    return [request.wo_type for request in providers["second"].requests], [entry.payload for entry in attempts]


@pytest.mark.parametrize("tag", TYPES)
async def test_a_route_of_a_type_reaches_a_second_provider(tmp_path: Path, tag: str) -> None:
    """Only the work orders of that type go there, with the route's model and the tag as the reason on record."""
    config = settings_of(tmp_path, {tag: {"provider_id": "second", "model_id": "small-1"}})
    asked, attempts = await turn_of(config)
    assert asked == [TYPES[tag]]
    routes = [(each["provider_id"], each["model_id"], each["route_reason"]) for each in attempts]
    assert routes.count(("second", "small-1", f"domain_tag:{tag}")) == 1
    assert routes.count(("scripted", "scripted-1", "default")) == 2


async def test_the_tags_of_a_class_come_before_those_of_types(tmp_path: Path) -> None:
    """Every call of the class goes where its tag leads, whatever routes its types have; other classes are as they were."""
    routes = {"night": {"provider_id": "second"}, "synthesis": {"provider_id": "scripted", "model_id": "large"}}
    config = settings_of(tmp_path, routes, night={"domain_tags": ("private", "night")})
    asked, attempts = await turn_of(config, NIGHT)
    assert asked == ["classify", "synthesize", "verify"]
    assert {each["route_reason"] for each in attempts} == {"domain_tag:night"}
    asked, attempts = await turn_of(config)
    assert asked == []
    assert [each["route_reason"] for each in attempts] == ["default", "domain_tag:synthesis", "default"]


async def test_a_class_names_provider_and_model_of_a_type(tmp_path: Path) -> None:
    """What `models` names holds whatever the routes say; a model alone is asked for at the provider of the route."""
    models = {"classification": {"provider": "second", "model": "tiny"}, "synthesis": {"model": "large"}}
    config = settings_of(tmp_path, {"classification": {"provider_id": "scripted"}}, models=models)
    _, attempts = await turn_of(config)
    assert [(each["provider_id"], each["model_id"], each["route_reason"]) for each in attempts] == [
        ("second", "tiny", "explicit"),
        ("scripted", "large", "default"),
        ("scripted", "scripted-1", "default"),
    ]


async def test_the_tags_of_a_work_order_are_on_record(tmp_path: Path) -> None:
    """`WO_PLANNED` has the class's tags and that of the type, so that a route can be explained from the ledger."""
    config = settings_of(tmp_path, domain_tags=("night", "synthesis"))
    async with open_runtime(config, providers={"scripted": ScriptedProvider(echo)}) as runtime:
        await runtime.supervisor().handle_turn("hello")
        planned = await read_all(runtime.ledgers().ho2m, entry_type=events.WO_PLANNED)
    assert {payload_of(entry)["wo_type"]: payload_of(entry)["constraints"]["domain_tags"] for entry in planned} == {
        "classify": ["night", "synthesis", "classification"],
        "synthesize": ["night", "synthesis"],
        "verify": ["night", "synthesis", "verification"],
    }


async def test_tools_and_consolidations_carry_their_tags_too(tmp_path: Path) -> None:
    """A tool's work order asks no model; the route of a consolidation decides which model learns."""

    @tool(read_only=True)
    def look() -> str:
        """Looks."""
        return "nothing"

    def model(request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            return {**QUESTION, "speech_act": "command", "tool_request": {"tool_id": "look", "arguments": {}}}
        return LESSON if request.wo_type == "consolidate" else echo(request)

    config = settings_of(tmp_path, {"consolidation": {"provider_id": "second"}}, verify_with_model=False, **MANUAL)
    providers = {"scripted": ScriptedProvider(model), "second": ScriptedProvider(model, provider_id="second")}
    async with open_runtime(config, providers=providers, tools=[look]) as runtime:
        supervisor = runtime.supervisor()
        result = await supervisor.handle_turn("look", subject_id="ada")
        learned = await supervisor.run_consolidation(result.consolidation_candidates)
        planned = await read_all(runtime.ledgers().ho2m, entry_type=events.WO_PLANNED)
    assert learned
    assert {payload_of(entry)["wo_type"]: payload_of(entry)["constraints"]["domain_tags"] for entry in planned} == {
        "classify": ["classification"],
        "tool_call": ["tool"],
        "synthesize": ["synthesis"],
        "consolidate": ["consolidation"],
    }
    assert {request.wo_type for request in providers["second"].requests} == {"consolidate"}
