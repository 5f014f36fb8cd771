"""Servers over streamable HTTP, written with the vendor's library: questions, progress, changes, tokens, cut answers."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.config import McpServerConfig
from kitchener.mcp.call_results import McpCallFailed
from kitchener.mcp.connection import Secrets
from kitchener.mcp.server import McpServer
from kitchener.records.tools.runnable_tool import ToolAnswer, ToolQuestion
from kitchener.records.tools.server_tools import ServerTool
from kitchener.replaying import replay_session
from tests.mcp.shared.http_server import QUESTION, TOKEN, HttpServer, http_server
from tests.mcp.shared.servers import faulty_over_http, offered, open_desk, say, settings_of, until
from tests.shared.event_loops import ON_ASYNCIO, ON_TRIO
from tests.shared.tool_calls import a_call

# On trio, the library's HTTP client leaves generators of answers that it did not read to their end to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def web() -> Iterator[HttpServer]:
    with http_server() as running:
        yield running


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEB_TOKEN", TOKEN)
    monkeypatch.setenv("OLD_TOKEN", "sk-wrong")


def at(web: HttpServer, **settings: Any) -> McpServerConfig:
    given = {"token": "env:WEB_TOKEN", "backoff_max_s": 1.2, "connect_timeout_s": 10.0, "call_timeout_s": 10.0}
    return McpServerConfig(url=web.url, **{**given, **settings})


@asynccontextmanager
async def connected(settings: McpServerConfig) -> AsyncIterator[dict[str, ServerTool]]:
    """The tools of a fresh connection, by the server's names for them."""
    found: dict[str, ServerTool] = {}

    def take(tools: Any) -> None:
        found.clear()
        found.update({each.policy_name.partition(".")[2]: each for each in tools})

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            server = McpServer("web", settings, Secrets(headers={"Authorization": f"Bearer {TOKEN}"}))
            server.attach(take)
            await tasks.start(server.run)
            await server.settle()
            yield found
            tasks.cancel_scope.cancel()


async def called(tool: ServerTool, arguments: dict[str, Any], **facts: Any) -> Any:
    bound = tool.bind(arguments)
    assert isinstance(bound, dict), bound
    result: Any = tool.prepared(bound, a_call(**facts))()
    return await result


@ON_ASYNCIO
async def test_a_turn_calls_a_tool_over_http_and_replays_identical(web: HttpServer, tmp_path: Path) -> None:
    async with open_desk(tmp_path, {"web": at(web)}) as (runtime, provider):
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session()
        done = await supervisor.handle_turn('web__add {"a": 2, "b": 3}', session_id=session_id)
        assert done.response == '{"result":5}'
        assert "web__remove" in offered(provider)
        assert runtime.statistics()["mcp_servers"]["web"]["state"] == "connected"
    report = await replay_session(session_id, config=settings_of(tmp_path, {"web": at(web)}))
    assert report.is_identical, report.text()


@ON_ASYNCIO
async def test_a_refused_token_is_one_clear_problem(web: HttpServer, tmp_path: Path) -> None:
    server = at(web, token="env:OLD_TOKEN", max_restarts=1)
    async with open_desk(tmp_path, {"web": server}) as (runtime, _):
        assert await say(runtime, "web__add") == "there is no web__add"
        found = runtime.statistics()["mcp_servers"]["web"]
        await until(lambda: runtime.statistics()["mcp_servers"]["web"]["state"] == "failed")
        found = runtime.statistics()["mcp_servers"]["web"]
    assert found["problem"] == "the server refuses the token or the headers (HTTP 401)"


@pytest.mark.parametrize("tool", ["drop", "crash"])
async def test_a_broken_answer_fails_its_own_call_only(web: HttpServer, tool: str) -> None:
    """Not one that runs beside it, and not the connection."""
    web.begun.clear()
    web.released.clear()
    held: list[Any] = []

    async def hold(tool: ServerTool) -> None:
        held.append(await called(tool, {}))

    async with connected(at(web)) as tools, anyio.create_task_group() as tasks:
        tasks.start_soon(hold, tools["hold"])
        await until(web.begun.is_set)
        with pytest.raises(McpCallFailed, match="outcome unknown"):
            await called(tools[tool], {})
        web.released.set()
    assert held == [{"result": "held"}]


