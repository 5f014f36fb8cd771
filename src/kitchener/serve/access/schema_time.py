"""Bounds the processor time for the schemas of a key's requests: for compiling them, and for checking replies and arguments.

A running turn is never refused: its checks are booked, and later requests wait for them. Explained in
`docs/server.md`.
"""

from threading import Lock
from typing import Final

import anyio

from kitchener.gateway.resilience import Rate
from kitchener.serve.problems import RequestRefused

_US: Final = 1_000_000
_LEAST_COMPILING_US: Final = 1_000
"""Least time that compiling a schema counts, microseconds, because it also takes memory. A request with new schemas waits until
there is room for it."""


class SchemaTime:
    """The time that the schemas of a key, or of one of its subjects, took. Safe to use from several threads.

    Args:
        ms_per_minute: processor time that they may take, milliseconds a minute
        whose: for errors: of what the limit is
        share: for errors: how the limit follows from `schema_ms_per_minute`
    """

    __slots__ = ("_all", "_checks", "_lock", "_most", "_share", "_whose")

    def __init__(self, ms_per_minute: int, whose: str = "this key", share: str = "") -> None:
        self._most, self._lock, self._whose, self._share = ms_per_minute, Lock(), whose, share
        self._all, self._checks = Rate(1_000 * ms_per_minute), Rate(1_000 * ms_per_minute)

    def check(self, now: float, *, is_new: bool) -> None:
        """Raises RequestRefused if the schemas have taken too long.

        The time of compiling delays only new schemas, so that a client with many functions can continue to use them.

        Args:
            now: on the event loop's clock, seconds
            is_new: whether a schema has to be compiled
        """
        wait = (self._all.ready_at(_LEAST_COMPILING_US) if is_new else self._checks.ready_at(1)) - now
        if wait > 0:
            what = "new schemas and checks against schemas" if is_new else "checks against schemas of requests"
            told = f"{what} of {self._whose} took more than {self._most} ms ({self._share}schema_ms_per_minute)"
            raise RequestRefused(429, "rate_limited", told, retry_after_s=wait)

    def book_compiling(self, seconds: float, now: float) -> None:
        """Books what compiling took."""
        with self._lock:
            self._all.take(max(_LEAST_COMPILING_US, round(seconds * _US)), now)

    def book_check(self, seconds: float) -> None:
        """Books what a check took. Called in the event loop."""
        now, cost = anyio.current_time(), round(seconds * _US)
        with self._lock:
            self._all.take(cost, now)
            self._checks.take(cost, now)
