"""A model that thinks gets output tokens for that beside `max_tokens`, learned from its answers (docs/gateway.md)."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener import RuntimeConfig, open_runtime
from kitchener.config import HO2Config, LedgerConfig, ModelPrice, ProviderConfig, RouterConfig, SpendingConfig
from kitchener.errors import ProviderError
from kitchener.gateway import LLMGateway, build_providers
from kitchener.gateway.spending_limits import MeteredGateway, SpendingBook
from kitchener.gateway.thinking_room import ThinkingRoom
from kitchener.model_usage import Usage
from kitchener.records import events
from kitchener.records.prompt import PromptRequest, PromptResponse, StreamRestart, ToolUse
from kitchener.replaying import replay_session
from kitchener.testing import FakeClock, prompt_request
from tests.acceptance.stack import read_all
from tests.gateway.shared.fake_server import Answer, FakeServer, Hit, completion, error, fake_server
from tests.gateway.shared.fake_server import events as words
from tests.gateway.shared.gateway_kit import Told, ask, in_virtual_time, read_until_error

CLASSIFIED: Final = '{"speech_act":"question","ambiguity":"low","labels":{},"intent_relation":"continue","confidence":0.9}'
ROOM: Final = 8_192
"""The default of `thinking_tokens`."""


def thinking(thoughts: int, text: str = "Hello!", *, window: int = 1 << 20) -> Callable[[Hit], Answer]:
    """A model that needs so many tokens for thoughts. Like vLLM, its server refuses a call that its window cannot hold."""

    def answer(hit: Hit) -> Answer:
        prompt = sum(len(each["content"]) for each in hit.body["messages"]) // 3
        most = most_tokens(hit)
        if prompt + most > window:
            return error(
                400, f"This model's maximum context length is {window} tokens. However, you requested {most} output tokens"
            )
        if thoughts >= most:
            return completion("", finish_reason="length", usage={"prompt_tokens": prompt, "completion_tokens": most})
        return completion(text, usage={"prompt_tokens": prompt, "completion_tokens": thoughts + 4})

    return answer


def most_tokens(hit: Hit) -> int:
    """The `max_tokens` of a request."""
    most: int = hit.body["max_tokens"]
    return most


@asynccontextmanager
async def asked(answer: Callable[[Hit], Answer], **settings: Any) -> AsyncIterator[tuple[LLMGateway, FakeServer]]:
    """A gateway whose default provider is a server that answers so."""
    async with fake_server() as server:
        server.respond = answer
        it = ProviderConfig(base_url=server.url, model="m", backoff_initial_s=0.001, backoff_max_s=0.001, **settings)
        config = RouterConfig(default_provider="it", providers={"it": it})
        async with build_providers(config) as providers, LLMGateway(config, providers).open() as gateway:
            yield gateway, server


def asked_for(server: FakeServer) -> list[int]:
    """The `max_tokens` of each request."""
    return [most_tokens(hit) for hit in server.hits]


async def test_an_answer_of_nothing_but_thoughts_is_asked_for_again_with_room_for_them() -> None:
    """And later calls have it from the start. Without it, each call of such a model failed."""
    told = Told()
    async with asked(thinking(500)) as (gateway, server):
        first = await gateway.complete(ask(max_tokens=100), on_attempt=told)
        second = await gateway.complete(ask(max_tokens=50), on_attempt=told)
    assert (first.text, second.text) == ("Hello!", "Hello!")
    assert told.lines == ["1 started it", "1 failed it empty", "2 started it", "1 started it"]
    assert asked_for(server) == [100, 100 + ROOM, 50 + ROOM]


async def test_a_stream_is_asked_for_again_too() -> None:
    async with asked(thinking(500)) as (gateway, server):
        items = [each async for each in gateway.stream(ask(max_tokens=100), on_attempt=Told())]
    assert isinstance(items[-1], PromptResponse)
    assert items[-1].text == "Hello!"
    assert asked_for(server) == [100, 100 + ROOM]


async def test_a_model_is_known_to_think_from_an_answer_that_took_more_tokens_than_its_text_can_have() -> None:
    async with asked(thinking(99)) as (gateway, server):
        for _ in range(3):
            await gateway.complete(ask(max_tokens=200), on_attempt=Told())
    assert asked_for(server) == [200, 200 + ROOM, 200 + ROOM]


async def test_a_model_that_does_not_think_never_gets_more() -> None:
    async with asked(thinking(0, "word " * 40)) as (gateway, server):
        for _ in range(3):
            await gateway.complete(ask(max_tokens=60), on_attempt=Told())
    assert asked_for(server) == [60, 60, 60]


@given(text=st.text(max_size=200), per_byte=st.floats(0, 1), marks=st.integers(0, 64))
def test_no_text_alone_makes_a_model_one_that_thinks(text: str, per_byte: float, marks: int) -> None:
    """Whatever its tokenizer: no token is shorter than a byte."""
    room = ThinkingRoom("it", ROOM)
    tokens = int(per_byte * len(text.encode())) + marks
    room.heard("m", PromptResponse(provider_id="it", model_id="m", text=text, usage=Usage(1, tokens)))
    assert not room


def test_tool_requests_do_not_make_a_model_one_that_thinks() -> None:
    """Their arguments take tokens that are no text."""
    room = ThinkingRoom("it", ROOM)
    uses = (ToolUse("u1", "look", {"place": "x" * 900}),)
    room.heard("m", PromptResponse(provider_id="it", model_id="m", text="", tool_uses=uses, usage=Usage(1, 400)))
    assert not room


async def test_without_room_an_answer_of_nothing_but_thoughts_says_what_a_model_needs() -> None:
    async with asked(thinking(500), thinking_tokens=0, max_retries=1) as (gateway, server):
        with pytest.raises(
            ProviderError, match=r"no text within max_tokens = 100; a model that thinks needs more \(`thinking_tokens`\)"
        ) as caught:
            await gateway.complete(ask(max_tokens=100), on_attempt=Told())
    assert caught.value.reason == "empty"
    assert asked_for(server) == [100, 100]


async def test_thoughts_that_take_all_the_room_end_the_call_after_its_retries() -> None:
    async with asked(thinking(100_000), max_retries=1) as (gateway, server):
        with pytest.raises(ProviderError, match="no text within max_tokens = 8,292"):
            await gateway.complete(ask(max_tokens=100), on_attempt=Told())
    assert asked_for(server) == [100, 100 + ROOM], "it would think as long again"


class SlowThinker:
    """Thinks for 500 tokens before each answer, and without end about what is hard."""

    async def complete(self, request: PromptRequest) -> PromptResponse:
        if "hard" in request.messages[-1].content:
            await anyio.sleep_forever()
        return PromptResponse(provider_id="it", model_id="m", text="Hello!", usage=Usage(9, 500))


def test_long_thoughts_of_one_user_open_no_circuit() -> None:
    """Else a few messages that make a slow model think would leave all others without an answer."""
    it = ProviderConfig(base_url="http://127.0.0.1:9/v1", model="m", max_retries=0, breaker_failures=2)
    config = RouterConfig(default_provider="it", providers={"it": it})

    async def main() -> None:
        async with LLMGateway(config, {"it": SlowThinker()}).open() as gateway:
            await gateway.complete(ask(within_s=1_000), on_attempt=Told())
            for _ in range(4):
                with pytest.raises(ProviderError) as caught:
                    await gateway.complete(ask("a hard question", within_s=1_000), on_attempt=Told())
                assert caught.value.reason == "timeout"
            assert (await gateway.complete(ask(within_s=1_000), on_attempt=Told())).text == "Hello!"

    in_virtual_time(main)


# What a server refuses


async def test_a_small_window_is_found_in_a_few_calls_that_all_get_an_answer() -> None:
    told = Told()
    async with asked(thinking(99, window=2_000)) as (gateway, server):
        for _ in range(12):
            assert (await gateway.complete(ask("hello", max_tokens=200), on_attempt=told)).text == "Hello!"
    refused = [each.reason for each in told.attempts if each.state == "failed"]
    assert set(refused) == {"context_length"}
    assert len(refused) <= 4
    assert asked_for(server)[-1] > 1_000, "what the window has is used"
    assert asked_for(server)[-3:] == [asked_for(server)[-1]] * 3


async def test_a_prompt_that_is_too_long_by_itself_is_refused_once_more_and_takes_no_room_from_others() -> None:
    """Else one user's long text would leave all others without room."""
    async with asked(thinking(99, window=20_000)) as (gateway, server):
        await gateway.complete(ask(max_tokens=200), on_attempt=Told())
        for _ in range(3):
            with pytest.raises(ProviderError) as caught:
                await gateway.complete(ask("long " * 15_000, max_tokens=200), on_attempt=Told())
            assert caught.value.reason == "context_length"
        await gateway.complete(ask(max_tokens=200), on_attempt=Told())
    assert asked_for(server) == [200, *[200 + ROOM, 200] * 3, 200 + ROOM]


