"""What one person may spend in a day, and one turn at all: checked before each call, over restarts. See docs/gateway.md."""

from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.lowlevel
import pytest

from kitchener import RuntimeConfig, tool
from kitchener.config import ModelPrice, SpendingConfig
from kitchener.errors import ProviderError
from kitchener.gateway.spending_limits import MeteredGateway, SpendingBook
from kitchener.model_usage import Usage
from kitchener.records import events
from kitchener.records.prompt import PromptRequest, PromptResponse, TextPiece, ToolUse
from kitchener.records.turn import TurnResult
from kitchener.replaying import replay_session
from kitchener.runtime import open_runtime
from kitchener.runtime.setting_checks import unpriced_models
from kitchener.testing import FakeClock, ScriptedProvider, prompt_request
from tests.acceptance.stack import QUESTION, read_all, scripted_config
from tests.gateway.shared.gateway_kit import Told, gateway_of
from tests.shared.payloads import payload_of

PRICE: Final = ModelPrice(input_per_million=1.0, output_per_million=10.0)
DAY_S: Final = 86_400
Limits = Mapping[str, Any]


def priced(root: Path, limits: Limits, **admin: Any) -> RuntimeConfig:
    """Settings in which each answer of `model` costs 0.012, and may cost up to `max_tokens` more before it is made."""
    config = scripted_config(root, **{"classify": "rules", "max_tokens": 1_000, **admin})
    router = config.router.model_copy(update={"prices": {"scripted-1": PRICE}})
    return config.model_copy(update={"router": router, "spending": SpendingConfig(**limits)})


