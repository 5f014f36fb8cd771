"""What stands between a request and one provider: limits that queue fairly, a circuit breaker, the wait between attempts.

Everything runs on the event loop's own clock, passed in as `now`; nothing here starts a task. It knows neither routes nor
requests: the walk over providers and attempts is `gateway/attempts.py`. Explained in `docs/gateway.md`.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from kitchener.config import ProviderConfig
from kitchener.errors import ProviderError

MINUTE_S = 60.0
BURST_SHARE = 10
"""A rate lets a tenth of its minute pass at once and spaces out the rest."""


def backoff(attempt: int, config: ProviderConfig, retry_after_s: float | None, jitter: Callable[[], float]) -> float:
    """Seconds to wait after the n-th failed attempt at one provider.

    Args:
        attempt: which attempt failed, from 1
        config: the provider's `backoff_initial_s` and `backoff_max_s`
        retry_after_s: what the provider asked for; never waits less
        jitter: a number in [0, 1), fresh on each call (full jitter: callers that failed together do not return together)
    """
    ceiling = min(config.backoff_max_s, config.backoff_initial_s * 2.0 ** (attempt - 1))
    return max(jitter() * ceiling, retry_after_s or 0.0)


class CircuitBreaker:
    """Lets calls through until so many fail in a row, then none until a pause is over, then one to probe.

    A call that was cancelled says nothing about the provider: `abandoned` is neither success nor failure.

    Args:
        failures: failures in a row that open the circuit
        reset_s: how long it stays open before one call may probe, seconds
    """

    __slots__ = ("_failed", "_generation", "_limit", "_open_until", "_probing", "_reset_s")

    def __init__(self, failures: int, reset_s: float) -> None:
        self._limit, self._reset_s = failures, reset_s
        self._failed = 0
        self._open_until: float | None = None
        self._probing = False
        self._generation = 1

    def is_open(self, now: float) -> bool:
        """Whether a call would be refused now."""
        return self._open_until is not None and (self._probing or now < self._open_until)

    def opens_in(self, now: float) -> float:
        """Seconds until a probe may go through; 0 when it is closed or may be probed."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - now)

    def enter(self, now: float) -> int:
        """A ticket for one call, to be handed back with its outcome; 0: refused, nothing to hand back."""
        if self._open_until is not None:
            if self._probing or now < self._open_until:
                return 0
            self._probing = True
        return self._generation

    def succeeded(self, ticket: int) -> None:
        """The provider answered. Closes the circuit if this was the probe."""
        # Calls that began before the circuit opened or closed hold an older ticket: their outcome is about the past.
        if ticket == self._generation:
            if self._open_until is not None:
                self._open_until, self._probing = None, False
                self._generation += 1
            self._failed = 0

    def failed(self, ticket: int, now: float) -> bool:
        """The provider failed. True if this opened the circuit, for the first time or again."""
        if ticket != self._generation:
            return False
        self._failed += 1
        if self._failed < self._limit and self._open_until is None:
            return False
        self._open_until, self._probing = now + self._reset_s, False
        self._generation += 1
        return True

    def abandoned(self, ticket: int) -> None:
        """The call ended without an outcome; another one may probe."""
        if ticket == self._generation:
            self._probing = False


