"""A server that still loads its model is asked again until it has, within the time of an attempt (docs/gateway.md)."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import ProviderError
from kitchener.gateway import LLMGateway, build_providers
from kitchener.gateway.providers.chat_completions import chat_endpoint
from kitchener.gateway.providers.endpoint_errors import is_loading
from kitchener.records.prompt import PromptResponse
from tests.gateway.providers.test_models import served
from tests.gateway.shared.fake_server import Answer, completion, error, events, fake_server
from tests.gateway.shared.gateway_kit import Told, ask, read_until_error

LOADING = {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}


def loading(body: Any = LOADING) -> Answer:
    return Answer(orjson.dumps(body), 503)


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_endpoint, "LOADING_PAUSE_S", 0.02)


async def test_a_call_waits_until_the_model_is_loaded(caplog: pytest.LogCaptureFixture) -> None:
    """Regression: it was given up after two retries, about a second and a half. A model takes minutes to load."""
    told = Told()
    async with served(*[loading()] * 8, completion(), completion()) as (server, gateway):
        assert (await gateway.complete(ask(), on_attempt=told)).text == "Hello!"
        assert (await gateway.complete(ask(), on_attempt=told)).text == "Hello!"
    assert told.lines == ["1 started local"] * 2
    assert len(server.hits) == 10
    assert [each.getMessage() for each in caplog.records].count("provider loads its model") == 1


async def test_a_stream_waits_too() -> None:
    async with served(loading(), loading(), events(["Hel", "lo"])) as (_, gateway):
        items, failed = await read_until_error(gateway, ask(), Told())
    assert failed is None
    assert isinstance(items[-1], PromptResponse)
    assert items[-1].text == "Hello"


async def test_a_model_that_is_not_loaded_in_time_is_told_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not only that the time of the attempt is over."""
    monkeypatch.setattr(chat_endpoint, "LOADING_PAUSE_S", 0.4)
    told = Told()
    async with fake_server() as server:
        server.respond = lambda _: loading()
        it = ProviderConfig(base_url=server.url, model="m", timeout_s=2.0, max_retries=0)
        config = RouterConfig(default_provider="it", providers={"it": it})
        async with build_providers(config) as providers, LLMGateway(config, providers).open() as gateway:
            with pytest.raises(ProviderError, match="HTTP 503: Loading model") as caught:
                await gateway.complete(ask(), on_attempt=told)
    assert caught.value.reason == "server_error"
    assert told.lines == ["1 started it", "1 failed it server_error"]
    assert 2 <= len(server.hits) <= 5


@pytest.mark.parametrize(
    ("status", "body", "is_told"),
    [
        (503, LOADING, True),
        (503, {"error": "Model meta-llama/Llama-3-8B is currently loading", "estimated_time": 20.0}, True),
        (503, {"error": {"message": "Service unavailable"}}, False),
        (503, "<html><title>503 Service Unavailable</title></html>", False),
        (500, LOADING, False),
        (400, {"error": {"message": "the model is loading its tools"}}, False),
    ],
)
def test_only_a_server_that_says_so_is_waited_for(status: int, body: object, is_told: bool) -> None:
    assert is_loading(status, body) is is_told


@pytest.mark.parametrize("answer", [lambda: error(503), lambda: error(500, "Loading model")], ids=["503", "500"])
async def test_another_failure_is_retried_as_ever(answer: Callable[[], Answer]) -> None:
    told = Told()
    async with served(answer(), completion(), max_retries=1, backoff_initial_s=0.001) as (_, gateway):
        assert (await gateway.complete(ask(), on_attempt=told)).text == "Hello!"
    assert told.lines == ["1 started local", "1 failed local server_error", "2 started local"]
