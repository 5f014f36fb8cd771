"""When a provider fails for good: the breaker, the fallbacks, and that every call is accounted for whatever happens.

The length of a wait is measured in virtual time, on trio's mock clock.
"""

from typing import Any

import anyio
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import RETRYABLE_REASONS, ProviderError, ProviderReason
from kitchener.gateway import LLMGateway
from kitchener.records.prompt import PromptRequest, PromptResponse
from kitchener.testing import ScriptedProvider
from tests.gateway.shared.gateway_kit import Told, ask, failure, gateway_of, in_virtual_time
from tests.shared.property_examples import examples

# --- requests that are too long -----------------------------------------------------------------------------------------


def gateway_with_longer(longer: dict[str, tuple[str, ...]], **providers: ScriptedProvider) -> LLMGateway:
    config = RouterConfig(default_provider="a", fallbacks={"a": ("b",)}, context_window_fallbacks=longer)
    return LLMGateway(config, providers)


async def test_a_request_that_is_too_long_goes_at_once_to_the_providers_named_for_it() -> None:
    """And through their own list, each once; the fallback of other failures is not asked."""
    too_long = [failure("context_length", status=400)]
    providers = {
        "a": ScriptedProvider(too_long),
        "b": ScriptedProvider(["from b"]),
        "c": ScriptedProvider(too_long),
        "d": ScriptedProvider(["from d"]),
    }
    told = Told()
    async with gateway_with_longer({"a": ("c",), "c": ("a", "d")}, **providers).open() as gateway:
        response = await gateway.complete(ask(), on_attempt=told)
        assert [provider_id for provider_id, _ in gateway.candidates(ask())] == ["a", "b", "c", "d"], "spending counts them"
    assert (response.text, response.route_reason) == ("from d", "fallback")
    assert [(each.state, each.provider_id) for each in told.attempts] == [
        ("started", "a"),
        ("failed", "a"),
        ("started", "c"),
        ("failed", "c"),
        ("started", "d"),
    ]


async def test_a_request_that_is_too_long_fails_where_no_provider_is_named_for_it() -> None:
    b = ScriptedProvider(["from b"])
    async with gateway_with_longer({}, a=ScriptedProvider([failure("context_length", status=400)]), b=b).open() as gateway:
        with pytest.raises(ProviderError) as caught:
            await gateway.complete(ask(), on_attempt=Told())
    assert (caught.value.reason, caught.value.provider_id, b.requests) == ("context_length", "a", [])


async def test_other_failures_do_not_go_to_the_providers_for_long_requests() -> None:
    c = ScriptedProvider(["from c"])
    providers = {"a": ScriptedProvider([failure("out_of_credit")]), "b": ScriptedProvider(["from b"]), "c": c}
    async with gateway_with_longer({"a": ("c",)}, **providers).open() as gateway:
        assert (await gateway.complete(ask(), on_attempt=Told())).text == "from b"
    assert c.requests == []


# --- breaker ------------------------------------------------------------------------------------------------------------


def test_repeated_failure_opens_the_circuit_and_one_probe_closes_it() -> None:
    """While it is open nothing is sent; after the pause exactly one call probes, and the others follow its success."""

    async def main() -> None:
        provider = ScriptedProvider([failure("server_error")] * 2 + ["fine"] * 3)
        async with gateway_of(
            a=(provider, {"max_retries": 0, "breaker_failures": 2, "breaker_reset_s": 30.0})
        ).open() as gateway:
            for _ in range(2):
                with pytest.raises(ProviderError, match="server_error"):
                    await gateway.complete(ask(), on_attempt=Told())
            told = Told()
            with pytest.raises(ProviderError, match=r"tried again in 30\.0 s") as caught:
                await gateway.complete(ask(), on_attempt=told)
            assert caught.value.reason == "breaker_open"
            assert (told.attempts, len(provider.requests)) == ([], 2)
            await trio.sleep(30.0)
            for _ in range(3):
                assert (await gateway.complete(ask(), on_attempt=Told())).text == "fine"

    in_virtual_time(main)


async def test_a_circuit_that_opens_ends_the_retries_of_the_call_that_opened_it() -> None:
    """The error is what really happened, and says that the circuit is open."""
    provider = ScriptedProvider([failure("server_error")] * 5)
    with pytest.raises(ProviderError) as caught:
        async with gateway_of(a=(provider, {"max_retries": 4, "breaker_failures": 2})).open() as gateway:
            await gateway.complete(ask(), on_attempt=Told())
    assert caught.value.reason == "server_error"
    assert len(provider.requests) == 2


