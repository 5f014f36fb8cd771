"""One call through the gateway: attempts, retries, deadlines, and what is told of them.

Waits are real where jitter is 0 and nothing waits; where the length of a wait matters, trio's mock clock makes it virtual.
"""

import itertools

import anyio
import pytest
import trio
import trio.testing

from kitchener.config import RouterConfig
from kitchener.errors import RETRYABLE_REASONS, ProviderError, ProviderReason
from kitchener.gateway import LLMGateway
from kitchener.gateway.traits import ProviderTraits
from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptRequest, PromptResponse
from kitchener.testing import ScriptedProvider, forbid_model_calls
from tests.gateway.shared.gateway_kit import Script, Told, ask, failure, gateway_of, in_virtual_time

# --- what is told and what comes back -----------------------------------------------------------------------------------


async def test_an_answer_carries_who_gave_it_and_how_it_came_about() -> None:
    told = Told()
    async with gateway_of(a=["fine"]).open() as gateway:
        response = await gateway.complete(ask(), on_attempt=told)
    assert response == PromptResponse(
        provider_id="a",
        model_id="scripted-1",
        text="fine",
        usage=response.usage,
        latency_ms=response.latency_ms,
        attempts=1,
        route_reason="default",
    )
    assert told.lines == ["1 started a"]
    assert (told.attempts[0].call, told.attempts[0].model_id, told.attempts[0].route_reason) == (1, "scripted-1", "default")


async def test_each_attempt_is_told_before_it_goes_out_and_each_failure_before_the_next() -> None:
    told = Told()
    order: list[str] = []

    async def gate(_: PromptRequest) -> None:
        order.append(f"asked after {len(told.attempts)}")

    provider = ScriptedProvider([failure("server_error"), failure("rate_limited"), "fine"], gate=gate)
    async with gateway_of(a=provider).open() as gateway:
        response = await gateway.complete(ask(), on_attempt=told)
    assert order == ["asked after 1", "asked after 3", "asked after 5"]
    assert told.lines == [
        "1 started a",
        "1 failed a server_error",
        "2 started a",
        "2 failed a rate_limited",
        "3 started a",
    ]
    assert told.attempts[1].detail == "server_error it was"
    assert response.attempts == 3


def test_the_latency_is_that_of_the_attempt_that_answered() -> None:
    """Neither earlier attempts nor the waits between them count."""

    async def main() -> PromptResponse:
        seconds = iter([3.0, 0.25])

        async def gate(_: PromptRequest) -> None:
            await trio.sleep(next(seconds))

        provider = ScriptedProvider([failure("server_error"), "fine"], gate=gate)
        async with gateway_of(1.0, a=provider).open() as gateway:
            return await gateway.complete(ask(), on_attempt=Told())

    assert in_virtual_time(main).latency_ms == 250


async def test_an_attempt_that_cannot_be_recorded_is_not_made() -> None:
    provider = ScriptedProvider(["fine"])
    async with gateway_of(a=provider).open() as gateway:

        async def full_disk(_: object) -> None:
            raise OSError("disk full")

        with pytest.raises(OSError, match="disk full"):
            await gateway.complete(ask(), on_attempt=full_disk)
        assert provider.requests == []
        assert gateway.statistics()["a"].running == 0


# --- retries ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", sorted(RETRYABLE_REASONS - {"out_of_credit"}))
async def test_what_a_retry_can_mend_is_retried(reason: ProviderReason) -> None:
    async with gateway_of(a=[failure(reason), "fine"]).open() as gateway:
        response = await gateway.complete(ask(), on_attempt=Told())
    assert (response.text, response.attempts) == ("fine", 2)


@pytest.mark.parametrize("reason", ["bad_request", "authentication", "refused", "not_recorded"])
async def test_what_no_retry_can_mend_fails_at_once_and_never_falls_back(reason: ProviderReason) -> None:
    other = ScriptedProvider(["never asked"])
    told = Told()
    async with gateway_of(fallbacks={"a": ("b",)}, a=[failure(reason, status=400)], b=other).open() as gateway:
        with pytest.raises(ProviderError) as caught:
            await gateway.complete(ask(), on_attempt=told)
        assert (caught.value.provider_id, caught.value.reason, caught.value.status) == ("a", reason, 400)
        assert caught.value.detail == f"{reason} it was"
        assert told.lines == ["1 started a", f"1 failed a {reason}"]
        assert other.requests == []


