"""Providers that count tokens in ways that cannot be: a typed failure that says which and how (docs/gateway.md)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest

from kitchener.config import ProviderConfig
from kitchener.errors import ProviderError
from kitchener.gateway.guarded_provider import ProviderUsage
from kitchener.gateway.traits import ProviderTraits
from kitchener.model_usage import MOST_TOKENS, Usage
from kitchener.records import events
from kitchener.records.prompt import PromptRequest, PromptResponse, TextPiece
from kitchener.runtime import Runtime, open_runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo, read_all, scripted_config
from tests.gateway.providers.test_models import served
from tests.gateway.shared.chat_endpoints import stream_of
from tests.gateway.shared.fake_server import completion, error
from tests.gateway.shared.gateway_kit import Told, ask, read_until_error

pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2|pydantic_ai):ResourceWarning")

WRONG: list[Any] = [-1, 2.0, True, 2**60, MOST_TOKENS + 1, "12", None]
SID = "SES-0000000a"


class Miscounting:
    """A scripted provider whose answers to one kind of work order have these counts."""

    traits = ProviderTraits(built_in=True, needs_timeout=False, model_id="scripted-1")

    def __init__(self, wo_type: str, **counts: Any) -> None:
        self._inner, self._wo_type, self._counts = ScriptedProvider(echo), wo_type, counts

    async def complete(self, request: PromptRequest) -> PromptResponse:
        response = await self._inner.complete(request)
        if request.wo_type != self._wo_type:
            return response
        return replace(response, usage=replace(response.usage, **self._counts))


class MiscountingStream(Miscounting):
    """The same as a stream."""

    async def stream(self, request: PromptRequest) -> AsyncIterator[TextPiece | PromptResponse]:
        response = await self.complete(request)
        yield TextPiece(1, response.text)
        yield response


@asynccontextmanager
async def asking(root: Path, provider: Miscounting) -> AsyncIterator[Runtime]:
    with anyio.fail_after(20):
        config = scripted_config(root)
        once = ProviderConfig(kind="offline", max_retries=0)
        config = config.model_copy(update={"router": config.router.model_copy(update={"providers": {"scripted": once}})})
        async with open_runtime(config, providers={"scripted": provider}) as runtime:
            await runtime.supervisor().start_session(SID, subject_id="ada")
            yield runtime


@pytest.mark.parametrize(
    ("name", "count"),
    [*(("output_tokens", each) for each in WRONG), ("input_tokens", 2**60), ("cached_tokens", 2**60), ("cached_tokens", -1)],
)
async def test_a_turn_whose_provider_cannot_count_ends_and_says_so(tmp_path: Path, name: str, count: Any) -> None:
    async with asking(tmp_path, Miscounting("synthesize", **{name: count})) as runtime:
        supervisor = runtime.supervisor()
        result = await supervisor.handle_turn("hello", session_id=SID, idempotency_key="one")
        assert result.error is not None
        assert "scripted" in result.error.message
        assert f"usage.{name} = {count!r}: expected a whole number from 0 to 1,000,000,000" in result.error.message
        assert await supervisor.handle_turn("hello", session_id=SID, idempotency_key="one") == result
        entries = await read_all(runtime.ledgers().ho2m, session_id=SID)
        assert [e.entry_type for e in entries].count(events.TURN_COMPLETED) == 1
        assert (await supervisor.handle_turn("hello", session_id=SID)).turn_id.endswith("2"), "the session goes on"


async def test_a_turn_whose_classification_is_miscounted_still_gets_its_reply(tmp_path: Path) -> None:
    async with asking(tmp_path, Miscounting("classify", output_tokens=2**60)) as runtime:
        result = await runtime.supervisor().handle_turn("hello", session_id=SID)
        assert (result.error, result.response) == (None, "echo: hello")


async def test_text_that_was_streamed_before_the_counts_is_taken_back_or_fails(tmp_path: Path) -> None:
    async with asking(tmp_path, MiscountingStream("synthesize", output_tokens=-5)) as runtime:
        updates = [each async for each in runtime.supervisor().stream_turn("hello", session_id=SID)]
        result = updates[-1].result  # type: ignore[union-attr]
        assert result.error is not None
        assert "usage.output_tokens = -5" in result.error.message


@pytest.mark.parametrize("count", [-1, 2.5, True, "12", "many", {}, [1], 2**60, 2**70])
async def test_a_count_that_cannot_be_is_estimated_and_logged_once(count: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Regression: a statistic failed an answer that was good, and had been streamed and paid for."""
    answer = completion(usage={"prompt_tokens": count, "completion_tokens": 3, "total_tokens": 3})
    async with served(answer, answer) as (_, gateway):
        for _ in range(2):
            assert (await gateway.complete(ask("hello"), on_attempt=Told())).usage == Usage(5, 3)
    assert [each.getMessage() for each in caplog.records].count("provider sends impossible token counts") == 1


async def test_a_whole_number_may_be_written_as_a_fraction() -> None:
    usage = {"prompt_tokens": 9.0, "completion_tokens": 4.0, "prompt_tokens_details": {"cached_tokens": 2.0}}
    async with served(completion(usage=usage)) as (_, gateway):
        assert (await gateway.complete(ask(), on_attempt=Told())).usage == Usage(9, 4, 2)


async def test_counts_that_are_none_at_all_are_estimated_after_the_text_was_streamed() -> None:
    event = {"choices": [{"delta": {"content": "123456"}, "finish_reason": "stop"}], "usage": [1]}
    async with served(stream_of([orjson.dumps(event)])) as (server, gateway):
        (*_, response), failed = await read_until_error(gateway, ask("hello"), Told())
    assert (failed, len(server.hits)) == (None, 1)
    assert response.usage == Usage(5, 2)  # type: ignore[union-attr] # the last item is the response


def test_counts_that_can_be_are_no_problem() -> None:
    for usage in (Usage(0, 0), Usage(MOST_TOKENS, MOST_TOKENS, MOST_TOKENS, MOST_TOKENS), Usage(1, 2, None), Usage(3, 2, 0)):
        assert usage.problem() is None


async def test_what_each_provider_was_sent_and_its_cache_served_is_counted() -> None:
    """Of answers only, and of no built-in provider."""
    cached = {"prompt_tokens": 20, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 12}}
    uncached = {"prompt_tokens": 8, "completion_tokens": 1}
    async with served(
        completion("a", usage=cached), error(400), completion("b", usage=uncached), completion("c", usage=uncached)
    ) as (_, gateway):
        assert gateway.usage() == {}
        await gateway.complete(ask(), on_attempt=Told())
        with pytest.raises(ProviderError):
            await gateway.complete(ask(), on_attempt=Told())
        await gateway.complete(ask(), on_attempt=Told())
        await gateway.complete(ask(provider_id="offline"), on_attempt=Told())
        used = ProviderUsage(calls=2, input_tokens=28, cached_tokens=12, output_tokens=6)
        assert gateway.usage() == {"local": used}
        ((provider, by_model),) = gateway.usage_by_model().items()
        assert (provider, list(by_model.values())) == ("local", [used])
        await gateway.complete(ask(model_id="other"), on_attempt=Told())
        assert list(gateway.usage_by_model()["local"]) == [*by_model, "other"]
        assert gateway.usage()["local"].calls == 3
