"""The endpoint for vectors: what is sent, and which answers are refused."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from kitchener.config import EmbeddingsConfig, RouterConfig, RuntimeConfig
from kitchener.errors import ConfigError, ProviderError
from kitchener.gateway.embedding_providers.configured_provider import open_embeddings
from kitchener.records.embedding import EmbeddingProvider
from tests.gateway.shared.fake_server import Answer, FakeServer, cut, error, fake_server, hang

SECRET = "sk-0123456789"


def endpoint(url: str, **settings: Any) -> RuntimeConfig:
    given = {"kind": "openai_compatible", "base_url": url, "model": "small", "deadline_s": 60.0, **settings}
    return RuntimeConfig(embeddings=EmbeddingsConfig.model_validate(given))


@asynccontextmanager
async def asking(*answers: Answer, **settings: Any) -> AsyncIterator[tuple[FakeServer, EmbeddingProvider]]:
    """A server with these answers, and the provider that asks it."""
    async with fake_server(*answers) as server, open_embeddings(endpoint(server.url, **settings)) as provider:
        assert provider is not None
        yield server, provider


def data(*embeddings: Any) -> Answer:
    return Answer(json.dumps({"data": [{"index": n, "embedding": each} for n, each in enumerate(embeddings)]}).encode())


async def test_what_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """One request with model and texts, to the root of the settings, with the key that they refer to."""
    monkeypatch.setenv("EMBEDDINGS_KEY", SECRET)
    async with asking(data([1.0], [2.0]), api_key="env:EMBEDDINGS_KEY") as (server, provider):
        assert [[*each] for each in await provider.embed(["one", "two"])] == [[1.0], [2.0]]
        (hit,) = server.hits
    assert hit.path == "/v1/embeddings"
    assert hit.body == {"model": "small", "input": ["one", "two"], "encoding_format": "base64"}
    assert hit.headers["authorization"] == f"Bearer {SECRET}"
    assert provider.model_id.startswith("127.0.0.1:")
    assert provider.model_id.endswith("/small")


BAD = {
    "no JSON": Answer(b"<html>"),
    "no data": Answer(b"{}"),
    "a list": Answer(b"[1, 2]"),
    "too few": data([1.0]),
    "no base64": data("§§", "AAAA"),
    "half a number": data("AAA=", "AAA="),
    "an object": data({}, {}),
    "twice the same": Answer(b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [1]}]}'),
    "unauthorized": error(401, f"bad key {SECRET}"),
    "overloaded": error(503),
    "redirected": Answer(b"", 302, {"Location": "http://127.0.0.1:9/v1/embeddings"}),
    "cut off": cut(),
}


@pytest.mark.parametrize("kind", [*BAD])
async def test_bad_answers_are_errors_that_quote_nothing(kind: str) -> None:
    async with asking(BAD[kind]) as (server, provider):
        with pytest.raises(ProviderError) as caught:
            await provider.embed(["the secret plan", "two"])
        assert len(server.hits) == 1
    assert SECRET not in str(caught.value)
    assert "secret plan" not in str(caught.value)


async def test_a_wrong_key_is_told_with_the_setting_to_check() -> None:
    async with asking(BAD["unauthorized"]) as (_, provider):
        with pytest.raises(ProviderError, match=r"answered with status 401; check `api_key`; if there is none, set"):
            await provider.embed(["one"])
    async with asking(error(503)) as (_, provider):
        with pytest.raises(ProviderError, match=r"answered with status 503$"):
            await provider.embed(["one"])


async def test_a_lost_connection_is_told_in_a_sentence() -> None:
    """As for models; it was the name of a class of the HTTP client."""
    async with asking(cut()) as (_, provider):
        with pytest.raises(ProviderError, match="connection was closed in the middle of the answer") as lost:
            await provider.embed(["one"])
    async with open_embeddings(endpoint("http://127.0.0.1:9/v1")) as nowhere:
        assert nowhere is not None
        with pytest.raises(ProviderError, match=r"cannot connect to 127\.0\.0\.1:9: connection refused") as refused:
            await nowhere.embed(["one"])
    assert (lost.value.reason, refused.value.reason) == ("connection", "connection")


async def test_a_cancelled_call_closes_its_connection() -> None:
    async with asking(hang()) as (server, provider):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(provider.embed, ["one"])
                await server.arrived.wait()
                scope.cancel()
        with anyio.fail_after(10):
            await server.gone.wait()


async def test_wrong_settings_are_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    for settings, key in (
        (endpoint("ftp://example.test"), "embeddings.base_url"),
        (endpoint("http://user:secret@127.0.0.1/v1"), "embeddings.base_url"),
        (endpoint("http://127.0.0.1/v1", api_key="env:NO_SUCH_KEY"), "embeddings.api_key"),
        (endpoint("http://127.0.0.1/v1", api_key=SECRET), "embeddings.api_key"),
    ):
        with pytest.raises(ConfigError, match=key) as caught:
            async with open_embeddings(settings):
                pass
        assert "secret" not in str(caught.value)
        assert SECRET not in str(caught.value)


async def test_nobody_is_asked_where_model_calls_are_not_allowed() -> None:
    settings = endpoint("http://127.0.0.1:9/v1").model_copy(update={"router": RouterConfig(allow_model_calls=False)})
    async with open_embeddings(settings) as provider:
        assert provider is None


@pytest.mark.parametrize("missing", ["base_url", "model"])
def test_an_endpoint_needs_an_address_and_a_model(missing: str) -> None:
    given = {"kind": "openai_compatible", "base_url": "http://127.0.0.1/v1", "model": "small", missing: None}
    with pytest.raises(ValueError, match=f"needs `{missing}`"):
        EmbeddingsConfig.model_validate(given)