async def test_after_the_last_retry_the_error_has_the_last_reason_and_lists_the_attempts() -> None:
    refused = failure("rate_limited", retry_after_s=0.001)
    script = [refused, failure("server_error"), failure("connection"), failure("timeout", retry_after_s=0.001)]
    with pytest.raises(ProviderError) as caught:
        async with gateway_of(a=script).open() as gateway:
            await gateway.complete(ask(), on_attempt=Told())
    assert caught.value.reason == "timeout"
    assert caught.value.retry_after_s == 0.001
    attempts = "1 a rate_limited, 2 a server_error, 3 a connection, 4 a timeout"
    assert caught.value.detail == f"timeout it was (attempts: {attempts})"


def test_the_waits_double_with_jitter_and_keep_to_retry_after() -> None:
    """0.5 × jitter, then what the provider asked for, then 1 × jitter, since a refusal for the rate is no retry."""

    async def main() -> list[float]:
        asked: list[float] = []

        async def gate(_: PromptRequest) -> None:
            asked.append(trio.current_time())

        script: Script = [failure("server_error"), failure("rate_limited", retry_after_s=7.0), failure("connection"), "fine"]
        provider = ScriptedProvider(script, gate=gate)
        async with gateway_of(0.8, a=(provider, {"max_retries": 3, "backoff_initial_s": 0.5})).open() as gateway:
            await gateway.complete(ask(), on_attempt=Told())
            return [later - earlier for earlier, later in itertools.pairwise(asked)]

    assert in_virtual_time(main) == pytest.approx([0.4, 7.0, 0.8])


def test_a_provider_that_asks_for_a_pause_gets_it_from_everybody() -> None:
    """One answer with Retry-After holds the others back too, instead of each fetching one of its own."""

    async def main() -> tuple[list[float], int]:
        asked: list[float] = []

        async def gate(_: PromptRequest) -> None:
            asked.append(trio.current_time() - begun)
            if len(asked) == 1:
                raise failure("rate_limited", retry_after_s=5.0)

        provider = ScriptedProvider(lambda _: "fine", gate=gate)
        async with gateway_of(a=provider).open() as gateway:
            begun = trio.current_time()
            failures = 0

            async def call() -> None:
                nonlocal failures
                told = Told()
                await gateway.complete(ask(), on_attempt=told)
                failures += sum(each.state == "failed" for each in told.attempts)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                await trio.testing.wait_all_tasks_blocked()
                for _ in range(20):
                    nursery.start_soon(call)
            return asked, failures

    asked, failures = in_virtual_time(main)
    assert failures == 1
    assert asked[:2] == [0.0, pytest.approx(5.0)]
    assert len(asked) == 22
    assert all(later - earlier > 0.01 for earlier, later in itertools.pairwise(asked)), "not all at once after the pause"


def test_an_absurd_pause_shuts_a_provider_out_no_longer_than_an_open_circuit() -> None:
    async def main() -> float:
        provider = ScriptedProvider([failure("rate_limited", retry_after_s=1e9), "fine"])
        async with gateway_of(a=(provider, {"breaker_reset_s": 20.0})).open() as gateway:
            begun = trio.current_time()
            with pytest.raises(ProviderError, match="rate_limited"):
                await gateway.complete(ask(), on_attempt=Told())
            assert (await gateway.complete(ask(within_s=60.0), on_attempt=Told())).text == "fine"
            return trio.current_time() - begun

    assert in_virtual_time(main) == pytest.approx(20.0)


# --- deadlines and time limits ------------------------------------------------------------------------------------------


def test_a_wait_that_does_not_fit_into_the_deadline_is_not_begun() -> None:
    """The call fails at once, with the real reason, instead of sleeping into a timeout."""

    async def main() -> float:
        begun = trio.current_time()
        told = Told()
        with pytest.raises(ProviderError) as caught:
            async with gateway_of(a=[failure("rate_limited", retry_after_s=60.0), "fine"]).open() as gateway:
                await gateway.complete(ask(within_s=10.0), on_attempt=told)
        assert (caught.value.reason, caught.value.retry_after_s) == ("rate_limited", 60.0)
        assert caught.value.detail.startswith(
            "rate_limited it was; the provider asks to wait 60 s, and 10 s are left until the deadline: send the message again"
        )
        assert told.attempts[-1].detail == "rate_limited it was"
        assert told.lines == ["1 started a", "1 failed a rate_limited"]
        return trio.current_time() - begun

    assert in_virtual_time(main) == 0.0


