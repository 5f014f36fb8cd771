"""Finds the pace of calls that a provider lets through, from the calls that it refuses for their rate.

All times are on the event loop's clock, passed in as `now`. This module awaits nothing and draws no random number. Explained in
`docs/gateway.md`.
"""

from typing import Final

FIRST_PER_S: Final = 10.0
"""Calls a second at the start of the search for the pace. If the provider allows less, this costs only a few refused calls,
since each refusal stops the calls at once."""
DOUBLING_S: Final = 1.0
"""The pace doubles in this time during the search."""
START_SHARE: Final = 0.9
"""Share of the measured pace with which calls continue after a refusal."""
FLAT_S: Final = 10.0
"""After about so long without a refusal, calls are faster than the measured pace. A shorter time means more refusals, a longer
one that a lifted limit is noticed later."""
FLAT_CALLS: Final = 10.0
"""Slow paces grow in this number of calls, since fewer would be no evidence."""
LONGEST_FLAT_S: Final = 30.0
FREE_FACTOR: Final = 100.0
"""A pace that has grown to this multiple of the measured one no longer limits the calls."""
SLACK_S: Final = 0.1
"""Time by which late calls may catch up, so that timers that fire late do not slow the calls down."""
IDLE_S: Final = 1.0
"""After a pause of this length in which no call waited, the calls before the pause do not show what the provider allows."""

_RECOVERS_AT: Final = (1.0 - START_SHARE) ** (1 / 3)
"""When the measured pace is reached again, as a share of the flat time. The curve is a cubic one with its flat part there."""


class LearnedPace:
    """The pace of the calls to one provider since it refused one.

    Between two refusals, the calls that passed, divided by the time, are what the provider lets through. Calls continue at a
    share of this measure. Then the pace grows, slowly around the measure and ever faster beyond it. Before there is a measure,
    the pace doubles each second. A refused call that began before the last refusal is no news: the calls in flight are refused
    together, and that is one event.

    Args:
        pause_s: how long no call begins after a refusal that names no pause, seconds. It doubles as long as no call passes,
            also if the provider names a shorter pause
        longest_pause_s: the most that it grows to
        slowest_s: longest time between two calls, and longest pause that a provider may ask for, seconds
    """

    __slots__ = (
        "_base",
        "_counted_from",
        "_cut_at",
        "_failed_rounds",
        "_flat_s",
        "_grows_from",
        "_longest_pause_s",
        "_passed",
        "_pause_s",
        "_slowest_s",
        "ready_at",
    )

    def __init__(self, pause_s: float, longest_pause_s: float, slowest_s: float) -> None:
        self._pause_s, self._longest_pause_s, self._slowest_s = pause_s, longest_pause_s, slowest_s
        self._base = FIRST_PER_S
        self._flat_s: float | None = None
        """Scale of the growth around the measured pace, seconds; None: nothing was measured, so the search continues."""
        self._cut_at = self._counted_from = self._grows_from = float("-inf")
        self._passed = self._failed_rounds = 0
        self.ready_at = float("-inf")
        """The earliest time at which the next call may begin."""

    def per_s(self, now: float) -> float:
        """Calls that may begin within a second."""
        grows_s = max(0.0, now - self._grows_from)
        return max(self._base * self._factor(grows_s), 1.0 / self._slowest_s)

    def is_over(self, now: float) -> bool:
        """Whether the pace has grown so far that it limits nothing."""
        return self._factor(max(0.0, now - self._grows_from)) >= FREE_FACTOR

    def take(self, now: float) -> None:
        """Books a call that begins now."""
        if now - self.ready_at > IDLE_S:
            self._counted_from, self._passed = now, 0
        self._passed += 1
        self.ready_at = max(self.ready_at, now - SLACK_S) + 1.0 / self.per_s(now)

    def refuse(self, began_at: float, now: float, asked_pause_s: float | None) -> bool:
        """Slows the calls down after a refusal. Returns False if a refusal of calls in flight has done so already.

        Args:
            began_at: when the refused call began
            now: when its refusal came
            asked_pause_s: the pause that the provider asked for, seconds; None: it asked for none
        """
        is_news = began_at > self._cut_at
        if is_news:
            self._measure(now)
        pause_s = asked_pause_s or 0.0
        if is_news and (self._failed_rounds or not pause_s):
            pause_s = max(pause_s, min(self._pause_s * 2.0 ** min(self._failed_rounds, 30), self._longest_pause_s))
        self.ready_at = max(self.ready_at, now + min(pause_s, self._slowest_s))
        self._grows_from = max(self._grows_from, self.ready_at)
        return is_news

    def _measure(self, now: float) -> None:
        """Measures the pace as the calls that passed since the last refusal; if none passed, halves the present pace."""
        passed, seconds = self._passed - 1, now - self._counted_from  # the refused call did not pass
        if self._cut_at == float("-inf"):
            pass  # calls before the first refusal were not counted
        elif passed > 0 and seconds > 0.0:
            self._base = max(min(self.per_s(now), passed / seconds), 1.0 / self._slowest_s)
            self._flat_s = min(max(FLAT_S, FLAT_CALLS / self._base), LONGEST_FLAT_S)
            self._failed_rounds = 0
        else:
            self._base = max(self.per_s(now) / 2.0, 1.0 / self._slowest_s)
            self._failed_rounds += 1
            self.ready_at = now  # the refused call used no capacity of the provider, so only the pause counts
        self._cut_at = self._counted_from = self._grows_from = now
        self._passed = 0

    def _factor(self, grows_s: float) -> float:
        if self._flat_s is None:
            return float(2.0 ** min(grows_s / DOUBLING_S, 60.0))
        return 1.0 + (grows_s / self._flat_s - _RECOVERS_AT) ** 3
