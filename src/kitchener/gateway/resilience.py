"""Limits and delays the calls to one provider: a fair limiter, a circuit breaker and the back-off between attempts.

All times are on the event loop's clock, passed in as `now`. This module starts no task and knows neither routes nor requests.
`gateway/attempts.py` uses it. Explained in `docs/gateway.md`.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from kitchener.config import ProviderConfig
from kitchener.errors import ProviderError

MINUTE_S = 60.0
BURST_SHARE = 10
"""A rate lets one tenth of its units per minute pass at once and spaces out the rest."""


def backoff(attempt: int, config: ProviderConfig, retry_after_s: float | None, jitter: Callable[[], float]) -> float:
    """Returns the seconds to wait after the n-th failed attempt at one provider.

    Args:
        attempt: number of the failed attempt at this provider, from 1
        config: the provider's `backoff_initial_s` and `backoff_max_s`
        retry_after_s: the pause that the provider asked for, a lower limit of the wait; None: it asked for none
        jitter: returns a new number in [0, 1). Full jitter keeps callers that failed together from retrying together
    """
    ceiling = min(config.backoff_max_s, config.backoff_initial_s * 2.0 ** (attempt - 1))
    return max(jitter() * ceiling, retry_after_s or 0.0)


class CircuitBreaker:
    """Refuses calls for a pause after a number of failures in a row, and then lets one call probe the provider.

    A cancelled call says nothing about the provider, so `abandoned` counts neither as success nor as failure.

    Args:
        failures: failures in a row that open the circuit
        reset_s: how long the circuit stays open before one call may probe, seconds
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
        """Seconds until a probe is allowed; 0 if the circuit is closed or a probe is allowed now."""
        return 0.0 if self._open_until is None else max(0.0, self._open_until - now)

    def enter(self, now: float) -> int:
        """Returns a ticket for one call, which must be passed back with the call's outcome; 0: the call is refused."""
        if self._open_until is not None:
            if self._probing or now < self._open_until:
                return 0
            self._probing = True
        return self._generation

    def succeeded(self, ticket: int) -> None:
        """Records a success. Closes the circuit if the call was the probe."""
        # A call from before the circuit opened or closed has an older ticket. Its outcome is outdated.
        if ticket == self._generation:
            if self._open_until is not None:
                self._open_until, self._probing = None, False
                self._generation += 1
            self._failed = 0

    def failed(self, ticket: int, now: float) -> bool:
        """Records a failure. Returns whether it opened the circuit, for the first time or again."""
        if ticket != self._generation:
            return False
        self._failed += 1
        if self._failed < self._limit and self._open_until is None:
            return False
        self._open_until, self._probing = now + self._reset_s, False
        self._generation += 1
        return True

    def abandoned(self, ticket: int) -> None:
        """Records a call without an outcome. Another call may then probe."""
        if ticket == self._generation:
            self._probing = False


