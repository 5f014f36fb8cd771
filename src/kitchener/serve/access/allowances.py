"""Counts what requests use of the limits of their key, and of the share that each subject has of a key that acts for many.

The limits include the processor time for schemas: for compiling them, and for checking replies and arguments. A running turn is
never refused: its checks are booked, and later requests wait for them. This module knows neither HTTP nor the settings of a key
as a whole. `callers.py` makes the allowances. Explained in `docs/server.md`.
"""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Final

import anyio

from kitchener.gateway.resilience import Rate
from kitchener.serve.access.counted_work import CONTEXT_S
from kitchener.serve.problems import RequestRefused

MAX_SUBJECTS: Final = 4_096
"""Subjects of one key whose allowances are kept, those seen last; about 1 KiB each. A forgotten one has a new allowance."""
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


class Allowance:
    """What the requests of a key, or of one of its subjects, may use, and what they use now.

    Args:
        requests_per_minute: requests a minute
        max_requests: requests at the same time
        schema_ms_per_minute: processor time of schemas, milliseconds a minute
        whose: for errors: of what the limits are
        share: for errors: how the limits follow from the settings, before the name of a setting
    """

    __slots__ = ("_requests_per_minute", "_share", "_whose", "left_behind", "max_requests", "rate", "running", "schema_time")

    def __init__(
        self,
        requests_per_minute: int,
        max_requests: int,
        schema_ms_per_minute: int,
        whose: str = "this key",
        share: str = "",
    ) -> None:
        self._requests_per_minute, self.max_requests = requests_per_minute, max_requests
        self._whose, self._share = whose, share
        self.rate = Rate(requests_per_minute)
        self.running = 0
        """Requests that run now."""
        self.left_behind = 0
        """Requests that have ended before the turn that they began: in the background, or because the client went away."""
        self.schema_time = SchemaTime(schema_ms_per_minute, whose, share)
        """What the schemas of its requests take."""

    @property
    def is_idle(self) -> bool:
        """Whether no request and no turn of it runs."""
        return not self.running and not self.left_behind

    def check_request(self, now: float) -> None:
        """Raises RequestRefused if requests come too fast, or too many run."""
        if self.running >= self.max_requests:
            what = f"{self.running} requests of {self._whose} run"
            raise RequestRefused(429, "too_many_requests", f"{what} ({self._share}max_requests)", retry_after_s=1.0)
        wait = self.rate.ready_at(1) - now
        if wait > 0:
            raise self._too_fast("requests came", wait)

    def check_turn(self) -> None:
        """Raises RequestRefused if turns that continue without their request leave no room for another turn."""
        if self.running + self.left_behind > self.max_requests:
            what = f"{self.left_behind} turns of {self._whose} continue without their request"
            raise RequestRefused(429, "too_many_requests", f"{what} ({self._share}max_requests)", retry_after_s=1.0)

    def check_more(self, now: float) -> None:
        """Raises RequestRefused if costly requests come too fast."""
        wait = self.rate.ready_at(0) - now
        if wait > 0:
            raise self._too_fast(
                "a large body, a long list or a long conversation counts as several requests, and they came", wait
            )

    def _too_fast(self, why: str, wait: float) -> RequestRefused:
        most = f"faster than {self._requests_per_minute} requests a minute of {self._whose}"
        told = f"{why} {most} ({self._share}requests_per_minute)"
        return RequestRefused(429, "rate_limited", told, retry_after_s=wait)


class SubjectAllowances:
    """The allowances of the subjects of one key, those seen last.

    Args:
        share: of the limits of the key, what one subject may use
        requests_per_minute: as of `Allowance`, of the key
        max_requests: the same
        schema_ms_per_minute: the same
    """

    def __init__(self, share: float, requests_per_minute: int, max_requests: int, schema_ms_per_minute: int) -> None:
        requests, places, schema_ms = (
            max(1, round(share * each)) for each in (requests_per_minute, max_requests, schema_ms_per_minute)
        )
        self._limits = requests, places, schema_ms
        self._allowances: OrderedDict[str, Allowance] = OrderedDict()

    def __len__(self) -> int:
        """How many allowances are kept."""
        return len(self._allowances)

    def of(self, subject_id: str) -> Allowance:
        """What a subject may still use."""
        found = self._allowances.get(subject_id)
        if found is None:
            self._forget()
            found = self._allowances[subject_id] = Allowance(*self._limits, "this subject", "subject_share of ")
        self._allowances.move_to_end(subject_id)
        return found

    def _forget(self) -> None:
        """Makes room for one more. A subject whose requests run is not forgotten, so it gets no second set of places."""
        for _ in range(len(self._allowances) if len(self._allowances) >= MAX_SUBJECTS else 0):
            subject_id, allowance = self._allowances.popitem(last=False)
            if allowance.is_idle:
                return
            self._allowances[subject_id] = allowance


