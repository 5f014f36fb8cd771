"""Which agent classes there are, what they inherit, which tools and models they have, and what a misspelt name comes to."""

from pathlib import Path
from typing import Any

import pytest

from kitchener import HO2Config, RuntimeConfig, open_runtime
from kitchener.config import ModelChoice, RouterConfig
from kitchener.errors import CallerError, ConfigError
from kitchener.replaying import replay_session
from kitchener.runtime.loading import load_config
from kitchener.runtime.setting_checks import check_config
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo, open_scripted, read_all, scripted_config
from tests.replay.shared.recorded_sessions import TOOLS, model
from tests.shared.event_loops import ON_ASYNCIO, ON_TRIO
from tests.shared.payloads import payload_of

NAMES = ("list_packages", "break_down")


def loaded(tmp_path: Path, text: str, **environ: str) -> RuntimeConfig:
    path = tmp_path / "kitchener.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, environ=environ).config


@pytest.mark.parametrize(
    ("asked", "closest"),
    [("RESIDENT:gest", "RESIDENT:guest"), ("admin", "ADMIN"), ("suport", "support"), ("x" * 64, "support")],
)
async def test_a_misspelt_class_is_an_error_that_names_the_closest(tmp_path: Path, asked: str, closest: str) -> None:
    async with open_scripted(tmp_path, tools=TOOLS, agents={"RESIDENT:guest": {}, "support": {}}) as runtime:
        with pytest.raises(CallerError, match="is not configured") as refused:
            runtime.supervisor(asked)
        if asked != "x" * 64:
            assert f"the closest one is {closest!r}" in str(refused.value)
        assert not list(tmp_path.rglob(f"*{asked}"))
        assert (await runtime.supervisor(closest).handle_turn("hello")).response == "echo: hello"


@ON_ASYNCIO
async def test_asking_for_ledgers_opens_no_class(tmp_path: Path) -> None:
    """Regression: `ledgers` made an unknown class known, with ledgers of its own."""
    async with open_scripted(tmp_path, has_classes=False) as runtime:
        with pytest.raises(CallerError, match=r"^agent class 'OTHER' is not in use; `runtime.supervisor` opens its ledgers$"):
            runtime.ledgers("OTHER")
        assert not (tmp_path / "HO2" / "OTHER").exists()
        await runtime.supervisor("OTHER").handle_turn("hello")
        assert runtime.ledgers("OTHER").ho2m.position > 0
    async with open_scripted(tmp_path / "configured", agents={"support": {}}) as runtime:
        with pytest.raises(CallerError, match="the closest one is 'support'"):
            runtime.ledgers("suport")