@pytest.mark.parametrize("near", [0, 100, 1_000])
async def test_prompts_near_the_window_leave_short_ones_half_of_it(near: int) -> None:
    window = 6_000
    async with asked(thinking(99, window=window)) as (gateway, server):
        for _ in range(20):
            await gateway.complete(ask("x" * 3 * (window - 250 - near), max_tokens=200), on_attempt=Told())
        await gateway.complete(ask(max_tokens=200), on_attempt=Told())
    assert asked_for(server)[-1] >= window // 2


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (400, "max_tokens is too large: 8392. This model supports at most 4096 completion tokens."),
        (400, "max_tokens: 8392 > 4096, which is the maximum allowed number of output tokens for m"),
        (400, "`max_tokens` must be less than or equal to `4096`"),
        (
            402,
            "This request requires fewer max_tokens. You requested up to 8392 tokens, but can only afford 3000.",
        ),
        (
            413,
            "Request too large for model `m` on tokens per minute (TPM): Limit 6000, Requested 8400.",
        ),
        (
            429,
            "Request too large for m on tokens per min (TPM): Limit 6000, Requested 8400.",
        ),
    ],
)
async def test_a_limit_that_only_the_room_passes_stops_no_call(status: int, told: str) -> None:
    def answer(hit: Hit) -> Answer:
        return error(status, told) if most_tokens(hit) > 4_096 else thinking(99)(hit)

    async with asked(answer) as (gateway, server):
        for _ in range(6):
            assert (await gateway.complete(ask(max_tokens=200), on_attempt=Told())).text == "Hello!"
    if status in (402, 429):  # what an account or a minute has left may be more next time
        assert asked_for(server)[-2:] == [200 + ROOM, 200]
    else:
        assert len(server.hits) <= 8
        assert 1_000 < asked_for(server)[-1] <= 4_096


