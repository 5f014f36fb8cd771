"""Calls of the official Python client: objects, lists, streams, errors (docs/server.md)."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from pydantic import BaseModel

from kitchener.records.prompt import PromptRequest
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import Hold, echo
from tests.mcp.shared.servers import calls, faulty
from tests.serve.responses.test_open_responses import unknown
from tests.serve.responses.test_responses import asking, send_card
from tests.serve.shared.requests import Client, serving

# On trio, the HTTP client of the library leaves generators of streams to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

HELLO: Any = [{"role": "user", "content": "hello"}]
KEY = "key-of-ada-0123456789"


class City(BaseModel):
    """What the client asks for in place of text."""

    name: str
    people: int


def city(request: PromptRequest) -> Mapping[str, Any]:
    return {"name": "Graz", "people": 300_000} if request.wo_type == "synthesize" else echo(request)


class Sent(httpx2.AsyncBaseTransport):
    """Sends requests to a server in this process, and keeps the statuses of its answers."""

    def __init__(self, client: Client) -> None:
        self._inner = httpx2.ASGITransport(client.server.app)
        self.statuses: list[int] = []
        self.answered = anyio.Event()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        answer = await self._inner.handle_async_request(request)
        self.statuses.append(answer.status_code)
        self.answered.set()
        return answer


@asynccontextmanager
async def connected(client: Client, *, key: str = "any", retries: int = 2) -> AsyncIterator[tuple[AsyncOpenAI, Sent]]:
    """The official client, and what it sent."""
    sent = Sent(client)
    http = httpx2.AsyncClient(transport=sent)
    async with AsyncOpenAI(base_url="http://localhost/v1", api_key=key, http_client=http, max_retries=retries) as found:
        yield found, sent


async def test_completions_and_chunks_are_of_the_official_types(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as inside, connected(inside) as (client, _):
        whole = await client.chat.completions.create(model="ADMIN", messages=HELLO)
        assert unknown(ChatCompletion.model_validate(whole.model_dump())) == {"kitchener"}
        stream = await client.chat.completions.create(
            model="ADMIN", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
        chunks = [ChatCompletionChunk.model_validate(each.model_dump()) async for each in stream]
        assert [unknown(each) for each in chunks if unknown(each)] == [{"kitchener"}]
        assert "".join(each.choices[0].delta.content or "" for each in chunks if each.choices) == "echo: hello"
        assert chunks[-1].usage == whole.usage
        async with client.chat.completions.stream(model="ADMIN", messages=HELLO) as told:
            async for _ in told:
                pass
            final = await told.get_final_completion()
            assert final.choices[0].message.content == "echo: hello"


async def test_an_object_is_parsed_from_a_completion_and_from_a_response(tmp_path: Path) -> None:
    async with serving(tmp_path / "root", ScriptedProvider(city)) as inside, connected(inside) as (client, _):
        completion = await client.chat.completions.parse(model="ADMIN", messages=HELLO, response_format=City)
        response = await client.responses.parse(model="ADMIN", input="which city?", text_format=City)
        assert completion.choices[0].message.parsed == response.output_parsed == City(name="Graz", people=300_000)


async def test_a_response_is_followed_listed_continued_and_kept(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as inside, connected(inside) as (client, _):
        response = None
        for number in range(3):
            last = response.id if response is not None else openai.omit
            response = await client.responses.create(model="ADMIN", input=f"n{number}", previous_response_id=last)
        assert response is not None
        pages = client.responses.input_items.list(response.id, limit=2, order="asc")
        texts = [each.content[0].text async for each in pages if each.type == "message"]  # type: ignore[union-attr]  # text only
        assert texts == ["n0", "echo: n0", "n1", "echo: n1", "n2"]
        assert response.conversation is not None
        more = await client.responses.create(model="ADMIN", input="more", conversation=response.conversation.id)
        assert more.conversation == response.conversation
        running = await client.responses.create(model="ADMIN", input="later", background=True)
        events = await client.responses.retrieve(running.id, stream=True, starting_after=1)
        assert [each.type async for each in events][-1] == "response.completed"
        assert (await client.responses.retrieve(running.id)).output_text == "echo: later"
        with pytest.raises(openai.APIStatusError) as caught:
            await client.responses.delete(response.id)
        assert (caught.value.status_code, caught.value.code) == (405, "cannot_delete")


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_that_wait_are_answered_one_by_one(tmp_path: Path, stream: bool) -> None:
    async with (
        serving(tmp_path / "root", asking("ada", "bob"), tools=[send_card]) as inside,
        connected(inside) as (client, _),
    ):

        async def respond(said: Any, **more: Any) -> Any:
            if not stream:
                return await client.responses.create(model="ADMIN", input=said, **more)
            async with client.responses.stream(model="ADMIN", input=said, **more) as told:
                async for _ in told:
                    pass
                return await told.get_final_response()

        asked = await respond("cards")
        one, other = [each for each in asked.output if each.type == "mcp_approval_request"]
        assert (one.name, one.arguments, one.server_label) == ("send_card", '{"to":"ada"}', "kitchener")
        yes = {"type": "mcp_approval_response", "approval_request_id": one.id, "approve": True}
        no = {"type": "mcp_approval_response", "approval_request_id": other.id, "approve": False, "reason": "not bob"}
        still = await respond([yes], previous_response_id=asked.id)
        assert (still.id, [each.id for each in still.output[1:]]) == (asked.id, [other.id])
        done = await respond([no], previous_response_id=asked.id)
        assert "sent to ada" in done.output_text
        assert "not bob" in done.output_text
        with pytest.raises(openai.ConflictError) as caught:
            await respond([{**no, "approve": True}])
        assert caught.value.code == "approval_closed"


async def test_a_tool_of_an_mcp_server_waits_under_the_label_of_its_server(tmp_path: Path) -> None:
    def model(request: PromptRequest) -> Any:
        outcomes = [each.content for each in request.messages if each.role == "tool"]
        return {"response_text": f"heard {outcomes}"} if outcomes else use_tool("post__echo", text="a letter")

    servers = {"post": faulty(tmp_path / "post", ["echo"])}
    async with (
        serving(tmp_path / "root", ScriptedProvider(model), mcp=servers) as inside,
        connected(inside) as (client, _),
    ):
        asked = await client.responses.create(model="ADMIN", input="write")
        waiting = asked.output[-1]
        assert waiting.type == "mcp_approval_request"
        assert (waiting.server_label, waiting.name, waiting.arguments) == ("post", "echo", '{"text":"a letter"}')
        assert calls(tmp_path / "post") == []
        answer: Any = {"type": "mcp_approval_response", "approval_request_id": waiting.id, "approve": True}
        done = await client.responses.create(model="ADMIN", input=[answer], previous_response_id=asked.id)
        assert "a letter" in done.output_text
        assert calls(tmp_path / "post") == ["echo"]


@pytest.mark.parametrize(
    ("wrong", "error", "code"),
    [
        ({"model": "NOBODY"}, openai.NotFoundError, "model_not_found"),
        ({"n": 3}, openai.BadRequestError, "unsupported"),
        ({"extra_headers": {"X-Kitchener-Session": "SES-0a1b2c3d"}}, openai.NotFoundError, "session_not_found"),
        ({"extra_headers": {"Origin": "https://example.org"}}, openai.PermissionDeniedError, "wrong_origin"),
        ({"extra_headers": {"Authorization": "Bearer wrong-key-0123456789"}}, openai.AuthenticationError, "invalid_api_key"),
    ],
)
async def test_errors_are_of_their_classes_and_nothing_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: Any, error: type[openai.APIStatusError], code: str
) -> None:
    monkeypatch.setenv("ADA_KEY", KEY)
    serve = {"clients": {"ada": {"key": "env:ADA_KEY", "subject": "ada"}}}
    async with serving(tmp_path / "root", serve=serve) as inside, connected(inside, key=KEY) as (client, sent):
        with pytest.raises(error) as caught:
            await client.chat.completions.create(**{"model": "ADMIN", "messages": HELLO, **wrong})
        assert (caught.value.code, len(sent.statuses)) == (code, 1)


async def test_what_began_a_turn_is_never_sent_again_by_itself(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as inside, connected(inside) as (client, sent):
        key = {"Idempotency-Key": "k1"}
        first = await client.chat.completions.create(model="ADMIN", messages=HELLO, extra_headers=key)
        again = await client.chat.completions.create(model="ADMIN", messages=HELLO, extra_headers=key)
        assert first.kitchener == again.kitchener  # type: ignore[attr-defined]  # of this server
        with pytest.raises(openai.ConflictError) as caught:
            await client.chat.completions.create(
                model="ADMIN", messages=[{"role": "user", "content": "other"}], extra_headers=key
            )
        assert (caught.value.code, sent.statuses) == ("idempotency_conflict", [200, 200, 409])


async def test_a_turn_that_took_too_long_is_not_begun_again(tmp_path: Path) -> None:
    hold = Hold("hello", wo_type="synthesize")
    provider = ScriptedProvider(echo, gate=hold)
    async with (
        serving(tmp_path / "root", provider, turn_deadline_s=0.05, reply_reserve_s=0.0) as inside,
        connected(inside) as (client, sent),
    ):
        with pytest.raises(openai.APIStatusError):
            await client.chat.completions.create(model="ADMIN", messages=HELLO)
        assert len(sent.statuses) == 1


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # it really waits for Retry-After, on whatever loop
@pytest.mark.parametrize("status", [503, 429])
async def test_a_full_server_is_asked_again_until_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("ADA_KEY", KEY)
    of_server, of_key = (1, 8) if status == 503 else (8, 1)
    clients = {"ada": {"key": "env:ADA_KEY", "subject": "ada", "max_requests": of_key}}
    serve = {"max_requests": of_server, "clients": clients}
    hold = Hold("wait", wo_type="synthesize")
    async with (
        serving(tmp_path / "root", ScriptedProvider(echo, gate=hold), serve=serve) as inside,
        connected(inside, key=KEY) as (client, sent),
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(inside.with_headers(authorization=f"Bearer {KEY}").chat, "wait")
        await hold.arrived["wait"].wait()

        async def make_room() -> None:
            await sent.answered.wait()
            hold.released["wait"].set()

        tasks.start_soon(make_room)
        found = await client.chat.completions.create(model="ADMIN", messages=HELLO)
        assert found.choices[0].message.content == "echo: hello"
        assert sent.statuses == [status, 200]
