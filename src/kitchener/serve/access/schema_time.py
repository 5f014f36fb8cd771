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
    """The time that the schemas of one key took, measured against its `schema_ms_per_minute`. Safe to use from several threads.

    Args:
        ms_per_minute: processor time that they may take, milliseconds a minute
    """

    def __init__(self, ms_per_minute: int) -> None:
        self._most, self._lock = ms_per_minute, Lock()
        self._all, self._checks = Rate(1_000 * ms_per_minute), Rate(1_000 * ms_per_minute)

    def check(self, now: float, *, is_new: bool) -> None:
        """Raises RequestRefused if the schemas of this key have taken too long.

        The time of compiling delays only new schemas, so that a client with many functions can continue to use them.

        Args:
            now: on the event loop's clock, seconds
            is_new: whether a schema has to be compiled
        """
        wait = (self._all.ready_at(_LEAST_COMPILING_US) if is_new else self._checks.ready_at(1)) - now
        if wait > 0:
            what = "new schemas and checks against schemas" if is_new else "checks against the schemas of requests"
            raise RequestRefused(
                429, "rate_limited", f"{what} took more than {self._most} ms (schema_ms_per_minute)", retry_after_s=wait
            )

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


class RequestSchemaTime:
    """The schema time of one request, also for a worker thread, which has no event loop's clock. Implements `SchemaBudget`.

    Args:
        time: that of its key
        now: on the event loop's clock, seconds
    """

    def __init__(self, time: SchemaTime, now: float) -> None:
        self._time, self._now = time, now

    def check(self, *, is_new: bool) -> None:
        """Raises RequestRefused if the schemas of this key have taken too long."""
        self._time.check(self._now, is_new=is_new)

    def book_compiling(self, seconds: float) -> None:
        """Books what compiling took."""
        self._time.book_compiling(seconds, self._now)
