"""The official Python client of the OpenAI API against a server on this machine, over real connections.

The server's own library runs on asyncio only, and so do these tests.
"""

import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from openai import APIStatusError, AsyncOpenAI, DefaultAsyncHttpxClient

from kitchener import tool
from kitchener.config import ServeConfig
from kitchener.records.prompt import PromptRequest
from kitchener.serve.application import open_listener
from kitchener.serve.uvicorn_server import listen
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import Hold, echo
from tests.serve.shared.requests import Client, serving


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """uvicorn runs on asyncio."""
    return "asyncio"


@dataclass
class Real:
    """A server that listens, and its client."""

    openai: AsyncOpenAI
    inside: Client
    drain: Callable[[], object]
    ended: list[bool]


@asynccontextmanager
async def listening(
    root: Path, provider: ScriptedProvider | None = None, tools: Sequence[Callable[..., Any]] = (), **config: Any
) -> AsyncIterator[Real]:
    """A server on a free port until the block ends, which drains it."""
    told: list[Callable[[signal.Signals], bool | None]] = []
    ready, ended = anyio.Event(), list[bool]()

    @asynccontextmanager
    async def on_signal(first: Callable[[signal.Signals], bool | None]) -> AsyncIterator[None]:
        told.append(first)
        yield

    async with serving(root, provider, tools=tools, **config) as inside, anyio.create_task_group() as tasks:
        listener = open_listener(ServeConfig(port=0))

        async def run() -> None:
            ended.append(
                await listen(inside.server, listener, config=inside.runtime.config, on_signal=on_signal, ready=ready.set)
            )

        tasks.start_soon(run)
        await ready.wait()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        http = DefaultAsyncHttpxClient(verify=False)  # certificates that no test needs take longer to read than a turn
        async with AsyncOpenAI(base_url=url, api_key="any", max_retries=0, timeout=20, http_client=http) as client:
            yield Real(client, inside, lambda: told[0](signal.SIGTERM), ended)
            told[0](signal.SIGTERM)


async def test_models_replies_streams_and_errors_are_what_it_expects(tmp_path: Path) -> None:
    async with listening(tmp_path / "root") as real:
        models = await real.openai.models.list()
        assert [each.id for each in models.data] == ["ADMIN", "ADMIN-utility"]
        assert (await real.openai.models.retrieve("ADMIN")).owned_by == "kitchener"
        whole = await real.openai.chat.completions.create(model="ADMIN", messages=[{"role": "user", "content": "hello"}])
        assert whole.choices[0].message.content == "echo: hello"
        assert whole.usage is not None
        stream = await real.openai.chat.completions.create(
            model="ADMIN",
            messages=[{"role": "user", "content": "one two"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [each async for each in stream]
        text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
        assert (text, chunks[-1].usage is not None) == ("echo: one two", True)
        with pytest.raises(APIStatusError) as caught:
            await real.openai.chat.completions.create(model="NOBODY", messages=[{"role": "user", "content": "hello"}])
        assert (caught.value.status_code, caught.value.code) == (404, "model_not_found")


async def test_responses_are_made_streamed_continued_resumed_and_cancelled(tmp_path: Path) -> None:
    hold = Hold("wait", wo_type="synthesize")
    async with listening(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as real:
        responses = real.openai.responses
        whole = await responses.create(model="ADMIN", input="hello", instructions="ignored")
        assert (whole.status, whole.output_text, whole.error) == ("completed", "echo: hello", None)
        assert whole.usage is not None
        assert whole.usage.total_tokens > 0
        assert await responses.retrieve(whole.id) == whole
        stream = await responses.create(model="ADMIN", input="one two", previous_response_id=whole.id, stream=True)
        events = [each async for each in stream]
        last = events[-1]
        assert last.type == "response.completed"
        assert last.response.output_text == "echo: one two"
        assert last.response.conversation == whole.conversation
        again = await responses.retrieve(last.response.id, stream=True, starting_after=4)
        assert [each async for each in again] == events[5:]
        # The client's own reader checks the order of the events and that items keep their identity.
        async with responses.stream(model="ADMIN", input="three four") as reader:
            text = "".join([each.delta async for each in reader if each.type == "response.output_text.delta"])
            assert (text, (await reader.get_final_response()).output_text) == ("echo: three four",) * 2
        running = await responses.create(model="ADMIN", input="wait", background=True)
        assert running.status == "in_progress"
        assert (await responses.cancel(running.id)).status == "cancelled"
        with pytest.raises(APIStatusError) as caught:
            await responses.retrieve("resp_00000000_000001")
        assert (caught.value.status_code, caught.value.code) == (404, "response_not_found")


async def test_a_call_that_waits_is_approved_as_for_an_mcp_server(tmp_path: Path) -> None:
    def model(request: PromptRequest) -> Any:
        if request.wo_type != "synthesize":
            return echo(request)
        outcomes = [each.content for each in request.messages if each.role == "tool"]
        return {"response_text": f"heard {outcomes}"} if outcomes else use_tool("ring_bell", times=2)

    async with listening(tmp_path / "root", ScriptedProvider(model), tools=[ring_bell]) as real:
        asked = await real.openai.responses.create(model="ADMIN", input="ring the bell")
        waiting = asked.output[-1]
        assert waiting.type == "mcp_approval_request"
        assert (waiting.name, waiting.arguments) == ("ring_bell", '{"times":2}')
        done = await real.openai.responses.create(
            model="ADMIN",
            previous_response_id=asked.id,
            input=[{"type": "mcp_approval_response", "approval_request_id": waiting.id, "approve": True}],
        )
        assert "rang 2 times" in done.output_text


@tool(requires_approval=True)
def ring_bell(times: int) -> str:
    """Rings the bell."""
    return f"rang {times} times"


async def test_a_client_that_closes_its_stream_leaves_the_turn_to_the_session(tmp_path: Path) -> None:
    hold = Hold("wait", wo_type="synthesize")
    async with listening(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as real:
        headers = {"X-Chat-Id": "c"}

        async def ask() -> None:
            await real.openai.chat.completions.create(
                model="ADMIN", messages=[{"role": "user", "content": "wait"}], stream=True, extra_headers=headers
            )

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await hold.arrived["wait"].wait()
            tasks.cancel_scope.cancel()
        hold.released["wait"].set()
        said = await real.openai.chat.completions.create(
            model="ADMIN",
            messages=[
                {"role": "user", "content": "wait"},
                {"role": "assistant", "content": "echo:"},
                {"role": "user", "content": "and?"},
            ],
            extra_headers=headers,
        )
        (session,) = await real.inside.runtime.sessions()
        assert (said.choices[0].message.content, session.turns) == ("echo: and?", 2)


async def test_a_signal_lets_the_running_reply_finish(tmp_path: Path) -> None:
    hold = Hold("wait", wo_type="synthesize")
    async with listening(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as real:
        replies: list[str | None] = []

        async def ask() -> None:
            found = await real.openai.chat.completions.create(model="ADMIN", messages=[{"role": "user", "content": "wait"}])
            replies.append(found.choices[0].message.content)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await hold.arrived["wait"].wait()
            real.drain()
            hold.released["wait"].set()
        assert replies == ["echo: wait"]
    assert real.ended == [True]
