"""The pace of a provider that refuses calls for their rate, by itself, under a clock that the test moves; docs/gateway.md."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.errors import ProviderError
from kitchener.gateway.learned_pace import SLACK_S, LearnedPace
from kitchener.gateway.resilience import is_throttled

SLOWEST_S = 30.0


class Limit(Protocol):
    """What a provider lets through."""

    def opens(self, now: float) -> bool: ...


@dataclass
class Bucket:
    """So many calls a second, and a number of them at once."""

    per_s: float
    burst: float
    left: float = field(init=False)
    at: float = 0.0

    def __post_init__(self) -> None:
        self.left = self.burst

    def opens(self, now: float) -> bool:
        self.left, self.at = min(self.burst, self.left + (now - self.at) * self.per_s), now
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


@dataclass
class Window:
    """So many calls in each second of the clock."""

    per_s: int
    second: int = -1
    passed: int = 0

    def opens(self, now: float) -> bool:
        if int(now) != self.second:
            self.second, self.passed = int(now), 0
        self.passed += 1
        return self.passed <= self.per_s


@dataclass
class Outcome:
    """What became of calls that all waited from the beginning."""

    begun: list[float] = field(default_factory=list)
    passed: list[float] = field(default_factory=list)
    refused: int = 0
    news: int = 0


def sent(limit: Limit, calls: int, asked_pause_s: float | None, latency_s: float, places: int = 64) -> Outcome:
    """Sends calls as a lane does, each again until it passes, and tells the pace of each refusal after the latency."""
    pace, found = LearnedPace(0.5, 20.0, SLOWEST_S), Outcome()
    in_flight: list[tuple[float, float, bool]] = []
    now, is_paced = 0.0, False
    while len(found.passed) < calls:
        free = len(in_flight) < places and len(found.passed) + len(in_flight) < calls
        begins = max(now, pace.ready_at) if is_paced else now
        if free and (not in_flight or begins < in_flight[0][0]):
            now = begins
            if is_paced:
                pace.take(now)
            found.begun.append(now)
            heapq.heappush(in_flight, (now + latency_s, now, limit.opens(now)))
            continue
        now, began, has_passed = heapq.heappop(in_flight)
        if has_passed:
            found.passed.append(now)
        else:
            is_paced = True
            found.refused += 1
            found.news += pace.refuse(began, now, asked_pause_s)
            assert now <= pace.ready_at <= now + SLOWEST_S + 1.0 / pace.per_s(now), "it always makes progress"
    return found


def buckets(seconds: float) -> st.SearchStrategy[Bucket]:
    """Limits that let the calls of so many seconds through at once."""
    return st.floats(1.0, 200.0).map(lambda per_s: Bucket(per_s, max(1.0, per_s * seconds)))


limits = buckets(1.0) | buckets(6.0) | buckets(60.0) | st.integers(1, 200).map(Window)
waits = st.none() | st.sampled_from([0.0, 0.05, 0.5, 1.0])


@given(limit=limits, calls=st.integers(20, 400), asked_pause_s=waits, latency_s=st.sampled_from([0.001, 0.05, 0.4]))
def test_whatever_the_limit_all_calls_pass_in_little_more_time_than_it_asks_for(
    limit: Bucket | Window, calls: int, asked_pause_s: float | None, latency_s: float
) -> None:
    """Buckets and windows, with and without `Retry-After`: the time is the limit's own, and few calls are refused."""
    found = sent(limit, calls, asked_pause_s, latency_s)
    assert len(found.passed) == calls
    assert found.passed[-1] <= 2.0 * calls / limit.per_s + 20.0, "the search takes a while"
    assert found.refused <= 64 + found.news * (2.0 + 4.0 * limit.per_s * latency_s), "the first calls, then few a round"


@given(
    per_s=st.floats(0.2, 200.0),
    calls=st.integers(1, 200),
    asked_pause_s=waits | st.floats(1.0, 10.0),
    latency_s=st.sampled_from([0.001, 0.4]),
)
def test_a_limit_that_saves_nothing_up_is_used_all_the_same(
    per_s: float, calls: int, asked_pause_s: float | None, latency_s: float
) -> None:
    """It lets one call through at a time, so what it could have let through in the pauses is lost. All calls pass."""
    found = sent(Bucket(per_s, 1.0), calls, asked_pause_s, latency_s)
    assert len(found.passed) == calls
    assert found.passed[-1] <= 6.0 * calls / per_s + 10.0 * (asked_pause_s or 1.0) + 40.0


def test_a_limit_of_fifty_calls_a_second_is_used_nearly_in_full() -> None:
    """1,000 calls of which the first 300 pass at once: 14 s, were the limit known."""
    found = sent(Bucket(50.0, 300.0), 1_000, 1.0, 0.01)
    assert found.passed[-1] < 14.0 * 1.3
    assert found.news <= 4