async def test_callers_errors_and_cancellations_do_not_open_the_circuit() -> None:
    started = anyio.Event()
    wait_for_ever = anyio.Event()

    async def gate(request: PromptRequest) -> None:
        if request.call == 2:
            started.set()
            await wait_for_ever.wait()

    provider = ScriptedProvider([failure("bad_request"), "fine"], gate=gate)
    async with gateway_of(a=(provider, {"breaker_failures": 1})).open() as gateway:
        with pytest.raises(ProviderError, match="bad_request"):
            await gateway.complete(ask(), on_attempt=Told())
        async with anyio.create_task_group() as tasks:

            async def cancelled() -> None:
                await gateway.complete(ask(call=2), on_attempt=Told())

            tasks.start_soon(cancelled)
            await started.wait()
            tasks.cancel_scope.cancel()
        assert (await gateway.complete(ask(), on_attempt=Told())).text == "fine"
        assert gateway.statistics()["a"].running == 0


def test_a_caller_without_time_does_not_open_the_circuit() -> None:
    """Two short deadlines say nothing about a provider that answers within its own limit."""

    async def main() -> PromptResponse:
        provider = ScriptedProvider(lambda _: "fine", latency_s=2.0)
        async with gateway_of(a=(provider, {"breaker_failures": 1, "timeout_s": 10.0})).open() as gateway:
            for _ in range(2):
                with pytest.raises(ProviderError, match="request's deadline"):
                    await gateway.complete(ask(within_s=1.0), on_attempt=Told())
            return await gateway.complete(ask(within_s=5.0), on_attempt=Told())

    assert in_virtual_time(main).text == "fine"


def test_nobody_queues_for_a_provider_whose_circuit_is_open() -> None:
    """Who waits for a rate of ten a minute leaves for the fallback as the circuit opens, and who comes later does not queue."""

    async def main() -> None:
        async def gate(_: PromptRequest) -> None:
            await trio.sleep(1.0)
            raise failure("server_error")

        broken = ScriptedProvider(lambda _: "never", gate=gate)
        settings_ = {"requests_per_minute": 10, "breaker_failures": 1, "max_retries": 0}
        async with gateway_of(
            fallbacks={"a": ("b",)}, a=(broken, settings_), b=ScriptedProvider(lambda _: "fine")
        ).open() as gateway:
            answered: list[tuple[str, float]] = []
            begun = trio.current_time()

            async def call() -> None:
                response = await gateway.complete(ask(), on_attempt=Told())
                answered.append((response.provider_id, trio.current_time() - begun))

            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(call)
            await call()
            assert [provider_id for provider_id, _ in answered] == ["b"] * 6
            assert [after_s for _, after_s in answered] == pytest.approx([1.0] * 6)
            assert len(broken.requests) == 1

    in_virtual_time(main)


async def test_a_call_that_waits_in_line_as_the_circuit_opens_is_not_made() -> None:
    """It leaves for the fallback at once, although its provider's other place is still taken."""
    go, left = anyio.Event(), anyio.Event()

    async def gate(request: PromptRequest) -> None:
        if request.call == 1:
            await left.wait()
        await go.wait()
        if request.call == 2:
            raise failure("server_error")

    a = ScriptedProvider(lambda _: "fine", gate=gate)
    settings_ = {"max_concurrency": 2, "breaker_failures": 1, "max_retries": 0}
    async with gateway_of(fallbacks={"a": ("b",)}, a=(a, settings_), b=ScriptedProvider(lambda _: "fine")).open() as gateway:
        answered: dict[int, str] = {}

        async def call(number: int) -> None:
            answered[number] = (await gateway.complete(ask(call=number), on_attempt=Told())).provider_id
            if number == 3:
                left.set()

        async with anyio.create_task_group() as tasks:
            for number in (1, 2):
                tasks.start_soon(call, number)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(call, 3)
            await anyio.wait_all_tasks_blocked()
            go.set()
        assert answered == {1: "a", 2: "b", 3: "b"}
        assert len(a.requests) == 2
        assert gateway.statistics()["a"].running == 0


# --- fallbacks ----------------------------------------------------------------------------------------------------------


async def test_fallbacks_are_tried_in_order_and_recorded() -> None:
    told = Told()
    down = [failure("server_error")] * 2
    async with gateway_of(
        fallbacks={"a": ("b", "c")},
        a=(down, {"max_retries": 1}),
        b=([failure("connection")], {"max_retries": 0}),
        c=["fine"],
    ).open() as gateway:
        response = await gateway.complete(ask(), on_attempt=told)
        assert (response.provider_id, response.route_reason, response.attempts) == ("c", "fallback", 4)
        assert told.lines == [
            "1 started a",
            "1 failed a server_error",
            "2 started a",
            "2 failed a server_error",
            "3 started b",
            "3 failed b connection",
            "4 started c",
        ]
        assert [each.route_reason for each in told.attempts[-2:]] == ["fallback", "fallback"]


