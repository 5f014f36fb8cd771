"""Endpoints of OpenAI's chat-completions format for tests: a server with a script, its provider, and the answers to give."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.gateway import build_providers
from kitchener.records.prompt import PromptResponse, StreamingProvider, TextPiece
from tests.gateway.shared.fake_server import Answer, FakeServer, fake_server
from tests.gateway.shared.gateway_kit import ask


@asynccontextmanager
async def endpoint(*script: Answer, **settings: Any) -> AsyncIterator[tuple[FakeServer, StreamingProvider]]:
    """A server with a script, and the provider that asks it."""
    async with fake_server(*script) as server, opened(server.url, **settings) as provider:
        yield server, provider


@asynccontextmanager
async def opened(url: str, **settings: Any) -> AsyncIterator[StreamingProvider]:
    it = ProviderConfig(**{"base_url": url, "model": "m", "timeout_s": 20.0, **settings})
    async with build_providers(RouterConfig(providers={"it": it})) as providers:
        yield providers["it"]  # type: ignore[misc] # every endpoint can stream


async def streamed(provider: StreamingProvider, **fields: Any) -> tuple[list[str], PromptResponse]:
    *pieces, response = [each async for each in provider.stream(ask(**fields))]
    assert isinstance(response, PromptResponse)
    return [each.text for each in pieces if isinstance(each, TextPiece)], response


async def gather(provider: StreamingProvider, into: list[object]) -> None:
    """Puts each item of a stream into the list as it comes."""
    async for each in provider.stream(ask()):
        into.append(each)  # noqa: PERF401 # what came before an error counts


def chunks(*deltas: dict[str, Any], finish_reason: str = "stop", usage: dict[str, Any] | None = None) -> Answer:
    """A stream of these deltas."""
    sent: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": each}]} for each in deltas]
    sent.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}], "usage": usage})
    return stream_of([orjson.dumps(each) for each in sent])


def stream_of(data: Sequence[bytes]) -> Answer:
    body = b"".join(b"data: " + each + b"\n\n" for each in (*data, b"[DONE]"))
    return Answer(body, content_type="text/event-stream", chunk_bytes=7)


def message(**fields: Any) -> Answer:
    """A whole answer with this message."""
    return Answer(orjson.dumps({"choices": [{"message": fields, "finish_reason": "stop"}]}))