@pytest.mark.parametrize("learned_by", ["no text", "many tokens"])
async def test_thoughts_longer_than_max_tokens_get_what_a_small_window_has(learned_by: str) -> None:
    """A request without room is taken there, but its answer has no text. Each call failed, and nothing was learned."""
    async with asked(thinking(3_000, window=8_192), max_retries=0) as (gateway, server):
        if learned_by == "many tokens":
            await gateway.complete(ask(max_tokens=4_000), on_attempt=Told())
        calls = [await gateway.complete(ask(max_tokens=200), on_attempt=Told()) for _ in range(3)]
    assert [each.text for each in calls] == ["Hello!"] * 3
    first = [200, 200 + ROOM] if learned_by == "no text" else [4_000, 200 + ROOM, 200]
    assert asked_for(server) == [*first, *[200 + ROOM // 2] * 3]


async def test_a_window_without_room_for_the_thoughts_ends_the_search_and_leads_to_a_longer_one() -> None:
    async with fake_server() as short, fake_server() as long:
        short.respond, long.respond = thinking(3_000, window=1_000), thinking(3_000)
        small, large = (ProviderConfig(base_url=each.url, model="m", backoff_initial_s=0.001) for each in (short, long))
        config = RouterConfig(
            default_provider="small",
            providers={"small": small, "large": large},
            context_window_fallbacks={"small": ("large",)},
        )
        async with build_providers(config) as providers, LLMGateway(config, providers).open() as gateway:
            response = await gateway.complete(ask("x" * 3 * 790, max_tokens=200), on_attempt=Told())
    assert response.provider_id == "large"
    assert asked_for(short) == [200, *(200 + (ROOM >> halved) for halved in range(6))]
    assert asked_for(long) == [200, 200 + ROOM]


async def test_refused_room_leaves_a_call_its_retries() -> None:
    async with asked(thinking(99), max_retries=1) as (gateway, server):
        await gateway.complete(ask(max_tokens=200), on_attempt=Told())
        server.script.extend((error(400, "too many tokens"), error(500)))
        assert (await gateway.complete(ask(max_tokens=200), on_attempt=Told())).text == "Hello!"
    assert asked_for(server)[1:] == [200 + ROOM, 200, 200]


async def test_an_account_without_money_still_opens_the_circuit() -> None:
    async with asked(thinking(99), breaker_failures=2) as (gateway, server):
        await gateway.complete(ask(max_tokens=200), on_attempt=Told())
        server.respond = lambda _: error(402, "This request requires more credits, or fewer max_tokens")
        for _ in range(2):
            with pytest.raises(ProviderError, match="more credits"):
                await gateway.complete(ask(max_tokens=200), on_attempt=Told())
        assert gateway.open_circuits()["it"]
    assert asked_for(server) == [200, *[200 + ROOM, 200] * 2]


@pytest.mark.parametrize("restarts", [False, True])
async def test_text_that_was_shown_is_withdrawn_for_room_only_if_its_reader_allows_it(restarts: bool) -> None:
    refusal = b'data: {"error": {"code": 400, "message": "too many tokens"}}\n\n'
    broken = Answer(words(["First "], end="cut").body + refusal, content_type="text/event-stream")
    async with asked(thinking(99)) as (gateway, server):
        await gateway.complete(ask(max_tokens=200), on_attempt=Told())
        server.script.extend((broken, words(["Second"])))
        seen, failed = await read_until_error(gateway, ask(max_tokens=200, restart_streams=restarts), Told())
    assert asked_for(server)[1:] == ([200 + ROOM, 200] if restarts else [200 + ROOM])
    assert (failed is None) == restarts
    assert any(isinstance(each, StreamRestart) for each in seen) == restarts


async def test_text_of_more_tokens_than_estimated_takes_no_room_from_others() -> None:
    """Digits have a token a byte, not a third of one: by the estimate, the window would seem to be a third of what it is."""
    window = 16_384

    def answer(hit: Hit) -> Answer:
        text = "".join(each["content"] for each in hit.body["messages"])
        prompt = len(text) if "777" in text else len(text) // 3
        if prompt + hit.body["max_tokens"] > window:
            return error(400, f"This model's maximum context length is {window} tokens")
        return completion("Hello!", usage={"prompt_tokens": prompt, "completion_tokens": 99})

    async with asked(answer) as (gateway, server):
        for text in ("word " * 4_800, *["7" * (window - 2_048 - 10)] * 8):
            await gateway.complete(ask(text, max_tokens=2_048), on_attempt=Told())
        for _ in range(2):
            await gateway.complete(ask("word " * 4_800, max_tokens=512), on_attempt=Told())
    assert asked_for(server)[-1] > 4_096


async def test_other_refusals_are_no_reason_to_ask_again() -> None:
    async with asked(thinking(99)) as (gateway, server):
        await gateway.complete(ask(max_tokens=200), on_attempt=Told())
        server.respond = lambda _: error(400, "the image cannot be read")
        with pytest.raises(ProviderError) as caught:
            await gateway.complete(ask(max_tokens=200), on_attempt=Told())
    assert caught.value.reason == "bad_request"
    assert asked_for(server) == [200, 200 + ROOM]


# What a call may use


async def test_a_calls_budget_bounds_answer_and_thoughts() -> None:
    async with asked(thinking(99)) as (gateway, server):
        await gateway.complete(ask(max_tokens=200), on_attempt=Told())
        await gateway.complete(ask(max_tokens=200, tokens_left=1_000), on_attempt=Told())
        await gateway.complete(ask(max_tokens=200, tokens_left=200), on_attempt=Told())
    assert asked_for(server) == [200, 1_000, 200]


async def test_a_spending_limit_leaves_less_room_for_thoughts() -> None:
    """Regression: it refused each call whose whole room it did not cover, until the process ended."""
    prices = {"m": ModelPrice(input_per_million=0.0, output_per_million=1_000.0)}
    async with asked(thinking(99)) as (gateway, server):
        book = SpendingBook(SpendingConfig(turn=1.0), prices, FakeClock())
        metered = MeteredGateway(gateway, gateway.candidates, book, gateway.with_thoughts)
        await metered.complete(ask(max_tokens=200, turn_id="T-1"), on_attempt=Told())
        await metered.complete(ask(max_tokens=200, turn_id="T-2"), on_attempt=Told())
        await metered.complete(ask(max_tokens=200, turn_id="T-3", tokens_left=500), on_attempt=Told())
        with pytest.raises(ProviderError, match=r"0\.103 are used, and this call may use 0\.9 more"):
            await metered.complete(ask(max_tokens=900, turn_id="T-2"), on_attempt=Told())
    assert asked_for(server) == [200, 1_000, 500]


@given(
    asked_before=st.lists(st.tuples(st.integers(1, 40_000), st.integers(1, 4_000)), max_size=8),
    window=st.integers(2_000, 60_000),
)
def test_room_is_never_negative_and_never_more_than_was_set(asked_before: list[tuple[int, int]], window: int) -> None:
    async def learn() -> None:
        room = ThinkingRoom("it", ROOM)
        room.thinks("m")
        for size, most in asked_before:
            request = prompt_request("x" * size, max_tokens=most)
            given_room, total = room.of("m", request), (size + 2) // 3 + most
            assert 0 <= given_room <= ROOM
            if given_room and total <= window < total + given_room:
                room.was_too_much("m", request, (size + 2) // 3, given_room)
                assert room.of("m", request) <= given_room // 2

    anyio.run(learn)


async def test_turns_work_with_a_model_that_thinks_longer_than_their_contracts_allow(tmp_path: Path) -> None:
    """A classification has 512 tokens, a reply 2,048."""

    def answer(hit: Hit) -> Answer:
        is_classification = "response_format" in hit.body
        return thinking(3_000, CLASSIFIED if is_classification else "There are three roses.")(hit)

    async with fake_server() as server:
        server.respond = answer
        it = ProviderConfig(base_url=server.url, model="m", backoff_initial_s=0.001)
        config = RuntimeConfig(
            plane_root=str(tmp_path / "root"),
            ledger=LedgerConfig(durability="none"),
            router=RouterConfig(default_provider="it", providers={"it": it}),
            agents={"ADMIN": HO2Config()},
        )
        async with open_runtime(config) as runtime:
            supervisor = runtime.supervisor("ADMIN")
            first = await supervisor.handle_turn("What grows in the garden?", subject_id="ada")
            second = await supervisor.handle_turn("And now?", session_id=first.session_id)
            entries = await read_all(runtime.ledgers().ho1m, entry_type=events.LLM_CALL, session_id=first.session_id)
        report = await replay_session(first.session_id, config=config)
    calls = [each.payload for each in entries]
    assert [call.get("thinking_tokens") for call in calls] == [ROOM] * 4, "what each call had is on record"
    assert report.is_identical, report.text()
    assert (first.error, second.error) == (None, None)
    assert (first.response, second.response) == ("There are three roses.",) * 2
    assert len([most for most in asked_for(server) if most < ROOM]) <= 1, "only the first call lacked room"
