"""The tool loop with an endpoint of OpenAI's format, over sockets: calls side by side, streamed and whole, and broken ones."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from kitchener import HO2Config, Runtime, RuntimeConfig, TurnResult, open_runtime, tool
from kitchener.actors.tools.tool import Tool
from kitchener.config import ProviderConfig, RouterConfig
from kitchener.records import events
from kitchener.records.turn import TextDelta, TurnCompleted
from kitchener.replaying import replay_session
from tests.acceptance.stack import QUICK, read_all
from tests.gateway.shared.fake_server import Answer, FakeServer, Hit, completion, fake_server
from tests.gateway.shared.fake_server import events as text_events
from tests.shared.payloads import payload_of

BROKEN = '{"place": "C"'
CALLS = (("call-a", "look", '{"place": "A"}'), ("call-b", "look", '{"place": "B"}'), ("call-c", "look", BROKEN))


class Meeting:
    """A tool whose first two calls wait for each other: one after the other, they would never end."""

    def __init__(self) -> None:
        self.arrived, self._met = list[str](), anyio.Event()

        @tool(read_only=True)
        async def look(place: str) -> dict[str, str]:
            """Looks."""
            self.arrived.append(place)
            if len(self.arrived) == 2:
                self._met.set()
            await self._met.wait()
            return {"found at": place}

        self.tool: Tool[..., Any] = look


def streamed(*calls: tuple[str, str, str]) -> Answer:
    """The events of an answer with tool calls, whose arguments come letter by letter, a letter of each call in turn."""
    deltas: list[dict[str, Any]] = [
        {"index": at, "id": use_id, "type": "function", "function": {"name": name, "arguments": ""}}
        for at, (use_id, name, _) in enumerate(calls)
    ]
    for letter in range(max(len(each[2]) for each in calls)):
        deltas += [{"index": at, "function": {"arguments": each[2][letter : letter + 1]}} for at, each in enumerate(calls)]
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": {"tool_calls": [each]}, "finish_reason": None}]} for each in deltas
    ]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    body = b"".join(b"data: " + orjson.dumps(each) + b"\n\n" for each in chunks) + b"data: [DONE]\n\n"
    return Answer(body, content_type="text/event-stream")


def answer(hit: Hit) -> Answer:
    """Calls three tools at once, one of them with broken arguments, and then replies."""
    is_stream = bool(hit.body.get("stream"))
    if hit.body["messages"][-1]["role"] == "tool":
        return text_events(["I have ", "seen both."]) if is_stream else completion("I have seen both.")
    return streamed(*CALLS) if is_stream else completion(None, finish_reason="tool_calls", tool_calls=CALLS)


def config_of(root: Path, url: str) -> RuntimeConfig:
    return RuntimeConfig(
        plane_root=str(root / "root"),
        ledger=QUICK,
        router=RouterConfig(
            default_provider="http",
            providers={"http": ProviderConfig(kind="openai_compatible", base_url=url, model="m", max_retries=0)},
        ),
        agents={"ADMIN": HO2Config(classify="off", tools=("*",))},
    )


@asynccontextmanager
async def agent(tmp_path: Path, *tools: Tool[..., Any]) -> AsyncIterator[tuple[Runtime, FakeServer]]:
    async with fake_server() as server:
        server.respond = answer
        async with open_runtime(config_of(tmp_path, server.url), tools=tools) as runtime:
            with anyio.fail_after(20):
                yield runtime, server


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_calls_of_one_answer_run_side_by_side_and_a_broken_one_is_told(tmp_path: Path, *, streams: bool) -> None:
    meeting = Meeting()
    async with agent(tmp_path, meeting.tool) as (runtime, server):
        result, text = await turn(runtime, streams=streams)
        started = await read_all(runtime.ledgers().ho1m, entry_type=events.TOOL_STARTED)
        calls = await read_all(runtime.ledgers().ho1m, entry_type=events.TOOL_CALL)
    assert (result.response, result.error) == ("I have seen both.", None)
    assert text in ("", "I have seen both.")
    assert sorted(meeting.arrived) == ["A", "B"]
    assert [entry.payload["call"] for entry in started] == [1, 2]
    assert [entry.payload["call"] for entry in calls] == [1, 2, 3]
    first, second = server.hits
    assert [bool(hit.body.get("stream")) for hit in server.hits] == [streams] * 2
    assert [each["function"]["name"] for each in first.body["tools"]] == ["look"]
    *_, assistant, one, two, three = second.body["messages"]
    assert [each["id"] for each in assistant["tool_calls"]] == ["call-a", "call-b", "call-c"]
    assert [each["function"]["arguments"] for each in assistant["tool_calls"]] == ['{"place":"A"}', '{"place":"B"}', "{}"]
    assert [each["tool_call_id"] for each in (one, two, three)] == ["call-a", "call-b", "call-c"]
    assert [orjson.loads(each["content"]) for each in (one, two)] == [{"found at": "A"}, {"found at": "B"}]
    assert orjson.loads(three["content"]) == {
        "error": f"the arguments are not a JSON object of up to 64 levels; call the tool again with one, found {BROKEN}"
    }
    report = await replay_session(result.session_id, config=config_of(tmp_path, server.url), tools=[meeting.tool])
    assert report.is_identical, report.text()


async def turn(runtime: Runtime, *, streams: bool) -> tuple[TurnResult, str]:
    """One turn: its result, and the text that was streamed."""
    if not streams:
        return await runtime.supervisor().handle_turn("look around"), ""
    text, result = "", list[TurnResult]()
    async for update in runtime.supervisor().stream_turn("look around"):
        if isinstance(update, TextDelta):
            text += update.text
        if isinstance(update, TurnCompleted):
            result.append(update.result)
    return result[0], text


async def test_a_call_with_effects_never_runs_with_arguments_that_could_not_be_read(tmp_path: Path) -> None:
    """Its arguments are empty, which would suit a tool that needs none."""
    ran = list[str]()

    @tool
    async def look() -> str:
        """Looks, and leaves traces."""
        ran.append("look")
        return "traces"

    async with agent(tmp_path, look) as (runtime, _):
        result = await runtime.supervisor().handle_turn("look around")
        calls = await read_all(runtime.ledgers().ho1m, entry_type=events.TOOL_CALL)
    assert result.error is None
    assert ran == []
    assert ["there is no such argument" in payload_of(e)["error"] for e in calls] == [True, True, False]
    assert "are not a JSON object" in payload_of(calls[2])["error"]