@given(rounds=st.lists(st.tuples(st.integers(1, 40), st.none() | st.floats(0.0, 5.0)), min_size=1, max_size=12))
def test_no_time_sees_more_calls_than_the_pace(rounds: list[tuple[int, float | None]]) -> None:
    """Calls between refusals begin as early as they may, and the pace of their time bounds how many there are."""
    pace, now = LearnedPace(0.5, 20.0, SLOWEST_S), 0.0
    for calls, asked_pause_s in rounds:
        pace.refuse(now, now, asked_pause_s)
        begun = list[float]()
        for _ in range(calls):
            now = max(now, pace.ready_at)
            pace.take(now)
            begun.append(now)
        for first, last in itertools.combinations(range(calls), 2):
            seconds = begun[last] - begun[first]
            assert last - first <= (seconds + SLACK_S) * pace.per_s(begun[last]) + 1.0 + 1e-6
        now += 0.01


@given(
    rounds=st.lists(st.tuples(st.integers(0, 30), st.none() | st.floats(0.0, 60.0)), min_size=1, max_size=8),
)
def test_after_the_limit_is_lifted_the_pace_grows_until_it_is_none(rounds: list[tuple[int, float | None]]) -> None:
    """Whatever was refused before; three minutes are the most, and it never slows down by itself."""
    pace, now = LearnedPace(0.5, 20.0, SLOWEST_S), 0.0
    for calls, asked_pause_s in rounds:
        for _ in range(calls):
            now = max(now, pace.ready_at)
            pace.take(now)
        now += 0.01
        pace.refuse(now - 0.005, now, asked_pause_s)
    paces = [pace.per_s(now + seconds) for seconds in range(0, 380, 5)]
    assert paces == sorted(paces)
    assert not pace.is_over(now)
    assert pace.is_over(now + SLOWEST_S + 170.0)


def test_calls_in_flight_are_refused_together_and_that_is_one_refusal() -> None:
    pace = LearnedPace(0.5, 20.0, SLOWEST_S)
    assert pace.refuse(1.0, 2.0, None)
    before = pace.per_s(2.5)
    assert not any(pace.refuse(began, 2.1, None) for began in (0.5, 1.5, 2.0))
    assert pace.per_s(2.5) == before
    assert pace.refuse(2.6, 2.7, None)
    assert pace.per_s(2.7) < before


def test_a_later_refusal_of_the_same_calls_can_lengthen_the_pause() -> None:
    pace = LearnedPace(0.5, 20.0, SLOWEST_S)
    pace.refuse(1.0, 2.0, 1.0)
    assert pace.ready_at == 3.0
    pace.refuse(1.0, 2.5, 4.0)
    assert pace.ready_at == 6.5


def test_where_nothing_passes_the_pauses_double_whatever_the_provider_says() -> None:
    """A pause that was too short is no help; so the rounds that the circuit breaker counts take longer and longer."""
    pace, now, pauses = LearnedPace(0.5, 20.0, SLOWEST_S), 0.0, list[float]()
    for _ in range(8):
        pace.take(now)
        now += 0.01
        pace.refuse(now - 0.005, now, 0.001)
        pauses.append(pace.ready_at - now)
        now = pace.ready_at
    assert pauses == pytest.approx([0.001, 1.0, 2.0, 4.0, 8.0, 16.0, 20.0, 20.0])


def test_an_absurd_pause_is_cut() -> None:
    pace = LearnedPace(0.5, 20.0, SLOWEST_S)
    pace.refuse(1.0, 2.0, 1e9)
    assert pace.ready_at == 2.0 + SLOWEST_S


def test_calls_before_an_idle_time_say_nothing_about_the_limit() -> None:
    """Ten calls in a minute in which nobody waited are not a limit of ten a minute."""

    def after(use: Callable[[LearnedPace], None]) -> float:
        pace = LearnedPace(0.5, 20.0, SLOWEST_S)
        pace.refuse(0.0, 0.0, None)
        use(pace)
        for _ in range(20):
            pace.take(60.0)
        pace.refuse(60.1, 60.2, None)
        return pace.per_s(60.7)

    def rarely(pace: LearnedPace) -> None:
        for second in range(1, 60, 6):
            pace.take(float(second))

    assert after(rarely) == after(lambda _: None)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ProviderError("a", "rate_limited", "", status=429), True),
        (ProviderError("a", "rate_limited", ""), True),
        (ProviderError("a", "out_of_credit", "", status=402), False),
        (ProviderError("a", "server_error", "", status=503), False),
        (ProviderError("a", "server_error", "", status=503, retry_after_s=1.0), True),
        (ProviderError("a", "timeout", "", status=408, retry_after_s=1.0), False),
    ],
)
def test_what_is_refused_for_its_rate(error: ProviderError, expected: bool) -> None:
    assert is_throttled(error) is expected