class Rate:
    """A limit per minute by the generic cell rate algorithm: constant memory, no timer.

    At most `per_minute` units pass in any 60 s: one tenth at once and the others evenly spaced. A single cost above that tenth
    passes when no earlier cost is outstanding, and delays the costs after it accordingly.
    """

    __slots__ = ("_burst", "_interval", "_paid_until")

    def __init__(self, per_minute: int) -> None:
        self._burst = max(1, per_minute // BURST_SHARE)
        # The burst may fall into the same minute as the evenly spaced units, so the interval allows for it.
        self._interval = MINUTE_S / (per_minute - self._burst + 1)
        self._paid_until = float("-inf")

    def ready_at(self, cost: int) -> float:
        """The earliest time at which this cost may pass."""
        return self._paid_until - (self._burst - min(cost, self._burst)) * self._interval

    def take(self, cost: int, now: float) -> None:
        """Books the cost at time `now`."""
        self._paid_until = max(self._paid_until, now) + cost * self._interval


_AWAKE = float("-inf")


class _WaitingCall:
    """One waiting call. Its task awaits `event`, which is set if the call is served or refused, or becomes the timekeeper."""

    __slots__ = ("alarm", "deadline", "event", "outcome", "subject_id", "tokens")

    def __init__(self, subject_id: str, tokens: int, deadline: float) -> None:
        self.subject_id, self.tokens, self.deadline = subject_id, tokens, deadline
        self.event = anyio.Event()
        self.outcome: str | None = None
        self.alarm = _AWAKE
        """When the task wakes by itself, on the event loop's clock; minus infinity while it is awake."""


@dataclass(frozen=True, slots=True)
class LimiterStatistics:
    """The numbers of calls to a provider at one moment."""

    in_flight: int
    """Running calls."""
    waiting: int
    """Waiting calls."""


class FairLimiter:
    """Limits one provider's running calls, and its requests and tokens per minute, fairly between subjects.

    Waiting calls are served round-robin between subjects and in order within a subject. One subject can take at most seven
    eighths of the running calls, rounded up. So no subject can block the others, even with streams that nobody reads. A new
    call waits if any other call waits.

    Args:
        provider_id: the provider's id in errors
        config: `max_concurrency`, `requests_per_minute`, `tokens_per_minute`
        now: the event loop's clock, seconds
        max_waiting: most waiting calls; further calls are refused at once

    Attributes:
        counts_tokens: whether callers must pass the tokens that a call needs
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
        """Running calls of each subject; a subject without running calls is absent."""
        self._waiting = 0
        # Subjects in the order in which they are served, each with its waiters in order. Removal takes constant time.
        self._queues: OrderedDict[str, OrderedDict[_WaitingCall, None]] = OrderedDict()
        self._timekeeper: _WaitingCall | None = None
        self._due = float("inf")

    def statistics(self) -> LimiterStatistics:
        """The current numbers of running and waiting calls."""
        return LimiterStatistics(self._in_flight, self._waiting)

    def try_enter(self, tokens: int, now: float, subject_id: str = "") -> bool:
        """Starts a call if that is possible without waiting. Returns whether it did; if so, `leave` must follow."""
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
        """Starts a call after waiting for its turn. A call that is cancelled while it waits has not started.

        Args:
            subject_id: the subject of the call
            tokens: tokens that the call needs; 0 unless `counts_tokens`
            deadline: on the event loop's clock, seconds

        Returns:
            True: the call has started, and `leave` must follow. False: `send_away` ended the wait.

        Raises:
            ProviderError: too many calls wait already (`rate_limited`), or its turn comes after the deadline (`timeout`)
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
        """Ends a started call and starts the next waiting one."""
        self._end(subject_id)
        if self._waiting:
            self._serve()

    def hold_until(self, moment: float) -> None:
        """Starts no call before this moment, because the provider asked for a pause. It applies to all subjects."""
        self._held_until = max(self._held_until, moment)
        self._is_rated = True

    def send_away(self) -> None:
        """Ends the wait of all waiting calls, because the circuit of the provider has opened."""
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
        """The first waiting subject below its share of running calls, or None."""
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

    def _enqueue(self, subject_id: str, tokens: int, deadline: float) -> _WaitingCall:
        if self._waiting >= self._max_waiting:
            raise ProviderError(
                self._provider_id,
                "rate_limited",
                f"{self._waiting} calls wait for this provider already, and no more may; send again later",
            )
        waiter = _WaitingCall(subject_id, tokens, deadline)
        self._queues.setdefault(subject_id, OrderedDict())[waiter] = None
        self._waiting += 1
        return waiter

    def _forget(self, waiter: _WaitingCall, outcome: str) -> None:
        waiter.outcome = outcome
        queue = self._queues[waiter.subject_id]
        del queue[waiter]
        if not queue:
            del self._queues[waiter.subject_id]
        self._waiting -= 1

    def _serve(self) -> None:
        """Starts each waiting call that may start. If only a rate delays the next one, its waiter becomes the timekeeper."""
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

    def _hand_over(self, waiter: _WaitingCall) -> None:
        """Passes a leaving waiter's slot or its role as timekeeper to the next waiter."""
        if self._timekeeper is waiter:
            self._timekeeper = None
        if self._waiting:
            self._serve()

    async def _sleep(self, waiter: _WaitingCall) -> None:
        """Waits until the call is served or sent away, becomes the timekeeper, or its alarm or deadline passes."""
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
