"""A gateway whose provider lets so many calls a second through: everybody gets an answer; docs/gateway.md."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import pytest
import trio

from kitchener.errors import ProviderError
from kitchener.gateway import LLMGateway
from kitchener.records.prompt import PromptRequest
from kitchener.testing import ScriptedProvider
from tests.gateway.shared.gateway_kit import Told, ask, failure, gateway_of, in_virtual_time
from tests.gateway.test_learned_pace import Bucket, Limit, Window


class Endpoint:
    """A provider that refuses with 429 what its limit does not let through."""

    def __init__(self, limit: Limit, retry_after_s: float | None, now: Callable[[], float], latency_s: float = 0.0) -> None:
        self.limit, self._retry_after_s, self._now, self._begun = limit, retry_after_s, now, now()
        self._latency_s = latency_s
        self.answered: list[str] = []
        self.refused = 0
        self.provider = ScriptedProvider(self._answer, gate=self._gate)

    async def _gate(self, _: PromptRequest) -> None:
        has_passed = self.limit.opens(self._now() - self._begun)
        if self._latency_s:
            await anyio.sleep(self._latency_s)
        if not has_passed:
            self.refused += 1
            raise failure("rate_limited", status=429, retry_after_s=self._retry_after_s)

    def _answer(self, request: PromptRequest) -> str:
        self.answered.append(request.subject_id)
        return "fine"


class Crowd:
    """Sessions that all ask at once, each for a subject of its own."""

    def __init__(self, gateway: LLMGateway) -> None:
        self._gateway = gateway
        self.ends: Counter[str] = Counter()
        self.told: list[Told] = []

    async def ask(self, sessions: int, within_s: float = 120.0) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(sessions):
                tasks.start_soon(self._call, f"subject-{number}", within_s)

    async def _call(self, subject: str, within_s: float) -> None:
        told = Told()
        self.told.append(told)
        try:
            answer = await self._gateway.complete(ask(subject_id=subject, within_s=within_s), on_attempt=told)
            self.ends[answer.provider_id] += 1
        except ProviderError as error:
            self.ends[error.reason] += 1


@pytest.mark.parametrize("latency_s", [0.0, 0.3])
@pytest.mark.parametrize("retry_after_s", [1.0, None])
@pytest.mark.parametrize("limit", [lambda: Bucket(10.0, 10.0), lambda: Bucket(10.0, 60.0), lambda: Window(10)])
def test_a_hundred_sessions_at_ten_calls_a_second_all_get_answers(
    limit: Callable[[], Limit], retry_after_s: float | None, latency_s: float
) -> None:
    """By default, in the time that the limit needs and that of the search for it, with few refused calls."""

    async def main() -> tuple[Crowd, Endpoint, float]:
        endpoint = Endpoint(limit(), retry_after_s, trio.current_time, latency_s)
        async with gateway_of(a=endpoint.provider).open() as gateway:
            crowd, begun = Crowd(gateway), trio.current_time()
            await crowd.ask(100)
            return crowd, endpoint, trio.current_time() - begun

    crowd, endpoint, seconds = in_virtual_time(main)
    assert crowd.ends == {"a": 100}
    assert sorted(endpoint.answered) == sorted(f"subject-{each}" for each in range(100))
    assert seconds <= 20.0, "twice what a known limit would take"
    assert endpoint.refused <= 64 + 40
    assert sum(line.startswith("1 failed") for told in crowd.told for line in told.lines) <= 70


def test_who_was_refused_comes_first_and_others_in_order() -> None:
    """The calls that were refused have waited; nobody overtakes them, and the others keep their order."""

    async def main() -> list[str]:
        endpoint = Endpoint(Bucket(5.0, 5.0), 1.0, trio.current_time)
        async with gateway_of(a=(endpoint.provider, {"max_concurrency": 8})).open() as gateway:
            crowd = Crowd(gateway)
            async with trio.open_nursery() as nursery:
                for number in range(40):
                    nursery.start_soon(crowd._call, f"subject-{number}", 120.0)
                    await trio.testing.wait_all_tasks_blocked()
            return endpoint.answered

    answered = [int(each.removeprefix("subject-")) for each in in_virtual_time(main)]
    assert sorted(answered) == list(range(40))
    assert answered == sorted(answered, key=lambda number: number // 8), "by rounds of those that were in flight together"


def test_refused_calls_are_no_failures_of_a_provider_that_answers() -> None:
    """More than `breaker_failures` at once are refused, and the circuit stays closed."""

    async def main() -> tuple[Crowd, bool]:
        endpoint = Endpoint(Bucket(10.0, 1.0), 1.0, trio.current_time)
        async with gateway_of(a=(endpoint.provider, {"breaker_failures": 2})).open() as gateway:
            crowd = Crowd(gateway)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(crowd.ask, 30)
                await trio.sleep(0.5)
                is_open = gateway.open_circuits()["a"]
            return crowd, is_open

    crowd, is_open = in_virtual_time(main)
    assert not is_open
    assert crowd.ends == {"a": 30}


def test_a_provider_that_refuses_everything_opens_its_circuit() -> None:
    """An empty account: after five rounds, each with a longer pause, calls fail at once, as they do where a server is down."""

    async def main() -> tuple[Crowd, Endpoint, float]:
        endpoint = Endpoint(Bucket(0.0, 0.0), None, trio.current_time)
        async with gateway_of(a=endpoint.provider).open() as gateway:
            crowd, begun = Crowd(gateway), trio.current_time()
            await crowd.ask(100)
            return crowd, endpoint, trio.current_time() - begun

    crowd, endpoint, seconds = in_virtual_time(main)
    assert sum(crowd.ends.values()) == 100
    assert set(crowd.ends) <= {"rate_limited", "breaker_open"}
    assert endpoint.refused <= 64 + 4
    assert seconds == pytest.approx(0.5 + 1.0 + 2.0 + 4.0)


def test_a_call_is_refused_so_often_and_no_more() -> None:
    async def main() -> Told:
        told = Told()
        async with gateway_of(
            a=([failure("rate_limited", status=429)] * 9, {"max_retries": 1, "breaker_failures": 100})
        ).open() as gateway:
            with pytest.raises(ProviderError, match="rate_limited"):
                await gateway.complete(ask(within_s=1_000.0), on_attempt=told)
        return told

    assert [each.state for each in in_virtual_time(main).attempts] == ["started", "failed"] * 6


def test_an_empty_account_is_no_matter_of_pace() -> None:
    """Money does not come while a call waits: it is asked once, and the fallback at once."""

    async def main() -> tuple[Told, Told, float]:
        alone, told = Told(), Told()
        async with gateway_of(a=[failure("out_of_credit", status=402)] * 9).open() as gateway:
            with pytest.raises(ProviderError, match="out_of_credit"):
                await gateway.complete(ask(), on_attempt=alone)
        empty = [failure("out_of_credit", status=429)] * 9
        async with gateway_of(fallbacks={"a": ("b",)}, a=empty, b=ScriptedProvider(["fine"])).open() as gateway:
            begun = trio.current_time()
            assert (await gateway.complete(ask(), on_attempt=told)).provider_id == "b"
            return alone, told, trio.current_time() - begun

    alone, told, seconds = in_virtual_time(main)
    assert [each.state for each in alone.attempts] == ["started", "failed"]
    assert [(each.state, each.provider_id) for each in told.attempts] == [("started", "a"), ("failed", "a"), ("started", "b")]
    assert seconds == 0.0


def test_what_a_provider_does_not_let_through_goes_to_the_fallback() -> None:
    """A call with another way does not wait for a pace: neither those that wait as it begins, nor those that come later."""

    async def main() -> tuple[Crowd, float]:
        endpoint = Endpoint(Bucket(10.0, 10.0), None, trio.current_time)
        other = ScriptedProvider(lambda _: "fine")
        async with gateway_of(fallbacks={"a": ("b",)}, a=endpoint.provider, b=other).open() as gateway:
            crowd, begun = Crowd(gateway), trio.current_time()
            await crowd.ask(100)
            await trio.sleep(2.0)
            await crowd.ask(40)
            return crowd, trio.current_time() - begun

    crowd, seconds = in_virtual_time(main)
    assert crowd.ends["a"] + crowd.ends["b"] == 140
    assert crowd.ends["a"] > 12, "the first provider still gets what it lets through"
    assert seconds <= 5.0, "nobody waited for long"


def test_a_call_with_a_fallback_does_not_wait_for_a_pause_that_the_provider_asked_for() -> None:
    async def main() -> tuple[str, float]:
        endpoint = Endpoint(Bucket(1.0, 1.0), 20.0, trio.current_time)
        other = ScriptedProvider(lambda _: "fine")
        opened = gateway_of(fallbacks={"a": ("b",)}, a=endpoint.provider, b=other).open()
        async with opened as gateway, trio.open_nursery() as nursery:
            nursery.start_soon(Crowd(gateway).ask, 5)
            await trio.sleep(0.5)
            begun = trio.current_time()
            answer = await gateway.complete(ask(), on_attempt=Told())
            return answer.provider_id, trio.current_time() - begun

    provider_id, seconds = in_virtual_time(main)
    assert provider_id == "b"
    assert seconds <= 1.0


def test_a_call_that_the_pace_lets_begin_too_late_ends_at_once_with_the_cause() -> None:
    async def main() -> tuple[ProviderError, float]:
        endpoint = Endpoint(Bucket(1.0, 1.0), 20.0, trio.current_time)
        async with gateway_of(a=endpoint.provider).open() as gateway:
            crowd, begun = Crowd(gateway), trio.current_time()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(crowd.ask, 5)
                await trio.sleep(0.5)
                with pytest.raises(ProviderError) as caught:
                    await gateway.complete(ask(within_s=10.0), on_attempt=Told())
                return caught.value, trio.current_time() - begun

    error, seconds = in_virtual_time(main)
    assert error.reason == "timeout"
    assert "this pause takes 9.5 s more, and no time is left until the deadline: send the message again later" in error.detail
    assert seconds >= 0.5


def test_calls_that_are_cancelled_while_they_wait_for_the_pace_hold_up_nobody() -> None:
    async def main() -> tuple[Crowd, float, Any]:
        endpoint = Endpoint(Bucket(10.0, 10.0), 1.0, trio.current_time)
        async with gateway_of(a=endpoint.provider).open() as gateway:
            gone, crowd, begun = Crowd(gateway), Crowd(gateway), trio.current_time()
            async with trio.open_nursery() as nursery:
                with trio.move_on_after(1.5):
                    async with trio.open_nursery() as leaving:
                        leaving.start_soon(gone.ask, 500)
                        await trio.sleep(0.1)
                        nursery.start_soon(crowd.ask, 30)
                        await trio.sleep_forever()
            return crowd, trio.current_time() - begun, gateway.statistics()["a"]

    crowd, seconds, counts = in_virtual_time(main)
    assert crowd.ends == {"a": 30}
    assert seconds <= 10.0
    assert (counts.running, counts.waiting, counts.asking_for_room) == (0, 0, 0)


def test_when_the_limit_is_lifted_calls_go_out_at_once_again() -> None:
    async def main() -> tuple[float, float]:
        limited = Bucket(10.0, 10.0)
        endpoint = Endpoint(limited, 1.0, trio.current_time)
        async with gateway_of(a=endpoint.provider).open() as gateway:
            await Crowd(gateway).ask(100)
            endpoint.limit = Bucket(1e6, 1e6)
            begun = trio.current_time()
            await Crowd(gateway).ask(2_000)
            soon = trio.current_time() - begun
            await trio.sleep(180.0)
            begun = trio.current_time()
            await Crowd(gateway).ask(10)
            await Crowd(gateway).ask(1_000)
            return soon, trio.current_time() - begun

    soon, later = in_virtual_time(main)
    assert soon <= 40.0, "2,000 calls at 10 a second would take 200 s"
    assert later <= 0.2


async def test_everybody_gets_an_answer_on_either_event_loop() -> None:
    """The same in real time, also as streams: 60 sessions, of which 40 calls a tenth of a second pass."""
    endpoint = Endpoint(Bucket(400.0, 20.0), 0.02, anyio.current_time)
    settings = {"backoff_initial_s": 0.01, "max_concurrency": 16}
    async with gateway_of(a=(endpoint.provider, settings)).open() as gateway:
        crowd, texts = Crowd(gateway), list[str]()

        async def stream(number: int) -> None:
            items = gateway.stream(ask(subject_id=f"reader-{number}"), on_attempt=Told())
            texts.extend([getattr(item, "provider_id", "") async for item in items])

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(crowd.ask, 40)
                for number in range(20):
                    tasks.start_soon(stream, number)
    assert crowd.ends == {"a": 40}
    assert texts.count("a") == 20
    assert endpoint.refused > 0