async def test_the_error_of_an_exhausted_call_is_the_last_providers() -> None:
    async with gateway_of(
        fallbacks={"a": ("b",)},
        a=([failure("server_error")], {"max_retries": 0}),
        b=([failure("timeout")], {"max_retries": 0}),
    ).open() as gateway:
        with pytest.raises(ProviderError) as caught:
            await gateway.complete(ask(), on_attempt=Told())
        assert (caught.value.provider_id, caught.value.reason) == ("b", "timeout")
        assert caught.value.detail == "timeout it was (attempts: 1 a server_error, 2 b timeout)"


async def test_an_open_circuit_falls_back_without_an_attempt() -> None:
    async with gateway_of(
        fallbacks={"a": ("b",)},
        a=([failure("server_error")], {"max_retries": 0, "breaker_failures": 1}),
        b=["one", "two"],
    ).open() as gateway:
        assert (await gateway.complete(ask(), on_attempt=Told())).attempts == 2
        told = Told()
        assert (await gateway.complete(ask(), on_attempt=told)).text == "two"
        assert told.lines == ["1 started b"]


async def test_a_fallback_is_asked_for_its_own_model() -> None:
    """What the request names is a model of the provider it was meant for."""
    b = ScriptedProvider(["fine"])
    async with gateway_of(
        fallbacks={"a": ("b",)}, a=([failure("server_error")], {"max_retries": 0}), b=(b, {"model": "b-small"})
    ).open() as gateway:
        await gateway.complete(ask(model_id="a-large"), on_attempt=Told())
        assert b.requests[0].model_id == "b-small"


async def test_a_fallback_after_failures_names_them_if_it_is_open_too() -> None:
    async with gateway_of(
        fallbacks={"a": ("b",), "b": ()},
        a=([failure("server_error")] * 2, {"max_retries": 0}),
        b=([failure("connection")], {"max_retries": 0, "breaker_failures": 1}),
    ).open() as gateway:
        with pytest.raises(ProviderError, match="connection"):
            await gateway.complete(ask(provider_id="b"), on_attempt=Told())
        with pytest.raises(ProviderError) as caught:
            await gateway.complete(ask(), on_attempt=Told())
        assert (caught.value.provider_id, caught.value.reason) == ("a", "server_error")
        assert "then 'b': it failed 1 times in a row" in caught.value.detail


# --- all together -------------------------------------------------------------------------------------------------------

REASONS: list[ProviderReason] = ["server_error", "rate_limited", "bad_request", "malformed"]


@settings(max_examples=examples(few=60, many=2_000))
@given(
    scripts=st.lists(st.lists(st.sampled_from([*REASONS, "ok"]), min_size=4, max_size=4), min_size=1, max_size=3),
    retries=st.integers(0, 3),
    breaker_failures=st.integers(1, 6),
    calls=st.integers(1, 3),
)
def test_every_call_is_accounted_for(scripts: list[list[Any]], retries: int, breaker_failures: int, calls: int) -> None:
    """Whatever providers answer: each attempt is told once, before it is made, with rising numbers; each failed one is told
    failed; the last one decides; retries and fallbacks keep to their bounds; nothing is left running."""

    async def main() -> None:
        names = [f"p{number}" for number in range(len(scripts))]
        providers = {
            name: ScriptedProvider([("fine" if each == "ok" else failure(each)) for each in script] * calls)
            for name, script in zip(names, scripts, strict=True)
        }
        config = RouterConfig(
            default_provider="p0",
            providers={
                name: ProviderConfig(kind="offline", max_retries=retries, breaker_failures=breaker_failures) for name in names
            },
            fallbacks={"p0": tuple(names[1:])},
        )
        async with LLMGateway(config, providers, jitter=lambda: 0.5).open() as gateway:
            asked = 0
            for _ in range(calls):
                told = Told()
                try:
                    response = await gateway.complete(ask(within_s=1_000.0), on_attempt=told)
                except ProviderError:
                    response = None
                started = [each for each in told.attempts if each.state == "started"]
                failed = [each for each in told.attempts if each.state == "failed"]
                assert [each.attempt for each in started] == list(range(1, len(started) + 1))
                assert [each.attempt for each in failed] == [each.attempt for each in started][: len(failed)]
                assert len(started) - len(failed) == (response is not None)
                assert all(each.reason in RETRYABLE_REASONS for each in failed[:-1])
                for name in names:
                    made = [each for each in started if each.provider_id == name]
                    refused = [each for each in failed if each.provider_id == name and each.reason == "rate_limited"]
                    uncounted = min(5 * retries, len(refused)) if name == names[-1] else 0
                    assert len(made) - uncounted <= retries + 1
                assert [each.provider_id for each in started] == sorted(each.provider_id for each in started)
                asked += len(started)
            assert asked == sum(len(provider.requests) for provider in providers.values())
            assert all(each.running == each.waiting == 0 for each in gateway.statistics().values())

    in_virtual_time(main)
