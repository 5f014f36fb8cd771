"""Limits, breaker and back-off by themselves, under a clock that the test moves."""

import asyncio
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kitchener.config import ProviderConfig
from kitchener.errors import ProviderError
from kitchener.gateway.resilience import CircuitBreaker, FairLimiter, Rate, backoff
from tests.gateway.asking import in_virtual_time

FAR = 1e6


def limiter(*, max_waiting: int = 1_000, **config: Any) -> FairLimiter:
    return FairLimiter("p", ProviderConfig(kind="offline", **config), now=anyio.current_time, max_waiting=max_waiting)


# --- Rate ---------------------------------------------------------------------------------------------------------------


def most_in_a_minute(passed: list[tuple[float, int]]) -> int:
    """The largest sum of costs in any half-open minute that begins with one of them."""
    return max(
        sum(cost for at, cost in passed if begin <= at < begin + 60.0 - 1e-6)  # float times: a hair inside the minute
        for begin, _ in passed
    )


@given(
    per_minute=st.integers(1, 300),
    pauses=st.lists(st.floats(0, 30) | st.just(0.0), min_size=1, max_size=150),
)
def test_no_minute_ever_sees_more_requests_than_the_rate(per_minute: int, pauses: list[float]) -> None:
    """Whatever the pattern of arrival, each passing as early as it may."""
    rate, now, passed = Rate(per_minute), 0.0, []
    for pause in pauses:
        now = max(now + pause, rate.ready_at(1))
        rate.take(1, now)
        passed.append((now, 1))
    assert most_in_a_minute(passed) <= per_minute


