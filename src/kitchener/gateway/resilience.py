"""Delays and refuses the calls to one provider: its rates, its circuit breaker and the back-off between attempts.

All times are on the event loop's clock, passed in as `now`. This module awaits nothing and knows neither routes nor requests.
`gateway/attempts.py` uses it, and the provider's lane (`kitchener.lanes`) keeps its pace. `learned_pace.py` finds the pace of a
provider that refuses calls. Explained in `docs/gateway.md`.
"""

import math
from collections.abc import Callable

from kitchener.config import ProviderConfig
from kitchener.errors import ProviderError
from kitchener.gateway.learned_pace import LearnedPace

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


def is_throttled(error: ProviderError) -> bool:
    """Whether there were too many calls for the provider: 429, or an overloaded server that says when to come back."""
    return error.reason == "rate_limited" or (error.reason == "server_error" and error.retry_after_s is not None)


def too_long_a_pause(error: ProviderError, left_s: float) -> str:
    """Returns the end of an error text about a pause that the provider asks for and the deadline does not allow.

    Args:
        error: why the last attempt failed
        left_s: seconds until the deadline of the call

    Returns: "": the provider asks for none, or the deadline allows it
    """
    asked_s = error.retry_after_s or 0.0
    if not is_throttled(error) or asked_s < left_s:
        return ""
    return f"; the provider asks to wait {asked_s:.6g} s, {_left(left_s)}"


def _left(left_s: float) -> str:
    shown_s = math.floor(left_s * 10) / 10  # rounded up, it could look as long as the pause
    left = f"{shown_s:g} s are" if shown_s > 0 else "no time is"
    return (
        f"and {left} left until the deadline: send the message again later, allow the turn more time "
        "(`turn_deadline_s`, or `deadline` of the call), or add a provider to `[router.fallbacks]`"
    )


class Pace:
    """Delays the calls to one provider: its rates, the pause that it asked for, and the pace that it lets through.

    Implements `Pacing` of a lane.

    Args:
        config: `requests_per_minute`, `tokens_per_minute`, `backoff_initial_s`, `backoff_max_s`, `breaker_reset_s`
    """

    __slots__ = ("_config", "_held_until", "_learned", "_requests", "_tokens", "counts_tokens", "is_learned", "is_on")

    def __init__(self, config: ProviderConfig) -> None:
        self._config = config
        self._requests = Rate(config.requests_per_minute) if config.requests_per_minute else None
        self._tokens = Rate(config.tokens_per_minute) if config.tokens_per_minute else None
        self.counts_tokens = self._tokens is not None
        """Whether the cost of a call is its tokens; otherwise it may be 0."""
        self.is_on = self._requests is not None or self.counts_tokens
        self._held_until = float("-inf")
        self._learned: LearnedPace | None = None
        self.is_learned = False
        """Whether the provider refused calls for their rate a short time ago, so that calls begin at a learned pace."""

    def ready_at(self, cost: int) -> float:
        """When a call of so many tokens may begin, on the event loop's clock, seconds."""
        ready = self._held_until
        if self._learned is not None:
            ready = max(ready, self._learned.ready_at)
        if self._requests is not None:
            ready = max(ready, self._requests.ready_at(1))
        return ready if self._tokens is None else max(ready, self._tokens.ready_at(cost))

    def take(self, cost: int, now: float) -> None:
        """Books a call that begins now."""
        if self._learned is not None:
            self._learned.take(now)
        if self._requests is not None:
            self._requests.take(1, now)
        if self._tokens is not None:
            self._tokens.take(cost, now)
        if self._learned is None or self._learned.is_over(now):
            self._learned, self.is_learned = None, False
            self.is_on = self._requests is not None or self.counts_tokens

    def hold_until(self, moment: float) -> None:
        """Begins no call before this moment, because the provider asked for a pause. It applies to all subjects."""
        self._held_until = max(self._held_until, moment)
        self.is_on = True

    def why_late(self, now: float, left_s: float) -> str:
        """Why a call can't begin now, if that is the provider's wish and no limit of the settings; "": it is not.

        Args:
            now: the event loop's clock, seconds
            left_s: seconds until the deadline of the call
        """
        pause_s = self._held_until - now
        if pause_s > 0:
            shown_s = math.ceil(pause_s * 10) / 10
            return f"the provider asked another call to wait; this pause takes {shown_s:g} s more, {_left(left_s)}"
        if self._learned is not None and self._learned.ready_at > now:
            return f"the provider refuses calls that come as fast as these, {_left(left_s)}"
        return ""

    def refuse(self, began_at: float, now: float, asked_pause_s: float | None) -> bool:
        """Slows all calls down, because the provider refused one for its rate; see `LearnedPace.refuse`."""
        if self._learned is None:
            config = self._config
            self._learned = LearnedPace(config.backoff_initial_s, config.backoff_max_s, config.breaker_reset_s)
        self.is_on = self.is_learned = True
        return self._learned.refuse(began_at, now, asked_pause_s)
