"""A streamed call: before the first piece a retry is free, after it the reader is told; nobody sees a reply twice."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import ProviderError, ProviderReason
from kitchener.gateway import LLMGateway
from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptRequest, PromptResponse, Provider, StreamItem, StreamRestart, TextPiece, ToolUse
from kitchener.testing import ScriptedProvider
from tests.gateway.shared.gateway_kit import Told, ask, cancel_a_reader, read_until_error
from tests.shared.property_examples import examples


class Pieces:
    """A provider whose attempts are scripts of words and errors; a script that ends without error ends with the response.

    A number is a wait in seconds.
    """

    def __init__(self, *attempts: Sequence[Any]) -> None:
        self.attempts = list(attempts)
        self.closed = 0

    async def complete(self, request: PromptRequest) -> PromptResponse:
        raise AssertionError("a stream was asked for")

    async def stream(self, request: PromptRequest) -> AsyncGenerator[TextPiece | PromptResponse, None]:
        said = ""
        try:
            for step in self.attempts.pop(0):
                if isinstance(step, BaseException):
                    raise step
                if isinstance(step, float | int):
                    await anyio.sleep(step)
                else:
                    said += step
                    yield TextPiece(1, step)
            yield PromptResponse(provider_id="pieces", model_id="m", text=said, usage=Usage(1, 1))
        finally:
            self.closed += 1


def failure(reason: ProviderReason = "connection") -> ProviderError:
    return ProviderError("p", reason, "broke off")


def gateway_of(*providers: Provider, **config: Any) -> LLMGateway:
    """Providers `p0`, `p1` …; the first is the default, the others its fallbacks."""
    names = [f"p{number}" for number in range(len(providers))]
    limits = ProviderConfig(kind="offline", **config)
    router = RouterConfig(default_provider="p0", providers=dict.fromkeys(names, limits), fallbacks={"p0": tuple(names[1:])})
    return LLMGateway(router, dict(zip(names, providers, strict=True)), jitter=lambda: 0.0)


async def read(gateway: LLMGateway, request: PromptRequest, told: Told | None = None) -> list[StreamItem]:
    async with aclosing(gateway.stream(request, on_attempt=told or Told())) as items:
        return [item async for item in items]


def shown(items: Sequence[StreamItem]) -> str:
    """What a reader holds who takes back what a restart takes back."""
    text = ""
    for item in items:
        text = "" if isinstance(item, StreamRestart) else text + item.text if isinstance(item, TextPiece) else text
    return text


async def test_pieces_carry_their_attempt_and_the_response_comes_last() -> None:
    told = Told()
    async with gateway_of(Pieces([failure()], ["a ", "b"])).open() as gateway:
        items = await read(gateway, ask(), told)
    assert items[:-1] == [TextPiece(2, "a "), TextPiece(2, "b")]
    response = items[-1]
    assert isinstance(response, PromptResponse)
    assert (response.text, response.provider_id, response.attempts, response.route_reason) == ("a b", "p0", 2, "default")
    assert told.lines == ["1 started p0", "1 failed p0 connection", "2 started p0"]
    assert not told.attempts[1].output_begun


async def test_before_the_first_piece_a_fallback_is_free() -> None:
    async with gateway_of(Pieces([failure()]), Pieces(["fine"]), max_retries=0).open() as gateway:
        items = await read(gateway, ask())
    assert shown(items) == "fine"
    assert not any(isinstance(item, StreamRestart) for item in items)


async def test_after_the_first_piece_a_failure_is_final_unless_the_reader_takes_restarts() -> None:
    told = Told()
    async with gateway_of(Pieces(["half of ", failure()], ["never asked for"]), Pieces(["nor this"])).open() as gateway:
        seen, error = await read_until_error(gateway, ask(), told)
        assert seen == [TextPiece(1, "half of ")]
        assert error is not None
        assert (error.reason, error.output_begun) == ("connection", True)
        assert told.attempts[-1].output_begun
        assert told.lines == ["1 started p0", "1 failed p0 connection"]


async def test_a_reader_who_takes_restarts_is_told_before_the_new_text() -> None:
    told = Told()
    async with gateway_of(Pieces(["half of ", failure()], ["the ", failure()], ["the whole"])).open() as gateway:
        items = await read(gateway, ask(restart_streams=True), told)
        assert items[:-1] == [
            TextPiece(1, "half of "),
            StreamRestart(2),
            TextPiece(2, "the "),
            StreamRestart(3),
            TextPiece(3, "the whole"),
        ]
        assert shown(items) == "the whole"
        assert [each.output_begun for each in told.attempts if each.state == "failed"] == [True, True]


async def test_a_restart_may_go_on_at_a_fallback() -> None:
    async with gateway_of(Pieces(["half of ", failure()]), Pieces(["the whole"]), max_retries=0).open() as gateway:
        items = await read(gateway, ask(restart_streams=True))
        response = items[-1]
        assert isinstance(response, PromptResponse)
        assert (shown(items), response.provider_id, response.route_reason) == ("the whole", "p1", "fallback")


async def test_when_a_restart_fails_too_the_error_says_that_nothing_is_left_shown() -> None:
    async with gateway_of(Pieces(["half of ", failure()], [failure("server_error")]), max_retries=1).open() as gateway:
        with pytest.raises(ProviderError) as caught:
            await read(gateway, ask(restart_streams=True))
        assert (caught.value.reason, caught.value.output_begun) == ("server_error", False)


async def test_when_no_restart_is_possible_the_error_says_that_text_is_still_shown() -> None:
    async with gateway_of(Pieces(["half of ", failure()]), max_retries=3, breaker_failures=1).open() as gateway:
        with pytest.raises(ProviderError) as caught:
            await read(gateway, ask(restart_streams=True))
        assert (caught.value.reason, caught.value.output_begun) == ("connection", True)


async def test_a_provider_without_streams_gives_its_answer_in_one_piece() -> None:
    class Whole:
        async def complete(self, request: PromptRequest) -> PromptResponse:
            return PromptResponse(provider_id="p0", model_id="m", text="all at once", usage=Usage(1, 1))

    class Silent:
        async def complete(self, request: PromptRequest) -> PromptResponse:
            use = ToolUse("u", "look", {})
            return PromptResponse(provider_id="p0", model_id="m", text="", tool_uses=(use,), usage=Usage(1, 1))

    async with gateway_of(Whole()).open() as gateway:
        items = await read(gateway, ask())
    assert items[:-1] == [TextPiece(1, "all at once")]
    assert isinstance(items[-1], PromptResponse)
    async with gateway_of(Silent()).open() as gateway:
        assert len(await read(gateway, ask())) == 1
    async with gateway_of(Pieces(["", "a", ""])).open() as gateway:
        assert shown(await read(gateway, ask())) == "a"


async def test_a_stream_without_a_response_is_malformed() -> None:
    class Unfinished(Pieces):
        async def stream(self, request: PromptRequest) -> AsyncGenerator[TextPiece | PromptResponse, None]:
            yield TextPiece(1, "and")

    with pytest.raises(ProviderError, match="ended without a response") as caught:
        async with gateway_of(Unfinished()).open() as gateway:
            await read(gateway, ask())
    assert (caught.value.reason, caught.value.output_begun) == ("malformed", True)


async def test_a_reader_who_stops_frees_the_slot_and_closes_the_provider() -> None:
    pieces = Pieces(["a", "b", "c"])
    async with gateway_of(pieces, max_concurrency=1).open() as gateway:
        async with aclosing(gateway.stream(ask(), on_attempt=Told())) as items:
            async for _ in items:
                assert gateway.statistics()["p0"].running == 1
                break
        assert (gateway.statistics()["p0"].running, pieces.closed) == (0, 1)


async def test_cancelling_a_reader_frees_the_slot_and_closes_the_provider() -> None:
    pieces = Pieces(["a", 1_000])
    async with gateway_of(pieces).open() as gateway:
        await cancel_a_reader(gateway)
        assert (gateway.statistics()["p0"].running, pieces.closed) == (0, 1)


def test_a_stalled_stream_ends_at_the_time_limit_and_a_slow_reader_does_not_cause_that() -> None:
    """The limit is 4 s of the provider's time: 3 s of waiting in all pass, however long the reader takes in between."""

    async def main() -> None:
        pieces = Pieces(["a", failure()], ["a", 1.5, "b", 1.5, "c"], ["a", 5.0, "b"])
        async with gateway_of(pieces, timeout_s=4.0).open() as gateway:
            slowly = []
            async with aclosing(gateway.stream(ask(within_s=1_000.0, restart_streams=True), on_attempt=Told())) as items:
                async for item in items:
                    slowly.append(item)
                    await trio.sleep(10.0)
            assert shown(slowly) == "abc"
            assert slowly[1] == StreamRestart(2)
            begun = trio.current_time()
            with pytest.raises(ProviderError, match="within timeout_s = 4") as caught:
                await read(gateway, ask(within_s=1_000.0))
            assert caught.value.output_begun
            assert trio.current_time() - begun == pytest.approx(4.0)

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


