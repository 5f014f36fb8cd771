"""Fields that an endpoint sends with tool calls and wants back: Google's signatures, the thoughts of DeepSeek and Moonshot."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import orjson
import pytest

from kitchener import HO2Config, Runtime, RuntimeConfig, TurnResult, open_runtime, tool
from kitchener.config import ProviderConfig, RouterConfig
from kitchener.records.turn import TurnCompleted
from kitchener.replaying import read_prompts, replay_session
from tests.acceptance.stack import QUICK
from tests.gateway.shared.fake_server import Answer, FakeServer, Hit, completion, error, fake_server
from tests.gateway.shared.fake_server import events as text_events

SIGNATURE: Final = {"google": {"thought_signature": "c2lnbmVk"}}
KEY: Final = "sk-some-secret-key"


def strict(hit: Hit) -> Answer:
    """Asks for a tool twice, and then replies; refuses a request that lacks what came with an earlier tool request."""
    asked = [each for each in hit.body["messages"] if each.get("tool_calls")]
    for number, each in enumerate(asked, 1):
        if each.get("reasoning_content") != f"thought {number}" or each["tool_calls"][0].get("extra_content") != SIGNATURE:
            return error(400, "what came with the tool request must be passed back")
    if len(asked) == 2:
        return text_events(["Done."]) if hit.body["stream"] else completion("Done.")
    return asking(len(asked) + 1, streams=hit.body["stream"])


def asking(number: int, *, streams: bool) -> Answer:
    """Asks for the tool, with thoughts and a signature."""
    function = {"name": "look", "arguments": orjson.dumps({"path": str(number)}).decode()}
    call = {"index": 0, "id": f"c-{number}", "type": "function", "function": function, "extra_content": SIGNATURE}
    parts = [{"reasoning_content": "thought "}, {"reasoning_content": str(number)}, {"tool_calls": [call]}]
    if not streams:
        said = {"content": None, "reasoning_content": f"thought {number}", "tool_calls": [call]}
        return Answer(orjson.dumps({"choices": [{"message": said, "finish_reason": "tool_calls"}]}))
    chunks: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": each, "finish_reason": None}]} for each in parts]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    body = b"".join(b"data: " + orjson.dumps(each) + b"\n\n" for each in chunks)
    return Answer(body, content_type="text/event-stream")


def config_of(root: Path, urls: Mapping[str, str], **settings: Any) -> RuntimeConfig:
    """An agent whose first endpoint is `a`; the others are its fallbacks."""
    first, *others = urls
    providers = {name: ProviderConfig(base_url=url, model="m", max_retries=0, **settings) for name, url in urls.items()}
    return RuntimeConfig(
        plane_root=str(root / "root"),
        ledger=QUICK,
        router=RouterConfig(default_provider=first, providers=providers, fallbacks={first: tuple(others)}),
        agents={"ADMIN": HO2Config(classify="off", tools=("*",))},
    )


def look(path: str) -> str:
    """Looks."""
    return f"looked at {path}"


FREE, ASKED = tool(read_only=True)(look), tool(requires_approval=True)(look)


async def turn(runtime: Runtime, *, streams: bool) -> TurnResult:
    if not streams:
        return await runtime.supervisor().handle_turn("look around")
    updates = [each async for each in runtime.supervisor().stream_turn("look around")]
    (result,) = [each.result for each in updates if isinstance(each, TurnCompleted)]
    return result


def bodies(server: FakeServer) -> Iterator[str]:
    yield from (orjson.dumps(hit.body).decode() for hit in server.hits)


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_what_came_with_tool_requests_goes_back_with_their_results(tmp_path: Path, *, streams: bool) -> None:
    """It is on record, so the requests are rebuilt and replayed word for word."""
    async with fake_server() as server:
        server.respond = strict
        config = config_of(tmp_path, {"a": server.url})
        with anyio.fail_after(20):
            async with open_runtime(config, tools=[FREE]) as runtime:
                result = await turn(runtime, streams=streams)
    assert (result.response, result.error, len(server.hits)) == ("Done.", None, 3)
    report = await replay_session(result.session_id, config=config, tools=[FREE])
    assert report.is_identical, report.text()
    prompts = await read_prompts(result.turn_id, config=config)
    assert [each.is_verified for each in prompts.calls] == [True, True, True]


async def test_it_goes_back_after_a_person_has_approved_the_call_and_the_process_is_another(tmp_path: Path) -> None:
    async with fake_server() as server:
        server.respond = strict
        config = config_of(tmp_path, {"a": server.url})
        with anyio.fail_after(20):
            async with open_runtime(config, tools=[ASKED]) as runtime:
                result = await runtime.supervisor().handle_turn("look around")
            while result.pending_approval:
                async with open_runtime(config, tools=[ASKED]) as runtime:
                    going_on = await runtime.supervisor().approve(result.pending_approval[0])
                    assert going_on is not None
                    result = going_on
    assert (result.response, result.error, len(server.hits)) == ("Done.", None, 3)


async def test_no_other_provider_gets_it(tmp_path: Path) -> None:
    """Others refuse fields that they do not know, and one provider's thoughts are not another's affair."""
    async with fake_server(asking(1, streams=False), error(500)) as first, fake_server() as second:
        config = config_of(tmp_path, {"a": first.url, "b": second.url})
        with anyio.fail_after(20):
            async with open_runtime(config, tools=[FREE]) as runtime:
                result = await runtime.supervisor().handle_turn("look around")
    assert (result.response, result.error) == ("Hello!", None)
    assert ["thought 1" in each and "c2lnbmVk" in each for each in bodies(first)] == [False, True]
    assert ["thought" in each or "extra_content" in each for each in bodies(second)] == [False]


async def test_an_endpoint_that_refuses_its_own_field_no_longer_gets_it(tmp_path: Path) -> None:
    """Groq sends `reasoning` and takes it; some servers send thoughts that they do not take back."""
    refusal = error(400, "property 'reasoning_content' is unsupported")
    async with fake_server(asking(1, streams=False), refusal) as server:
        config = config_of(tmp_path, {"a": server.url})
        with anyio.fail_after(20):
            async with open_runtime(config, tools=[FREE]) as runtime:
                result = await runtime.supervisor().handle_turn("look around")
    assert (result.response, result.error) == ("Hello!", None)
    assert ["thought 1" in each for each in bodies(server)] == [False, True, False]


async def test_a_key_among_the_thoughts_is_neither_kept_nor_sent_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    leaky = Answer(asking(1, streams=False).body.replace(b"thought 1", f"my key is {KEY}".encode()))
    async with fake_server(leaky) as server:
        config = config_of(tmp_path, {"a": server.url}, api_key="env:SOME_KEY")
        with anyio.fail_after(20):
            async with open_runtime(config, tools=[FREE]) as runtime:
                result = await runtime.supervisor().handle_turn("look around")
    assert (result.response, result.error) == ("Hello!", None)
    assert "my key is ***" in list(bodies(server))[1]
    assert not any(KEY.encode() in path.read_bytes() for path in (tmp_path / "root").rglob("*.jsonl"))