async def test_what_load_config_returns_can_be_opened(tmp_path: Path) -> None:
    """Its errors name the file, as if its path was given."""
    path = tmp_path / "mine.toml"
    path.write_text('[agents.ADMIN]\ntools = ["no_such:thing"]\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"mine\.toml: agents\.ADMIN\.tools: tool 'no_such:thing'"):
        async with open_runtime(load_config(path)):
            raise AssertionError
    path.write_text("", encoding="utf-8")
    async with open_runtime(load_config(path), root=tmp_path / "elsewhere") as runtime:
        assert runtime.root == tmp_path / "elsewhere"


def test_a_function_among_the_names_of_tools_is_told_where_it_goes() -> None:
    """As `Agent(tools=[…])` of other libraries takes them."""
    with pytest.raises(ConfigError, match=r"^HO2Config: tools\[0\] = a value of type 'Tool': must be the name of"):
        HO2Config(tools=TOOLS)  # type: ignore[arg-type]  # the mistake


def test_a_model_for_the_default_provider_that_has_none_is_refused() -> None:
    """Regression: the offline model answered, as if the setting was not there. With routes, another provider may answer."""
    config = RuntimeConfig(agents={"ADMIN": HO2Config(model="gpt-5")})
    with pytest.raises(ConfigError, match=r"agents\.ADMIN\.model = .* has only 'offline-rules-1'; set `router\.default"):
        check_config(config)
    check_config(config, given=("offline",))


def test_another_name_for_a_setting_is_told() -> None:
    with pytest.raises(ConfigError, match="max_turns: unknown key; it is called 'tool_turn_limit' here"):
        HO2Config(max_turns=3)  # type: ignore[call-arg]  # the mistake


async def test_an_id_of_ones_own_is_told_where_it_goes(tmp_path: Path) -> None:
    """As a `thread_id` elsewhere."""
    async with open_scripted(tmp_path) as runtime:
        with pytest.raises(CallerError, match=r"'user-42' is not a session id: .*; `external_id` of a session takes a name of"):
            await runtime.supervisor().handle_turn("hello", session_id="user-42")


async def test_default_is_no_class(tmp_path: Path) -> None:
    async with open_scripted(tmp_path, has_classes=False) as runtime:
        with pytest.raises(CallerError, match="which all classes inherit"):
            runtime.supervisor("default")


def test_the_table_default_is_inherited_by_key(tmp_path: Path) -> None:
    config = loaded(
        tmp_path,
        """
        [agents.default]
        instructions = "Be brief."
        temperature = 0.5
        tools = ["*"]
        models.synthesis.model = "big"
        models.verification.provider = "offline"
        [agents.support]
        temperature = 1.5
        models.synthesis.provider = "offline"
        [agents."RESIDENT:bo"]
        instructions = ""
        """,
        KITCHENER_AGENTS__DEFAULT__MAX_TOKENS="77",
        KITCHENER_AGENTS__SUPPORT__MODEL="mine",
    )
    support, bo = config.agents["support"], config.agents["RESIDENT:bo"]
    assert (support.agent_class, support.instructions, support.temperature) == ("support", "Be brief.", 1.5)
    assert (support.model, support.max_tokens, support.tools) == ("mine", 77, ("*",))
    both = ModelChoice(provider="offline", model="big")
    assert support.models == {"synthesis": both, "verification": ModelChoice(provider="offline")}
    assert (bo.agent_class, bo.instructions, bo.temperature, bo.model) == ("RESIDENT:bo", "", 0.5, None)
    assert list(config.classes) == ["support", "RESIDENT:bo"]
    assert RuntimeConfig.model_validate(config.model_dump()) == config, "inheriting twice changes nothing"


def test_what_a_class_inherits_has_to_fit_what_it_sets(tmp_path: Path) -> None:
    text = '[agents.default]\nverify_with_model = true\nacceptance = ["names the price"]\n[agents.a]\nverify_with_model = false'
    with pytest.raises(ConfigError, match=r"agent class 'a', with what it inherits: .*acceptance"):
        loaded(tmp_path, text)


@pytest.mark.parametrize(
    ("tools", "offered"),
    [(None, ()), ((), ()), (("*",), NAMES), (("break_down",), ("break_down",)), (("*", "break_down"), NAMES)],
)
async def test_a_configured_class_has_the_tools_it_names(tmp_path: Path, tools: Any, offered: tuple[str, ...]) -> None:
    provider = ScriptedProvider(model)
    async with open_scripted(tmp_path, provider, tools=TOOLS, admin_tools=tools) as runtime:
        await runtime.supervisor().handle_turn("which packages are there?")
    assert {spec.tool_id for request in provider.requests for spec in request.tools} == set(offered)


async def test_without_a_configured_class_every_class_has_the_given_tools(tmp_path: Path) -> None:
    provider = ScriptedProvider(model)
    config = scripted_config(tmp_path, has_classes=False).model_copy(update={"agents": {}})
    async with open_runtime(config, providers={"scripted": provider}, tools=TOOLS) as runtime:
        await runtime.supervisor("anything").handle_turn("which packages are there?")
    assert {spec.tool_id for request in provider.requests for spec in request.tools} == set(NAMES)


@ON_TRIO
async def test_memory_of_the_default_table_serves_every_class(tmp_path: Path) -> None:
    async with open_scripted(tmp_path, has_classes=False, ho3_enabled=True) as runtime:
        for name in ("one", "two"):
            await runtime.supervisor(name).handle_turn("hello", subject_id="ada")
            assert await runtime.memory(name).read_active_biases("2030-01-01T00:00:00+00:00", namespace=f"{name}/ada") == []


@pytest.mark.parametrize(("recorded", "now"), [(("*",), None), (None, None), ((), None)])
async def test_a_replay_offers_what_was_offered(tmp_path: Path, recorded: Any, now: Any) -> None:
    """A class that named no tools once had all of them; roots of that time replay as they were recorded."""
    async with open_scripted(tmp_path, ScriptedProvider(model), tools=TOOLS, admin_tools=recorded) as runtime:
        session_id = (await runtime.supervisor().handle_turn("tool please")).session_id
    report = await replay_session(session_id, config=scripted_config(tmp_path, tools=now), tools=TOOLS)
    assert report.is_identical
    assert len(report.turns) == 1


CLASS = {"provider": "scripted", "model": "large", "temperature": 1.25, "max_tokens": 55}


@ON_ASYNCIO
async def test_model_and_sampling_of_a_class_reach_the_request_and_the_record(tmp_path: Path) -> None:
    provider, other = ScriptedProvider(echo), ScriptedProvider(echo)
    models = {"classification": ModelChoice(provider="other")}
    config = scripted_config(tmp_path, agents={"plain": {}, "own": {**CLASS, "models": models}})
    config = config.model_copy(update={"router": RouterConfig(default_provider="other")})
    hashes: dict[str, str] = {}
    async with open_runtime(config, providers={"scripted": provider, "other": other}) as runtime:
        for name in ("plain", "own"):
            await runtime.supervisor(name).handle_turn("hello", subject_id="ada")
            calls = [each for each in await read_all(runtime.ledgers(name).ho1m) if each.entry_type == "LLM_CALL"]
            hashes[name] = payload_of(calls[-1])["request_hash"]
        (planned,) = [
            payload_of(each)["constraints"]
            for each in await read_all(runtime.ledgers("own").ho2m)
            if each.entry_type == "WO_PLANNED" and each.payload["wo_type"] == "synthesize"
        ]
    (reply,) = provider.requests
    assert (reply.wo_type, reply.model_id, reply.temperature, reply.max_tokens) == ("synthesize", "large", 1.25, 55)
    assert (planned["provider_id"], planned["model_id"]) == ("scripted", "large")
    assert (planned["temperature"], planned["max_tokens"]) == (1.25, 55)
    classify = other.requests[-1]
    assert (classify.wo_type, classify.model_id) == ("classify", None), "the model of a class belongs to its provider"
    assert classify.temperature != 1.25
    assert hashes["own"] != hashes["plain"]


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("temperature = 2.1", "temperature"),
        ("temperature = nan", "temperature"),
        ("max_tokens = 0", "max_tokens"),
        ('max_tokens = "5"', "max_tokens"),
        ("max_tokens = 1_000_001", "max_tokens"),
        ('model = ""', "model"),
        ('provider = "nowhere"', "provider"),
        ('provider = "offline"\nmodel = "gpt"', "model"),
        ('provider = "offline"\n[agents.support.models.synthesis]\nmodel = "gpt"', "models.synthesis.model"),
    ],
)
def test_a_wrong_model_setting_of_a_class_is_named(tmp_path: Path, line: str, key: str) -> None:
    for table in ("support", "default"):
        with pytest.raises(ConfigError) as refused:
            check_config(loaded(tmp_path, f"[agents.{table}]\n{line}".replace("agents.support", f"agents.{table}")))
        assert refused.value.key == f"agents.{table}.{key}"


def test_a_class_made_by_hand_inherits_too() -> None:
    config = RuntimeConfig(agents={"default": HO2Config(temperature=0.1), "a": HO2Config(instructions="x")})
    assert (config.agents["a"].temperature, config.agents["a"].instructions) == (0.1, "x")