attempts = st.lists(
    st.lists(st.sampled_from(["x", "y", failure(), failure("server_error"), failure("refused")]), max_size=4),
    min_size=8,
    max_size=8,
)


@settings(max_examples=examples(few=60, many=2_000))
@given(scripts=attempts, restarts=st.booleans(), retries=st.integers(0, 3))
def test_nobody_reads_anything_twice(scripts: list[list[Any]], restarts: bool, retries: int) -> None:
    """Whatever breaks off when: a reader who heeds restarts holds exactly the answer, or an error that says what it holds."""

    async def main() -> None:
        async with gateway_of(Pieces(*scripts[:4]), Pieces(*scripts[4:]), max_retries=retries).open() as gateway:
            seen, error = await read_until_error(gateway, ask(restart_streams=restarts), Told())
            if error is None:
                response = seen[-1]
                assert isinstance(response, PromptResponse)
                assert shown(seen) == response.text
                assert sum(isinstance(item, PromptResponse) for item in seen) == 1
            else:
                assert error.output_begun is bool(shown(seen))
                assert not any(isinstance(item, PromptResponse) for item in seen)
            current = 0
            for item in seen:
                if isinstance(item, StreamRestart):
                    assert restarts
                    assert item.attempt > current
                if isinstance(item, StreamRestart | TextPiece):
                    assert item.attempt >= current
                    changed = item.attempt != current
                    assert not (changed and current and isinstance(item, TextPiece))
                    current = item.attempt
            assert all(each.running == 0 for each in gateway.statistics().values())

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_scripted_stream_is_its_answer_word_by_word() -> None:
    async with LLMGateway(RouterConfig(default_provider="s"), {"s": ScriptedProvider(["one  two\nthree"])}).open() as gateway:
        items = await read(gateway, ask())
        assert [item.text for item in items if isinstance(item, TextPiece)] == ["one  ", "two\n", "three"]