def test_a_call_behind_the_pause_of_another_one_names_the_pause() -> None:
    """Regression: it said that the provider's limits leave no room, which are settings that nobody had made."""

    async def main() -> tuple[float, str]:
        async with gateway_of(a=[failure("rate_limited", retry_after_s=60.0), "fine"]).open() as gateway:
            for within_s in (10.0, 20.0):
                begun = trio.current_time()
                with pytest.raises(ProviderError) as caught:
                    await gateway.complete(ask(within_s=within_s), on_attempt=Told())
        return trio.current_time() - begun, caught.value.detail

    waited_s, detail = in_virtual_time(main)
    assert waited_s == 0.0
    assert detail.startswith(
        "the provider asked another call to wait; this pause takes 30 s more, and 20 s are left until the deadline: "
        "send the message again later, "
    )


@pytest.mark.parametrize(
    ("script", "retries"),
    [
        ([failure("rate_limited")] * 6, 1),
        ([failure("server_error", retry_after_s=0.1), failure("server_error", retry_after_s=0.1)], 1),
        ([failure("server_error")], 0),
    ],
)
def test_a_pause_is_only_named_if_it_is_why_the_call_ends(script: Script, retries: int) -> None:
    async def main() -> str:
        settings = {"max_retries": retries, "breaker_failures": 100}
        with pytest.raises(ProviderError) as caught:
            async with gateway_of(a=(script, settings)).open() as gateway:
                await gateway.complete(ask(), on_attempt=Told())
        return caught.value.detail

    assert "asks to wait" not in in_virtual_time(main)


def test_a_long_retry_after_sends_the_call_to_the_fallback_at_once() -> None:
    async def main() -> PromptResponse:
        async with gateway_of(
            fallbacks={"a": ("b",)}, a=[failure("rate_limited", retry_after_s=60.0)], b=["fine"]
        ).open() as gateway:
            return await gateway.complete(ask(within_s=10.0), on_attempt=Told())

    assert in_virtual_time(main).provider_id == "b"


def test_each_attempt_has_the_providers_time_limit_and_all_together_the_deadline() -> None:
    async def main() -> tuple[float, list[str], ProviderError]:
        begun = trio.current_time()
        told = Told()
        hanging = ScriptedProvider(lambda _: "late", latency_s=1_000.0)
        with pytest.raises(ProviderError) as caught:
            async with gateway_of(a=(hanging, {"timeout_s": 4.0})).open() as gateway:
                await gateway.complete(ask(within_s=10.0), on_attempt=told)
        return trio.current_time() - begun, told.lines, caught.value

    elapsed, lines, error = in_virtual_time(main)
    assert elapsed == pytest.approx(10.0)
    assert lines == [
        "1 started a",
        "1 failed a timeout",
        "2 started a",
        "2 failed a timeout",
        "3 started a",
        "3 failed a timeout",
    ]
    assert error.reason == "timeout"
    assert "no answer before the request's deadline" in error.detail


async def test_a_request_that_is_already_late_is_not_sent() -> None:
    provider = ScriptedProvider(["fine"])
    told = Told()
    with pytest.raises(ProviderError, match="the deadline passed before the call could go out") as caught:
        async with gateway_of(a=provider).open() as gateway:
            await gateway.complete(ask(within_s=-1.0), on_attempt=told)
    assert caught.value.reason == "timeout"
    assert (provider.requests, told.attempts) == ([], [])


def test_time_in_the_queue_is_not_the_providers_time() -> None:
    """Two calls of 3 s through one slot, with a limit of 4 s an attempt: the second waits 3 s and still has its own 4."""

    async def main() -> list[int]:
        slow = ScriptedProvider(lambda _: "fine", latency_s=3.0)
        async with gateway_of(a=(slow, {"timeout_s": 4.0, "max_concurrency": 1})).open() as gateway:
            latencies: list[int] = []

            async def call() -> None:
                latencies.append((await gateway.complete(ask(), on_attempt=Told())).latency_ms)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(call)
                nursery.start_soon(call)
            return latencies

    assert in_virtual_time(main) == [3_000, 3_000]


