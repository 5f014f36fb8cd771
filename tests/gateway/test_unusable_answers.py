"""The tokens of answers that cannot be used count wherever those of other answers do (docs/gateway.md)."""

from collections.abc import AsyncGenerator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener import RuntimeConfig, open_runtime
from kitchener.config import ModelPrice, ProviderConfig, SpendingConfig
from kitchener.errors import ProviderError
from kitchener.gateway.spending_limits import MeteredGateway, SpendingBook
from kitchener.model_usage import Usage
from kitchener.records import events
from kitchener.records.prompt import Attempt, PromptRequest, PromptResponse, TextPiece
from kitchener.records.turn import TurnResult
from kitchener.replaying import replay_session
from kitchener.telemetry import names
from kitchener.testing import FakeClock, ScriptedProvider
from tests.acceptance.stack import read_all, scripted_config
from tests.gateway.providers.test_models import KINDS, served
from tests.gateway.shared.chat_endpoints import stream_of
from tests.gateway.shared.fake_server import Answer, completion, error
from tests.gateway.shared.gateway_kit import Told, ask, failure, gateway_of, read_until_error
from tests.telemetry.watch import Watch

# Under trio the vendor's library leaves its own generators to the garbage collector once it has read the end of a stream.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2|pydantic_ai):ResourceWarning")

USED: Final = Usage(900, 100)
COUNTS: Final = {"prompt_tokens": 900, "completion_tokens": 100}
PRICE: Final = ModelPrice(input_per_million=1.0, output_per_million=10.0)


def whole(message: Mapping[str, Any], finish: str = "stop") -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    about = {"id": "c-1", "object": "chat.completion", "created": 1, "model": "m"}
    return Answer(orjson.dumps({**about, "choices": [choice], "usage": {**COUNTS, "total_tokens": 1_000}}))


def streamed(message: Mapping[str, Any], finish: str = "stop") -> Answer:
    calls = [{"index": n, **each} for n, each in enumerate(message.get("tool_calls", ()))]
    delta = {**message, **({"tool_calls": calls} if calls else {})}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}], "usage": COUNTS}
    first = {"choices": [{"index": 0, "delta": delta}]}
    return stream_of([orjson.dumps(first), orjson.dumps(last)])


UNUSABLE: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "thoughts alone": ("empty", {"content": "", "reasoning_content": "hm"}, "length"),
    "nothing": ("empty", {"content": ""}, "stop"),
    "filtered": ("refused", {"content": ""}, "content_filter"),
    "refusal": ("refused", {"refusal": "I must not"}, "stop"),
    "name of a tool": (
        "malformed",
        {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "n" * 300, "arguments": ""}}]},
        "tool_calls",
    ),
}


