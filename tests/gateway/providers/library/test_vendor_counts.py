"""Counts that cannot be, as three vendors' libraries read them: the answer stays, and is estimated (docs/gateway.md).

These libraries fail for some of them and warn of others, so each test also fails if a library warns.
"""

import json
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.gateway import build_providers
from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptResponse
from tests.gateway.shared.fake_server import Answer, fake_server
from tests.gateway.shared.gateway_kit import ask
from tests.shared.sampled_tables import sampled

# Under trio the vendor's library leaves its own generators to the garbage collector once it has read the end of a stream.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Async generator '(openai|anthropic|httpx2|httpcore2|pydantic_ai):ResourceWarning"
)

TEXT = "123456"
STREAMS = (False, True)
WRONG: list[Any] = [-1, -0.5, 2.5, True, "12", "many", {}, [1], 2**60, 2**70]
Counts = dict[str, Any] | Any


def openai(counts: Counts, *, streams: bool) -> Answer:
    head = {"id": "c-1", "created": 1, "model": "m"}
    if not streams:
        choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
        return _whole({**head, "object": "chat.completion", "choices": [choice], "usage": counts})
    head["object"] = "chat.completion.chunk"
    text = {"index": 0, "delta": {"content": TEXT}, "finish_reason": None}
    end = {"index": 0, "delta": {}, "finish_reason": "stop"}
    return _events({**head, "choices": [text]}, {**head, "choices": [end], "usage": counts})


def anthropic(counts: Counts, *, streams: bool) -> Answer:
    head = {"id": "m-1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-6", "stop_sequence": None}
    if not streams:
        return _whole({**head, "content": [{"type": "text", "text": TEXT}], "stop_reason": "end_turn", "usage": counts})
    return _events(
        {"type": "message_start", "message": {**head, "content": [], "stop_reason": None, "usage": counts}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": TEXT}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn", "stop_sequence": None}, "usage": counts},
        {"type": "message_stop"},
    )


def google(counts: Counts, *, streams: bool) -> Answer:
    candidate = {"content": {"role": "model", "parts": [{"text": TEXT}]}, "finishReason": "STOP", "index": 0}
    answer = {"candidates": [candidate], "usageMetadata": counts, "modelVersion": "g", "responseId": "x"}
    return _events(answer) if streams else _whole(answer)


def _whole(answer: dict[str, Any]) -> Answer:
    return Answer(json.dumps(answer).encode())


def _events(*events: dict[str, Any]) -> Answer:
    sent = [
        f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" if "type" in each else f"data: {json.dumps(each)}\n\n"
        for each in events
    ]
    return Answer("".join(sent).encode(), content_type="text/event-stream", chunk_bytes=40)


NAMES = {
    "openai-chat:m": (openai, "prompt_tokens", "completion_tokens"),
    "anthropic:claude-sonnet-4-6": (anthropic, "input_tokens", "output_tokens"),
    "google:gemini-3.8-flash": (google, "promptTokenCount", "candidatesTokenCount"),
}
CACHED: dict[str, Callable[[Any], dict[str, Any]]] = {
    "openai-chat:m": lambda count: {"prompt_tokens_details": {"cached_tokens": count}},
    "anthropic:claude-sonnet-4-6": lambda count: {"cache_read_input_tokens": count},
    "google:gemini-3.8-flash": lambda count: {"cachedContentTokenCount": count},
}


async def usages_of(model: str, *counts: Counts, monkeypatch: pytest.MonkeyPatch, streams: bool) -> list[Usage]:
    """What one client of a vendor's library reads of answers with these counts, one after the other."""
    monkeypatch.setenv("A_KEY", "sk-some-key")
    async with fake_server(*(NAMES[model][0](each, streams=streams) for each in counts)) as server:
        url = server.url.removesuffix("/v1") if model.startswith("anthropic") else server.url
        config = ProviderConfig(kind="model", model=model, api_key="env:A_KEY", base_url=url, timeout_s=20.0)
        async with build_providers(RouterConfig(providers={"it": config})) as providers:
            provider: Any = providers["it"]
            return [await usage_from(provider, streams=streams) for _ in counts]


async def usage_from(provider: Any, *, streams: bool) -> Usage:
    if streams:
        *_, response = [each async for each in provider.stream(ask("hello"))]
    else:
        response = await provider.complete(ask("hello"))
    assert isinstance(response, PromptResponse)
    assert response.text == TEXT
    assert response.usage.problem() is None
    return response.usage


@pytest.mark.parametrize(("model", "count", "streams"), sampled(NAMES, WRONG, STREAMS))
async def test_a_count_that_cannot_be_is_estimated_or_left_out(
    model: str, count: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, streams: bool
) -> None:
    _, sent, received = NAMES[model]
    counts = ({sent: count, received: 3}, {sent: 9, received: count}, {sent: 9, received: 3, **CACHED[model](count)})
    first, second, cached = await usages_of(model, *counts, monkeypatch=monkeypatch, streams=streams)
    assert first == Usage(5, 3)
    assert [each.getMessage() for each in caplog.records].count("provider sends impossible token counts") == 1
    assert second == Usage(9, 2)
    assert cached in (Usage(9, 3), Usage(9, 3, 0))


@pytest.mark.parametrize(("asked", "counts"), sampled([*product(NAMES, STREAMS)], (-1, 2.5, True, "many", [1])))
async def test_counts_that_are_no_object_are_estimated(
    asked: tuple[str, bool], counts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, streams = asked
    assert await usages_of(model, counts, monkeypatch=monkeypatch, streams=streams) == [Usage(5, 2)]


@pytest.mark.parametrize("model", NAMES)
async def test_counts_that_can_be_stay_as_they_are(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, sent, received = NAMES[model]
    for streams in STREAMS:
        counts = {sent: 9, received: 4.0, **CACHED[model](2)}
        (usage,) = await usages_of(model, counts, monkeypatch=monkeypatch, streams=streams)
        assert usage == Usage(11 if model.startswith("anthropic") else 9, 4, 2)
