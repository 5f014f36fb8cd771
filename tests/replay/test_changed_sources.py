"""After a source of requests was edited, a replay says which, with a diff of its text (`docs/replay.md`)."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from kitchener import open_runtime, tool
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.config import HO2Config, ProviderConfig, RouterConfig, RuntimeConfig
from kitchener.replaying import ReplayReport, SourceChange, read_prompts, replay_session
from tests.gateway.shared.fake_server import Answer, completion, fake_server
from tests.replay.shared.recorded_sessions import TOOLS, record


def changed(config: RuntimeConfig, **admin: Any) -> RuntimeConfig:
    """The same settings but for some of the agent class's."""
    agent = config.agents["ADMIN"].model_copy(update=admin)
    return config.model_copy(update={"agents": {"ADMIN": agent}})


async def replayed(config: RuntimeConfig, session_id: str, tools: Any = TOOLS) -> ReplayReport:
    """The replay of a session under these settings."""
    return await replay_session(session_id, config=config, tools=tools)


async def test_edited_instructions_are_shown_as_a_diff(tmp_path: Path) -> None:
    """The old text is in the ledger, so the diff shows both; that the session diverges is as it was."""
    config, (session_id,) = await record(tmp_path, ("hello",), instructions="Be kind.\nBe brief.")
    report = await replayed(changed(config, instructions="Be kind.\nBe rude."), session_id)
    (change,) = report.changes
    assert change.name == "instructions of ADMIN"
    assert change.diff.splitlines() == ["--- as recorded", "+++ now", "@@ -1,2 +1,2 @@", " Be kind.", "-Be brief.", "+Be rude."]
    assert not report.is_identical
    assert "changed since: instructions of ADMIN" in report.text()
    assert report.as_json()["changes"] == [{"name": change.name, "diff": change.diff}]


async def test_many_sessions_show_a_diff_once(tmp_path: Path) -> None:
    """Each report has all of it; what is printed names it again and refers to the first."""
    config, sessions = await record(tmp_path, ("hello",), sessions=2, instructions="One.")
    first, second = [await replayed(changed(config, instructions="Two."), each) for each in sessions]
    told = set[SourceChange]()
    texts = [each.text(told) for each in (first, second)]
    assert ["+Two." in each for each in texts] == [True, False]
    assert "changed since: instructions of ADMIN, as above" in texts[1]
    assert first.changes == second.changes


async def test_an_unchanged_configuration_shows_no_change(tmp_path: Path) -> None:
    """Nor does a setting that decides nothing, such as the length of a queue."""
    config, (session_id,) = await record(tmp_path, ("hello",))
    assert (await replayed(config, session_id)).changes == ()
    report = await replayed(changed(config, session_queue=3), session_id)
    assert report.changes == ()
    assert report.is_identical


async def test_changed_fields_of_a_provider_are_named_where_a_replay_diverges(tmp_path: Path) -> None:
    """They are part of what a model was asked, and on record with the turn."""
    async with fake_server(completion("Hello.")) as server:
        fields = {"base_url": server.url, "model": "m", "temperature": 0.6, "extra_body": {"top_k": 20}}

        def with_fields(**changes: Any) -> RuntimeConfig:
            provider = ProviderConfig(**{**fields, **changes})
            router = RouterConfig(default_provider="it", providers={"it": provider})
            return RuntimeConfig(plane_root=str(tmp_path), router=router, agents={"ADMIN": HO2Config(classify="rules")})

        async with open_runtime(with_fields()) as runtime:
            turn = await runtime.supervisor("ADMIN").handle_turn("hello")
    (hit,) = server.hits
    assert (hit.body["temperature"], hit.body["top_k"]) == (0.6, 20)
    assert (await replay_session(turn.session_id, config=with_fields())).is_identical
    prompts = await read_prompts(turn.turn_id, config=with_fields(temperature=1.0))
    assert prompts.problem is None
    (asked,) = [each for each in prompts.calls if each.request.wo_type == "synthesize"]
    assert asked.request_fields == {"temperature": 0.6, "top_k": 20}
    report = await replay_session(turn.session_id, config=with_fields(extra_body={}))
    assert report.divergence is not None
    assert (report.divergence.entry_type, report.divergence.field) == ("LLM_CALL", "request_fields")
    (change,) = report.changes
    assert change.name == "request fields of provider it"
    assert '-  "top_k": 20' in change.diff


