"""Servers that are started as a command, and all that can go wrong with them. See the table in docs/mcp.md."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from opentelemetry import baggage, context
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from kitchener.errors import ConfigError
from kitchener.replaying import replay_session
from kitchener.runtime import Runtime, open_runtime
from kitchener.testing import ScriptedProvider
from tests.mcp.shared.servers import by_message, calls, faulty, listed, offered, open_desk, say, settings_of, until
from tests.shared.logs import captured_logs
from tests.shared.payloads import payload_of


async def test_a_model_calls_a_tool_of_a_server_and_the_turn_replays_identical(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    server = faulty(tmp_path / "fs", [listed("echo", description="Repeats.", inputSchema=schema)])
    async with open_desk(tmp_path, {"fs": server}) as (runtime, provider):
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session(subject_id="ada")
        done = await supervisor.handle_turn('fs__echo {"text": "hello"}', session_id=session_id)
        assert done.response == "hello"
        wrong = await supervisor.handle_turn("fs__echo {}", session_id=session_id)
        assert "required property" in wrong.response
        (spec,) = provider.requests[0].tools
        assert (spec.tool_id, spec.description, spec.parameters) == ("fs__echo", "Repeats.", schema)
        entries = [each async for each in runtime.ledgers().ho2m.read(entry_type="SOURCE_RECORDED")]
        tool_calls = [each.payload async for each in runtime.ledgers().ho1m.read(entry_type="TOOL_CALL")]
    assert calls(tmp_path / "fs") == ["echo"]
    (recorded,) = [json.loads(payload_of(each)["text"]) for each in entries if payload_of(each)["name"] == "fs__echo"]
    assert (recorded["source"], recorded["policy_name"], recorded["read_only"]) == ("mcp:fs", "fs.echo", False)
    assert [each.get("result") for each in tool_calls] == ["hello", None]
    config = settings_of(tmp_path, {"fs": server})
    report = await replay_session(session_id, config=config)
    assert report.is_identical, report.text()
    assert len(report.turns) == 2


@pytest.mark.parametrize("protocol", ["stateful", "stateless"])
async def test_a_server_learns_nothing_of_the_trace_and_the_baggage_of_a_turn(tmp_path: Path, protocol: str) -> None:
    """The library would send both to every server, with or without telemetry (docs/telemetry.md, "Whose trace")."""
    server = faulty(tmp_path / "fs", ["noticed"])
    (tmp_path / "fs" / protocol).touch()
    span = NonRecordingSpan(SpanContext(trace_id=7, span_id=8, is_remote=True, trace_flags=TraceFlags(1)))
    token = context.attach(baggage.set_baggage("user", "ada@garden.example", set_span_in_context(span)))
    try:
        async with open_desk(tmp_path, {"fs": server}) as (runtime, _):
            sent = (await say(runtime, "fs__noticed")).split()
    finally:
        context.detach(token)
    assert [each for each in sent if each != "progressToken" and not each.startswith("io.modelcontextprotocol/")] == []


async def test_a_hung_call_ends_at_its_time_limit_and_the_server_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "fs"
    async with open_desk(tmp_path, {"fs": faulty(folder, ["hold", "echo"], call_timeout_s=0.3)}) as (runtime, _):
        reply = await say(runtime, "fs__hold")
        assert "did not end within its time limit of 0.3 s" in reply
        assert "may or may not have happened" in reply
        assert await say(runtime, 'fs__echo {"text": "still here"}') == "still here"
    assert "notifications/cancelled" in (folder / "notes").read_text()


async def test_a_cancelled_turn_cancels_its_call_and_the_server_is_told(tmp_path: Path) -> None:
    """Its place is free again, and the server answers others."""
    folder = tmp_path / "fs"
    async with open_desk(tmp_path, {"fs": faulty(folder, ["hold", "echo"], max_calls=1)}) as (runtime, _):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say, runtime, "fs__hold")
            await until(lambda: calls(folder) == ["hold"])
            tasks.cancel_scope.cancel()
        assert runtime.statistics()["mcp_servers"]["fs"]["running"] == 0
        assert await say(runtime, 'fs__echo {"text": "still here"}') == "still here"
        assert runtime.statistics()["mcp_servers"]["fs"]["starts"] == 1
    assert "notifications/cancelled" in (folder / "notes").read_text()


async def test_calls_of_one_server_run_side_by_side(tmp_path: Path) -> None:
    replies: list[str] = []

    async def hold(runtime: Runtime) -> None:
        replies.append(await say(runtime, "fs__hold"))

    server = faulty(tmp_path / "fs", ["hold", "release"])
    async with open_desk(tmp_path, {"fs": server}) as (runtime, _), anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(hold, runtime)
        await until(lambda: calls(tmp_path / "fs").count("hold") == 5)
        await say(runtime, "fs__release")
    assert replies == ["released"] * 5


BAD_ANSWERS = {
    "fs__garbage": "after garbage",
    "fs__fails": "the disk is full",
    "fs__refused": "server 'fs' refused the call: no such thing (-32602)",
    "fs__wrong_form": "its answer is not as the protocol says",
    "fs__big": "the tool has run, but its answer is larger than 8,388,608 bytes; max_result_bytes = 4,194,304",
    'fs__big {"last": true}': "the tool has run, but its answer is larger than 8,388,608 bytes",
    'fs__big {"size": 5000000}': "the tool has run, but its result has 5,000,002 bytes, and max_result_bytes = 4,194,304",
    'fs__big {"size": 70000}': "; read_context_item(",
    'fs__many {"values": 300000}': "the tool has run, but its answer is larger than 200,000 values",
}
"""What a tool of the misbehaving server is told to do, and what the model reads of it."""


async def test_bad_answers_are_errors_that_the_model_can_read(tmp_path: Path) -> None:
    """One after the other, at a server that is started once."""
    tools = ["garbage", "fails", "refused", "wrong_form", "big", "many", "echo"]
    async with open_desk(tmp_path, {"fs": faulty(tmp_path / "fs", tools)}) as (runtime, _):
        for message, reply in BAD_ANSWERS.items():
            assert reply in await say(runtime, message), message
            assert await say(runtime, 'fs__echo {"text": "on"}') == "on", message
            assert runtime.statistics()["mcp_servers"]["fs"]["starts"] == 1, message


async def test_changed_tools_are_told_and_hold_from_the_next_turn_on(tmp_path: Path) -> None:
    """The turn that runs while they change keeps its own, and both turns replay."""
    folder = tmp_path / "fs"
    after = [listed("echo"), listed("change", description="Changes again.")]
    server = faulty(folder, ["change", "gone"])
    with captured_logs() as logs:
        async with open_desk(tmp_path, {"fs": server}) as (runtime, provider):
            supervisor = runtime.supervisor()
            session_id = await supervisor.start_session()
            change = f"fs__change {json.dumps({'tools': after})} then fs__gone"
            first = await supervisor.handle_turn(change, session_id=session_id)
            assert first.response == "changed | gone ran"
            await until(lambda: bool(_changed(logs)))
            await supervisor.handle_turn("fs__gone", session_id=session_id)
            assert offered(provider) == ["fs__echo", "fs__change"]
    (told,) = _changed(logs)
    assert (told["added"], told["removed"], told["changed"]) == (["fs__echo"], ["fs__gone"], ["fs__change"])
    report = await replay_session(session_id, config=settings_of(tmp_path, {"fs": server}))
    assert report.is_identical, report.text()


def _changed(logs: list[Any]) -> list[Any]:
    return [each for each in logs if each["event"] == "MCP tools in place" and each["removed"]]


async def test_tools_that_cannot_be_offered_are_left_out_and_told(tmp_path: Path) -> None:
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(40):
        deep = {"type": "object", "properties": {"a": deep}}
    bomb = {"type": "object", "$defs": {f"d{n}": {"anyOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}}
    outside = {"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}
    bad = {"deep": deep, "bomb": bomb, "outside": outside, "no_object": {"type": "array"}, "invalid": {"type": 7}}
    tools = [listed(name, inputSchema=schema) for name, schema in bad.items()]
    with captured_logs() as logs:
        server = faulty(tmp_path / "fs", [*tools, "echo", "echo", listed("long", description="x" * 40_000)])
        async with open_desk(tmp_path, {"fs": server}) as (runtime, provider):
            assert await say(runtime, 'fs__echo {"text": "hi"}') == "hi"
            assert [spec.tool_id for spec in provider.requests[0].tools] == ["fs__echo"]
            assert runtime.statistics()["mcp_servers"]["fs"]["refused"] == 7
    told = {each["tool"]: each["problem"] for each in logs if each["event"] == "MCP tool left out"}
    assert told["'deep'"] == "its schema nests deeper than 32 levels"
    assert told["'bomb'"] == "its schema has more than 64 references"
    assert told["'outside'"] == "its schema refers to something outside itself"
    assert "another tool of the server has this name already" in told["'echo'"]
    assert "max_definition_bytes = 32,768" in told["'long'"]


async def test_a_server_that_does_not_start_takes_no_turn_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "fs"
    server = faulty(folder, ["echo"], max_restarts=2)
    (folder / "broken").touch()
    with captured_logs() as logs:
        async with open_desk(tmp_path, {"fs": server}) as (runtime, _):
            assert await say(runtime, "fs__echo") == "there is no fs__echo"
            await until(lambda: runtime.statistics()["mcp_servers"]["fs"]["state"] == "failed")
            assert "no such table: settings" in runtime.statistics()["mcp_servers"]["fs"]["problem"]
    assert [each["event"] for each in logs if each["event"].startswith("MCP")] == [
        "MCP server not connected",
        "MCP server given up",
    ]


@pytest.mark.parametrize("pauses", [{"max_restarts": 1}, {"max_restarts": 2, "backoff_max_s": 0.02}], ids=["once", "twice"])
async def test_a_server_that_says_nothing_is_waited_for_until_its_limit(tmp_path: Path, pauses: dict[str, Any]) -> None:
    """Also where the limit is many times the pauses. Regression: then it was never given up."""
    folder = tmp_path / "fs"
    server = faulty(folder, ["echo"], connect_timeout_s=0.3, **pauses)
    (folder / "deaf").touch()
    async with open_desk(tmp_path, {"fs": server}) as (runtime, _):
        assert await say(runtime, "fs__echo") == "there is no fs__echo"
        await until(lambda: runtime.statistics()["mcp_servers"]["fs"]["state"] == "failed")
        assert "did not list its tools within connect_timeout_s = 0.3" in runtime.statistics()["mcp_servers"]["fs"]["problem"]


async def test_a_server_may_start_at_its_first_use(tmp_path: Path) -> None:
    server = faulty(tmp_path / "fs", ["echo"], start="first_use")
    async with open_desk(tmp_path, {"fs": server}) as (runtime, _):
        assert runtime.statistics()["mcp_servers"]["fs"]["state"] == "waiting"
        assert await say(runtime, 'fs__echo {"text": "first"}') == "first"
        assert runtime.statistics()["mcp_servers"]["fs"]["state"] == "connected"


async def test_a_command_gets_only_the_environment_that_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHERS_KEY", "sk-secret")
    monkeypatch.setenv("ITS_KEY", "sk-own")
    server = faulty(tmp_path / "fs", ["environment"], env={"API_KEY": "env:ITS_KEY"})
    async with open_desk(tmp_path, {"fs": server}) as (runtime, _):
        reply = await say(runtime, "fs__environment")
    assert "sk-own" in reply
    assert "sk-secret" not in reply


async def test_only_allowed_tools_are_offered_and_a_class_may_name_single_ones(tmp_path: Path) -> None:
    server = faulty(tmp_path / "fs", ["echo", "read_a", "read_b", "die"], allow=("echo", "read_*"))
    async with open_desk(tmp_path, {"fs": server}, tools=()) as (runtime, provider):
        await say(runtime, "hello")
        assert offered(provider) == []
    config = settings_of(tmp_path, {"fs": server})
    chosen = config.agents["ADMIN"].model_copy(update={"tools": ("mcp:fs.read_*",)})
    config = config.model_copy(update={"agents": {"ADMIN": chosen}})
    provider = ScriptedProvider(by_message)
    async with open_runtime(config, providers={"scripted": provider}) as runtime:
        await say(runtime, "fs__echo")
    assert offered(provider) == ["fs__read_a", "fs__read_b"]


async def test_a_server_that_no_table_configures_is_a_mistake_of_the_settings(tmp_path: Path) -> None:
    config = settings_of(tmp_path, {})
    agent = config.agents["ADMIN"].model_copy(update={"tools": ("mcp:fs",)})
    config = config.model_copy(update={"agents": {"ADMIN": agent}})
    with pytest.raises(ConfigError, match="expected `mcp:` with a server; \\[mcp\\] has none"):
        async with open_runtime(config, providers={"scripted": ScriptedProvider(by_message)}):
            pass
