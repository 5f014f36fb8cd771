"""Limits, breaker and back-off by themselves, under a clock that the test moves."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kitchener.config import ProviderConfig
from kitchener.gateway.resilience import CircuitBreaker, Pace, Rate, backoff

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


def test_a_call_from_before_the_circuit_opened_that_is_cancelled_lets_no_second_one_probe() -> None:
    breaker = CircuitBreaker(1, 10.0)
    before = breaker.enter(0.0)
    breaker.failed(breaker.enter(0.0), 0.0)
    assert breaker.enter(10.0)
    breaker.abandoned(before)
    assert breaker.enter(10.0) == 0


# --- pauses -------------------------------------------------------------------------------------------------------------


def test_a_shorter_pause_does_not_cut_a_longer_one() -> None:
    pace = Pace(ProviderConfig(kind="offline"))
    pace.hold_until(20.0)
    pace.hold_until(5.0)
    assert pace.ready_at(0) == 20.0


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