async def test_a_route_to_a_longer_context_is_replayed_and_its_loss_is_told(tmp_path: Path) -> None:
    """A request that was too long went elsewhere by the settings, which decide."""
    too_long = Answer(b'{"error": {"message": "too long", "code": "context_length_exceeded"}}', 400)
    async with fake_server(too_long) as short, fake_server(completion("Hello.")) as long:
        urls = {"short": short.url, "long": long.url}

        def settings(longer: dict[str, tuple[str, ...]]) -> RuntimeConfig:
            providers = {name: ProviderConfig(base_url=url, model="m") for name, url in urls.items()}
            router = RouterConfig(default_provider="short", providers=providers, context_window_fallbacks=longer)
            return RuntimeConfig(plane_root=str(tmp_path), router=router, agents={"ADMIN": HO2Config(classify="rules")})

        async with open_runtime(settings({"short": ("long",)})) as runtime:
            turn = await runtime.supervisor("ADMIN").handle_turn("hello")
    assert (turn.response, len(short.hits), len(long.hits)) == ("Hello.", 1, 1)
    assert (await replay_session(turn.session_id, config=settings({"short": ("long",)}))).is_identical
    report = await replay_session(turn.session_id, config=settings({}))
    assert report.divergence is not None
    assert (report.divergence.entry_type, report.divergence.field) == ("LLM_CALL", "route")


async def test_a_changed_tool_is_named(tmp_path: Path) -> None:
    """Its description is part of what the model was told."""

    @tool(name="list_packages", description="Lists them, but otherwise.", read_only=True)
    def other(prefix: str = "") -> list[str]:
        return [prefix]

    config, (session_id,) = await record(tmp_path, ("tool please",))
    report = await replayed(config, session_id, (other, TOOLS[1]))
    (change,) = report.changes
    assert change.name == "tool list_packages"
    assert '+  "description": "Lists them, but otherwise.",' in change.diff
    gone = await replayed(config, session_id, TOOLS[1:])
    assert [each.name for each in gone.changes] == ["tool list_packages"]


async def test_edited_packs_contracts_and_templates_are_named(tmp_path: Path) -> None:
    """Files beside the settings count by their texts, wherever they lie."""
    config, (session_id,) = await record(tmp_path / "root", ("hello",))
    prompts, templates = tmp_path / "prompts", tmp_path / "templates"
    for each in (prompts, templates):
        each.mkdir()
    for name in ("PRM-SYNTHESIZE-002.txt", "PRC-SYNTHESIZE-002.json"):
        text = files("kitchener.actors").joinpath("assets", "prompts", name).read_text(encoding="utf-8")
        (prompts / name).write_text(text.replace("and to the point.", "at length.").replace("2048", "2047"))
    PromptLibrary.write_manifest(str(prompts))
    shipped = files("kitchener.actors").joinpath("assets", "attention", "ATT-DEFAULT-001.json").read_text(encoding="utf-8")
    template = json.loads(shipped)
    template["budget"]["max_queries"] += 1
    (templates / "own.json").write_text(json.dumps(template), encoding="utf-8")
    report = await replayed(changed(config, prompt_dir=str(prompts), attention_templates=str(templates)), session_id)
    assert {each.name for each in report.changes} == {
        "prompt pack PRM-SYNTHESIZE-002",
        "contract PRC-SYNTHESIZE-002",
        "attention template ATT-DEFAULT-001",
    }
    (pack,) = [each.diff for each in report.changes if each.name.startswith("prompt pack")]
    assert "-Answer the user's last message, in its language and to the point." in pack
    assert "+Answer the user's last message, in its language at length." in pack


async def test_a_diff_is_bounded(tmp_path: Path) -> None:
    """Comparing lines takes the square of their number, so long texts are only counted; a report shows forty lines."""
    config, (session_id,) = await record(tmp_path, ("hello",), instructions="\n".join("ab" * 10))
    long = await replayed(changed(config, instructions="\n".join("xy" * 5_000)), session_id)
    assert "10,000 lines now; too many" in long.changes[0].diff
    some = await replayed(changed(config, instructions="\n".join(map(str, range(99)))), session_id)
    assert "more lines; --json has them all" in some.text()
    assert len(some.changes[0].diff.splitlines()) > 100


async def test_memory_settings_are_named_with_their_table(tmp_path: Path) -> None:
    """They are part of what the turns were decided by."""
    config, (session_id,) = await record(tmp_path, ("hello",), ho3_enabled=True)
    memory = config.memory.model_copy(update={"salience_floor": 0.5})
    report = await replayed(config.model_copy(update={"memory": memory}), session_id)
    assert [each.name for each in report.changes] == ["memory.salience_floor of ADMIN"]