class Rate:
    """A limit per minute by the generic cell rate algorithm: constant memory, no timer.

    At most `per_minute` units pass in any 60 s, a tenth of them at once and the others evenly spaced. A single cost above
    that tenth passes alone, when nothing is owed, and is paid off afterwards.
    """

    __slots__ = ("_burst", "_interval", "_paid_until")

    def __init__(self, per_minute: int) -> None:
        self._burst = max(1, per_minute // BURST_SHARE)
        # The burst may fall into the same minute as the evenly spaced ones, so these are slowed down by as much.
        self._interval = MINUTE_S / (per_minute - self._burst + 1)
        self._paid_until = float("-inf")

    def ready_at(self, cost: int) -> float:
        """The earliest time at which this cost may pass."""
        return self._paid_until - (self._burst - min(cost, self._burst)) * self._interval

    def take(self, cost: int, now: float) -> None:
        """Lets the cost pass now."""
        self._paid_until = max(self._paid_until, now) + cost * self._interval


_AWAKE = float("-inf")


class _Waiter:
    """One call that waits; its task sleeps on `event`, which is set when it is served, refused or has to keep time."""

    __slots__ = ("alarm", "deadline", "event", "outcome", "subject_id", "tokens")

    def __init__(self, subject_id: str, tokens: int, deadline: float) -> None:
        self.subject_id, self.tokens, self.deadline = subject_id, tokens, deadline
        self.event = anyio.Event()
        self.outcome: str | None = None
        self.alarm = _AWAKE
        """When it wakes by itself; awake, it looks at the time before it sleeps again."""


@dataclass(frozen=True, slots=True)
class LimiterStatistics:
    """How busy a provider is."""

    in_flight: int
    """Calls that are running."""
    waiting: int
    """Calls that wait."""


class FairLimiter:
    """Bounds one provider's calls in flight, requests and tokens a minute; who has to wait is served fairly.

    Waiting calls are served round-robin between subjects and in order within a subject, and one subject leaves an eighth of
    the calls in flight to others, so one busy subject cannot keep the others out, nor can one whose streams nobody reads.
    Nobody overtakes: while somebody waits, a newcomer waits too.

    Args:
        provider_id: for error messages
        config: `max_concurrency`, `requests_per_minute`, `tokens_per_minute`
        now: the event loop's clock
        max_waiting: calls that may wait; beyond it a call is refused at once

    Attributes:
        counts_tokens: whether callers have to say how many tokens a call needs
    """

    def __init__(self, provider_id: str, config: ProviderConfig, *, now: Callable[[], float], max_waiting: int) -> None:
        self._provider_id = provider_id
        self._now = now
        self._max_concurrency, self._max_waiting = config.max_concurrency, max_waiting
        self._requests = Rate(config.requests_per_minute) if config.requests_per_minute else None
        self._tokens = Rate(config.tokens_per_minute) if config.tokens_per_minute else None
        self.counts_tokens = self._tokens is not None
        self._is_rated = self._requests is not None or self.counts_tokens
        self._held_until = float("-inf")
        self._in_flight = 0
        self._share = config.max_concurrency - config.max_concurrency // 8
        self._in_flight_of: dict[str, int] = {}
        """Calls that run, by subject, of those who have any."""
        self._waiting = 0
        # Subjects in the order of their turn; each with its waiters in order. Both forget in constant time.
        self._queues: OrderedDict[str, OrderedDict[_Waiter, None]] = OrderedDict()
        self._timekeeper: _Waiter | None = None
        self._due = float("inf")

    def statistics(self) -> LimiterStatistics:
        """How many calls run and wait."""
        return LimiterStatistics(self._in_flight, self._waiting)

    def try_enter(self, tokens: int, now: float, subject_id: str = "") -> bool:
        """Begins a call if that is possible without waiting; pair it with `leave`."""
        if self._waiting or self._in_flight >= self._max_concurrency:
            return False
        running = self._in_flight_of.get(subject_id, 0)
        if running >= self._share:
            return False
        if self._is_rated:
            if self._ready_at(tokens) > now:
                return False
            self._take(tokens, now)
        self._in_flight += 1
        self._in_flight_of[subject_id] = running + 1
        return True

    async def enter(self, subject_id: str, tokens: int, deadline: float) -> bool:
        """Begins a call as soon as it is this one's turn; pair it with `leave`.

        Returns:
            True: begun. False: sent away by `send_away`; nothing to leave.

        Raises:
            ProviderError: too many wait already (`rate_limited`), or its turn cannot come before the deadline (`timeout`)

        Cancelled while waiting, it has not begun.
        """
        if self.try_enter(tokens, self._now(), subject_id):
            return True
        waiter = self._enqueue(subject_id, tokens, deadline)
        try:
            self._serve()
            while waiter.outcome is None:
                await self._sleep(waiter)
        except BaseException:
            if waiter.outcome == "served":
                self._end(subject_id)
            elif waiter.outcome is None:
                self._forget(waiter, "cancelled")
            self._hand_over(waiter)
            raise
        self._hand_over(waiter)
        if waiter.outcome == "late":
            raise ProviderError(
                self._provider_id,
                "timeout",
                f"its limits leave no room before the deadline; {self._in_flight} calls run and {self._waiting} wait",
            )
        return waiter.outcome == "served"

    def leave(self, subject_id: str = "") -> None:
        """Ends a call that was begun."""
        self._end(subject_id)
        if self._waiting:
            self._serve()

    def hold_until(self, moment: float) -> None:
        """Lets nobody in before that moment: the provider has asked for a pause, and it meant everybody."""
        self._held_until = max(self._held_until, moment)
        self._is_rated = True

    def send_away(self) -> None:
        """Ends the wait of everybody who waits: the provider is not to be called for a while."""
        for queue in list(self._queues.values()):
            for waiter in list(queue):
                self._forget(waiter, "sent_away")
                waiter.event.set()

    def _end(self, subject_id: str) -> None:
        self._in_flight -= 1
        running = self._in_flight_of[subject_id] - 1
        if running:
            self._in_flight_of[subject_id] = running
        else:
            del self._in_flight_of[subject_id]

    def _next_subject(self) -> str | None:
        """Whose turn it is: the first in line with less than its share of the calls in flight, or None."""
        return next((each for each in self._queues if self._in_flight_of.get(each, 0) < self._share), None)

    def _ready_at(self, tokens: int) -> float:
        ready = self._held_until
        if self._requests is not None:
            ready = max(ready, self._requests.ready_at(1))
        return ready if self._tokens is None else max(ready, self._tokens.ready_at(tokens))

    def _take(self, tokens: int, now: float) -> None:
        if self._requests is not None:
            self._requests.take(1, now)
        if self._tokens is not None:
            self._tokens.take(tokens, now)

    def _enqueue(self, subject_id: str, tokens: int, deadline: float) -> _Waiter:
        if self._waiting >= self._max_waiting:
            raise ProviderError(
                self._provider_id,
                "rate_limited",
                f"{self._waiting} calls wait for this provider already, and no more may; send again later",
            )
        waiter = _Waiter(subject_id, tokens, deadline)
        self._queues.setdefault(subject_id, OrderedDict())[waiter] = None
        self._waiting += 1
        return waiter

    def _forget(self, waiter: _Waiter, outcome: str) -> None:
        waiter.outcome = outcome
        queue = self._queues[waiter.subject_id]
        del queue[waiter]
        if not queue:
            del self._queues[waiter.subject_id]
        self._waiting -= 1

    def _serve(self) -> None:
        """Lets in whoever may go now. If only a rate stands in the way, the next in line is to keep the time."""
        now = self._now()
        self._due = float("inf")
        while self._in_flight < self._max_concurrency and (subject_id := self._next_subject()) is not None:
            waiter = next(iter(self._queues[subject_id]))
            due = self._ready_at(waiter.tokens) if self._is_rated else now
            if due > now and due <= waiter.deadline:
                self._due, self._timekeeper = due, waiter
                if due < waiter.alarm:
                    waiter.event.set()
                return
            if due > now:
                self._forget(waiter, "late")
            else:
                self._take(waiter.tokens, now)
                self._in_flight += 1
                self._in_flight_of[subject_id] = self._in_flight_of.get(subject_id, 0) + 1
                self._forget(waiter, "served")
                if subject_id in self._queues:
                    self._queues.move_to_end(subject_id)
            waiter.event.set()

    def _hand_over(self, waiter: _Waiter) -> None:
        """What a waiter leaves behind when it goes: its slot, or the time-keeping, for the next one."""
        if self._timekeeper is waiter:
            self._timekeeper = None
        if self._waiting:
            self._serve()

    async def _sleep(self, waiter: _Waiter) -> None:
        """Sleeps until served, sent away, appointed, due or late."""
        waiter.alarm = min(waiter.deadline, self._due) if self._timekeeper is waiter else waiter.deadline
        if not waiter.event.is_set():
            with anyio.CancelScope(deadline=waiter.alarm):
                await waiter.event.wait()
        if waiter.outcome is not None:
            return
        waiter.event, waiter.alarm = anyio.Event(), _AWAKE
        if self._timekeeper is waiter:
            self._serve()
        if waiter.outcome is None and self._now() >= waiter.deadline:
            self._forget(waiter, "late")