def test_an_impossible_place_in_the_queue_is_a_timeout_of_the_call() -> None:
    async def main() -> ProviderError:
        async with gateway_of(a=(ScriptedProvider(lambda _: "fine"), {"tokens_per_minute": 60})).open() as gateway:
            await gateway.complete(ask(), on_attempt=Told())
            told = Told()
            with pytest.raises(ProviderError) as caught:
                await gateway.complete(ask(within_s=5.0), on_attempt=told)
            assert told.attempts == []
            return caught.value

    assert in_virtual_time(main).reason == "timeout"


# --- switches -----------------------------------------------------------------------------------------------------------


class Remote:
    """A provider of a program's own, which has not said that it is built in."""

    def __init__(self) -> None:
        self.asked = 0

    async def complete(self, request: PromptRequest) -> PromptResponse:
        self.asked += 1
        return PromptResponse(provider_id="x", model_id="", text="real", usage=Usage(1, 1))


async def test_model_calls_can_be_forbidden_by_configuration() -> None:
    remote = Remote()
    config = RouterConfig(default_provider="remote", allow_model_calls=False)
    async with LLMGateway(config, {"remote": remote, "fine": ScriptedProvider(["scripted"])}).open() as gateway:
        told = Told()
        with pytest.raises(ProviderError, match="model calls are switched off") as caught:
            await gateway.complete(ask(), on_attempt=told)
        assert (caught.value.reason, remote.asked, told.attempts) == ("forbidden", 0, [])
        assert (await gateway.complete(ask(provider_id="fine"), on_attempt=Told())).text == "scripted"
        assert (await gateway.complete(ask(provider_id="offline"), on_attempt=Told())).model_id == "offline-rules-1"


async def test_model_calls_can_be_forbidden_for_the_whole_process() -> None:
    remote = Remote()
    async with LLMGateway(RouterConfig(default_provider="remote"), {"remote": remote}).open() as gateway:
        with forbid_model_calls():
            with forbid_model_calls(), pytest.raises(ProviderError, match="forbidden"):
                await gateway.complete(ask(), on_attempt=Told())
            with pytest.raises(ProviderError, match="forbidden"):
                await gateway.complete(ask(), on_attempt=Told())
        response = await gateway.complete(ask(), on_attempt=Told())
        assert (response.text, response.provider_id, response.model_id) == ("real", "remote", "remote")


async def test_a_bug_in_a_provider_is_its_failure_and_frees_its_slot() -> None:
    async with gateway_of(a=([KeyError("secret"), "fine"], {"max_concurrency": 1, "max_retries": 0})).open() as gateway:
        with pytest.raises(ProviderError) as caught:
            await gateway.complete(ask(), on_attempt=Told())
        assert caught.value.reason == "malformed"
        assert "KeyError at scripted.py:" in str(caught.value)
        assert "secret" not in str(caught.value), "its words may be a key or what somebody said"
        assert (await gateway.complete(ask(), on_attempt=Told())).text == "fine"


class InTaskGroup:
    """A provider that asks two services at once, and raises what one of them answered."""

    async def complete(self, request: PromptRequest) -> PromptResponse:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep_forever)
            raise ProviderError("a", "bad_request", "no such model")
        raise AssertionError("a task group raises what was raised in it")


async def test_what_a_provider_raises_in_a_task_group_is_the_failure_that_it_says() -> None:
    async with LLMGateway(RouterConfig(default_provider="a"), {"a": InTaskGroup()}).open() as gateway:
        with pytest.raises(ProviderError, match="bad_request: no such model"):
            await gateway.complete(ask(), on_attempt=Told())


def test_traits_are_those_of_a_remote_service_unless_stated() -> None:
    every_kind = ("image/*", "application/pdf", "text/*")
    scripted = ProviderTraits(built_in=True, needs_timeout=False, model_id="scripted-1", media_types=every_kind)
    assert ScriptedProvider([]).traits == scripted
    assert ScriptedProvider([], latency_s=1.0).traits.needs_timeout
