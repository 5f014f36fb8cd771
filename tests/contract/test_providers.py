"""What the gateway may rely on, whatever stands behind it: one suite over all providers that write replies."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from typing import Any, get_args

import anyio
import pytest

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.config.router import ProviderKind
from kitchener.gateway import build_providers
from kitchener.gateway.providers.recorded import RecordedProvider, Recording
from kitchener.gateway.providers.scripted import ScriptedProvider, use_tool
from kitchener.model_usage import Usage
from kitchener.records.prompt import Message, PromptResponse, StreamingProvider, TextPiece, ToolSpec, ToolUse
from tests.gateway.shared.fake_server import completion, events, fake_server
from tests.gateway.shared.gateway_kit import ask

# Under trio the vendor's library leaves its own generators to the garbage collector once it has read the end of a stream.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2|pydantic_ai):ResourceWarning")

LIST_PACKAGES = ToolSpec("list_packages", "List the installed packages", {"type": "object", "properties": {}})
REPLY_SCHEMA = {"type": "object", "required": ["response_text"], "properties": {"response_text": {"type": "string"}}}


@asynccontextmanager
async def offline(kind: str) -> AsyncIterator[StreamingProvider]:
    async with build_providers(RouterConfig()) as providers:
        provider: Any = providers["offline"]
        yield provider


@asynccontextmanager
async def scripted(kind: str) -> AsyncIterator[StreamingProvider]:
    answers: dict[str, Any] = {
        "text": "some words",
        "tool": use_tool("list_packages"),
        "object": {"response_text": "some words"},
    }
    yield ScriptedProvider(lambda _: answers[kind])


@asynccontextmanager
async def recorded(kind: str) -> AsyncIterator[StreamingProvider]:
    use = ToolUse("u-1", "list_packages", {})
    answers: dict[str, dict[str, Any]] = {
        "text": {"text": "some words"},
        "tool": {"text": "", "tool_uses": (use,), "finish_reason": "tool_use"},
        "object": {"text": "", "structured": {"response_text": "some words"}},
    }
    response = PromptResponse(provider_id="remote", model_id="m", usage=Usage(3, 2), **answers[kind])
    request = ask()
    yield RecordedProvider({(request.wo_id, request.call): Recording("", "", response)})


@asynccontextmanager
async def served(kind: str, config: ProviderConfig) -> AsyncIterator[StreamingProvider]:
    """A provider whose endpoint answers so."""
    answers = {
        "text": completion("some words"),
        "tool": completion(None, tool_calls=[("c-1", "list_packages", "{}")], finish_reason="tool_calls"),
        "object": completion('{"response_text": "some words"}'),
        "stream": events(["some ", "words"]),
    }
    async with fake_server(*[answers[kind]] * 3) as server:
        router = RouterConfig(providers={"remote": config.model_copy(update={"base_url": server.url})})
        async with build_providers(router) as providers:
            provider: Any = providers["remote"]
            yield provider


def over_http(kind: str) -> AbstractAsyncContextManager[StreamingProvider]:
    return served(kind, ProviderConfig(kind="openai_compatible", model="m"))


def library(kind: str) -> AbstractAsyncContextManager[StreamingProvider]:
    return served(kind, ProviderConfig(kind="model", model="openai-chat:m", api_key="env:A_KEY"))


IN_ONE_PIECE = (recorded, over_http, library)
"""Providers whose stream may have one piece: what arrives together is one, and an endpoint may send all of it at once."""


OF_KIND: dict[ProviderKind, Callable[[str], Any]] = {"offline": offline, "openai_compatible": over_http, "model": library}


def test_each_kind_of_provider_is_in_the_suite() -> None:
    assert set(OF_KIND) == set(get_args(ProviderKind))


@pytest.fixture(params=[*OF_KIND.values(), scripted, recorded], ids=lambda case: case.__name__)
def opened(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.setenv("A_KEY", "sk-some-key")
    case: Callable[[str], Any] = request.param
    return case


async def test_an_answer_has_text_a_model_and_counted_tokens(opened: Callable[[str], Any]) -> None:
    async with opened("text") as provider:
        response = await provider.complete(ask("tell me something"))
    assert response.text
    assert response.provider_id
    assert response.model_id
    assert response.finish_reason == "stop"
    assert response.usage.input_tokens > 0
    assert response.usage.output_tokens > 0
    assert response.tool_uses == ()


async def test_a_tool_request_has_an_id_a_name_and_an_object_of_arguments(opened: Callable[[str], Any]) -> None:
    async with opened("tool") as provider:
        response = await provider.complete(ask("list the installed packages", tools=(LIST_PACKAGES,)))
    (use,) = response.tool_uses
    assert use.use_id
    assert use.tool_id == "list_packages"
    assert dict(use.arguments) == {}
    assert response.finish_reason == "tool_use"


async def test_a_tools_result_can_be_sent_back(opened: Callable[[str], Any]) -> None:
    """The conversation that the executor builds from a tool request is one that the provider takes."""
    async with opened("tool") as asking:
        (use,) = (await asking.complete(ask("list the installed packages", tools=(LIST_PACKAGES,)))).tool_uses
    conversation = (
        Message("system", "be brief"),
        Message("user", "list the installed packages"),
        Message("assistant", "", tool_uses=(use,)),
        Message("tool", '["anyio"]', tool_use_id=use.use_id, tool_id=use.tool_id),
    )
    async with opened("text") as provider:
        response = await provider.complete(ask("list the installed packages", messages=conversation, tools=(LIST_PACKAGES,)))
    assert response.text
    assert response.tool_uses == ()


async def test_an_answer_by_schema_is_an_object(opened: Callable[[str], Any]) -> None:
    async with opened("object") as provider:
        response = await provider.complete(ask("tell me something", output_schema=REPLY_SCHEMA))
    assert response.structured is not None
    assert response.structured["response_text"]


async def test_the_pieces_of_a_stream_join_to_its_response(opened: Callable[[str], Any]) -> None:
    async with (
        opened("stream" if opened in (over_http, library) else "text") as provider,
        aclosing(provider.stream(ask("tell me something"))) as items,
    ):
        got = [item async for item in items]
    *pieces, response = got
    assert all(isinstance(piece, TextPiece) and piece.text for piece in pieces)
    assert isinstance(response, PromptResponse)
    assert len(pieces) > (0 if opened in IN_ONE_PIECE else 1)
    assert "".join(piece.text for piece in pieces) == response.text


async def test_calls_may_run_at_the_same_time(opened: Callable[[str], Any]) -> None:
    answers: list[PromptResponse] = []
    async with opened("text") as provider:

        async def call() -> None:
            answers.append(await provider.complete(ask("tell me something")))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(call)
    assert len({answer.text for answer in answers}) == 1
    assert len(answers) == 3


async def test_what_it_says_about_itself_has_no_secret(
    opened: Callable[[str], Any],
) -> None:
    async with opened("text") as provider:
        assert "api_key" not in repr(provider)
        assert "Bearer" not in repr(provider)