def model(**options: Any) -> ScriptedProvider:
    """A provider whose answers use 2,000 tokens of input and 1,000 of output: 0.012."""

    def answer(request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            return QUESTION
        usage = Usage(2_000, 1_000)
        return PromptResponse(provider_id="scripted", model_id="scripted-1", text="Yes.", usage=usage, finish_reason="stop")

    return ScriptedProvider(answer, **options)


async def ask(
    config: RuntimeConfig, provider: ScriptedProvider, *subjects: str, clock: FakeClock | None = None
) -> list[TurnResult]:
    """One message of each of these people, one after the other, in new sessions."""
    async with open_runtime(config, providers={"scripted": provider}, clock=clock or FakeClock()) as runtime:
        return [await runtime.supervisor().handle_turn("And now?", subject_id=each) for each in subjects]


def is_refused(result: TurnResult) -> bool:
    """Whether the reply says that a limit is reached, and the error which."""
    if result.error is None:
        return False
    assert result.error.kind == "BUDGET"
    assert "spending." in result.error.message
    assert "used up for now" in result.response
    return True


@pytest.mark.parametrize("limits", [{"subject_day": 0.03}, {"subject_day_tokens": 7_000}], ids=["money", "tokens"])
async def test_a_person_is_refused_where_the_day_is_used_up_and_nobody_else(tmp_path: Path, limits: Limits) -> None:
    """Two answers fit; the third might pass the limit, so it is not made. Of another person, it is."""
    provider, config = model(), priced(tmp_path, limits)
    results = await ask(config, provider, "ada", "ada", "ada", "bo", "ada")
    assert [is_refused(each) for each in results] == [False, False, True, False, True]
    assert len(provider.requests) == 3
    for each in results:
        report = await replay_session(each.session_id, config=config)
        assert report.is_identical, report.text()


async def test_a_refused_call_is_on_record_without_an_attempt(tmp_path: Path) -> None:
    config = priced(tmp_path, {"subject_day": 0.001})
    async with open_runtime(config, providers={"scripted": model()}) as runtime:
        result = await runtime.supervisor().handle_turn("And now?", subject_id="ada")
        entries = await read_all(runtime.ledgers().ho1m, session_id=result.session_id)
    assert is_refused(result)
    refused = result.wo_chain_summary[-1]["wo_id"]
    [failed] = [each for each in entries if each.entity_id == refused]
    assert failed.entry_type == events.WO_FAILED
    assert payload_of(failed)["error"]["provider_reason"] == "spending_limit"


async def test_the_sums_hold_over_restarts_and_begin_anew_the_next_day(tmp_path: Path) -> None:
    clock, config, provider = FakeClock(), priced(tmp_path, {"subject_day": 0.03}), model()
    outcomes = []
    for pause_s in (0, 60, 60, DAY_S, 60, 60):
        clock.advance(pause_s)
        (result,) = await ask(config, provider, "ada", clock=clock)
        outcomes.append(is_refused(result))
    assert outcomes == [False, False, True, False, False, True]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # sums know no event loop, and there are many
async def test_what_a_call_in_flight_may_use_counts_however_many_others_come_meanwhile() -> None:
    book = SpendingBook(SpendingConfig(subject_day=0.05), {"scripted-1": PRICE}, FakeClock())
    candidates = [("scripted", "scripted-1")]

    async def hold(subject_id: str) -> None:
        call = await book.open(prompt_request("hello", subject_id=subject_id), candidates)
        assert call is not None
        book.book(call, 3_000)

    await hold("ada")
    for number in range(10_001):
        await hold(f"subject-{number}")
    with pytest.raises(ProviderError, match=r"spending\.subject_day"):
        await hold("ada")


async def test_a_stream_that_its_reader_leaves_ends_at_once() -> None:
    book = SpendingBook(SpendingConfig(subject_day=1.0), {"scripted-1": PRICE}, FakeClock())
    async with gateway_of(a=ScriptedProvider.replies("Two words.")).open() as gateway:
        metered = MeteredGateway(gateway, lambda _: [("a", "scripted-1")], book)
        async with aclosing(metered.stream(prompt_request("hello", within_s=30.0), on_attempt=Told())) as items:
            assert isinstance(await anext(items), TextPiece)
            assert gateway.statistics()["a"].running == 1
        assert gateway.statistics()["a"].running == 0


async def test_calls_side_by_side_never_pass_the_limit(tmp_path: Path) -> None:
    """What a call in flight may still use is booked before it is made."""
    calls = 0

    async def hold(_: PromptRequest) -> None:
        nonlocal calls
        calls += 1
        await anyio.lowlevel.checkpoint()

    config = priced(tmp_path, {"subject_day": 0.05})
    results: list[TurnResult] = []
    async with open_runtime(config, providers={"scripted": model(gate=hold)}) as runtime:

        async def one() -> None:
            results.append(await runtime.supervisor().handle_turn("And now?", subject_id="ada"))

        async with anyio.create_task_group() as tasks:
            for _ in range(12):
                tasks.start_soon(one)
    made = sum(not is_refused(each) for each in results)
    assert 1 <= made == calls <= 4  # of 0.012 each


async def test_a_turn_has_a_limit_of_its_own(tmp_path: Path) -> None:
    """Every turn may use it again. Here the classification uses some of it, so none is left for a reply."""
    config = priced(tmp_path, {"turn": 0.013}, classify="model")

    def answer(request: PromptRequest) -> Any:
        text = '{"speech_act": "question", "ambiguity": "low"}' if request.wo_type == "classify" else "Yes."
        usage = Usage(1_000, 0)
        return PromptResponse(provider_id="scripted", model_id="scripted-1", text=text, usage=usage, finish_reason="stop")

    provider = ScriptedProvider(answer)
    assert [is_refused(each) for each in await ask(config, provider, "ada", "ada")] == [False, False]
    tight = priced(tmp_path, {"turn": 0.0105}, classify="model")
    assert [is_refused(each) for each in await ask(tight, provider, "ada")] == [True]


async def test_a_limit_that_is_reached_between_rounds_of_tools_is_told_and_what_ran_stays_on_record(tmp_path: Path) -> None:
    """Each call of the model is checked, not only the first of a turn."""
    config = priced(tmp_path, {"turn": 0.03})

    @tool
    def book(place: int) -> str:
        """Books."""
        return f"booked {place}"

    def answer(request: PromptRequest) -> Any:
        rounds = sum(message.role == "tool" for message in request.messages)
        use = ToolUse(f"u{rounds}", "book", {"place": rounds})
        usage = Usage(2_000, 1_000)
        return PromptResponse(provider_id="scripted", model_id="scripted-1", text="", usage=usage, tool_uses=(use,))

    provider = ScriptedProvider(answer)
    async with open_runtime(config, providers={"scripted": provider}, tools=[book], clock=FakeClock()) as runtime:
        result = await runtime.supervisor().handle_turn("book")
        calls = await read_all(runtime.ledgers().ho1m, entry_type=events.TOOL_CALL)
    assert is_refused(result)
    assert [entry.payload["result"] for entry in calls] == ["booked 0", "booked 1"]
    assert len(provider.requests) == 2
    assert result.cost_summary["tool_calls"] == 2
    report = await replay_session(result.session_id, config=config, tools=[book])
    assert report.is_identical, report.text()


async def test_calls_of_built_in_models_count_nothing_also_after_a_restart(tmp_path: Path) -> None:
    """They are answered beyond every limit, and what they used is not held against other calls."""
    free = priced(tmp_path, {"subject_day_tokens": 10}, provider="offline", model=None)
    assert [is_refused(each) for each in await ask(free, model(), "ada", "ada", "ada")] == [False, False, False]
    used = sum([each.cost_summary["input_tokens"] for each in await ask(free, model(), "ada", "ada", "ada")])
    just_enough = priced(tmp_path, {"subject_day_tokens": 2_000})
    assert used > 500
    assert not is_refused((await ask(just_enough, model(), "ada"))[0])


async def test_a_model_without_a_price_is_refused_and_named(tmp_path: Path) -> None:
    config = priced(tmp_path, {"subject_day": 5.0})
    unknown = config.model_copy(update={"router": config.router.model_copy(update={"prices": {}})})
    (result,) = await ask(unknown, model(), "ada")
    assert result.error is not None
    assert '[router.prices."scripted-1"]' in result.error.message
    tokens_only = priced(tmp_path, {"subject_day_tokens": 50_000})
    assert not is_refused((await ask(tokens_only, model(), "ada"))[0])


def test_the_check_of_settings_names_models_without_a_price() -> None:
    provider = {"base_url": "http://127.0.0.1:1/v1", "model": "qwen3-8b"}
    settings: dict[str, Any] = {"router": {"providers": {"local": provider}}, "spending": {"subject_day": 1.0}}
    ((key, problem),) = unpriced_models(RuntimeConfig.model_validate(settings))
    assert key == "router.providers.local.model"
    assert problem.startswith("'qwen3-8b' has no price")
    assert '[router.prices."qwen3-8b"]' in problem
    priced_router = {**settings["router"], "prices": {"local/qwen3-8b": PRICE}}
    for harmless in ({"spending": {"subject_day_tokens": 5}}, {"router": priced_router}):
        assert list(unpriced_models(RuntimeConfig.model_validate({**settings, **harmless}))) == []


async def test_a_call_that_is_cut_off_counts_what_was_sent(tmp_path: Path) -> None:
    """The provider may charge it, and a person who always cancels would be without limit otherwise."""
    config = priced(tmp_path, {"subject_day_tokens": 4_000}, max_tokens=100)

    async def hang(_: PromptRequest) -> None:
        await anyio.sleep_forever()

    provider = model(gate=hang)
    async with open_runtime(config, providers={"scripted": provider}) as runtime:
        while len(provider.requests) < 50:
            before = len(provider.requests)
            async with anyio.create_task_group() as tasks:
                refused: list[bool] = []

                async def one(refused: list[bool] = refused) -> None:
                    result = await runtime.supervisor().handle_turn("word " * 100, subject_id="ada")
                    refused.append(is_refused(result))

                tasks.start_soon(one)
                while len(provider.requests) == before and not refused:
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            if refused:
                break
        assert refused == [True]
        assert len(provider.requests) > 1


async def test_the_tools_that_a_call_offers_count_before_it_is_made(tmp_path: Path) -> None:
    """Their schemas may be most of what is sent, and strangers may have written them."""

    @tool(description="Finds roses. " * 3_000)
    def find(name: str) -> str:
        return name

    provider, config = model(), priced(tmp_path, {"subject_day_tokens": 10_000}, tools=("*",))
    async with open_runtime(config, providers={"scripted": provider}, tools=[find]) as runtime:
        assert is_refused(await runtime.supervisor().handle_turn("And now?", subject_id="ada"))
    assert provider.requests == []