@pytest.fixture(params=KINDS)
def adapter(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings of a provider: of our own adapter, or of the vendors' library."""
    monkeypatch.setenv("A_KEY", "sk-some-key")
    return KINDS[request.param]


@pytest.mark.parametrize("kind", UNUSABLE)
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
async def test_an_attempt_says_what_its_unusable_answer_used(kind: str, streams: bool, adapter: dict[str, Any]) -> None:
    """Regression: nobody counted them, although the provider charges them: a model that thinks may use thousands."""
    reason, message, finish = UNUSABLE[kind]
    answer, told = (streamed if streams else whole)(message, finish), Told()
    async with served(answer, max_retries=0, thinking_tokens=0, **adapter) as (_, gateway):
        if streams:
            _, failed = await read_until_error(gateway, ask(), told)
        else:
            with pytest.raises(ProviderError) as caught:
                await gateway.complete(ask(), on_attempt=told)
            failed = caught.value
        usage = gateway.usage()["local"]
    assert failed is not None
    assert (failed.reason, failed.usage) == (reason, None), "the error of the call is not counted once more"
    assert [each.usage for each in told.attempts] == [None, USED]
    assert (usage.calls, usage.input_tokens, usage.output_tokens) == (0, 900, 100)


@pytest.mark.parametrize("end", ["reset", "error"])
async def test_what_a_stream_has_told_before_it_broke_counts(end: str, adapter: dict[str, Any]) -> None:
    """Some servers count in each event."""
    event = orjson.dumps({"choices": [{"index": 0, "delta": {"content": "Hel"}}], "usage": COUNTS})
    data = [event] if end == "reset" else [event, orjson.dumps({"error": {"message": "overloaded", "code": 503}})]
    answer = stream_of(data)
    if end == "reset":
        answer = Answer(answer.body.replace(b"data: [DONE]\n\n", b""), end="cut", content_type="text/event-stream")
    told = Told()
    async with served(answer, max_retries=0, **adapter) as (_, gateway):
        _, failed = await read_until_error(gateway, ask(), told)
    assert failed is not None
    assert told.attempts[-1].usage == USED


async def test_an_error_in_the_body_of_an_answer_has_its_counts() -> None:
    """With status 200, as gateways in front of models send them."""
    body, told = {"error": {"message": "upstream failed", "code": 502}, "usage": COUNTS}, Told()
    async with served(Answer(orjson.dumps(body)), max_retries=0) as (_, gateway):
        with pytest.raises(ProviderError, match="upstream failed"):
            await gateway.complete(ask(), on_attempt=told)
    assert told.attempts[-1].usage == USED


async def test_zeros_are_no_counts(adapter: dict[str, Any]) -> None:
    """Some servers begin with them. They count neither as an answer nor in place of an estimate."""
    zeros = orjson.dumps({"choices": [], "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}})
    broken, told = orjson.dumps({"error": {"message": "overloaded", "code": 503}}), Told()
    async with served(stream_of([zeros, broken]), max_retries=0, **adapter) as (_, gateway):
        _, failed = await read_until_error(gateway, ask(), told)
    assert failed is not None
    assert told.attempts[-1].usage is None


async def test_an_attempt_without_an_answer_used_nothing_that_is_known() -> None:
    told = Told()
    async with served(error(500), error(503), Answer(b"{"), max_retries=2, backoff_initial_s=0.001) as (_, gateway):
        with pytest.raises(ProviderError):
            await gateway.complete(ask(), on_attempt=told)
        assert gateway.usage() == {}
    assert {each.usage for each in told.attempts} == {None}


async def test_what_a_server_does_not_count_is_estimated() -> None:
    answer, told = completion("", finish_reason="length", usage={"prompt_tokens": 0}), Told()
    async with served(answer, max_retries=0, thinking_tokens=0) as (_, gateway):
        with pytest.raises(ProviderError):
            await gateway.complete(ask("word " * 60), on_attempt=told)
    used = told.attempts[-1].usage
    assert used is not None
    assert used.input_tokens >= 100


@pytest.mark.parametrize("usage", [Usage(-1, 0), Usage(1, 2**60), Usage(True, 0), {"input_tokens": 1}, "many"], ids=repr)
async def test_a_provider_whose_error_has_impossible_counts_is_malformed(usage: Any) -> None:
    told = Told()
    async with gateway_of(it=([failure("empty", usage=usage)], {"max_retries": 0})).open() as gateway:
        with pytest.raises(ProviderError, match="usage that it cannot have") as caught:
            await gateway.complete(ask(), on_attempt=told)
    assert caught.value.reason == "malformed"
    assert told.attempts[-1].usage is None


# In a turn


def thinker(*failures: int) -> ScriptedProvider:
    """A model whose first calls give answers without text that took so many tokens; later ones are good."""
    left = list(failures)

    def answer(_: PromptRequest) -> PromptResponse:
        if left:
            raise ProviderError("scripted", "empty", "nothing but thoughts", usage=Usage(1_000, left.pop(0)))
        return PromptResponse(provider_id="scripted", model_id="scripted-1", text="Yes.", usage=Usage(2_000, 10))

    return ScriptedProvider(answer)


def rules(root: Path, **admin: Any) -> RuntimeConfig:
    """Settings whose only model call is the reply, with two retries and prices."""
    config = scripted_config(root, **{"classify": "rules", "max_tokens": 1_000, **admin})
    once = ProviderConfig(kind="offline", max_retries=2, backoff_initial_s=0.001, backoff_max_s=0.001)
    router = {"providers": {"scripted": once}, "prices": {"scripted-1": PRICE}}
    return config.model_copy(update={"router": config.router.model_copy(update=router)})


async def test_a_turn_counts_them_and_its_replay_too(tmp_path: Path) -> None:
    config = rules(tmp_path)
    async with open_runtime(config, providers={"scripted": thinker(700, 800)}) as runtime:
        result = await runtime.supervisor().handle_turn("And now?", subject_id="ada")
        failed = await read_all(runtime.ledgers().ho1m, entry_type=events.ATTEMPT_FAILED, session_id=result.session_id)
    assert result.error is None
    assert [each.payload["usage"] for each in failed] == [
        {"input_tokens": 1_000, "output_tokens": 700},
        {"input_tokens": 1_000, "output_tokens": 800},
    ]
    spent = result.cost_summary
    assert (spent["input_tokens"], spent["output_tokens"], spent["llm_calls"]) == (4_000, 1_510, 1)
    report = await replay_session(result.session_id, config=config)
    assert report.is_identical, report.text()


async def test_a_turn_whose_call_is_given_up_counts_them(tmp_path: Path) -> None:
    config = rules(tmp_path)
    async with open_runtime(config, providers={"scripted": thinker(700, 800, 900)}) as runtime:
        result = await runtime.supervisor().handle_turn("And now?", subject_id="ada")
    assert result.error is not None
    spent = result.cost_summary
    assert (spent["input_tokens"], spent["output_tokens"], spent["llm_calls"]) == (3_000, 2_400, 0)
    report = await replay_session(result.session_id, config=config)
    assert report.is_identical, report.text()


async def test_a_turns_budget_has_less_left_for_thoughts(tmp_path: Path) -> None:
    """The room of the next attempt is what the budget of the work order has left."""
    counts = {"prompt_tokens": 1_000, "completion_tokens": 1_000}
    async with served(completion("", finish_reason="length", usage=counts), completion()) as (server, gateway):
        await gateway.complete(ask(max_tokens=1_000, tokens_left=5_000), on_attempt=Told())
    assert [hit.body["max_tokens"] for hit in server.hits] == [1_000, 3_000]


async def test_without_tokens_left_for_thoughts_the_call_ends(tmp_path: Path) -> None:
    counts = {"prompt_tokens": 1_000, "completion_tokens": 1_000}
    answer = completion("", finish_reason="length", usage=counts)
    async with served(answer, max_retries=0) as (server, gateway):
        with pytest.raises(ProviderError, match="max_tokens = 1,000"):
            await gateway.complete(ask(max_tokens=1_000, tokens_left=3_000), on_attempt=Told())
    assert len(server.hits) == 1


async def test_spans_and_the_metric_of_tokens_have_them(tmp_path: Path) -> None:
    watch = Watch()
    async with open_runtime(rules(tmp_path), providers={"scripted": thinker(700)}, telemetry=watch.telemetry) as runtime:
        await runtime.supervisor().handle_turn("And now?")
    told = [(each.attributes or {}) for each in watch.named("chat")]
    assert [(each[names.INPUT_TOKENS], each[names.OUTPUT_TOKENS]) for each in told] == [(1_000, 700), (2_000, 10)]
    sums = dict[Any, int]()
    for point in watch.metrics()[names.TOKEN_USAGE]:
        kind = point.attributes[names.TOKEN_TYPE]
        sums[kind] = sums.get(kind, 0) + point.sum
    assert sums == {"input": 3_000, "output": 710}


# What people may spend


def limited(root: Path, **limits: Any) -> RuntimeConfig:
    return rules(root).model_copy(update={"spending": SpendingConfig(**limits)})


async def turns(config: RuntimeConfig, provider: ScriptedProvider, count: int) -> list[TurnResult]:
    async with open_runtime(config, providers={"scripted": provider}, clock=FakeClock()) as runtime:
        return [await runtime.supervisor().handle_turn("And now?", subject_id="ada") for _ in range(count)]


@pytest.mark.parametrize("limits", [{"subject_day_tokens": 9_000}, {"subject_day": 0.034}], ids=["tokens", "money"])
async def test_a_limit_counts_them_also_after_a_restart(tmp_path: Path, limits: dict[str, Any]) -> None:
    """The first turn uses 4,000 tokens in and 2,010 out, which cost 0.0241; without them, three turns would fit."""
    config = limited(tmp_path, **limits)
    (first,) = await turns(config, thinker(1_000, 1_000), 1)
    assert first.error is None
    *_, third = await turns(config, thinker(), 2)
    assert third.error is not None
    assert "spending." in third.error.message


async def test_a_limit_counts_the_calls_of_turns_that_were_cut_off_also_after_a_restart(tmp_path: Path) -> None:
    """Regression: where all turns of a session had been cut off, a restart forgot what their calls had used."""
    config, has_begun = limited(tmp_path, subject_day_tokens=3_600), anyio.Event()

    async def wait(request: PromptRequest) -> None:
        if slow.requests[1:]:
            has_begun.set()
            await anyio.sleep_forever()

    slow = ScriptedProvider([failure("empty", usage=Usage(1_000, 1_000)), "Yes."], gate=wait)
    opened = open_runtime(config, providers={"scripted": slow}, clock=FakeClock())
    async with opened as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(partial(runtime.supervisor().handle_turn, "And now?", subject_id="ada"))
        with anyio.fail_after(20):
            await has_begun.wait()
        tasks.cancel_scope.cancel()
    provider = thinker()
    (result,) = await turns(limited(tmp_path, subject_day_tokens=3_000), provider, 1)
    assert result.error is not None
    assert "2000 are used" in result.error.message
    assert provider.requests == []


async def test_a_retry_that_could_pass_a_limit_is_not_made(tmp_path: Path) -> None:
    config = limited(tmp_path, subject_day_tokens=3_000)
    provider = thinker(1_000)
    (result,) = await turns(config, provider, 1)
    assert result.error is not None
    assert "spending.subject_day_tokens" in result.error.message
    assert "2000 are used" in result.error.message
    assert "(attempts: 1 scripted empty)" in result.error.message
    assert len(provider.requests) == 1
    report = await replay_session(result.session_id, config=config)
    assert report.is_identical, report.text()


async def test_a_limit_books_the_room_of_a_model_that_turns_out_to_think() -> None:
    """And nothing stays booked. Regression: its first call failed, because the limit had counted no room before it."""
    counts = {"prompt_tokens": 10, "completion_tokens": 100}
    answers = completion("", finish_reason="length", usage=counts), completion(usage=counts)
    told = Told()
    async with served(*answers) as (_, gateway):
        book = SpendingBook(SpendingConfig(subject_day_tokens=9_000), {}, FakeClock())
        metered = MeteredGateway(gateway, gateway.candidates, book, gateway.with_thoughts)
        assert (await metered.complete(ask(max_tokens=100), on_attempt=told)).text == "Hello!"
        with pytest.raises(ProviderError, match=r"220 are used, and this call may use 8[89]\d\d more"):
            await metered.complete(ask(max_tokens=8_800), on_attempt=told)
    assert told.lines == ["1 started local", "1 failed local empty", "2 started local"]


@given(
    used=st.integers(0, 12_000),
    tokens=st.none() | st.integers(0, 20_000),
    money=st.none() | st.floats(0.0, 0.2),
    turn=st.none() | st.floats(0.0, 0.2),
    text=st.integers(0, 9_000),
)
def test_what_limits_leave_can_be_booked_and_nothing_more(
    used: int, tokens: int | None, money: float | None, turn: float | None, text: int
) -> None:
    """Whatever was used before, and whichever limits there are."""

    async def check() -> None:
        limits = SpendingConfig(subject_day=money, subject_day_tokens=tokens, turn=turn)
        book, where = SpendingBook(limits, {"m": PRICE}, FakeClock()), [("it", "m")]
        hold = await book.open(ask("x" * text, turn_id="T-1"), where)
        assert hold is not None
        book.charge(hold, "it", "m", Usage(used, used // 2))
        most = book.most_output(hold)
        if most is None:
            book.book(hold, 10**9)
            return
        if most:
            book.book(hold, most)
            hold.release()
        with pytest.raises(ProviderError, match="spending"):
            book.book(hold, most + 2)
        assert hold.most.tokens == 0

    anyio.run(check)


@pytest.mark.parametrize(("fallback", "received"), [("offline", 200), ("cheap", 90)])
async def test_a_fallback_is_made_if_its_own_cost_fits(fallback: str, received: int) -> None:
    """Regression: each retry was booked at the dearest provider of the call, even one at the free built-in model."""
    prices = {"dear/scripted-1": ModelPrice(input_per_million=0.0, output_per_million=1_000.0), "cheap/scripted-1": PRICE}
    dear = failure("empty", usage=Usage(10, received))
    cheap = PromptResponse(provider_id="cheap", model_id="scripted-1", text="Yes.", usage=Usage(10, 10))
    gateway = gateway_of(fallbacks={"dear": (fallback,)}, dear=([dear], {"max_retries": 0}), cheap=[cheap])
    book, told = SpendingBook(SpendingConfig(subject_day=0.11), prices, FakeClock()), Told()
    async with gateway.open():
        metered = MeteredGateway(gateway, gateway.candidates, book, gateway.with_thoughts)
        assert (await metered.complete(ask(max_tokens=100), on_attempt=told)).provider_id == fallback
    assert told.lines == ["1 started dear", "1 failed dear empty", f"2 started {fallback}"]


@pytest.mark.parametrize(
    ("failed", "used"),
    [(failure("timeout"), 5), (failure("timeout", usage=USED), 1_000), (failure("empty", usage=USED), 1_000)],
    ids=["too slow", "too slow, with counts", "unusable"],
)
@pytest.mark.parametrize("listener_raises", [False, True], ids=["given up", "not recorded"])
async def test_a_failed_attempt_counts_once(failed: ProviderError, used: int, listener_raises: bool) -> None:
    """With its counts, or with the estimated input of one that took too long; also if its listener fails."""

    async def told(attempt: Attempt) -> None:
        if attempt.state == "failed" and listener_raises:
            raise KeyError("the ledger is full")

    book = SpendingBook(SpendingConfig(subject_day_tokens=5_000), {}, FakeClock())
    async with gateway_of(it=([failed], {"max_retries": 0})).open() as gateway:
        metered = MeteredGateway(gateway, gateway.candidates, book)
        with pytest.raises(KeyError if listener_raises else ProviderError):
            await metered.complete(ask(), on_attempt=told)
        with pytest.raises(ProviderError, match=rf" {used} are used, and"):
            await metered.complete(ask(max_tokens=5_000), on_attempt=told)


async def test_a_retry_that_is_refused_says_that_text_was_shown() -> None:
    """Only a retry withdraws it."""

    class Broken(ScriptedProvider):
        async def stream(self, request: PromptRequest) -> AsyncGenerator[TextPiece | PromptResponse, None]:
            yield TextPiece(1, "Hel")
            raise failure("connection", usage=USED)

    gateway = gateway_of(it=(Broken([]), {"backoff_initial_s": 0.001}))
    book = SpendingBook(SpendingConfig(subject_day_tokens=1_000), {}, FakeClock())
    async with gateway.open():
        metered = MeteredGateway(gateway, gateway.candidates, book)
        seen, failed = await read_until_error(metered, ask(restart_streams=True), Told())
    assert failed is not None
    assert (seen, failed.reason, failed.output_begun) == ([TextPiece(1, "Hel")], "spending_limit", True)