@given(
    per_minute=st.integers(10, 10_000),
    steps=st.lists(st.tuples(st.floats(0, 20), st.floats(0, 1)), min_size=1, max_size=100),
)
def test_no_minute_ever_sees_more_tokens_than_the_rate(per_minute: int, steps: list[tuple[float, float]]) -> None:
    """For costs up to the share that may pass at once."""
    rate, now, passed = Rate(per_minute), 0.0, []
    for pause, share in steps:
        cost = max(1, int(share * (per_minute // 10)))
        now = max(now + pause, rate.ready_at(cost))
        rate.take(cost, now)
        passed.append((now, cost))
    assert most_in_a_minute(passed) <= per_minute


@given(per_minute=st.integers(10, 10_000), factor=st.integers(1, 30))
def test_a_cost_above_the_burst_passes_alone_and_is_paid_off(per_minute: int, factor: int) -> None:
    """It is neither refused for ever nor forgotten: the next one waits until it is paid."""
    rate = Rate(per_minute)
    cost = factor * per_minute
    assert rate.ready_at(cost) <= 0.0
    rate.take(cost, 0.0)
    assert rate.ready_at(cost) >= 60.0 * factor - 1e-6
    assert rate.ready_at(1) >= 60.0 * (factor - 1) - 1e-6


def test_an_idle_rate_lets_a_tenth_through_at_once() -> None:
    rate = Rate(60)
    for _ in range(6):
        assert rate.ready_at(1) <= 0.0
        rate.take(1, 0.0)
    assert rate.ready_at(1) > 0.0


# --- FairLimiter --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    subject: str
    number: int
    arrives: float
    lasts: float
    tokens: int


calls = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.integers(1, 10), st.integers(1, 40)), min_size=1, max_size=25
).map(
    lambda rows: [
        Call(subject, number, arrives / 2, lasts / 4, tokens) for number, (subject, arrives, lasts, tokens) in enumerate(rows)
    ]
)


@settings(max_examples=60)
@given(
    calls=calls,
    concurrency=st.integers(1, 3),
    requests_per_minute=st.none() | st.integers(20, 200),
    tokens_per_minute=st.none() | st.integers(200, 2_000),
)
def test_everybody_is_served_within_the_limits_and_in_order_within_a_subject(
    calls: list[Call], concurrency: int, requests_per_minute: int | None, tokens_per_minute: int | None
) -> None:
    """Any arrival pattern: concurrency and rates hold, nobody starves, a subject's calls keep their order."""
    begun: list[tuple[float, Call]] = []
    running = 0

    async def main() -> FairLimiter:
        limits = limiter(
            max_concurrency=concurrency, requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute
        )

        async def run(call: Call) -> None:
            nonlocal running
            await trio.sleep(call.arrives)
            assert await limits.enter(call.subject, call.tokens, FAR)
            begun.append((trio.current_time(), call))
            running += 1
            assert running <= concurrency
            await trio.sleep(call.lasts)
            running -= 1
            limits.leave(call.subject)

        async with trio.open_nursery() as nursery:
            for call in calls:
                nursery.start_soon(run, call)
        return limits

    limits = in_virtual_time(main)
    assert len(begun) == len(calls)
    assert (limits.statistics().in_flight, limits.statistics().waiting) == (0, 0)
    if requests_per_minute is not None:
        assert most_in_a_minute([(at, 1) for at, _ in begun]) <= requests_per_minute
    for subject in "abc":
        arrivals = [call.arrives for _, call in begun if call.subject == subject]
        assert arrivals == sorted(arrivals)


async def test_subjects_take_turns_however_many_one_of_them_sends() -> None:
    """A busy subject's thousand waiting calls cost another subject one place each, not a thousand."""
    limits = limiter(max_concurrency=1)
    assert limits.try_enter(0, anyio.current_time())
    served: list[str] = []

    async def call(subject: str) -> None:
        await limits.enter(subject, 0, anyio.current_time() + 20)
        served.append(subject)
        limits.leave(subject)

    async with anyio.create_task_group() as tasks:
        for _ in range(100):
            tasks.start_soon(call, "busy")
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(call, "quiet")
        tasks.start_soon(call, "quiet")
        await anyio.wait_all_tasks_blocked()
        assert limits.statistics().waiting == 102
        limits.leave()
    assert len(served) == 102
    assert served.index("quiet") == 1
    assert served[:4].count("quiet") == 2


async def test_a_newcomer_does_not_overtake_who_waits() -> None:
    limits = limiter(max_concurrency=1)
    now = anyio.current_time()
    assert limits.try_enter(0, now)
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            await limits.enter("first", 0, now + 20)

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        limits.leave()
        assert not limits.try_enter(0, now)
    limits.leave("first")
    assert limits.try_enter(0, now)


async def test_a_full_queue_refuses_at_once() -> None:
    limits = limiter(max_concurrency=1, max_waiting=1)
    now = anyio.current_time()
    assert limits.try_enter(0, now)
    async with anyio.create_task_group() as tasks:

        async def wait() -> None:
            await limits.enter("first", 0, now + 20)
            limits.leave("first")

        tasks.start_soon(wait)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(ProviderError, match="1 calls wait for this provider already") as caught:
            await limits.enter("second", 0, now + 20)
        assert caught.value.reason == "rate_limited"
        limits.leave()


@pytest.mark.parametrize("served_too", [False, True])
async def test_a_cancelled_wait_leaves_no_trace(served_too: bool) -> None:
    """Also if it was served in the very moment in which it was cancelled: its slot goes on to the next one."""
    limits = limiter(max_concurrency=1)
    deadline = anyio.current_time() + 20
    assert limits.try_enter(0, anyio.current_time())
    after = anyio.Event()

    async def cancelled(*, task_status: anyio.abc.TaskStatus[anyio.CancelScope]) -> None:
        with anyio.CancelScope() as scope:
            task_status.started(scope)
            await limits.enter("a", 0, deadline)
            limits.leave("a")

    async def next_one() -> None:
        await limits.enter("b", 0, deadline)
        after.set()
        limits.leave("b")

    async with anyio.create_task_group() as tasks:
        scope = await tasks.start(cancelled)
        await anyio.wait_all_tasks_blocked()
        tasks.start_soon(next_one)
        await anyio.wait_all_tasks_blocked()
        if served_too:
            limits.leave()
            scope.cancel()
        else:
            scope.cancel()
            await anyio.wait_all_tasks_blocked()
            assert limits.statistics().waiting == 1
            limits.leave()
        with anyio.fail_after(5):
            await after.wait()
    assert (limits.statistics().in_flight, limits.statistics().waiting) == (0, 0)


def test_a_call_that_is_served_and_cancelled_in_one_moment_gives_its_slot_back() -> None:
    """anyio's scopes let the service win; a plain `Task.cancel` of asyncio does not, and the slot must not be lost."""

    async def main() -> None:
        limits = limiter(max_concurrency=1)
        now = anyio.current_time()
        assert limits.try_enter(0, now)
        task = asyncio.create_task(limits.enter("a", 0, now + 20))
        await anyio.wait_all_tasks_blocked()
        limits.leave()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert limits.try_enter(0, now)

    asyncio.run(main())


def test_a_shorter_pause_does_not_cut_a_longer_one_short() -> None:
    limits = FairLimiter("p", ProviderConfig(kind="offline"), now=lambda: 0.0, max_waiting=1)
    limits.hold_until(10.0)
    limits.hold_until(5.0)
    assert not limits.try_enter(0, 9.9)
    assert limits.try_enter(0, 10.0)


async def test_send_away_ends_every_wait() -> None:
    limits = limiter(max_concurrency=1)
    deadline = anyio.current_time() + 20
    assert limits.try_enter(0, anyio.current_time())
    results: list[bool] = []

    async def wait(subject: str) -> None:
        results.append(await limits.enter(subject, 0, deadline))

    async with anyio.create_task_group() as tasks:
        for subject in "aab":
            tasks.start_soon(wait, subject)
        await anyio.wait_all_tasks_blocked()
        limits.send_away()
    assert results == [False, False, False]
    assert (limits.statistics().in_flight, limits.statistics().waiting) == (1, 0)


def test_a_wait_that_a_rate_makes_hopeless_fails_before_its_deadline() -> None:
    """Six of sixty a minute pass at once; the seventh would be due too late for its deadline."""

    async def main() -> float:
        limits = limiter(requests_per_minute=60)
        for _ in range(6):
            assert limits.try_enter(0, trio.current_time())
        begun = trio.current_time()
        with pytest.raises(ProviderError, match="no room before the deadline") as caught:
            await limits.enter("a", 0, begun + 0.5)
        assert caught.value.reason == "timeout"
        return trio.current_time() - begun

    assert in_virtual_time(main) == 0.0


def test_a_wait_for_a_slot_ends_at_its_deadline() -> None:
    async def main() -> float:
        limits = limiter(max_concurrency=1)
        assert limits.try_enter(0, trio.current_time())
        begun = trio.current_time()
        with pytest.raises(ProviderError, match="no room before the deadline"):
            await limits.enter("a", 0, begun + 7.0)
        assert limits.statistics().waiting == 0
        return trio.current_time() - begun

    assert in_virtual_time(main) == pytest.approx(7.0)


def test_the_next_one_keeps_the_time_when_the_first_in_line_gives_up() -> None:
    """A rate has no timer of its own: some waiter sleeps until it is due, and hands that over when it is cancelled."""

    async def main() -> float:
        limits = limiter(requests_per_minute=10)
        assert limits.try_enter(0, trio.current_time())
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            scope = trio.CancelScope()

            async def gives_up() -> None:
                with scope:
                    await limits.enter("a", 0, FAR)

            nursery.start_soon(gives_up)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(limits.enter, "b", 0, FAR)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
        return trio.current_time() - begun

    assert in_virtual_time(main) == pytest.approx(6.0)


def test_a_slot_that_frees_late_does_not_put_off_the_rates_alarm() -> None:
    """The head of the line first waits for a slot without knowing when it is due, then for the rate."""

    async def main() -> float:
        limits = limiter(max_concurrency=1, requests_per_minute=10)
        assert limits.try_enter(0, trio.current_time())
        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(limits.enter, "a", 0, FAR)
            await trio.sleep(2.0)
            limits.leave()
        return trio.current_time() - begun

    assert in_virtual_time(main) == pytest.approx(6.0)


# --- CircuitBreaker -----------------------------------------------------------------------------------------------------


class BreakerModel(RuleBasedStateMachine):
    """The breaker against a plain restatement of its rules; outcomes come in any order, also late ones."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = CircuitBreaker(3, 10.0)
        self.now = 0.0
        self.state = "closed"
        self.failures = 0
        self.open_until = 0.0
        self.age = 0
        """How often the state has changed; a call belongs to the age in which it began."""
        self.calls: list[tuple[int, int]] = []

    def change(self, state: str) -> None:
        self.state, self.failures, self.age = state, 0, self.age + 1

    @rule(seconds=st.floats(0, 12))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def a_call_comes(self) -> None:
        may = self.state == "closed" or (self.state == "open" and self.now >= self.open_until)
        assert self.breaker.is_open(self.now) is not may
        ticket = self.breaker.enter(self.now)
        assert bool(ticket) is may
        if may:
            if self.state == "open":
                self.state = "probing"
            self.calls.append((ticket, self.age))

    @precondition(lambda self: self.calls)
    @rule(which=st.integers(0), outcome=st.sampled_from(["succeeded", "failed", "abandoned"]))
    def a_call_ends(self, which: int, outcome: str) -> None:
        ticket, age = self.calls.pop(which % len(self.calls))
        opened = self.breaker.failed(ticket, self.now) if outcome == "failed" else None
        if outcome == "succeeded":
            self.breaker.succeeded(ticket)
        if outcome == "abandoned":
            self.breaker.abandoned(ticket)
        if age != self.age:
            assert not opened
            return
        if outcome == "succeeded":
            self.failures = 0
            if self.state == "probing":
                self.change("closed")
        elif outcome == "abandoned":
            self.state = "open" if self.state == "probing" else self.state
        else:
            self.failures += 1
            opens = self.state == "probing" or self.failures >= 3
            assert opened is opens
            if opens:
                self.change("open")
                self.open_until = self.now + 10.0

    @invariant()
    def at_most_one_call_probes(self) -> None:
        if self.state != "closed":
            assert sum(age == self.age for _, age in self.calls) == (self.state == "probing")


TestBreakerModel = BreakerModel.TestCase


def test_a_cancelled_probe_lets_the_next_one_probe() -> None:
    """A cancellation says nothing about the provider."""
    breaker = CircuitBreaker(1, 10.0)
    breaker.failed(breaker.enter(0.0), 0.0)
    assert breaker.enter(9.9) == 0
    assert breaker.opens_in(4.0) == 6.0
    probe = breaker.enter(10.0)
    assert probe
    assert breaker.enter(10.0) == 0
    breaker.abandoned(probe)
    second = breaker.enter(10.0)
    assert second
    breaker.succeeded(second)
    assert breaker.enter(10.0)
    assert not breaker.is_open(10.0)


# --- back-off -----------------------------------------------------------------------------------------------------------


@given(
    attempt=st.integers(1, 21),
    jitter=st.floats(0, 1, exclude_max=True),
    retry_after=st.none() | st.floats(0, 600),
)
def test_the_wait_lies_between_what_was_asked_for_and_the_ceiling(
    attempt: int, jitter: float, retry_after: float | None
) -> None:
    config = ProviderConfig(kind="offline", backoff_initial_s=0.5, backoff_max_s=20.0)
    wait = backoff(attempt, config, retry_after, lambda: jitter)
    ceiling = min(20.0, 0.5 * 2 ** (attempt - 1))
    assert wait == max(jitter * ceiling, retry_after or 0.0)
    assert wait <= max(ceiling, retry_after or 0.0)