@ON_TRIO
async def test_as_many_calls_run_side_by_side_as_the_settings_say(web: HttpServer) -> None:
    """Regression: the HTTP client had 100 connections, and a call that waited for one ended the connection of all."""
    web.holding = 0
    web.released.clear()
    held: list[Any] = []

    async def hold(tool: ServerTool) -> None:
        held.append(await called(tool, {}))

    try:
        async with connected(at(web, max_calls=150, connect_timeout_s=5.0)) as tools, anyio.create_task_group() as tasks:
            for _ in range(110):
                tasks.start_soon(hold, tools["hold"])
            await until(lambda: web.holding == 110)
            assert await called(tools["add"], {"a": 2, "b": 3}) == {"result": 5}
            web.released.set()
    finally:
        web.released.set()  # the server's threads wait for it
    assert held == [{"result": "held"}] * 110


@ON_TRIO
async def test_progress_of_a_server_reaches_the_call(web: HttpServer) -> None:
    told: list[tuple[Any, ...]] = []
    async with connected(at(web)) as tools:
        assert await called(tools["count"], {"to": 3}, report=lambda *values: told.append(values)) == {"result": "counted"}
    assert told == [(value, 3, f"at {value}") for value in (1, 2, 3)]


@ON_ASYNCIO
async def test_a_question_is_answered_from_a_fresh_connection(web: HttpServer) -> None:
    """As after a restart: the state of the question is all that the call needs."""
    async with connected(at(web)) as tools:
        question = await called(tools["remove"], {"path": "a.txt"})
    assert isinstance(question, ToolQuestion)
    assert (question.message, question.response_schema, question.reason) == ("Remove a.txt?", QUESTION, "input_required")
    web.asked.clear()
    async with connected(at(web)) as tools:
        answer = ToolAnswer(question.state, {"really": True})
        assert await called(tools["remove"], {"path": "a.txt"}, answer=answer) == {"result": "removed a.txt"}
        await called(tools["remove"], {"path": "a.txt"}, answer=ToolAnswer(question.state, False))
    assert [each["response"] for each in web.asked] == [
        {"action": "accept", "content": {"really": True}},
        {"action": "decline"},
    ]
    assert web.asked[0]["state"] == "state of a.txt"


@ON_TRIO
async def test_a_tool_that_comes_later_is_offered_from_the_next_turn_on(web: HttpServer, tmp_path: Path) -> None:
    async with open_desk(tmp_path, {"web": at(web)}) as (runtime, _):
        count = runtime.statistics()["mcp_servers"]["web"]["tools"]
        assert await say(runtime, "web__grow") == '{"result":"grown"}'
        if count == 7:  # the server is shared, and keeps the tool
            await until(lambda: runtime.statistics()["mcp_servers"]["web"]["tools"] == 8)
        assert await say(runtime, "web__later") == '{"result":"later ran"}'


@ON_ASYNCIO
async def test_an_answer_beyond_the_limit_is_not_read_to_its_end(tmp_path: Path) -> None:
    """The next call finds the server as it was."""
    with faulty_over_http(tmp_path / "fs", ["big", "echo"]) as server:
        async with open_desk(tmp_path, {"fs": server.settings}) as (runtime, _):
            reply = await say(runtime, "fs__big")
            assert "the tool has run, but its answer is larger than 8,388,608 bytes" in reply
            assert await say(runtime, 'fs__echo {"text": "on"}') == "on"
            assert runtime.statistics()["mcp_servers"]["fs"]["starts"] == 1


@ON_TRIO
async def test_an_answer_with_too_many_values_is_not_validated_value_by_value(tmp_path: Path) -> None:
    """Regression: 0.6 MB of numbers, and 8 MB of tools, held up every other task while the library validated them."""
    with faulty_over_http(tmp_path / "fs", ["many", "echo"]) as server:
        async with open_desk(tmp_path, {"fs": server.settings}) as (runtime, _):
            reply = await say(runtime, 'fs__many {"values": 300000}')
            assert "the tool has run, but its answer is larger than 200,000 values" in reply
            assert await say(runtime, 'fs__echo {"text": "on"}') == "on"
            assert runtime.statistics()["mcp_servers"]["fs"]["starts"] == 1