class RequestPlace:
    """The place of a request in the counts of its key and its subject. A turn that it began keeps the place until it ends.

    Args:
        allowances: what the request counts for: the allowance of its subject, if that has one, and that of its key
    """

    def __init__(self, allowances: Sequence[Allowance]) -> None:
        self._allowances, self._turns, self._is_left = allowances, 0, False
        for each in allowances:
            each.running += 1

    @classmethod
    def enter(cls, allowances: Sequence[Allowance]) -> "RequestPlace":
        """Counts a request that begins, until its place is left. A request that is refused counts for nothing.

        Raises:
            RequestRefused: requests of the subject or the key come too fast, or too many run
        """
        now = anyio.current_time()
        for each in allowances:
            each.check_request(now)
        for each in allowances:
            each.rate.take(1, now)
        return cls(allowances)

    def check_turn(self) -> None:
        """Raises RequestRefused if turns that continue without their request leave no room for another turn."""
        for each in self._allowances:
            each.check_turn()

    def check_continuation(self) -> None:
        """Raises RequestRefused if no turn may continue, since its checks against schemas have taken too long.

        A turn that continues checks against the schemas that it began with, which are no part of the request.
        """
        self.check_schemas(anyio.current_time(), is_new=False)

    def check_schemas(self, now: float, *, is_new: bool) -> None:
        """Raises RequestRefused if schemas have taken too long; see `SchemaTime.check`."""
        for each in self._allowances:
            each.schema_time.check(now, is_new=is_new)

    def book_compiling(self, seconds: float, now: float) -> None:
        """Books what the compiling of schemas took."""
        for each in self._allowances:
            each.schema_time.book_compiling(seconds, now)

    def book_check(self, seconds: float) -> None:
        """Books what a check against a schema took. Called in the event loop."""
        for each in self._allowances:
            each.schema_time.book_check(seconds)

    def count_more(self, further: int) -> None:
        """Counts a request that costs much as further ones, before its work is done: that takes time of everybody.

        Args:
            further: how many; 0: it is an ordinary one

        Raises:
            RequestRefused: costly requests of the subject or the key come too fast
        """
        if not further:
            return
        now = anyio.current_time()
        for each in self._allowances:
            each.check_more(now)
        self.book_more(further)

    def book_more(self, further: int) -> None:
        """Counts work of a request as further ones when it is done; later requests wait for it."""
        now = anyio.current_time()
        for each in self._allowances:
            each.rate.take(further, now)

    def book_context(self, seconds: float) -> None:
        """Counts the processor time that choosing the context of a turn took as further requests."""
        self.book_more(int(seconds / CONTEXT_S))

    def begin_turn(self) -> None:
        """A turn of the request begins; `end_turn` follows."""
        self._turns += 1

    def end_turn(self) -> None:
        """A turn of the request has ended."""
        self._turns -= 1
        if self._is_left and not self._turns:
            for each in self._allowances:
                each.left_behind -= 1

    def leave(self) -> None:
        """The request has ended."""
        self._is_left = True
        for each in self._allowances:
            each.running -= 1
            each.left_behind += bool(self._turns)


class RequestSchemaTime:
    """The schema time of one request, also for a worker thread, which has no event loop's clock. Implements `SchemaBudget`.

    Args:
        place: the request
        now: on the event loop's clock, seconds
    """

    def __init__(self, place: RequestPlace, now: float) -> None:
        self._place, self._now = place, now

    def check(self, *, is_new: bool) -> None:
        """Raises RequestRefused if the schemas of the key or of the subject have taken too long."""
        self._place.check_schemas(self._now, is_new=is_new)

    def book_compiling(self, seconds: float) -> None:
        """Books what compiling took."""
        self._place.book_compiling(seconds, self._now)
