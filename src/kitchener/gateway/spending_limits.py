"""Refuses model calls that would pass what a subject or a turn may spend, before they are made.

`SpendingBook` holds what each subject has used today and what calls in flight may still use. `MeteredGateway` asks it before
each call and tells it the outcome. What was used before the process began comes from the ledgers, by a function that the
runtime gives. Without limits, none of this runs. Explained in `docs/gateway.md`.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import anyio
import orjson

from kitchener.clock import Clock
from kitchener.config import ModelPrice, SpendingConfig
from kitchener.config.router import price_of
from kitchener.errors import ProviderError
from kitchener.model_usage import Usage
from kitchener.records.prompt import (
    RULES_PROVIDER,
    Attempt,
    OnAttempt,
    PromptGateway,
    PromptRequest,
    PromptResponse,
    StreamItem,
)
from kitchener.records.tokens import tokens_of_bytes

_FREE: Final = frozenset(("offline", RULES_PROVIDER))
"""The built-in providers."""
_ROUNDING: Final = 1e-9
"""What sums of money may be off by."""
_REMEMBERED: Final = 10_000
"""How many subjects, and how many turns, have their sums in memory. A dropped subject is read from the ledgers again."""


class Spent(NamedTuple):
    """What calls have used."""

    tokens: int = 0
    """Sent and received."""
    cost: float = 0.0
    """In the currency of the prices."""

    def plus(self, other: "Spent") -> "Spent":
        """The sum of both."""
        return Spent(self.tokens + other.tokens, self.cost + other.cost)

    def minus(self, other: "Spent") -> "Spent":
        """The difference of both."""
        return Spent(self.tokens - other.tokens, self.cost - other.cost)


NOTHING: Final = Spent()
Candidates = Callable[[PromptRequest], Sequence[tuple[str, str]]]
"""The providers that a call may be made at, each with the name of the model to ask, the first one first."""
EarlierSpending = Callable[[str, datetime], Awaitable[Spent]]
"""Reads from the ledgers what a subject has used since a time."""


async def _nothing_earlier(_subject_id: str, _since: datetime) -> Spent:
    return NOTHING


def price_of_call(prices: Mapping[str, ModelPrice], provider_id: str, model_id: str, usage: Usage) -> float | None:
    """Returns what an answered call costs; None: its price is unknown. Built-in models are free."""
    if provider_id in _FREE:
        return 0.0
    price = price_of(prices, provider_id, model_id)
    if price is None:
        return None
    return price.cost(usage.input_tokens, usage.output_tokens, usage.cached_tokens or 0, usage.cache_write_tokens or 0)


def spent_by_call(
    prices: Mapping[str, ModelPrice], provider_id: str, model_id: str, usage: Usage, *, unpriced: float = 0.0
) -> Spent:
    """Returns what an answered call counts. Calls of built-in models count nothing.

    Args:
        prices: of models
        provider_id: the provider that answered
        model_id: its model
        usage: as the provider counted it
        unpriced: the cost of a call whose price is unknown
    """
    if provider_id in _FREE:
        return NOTHING
    cost = price_of_call(prices, provider_id, model_id, usage)
    return Spent(usage.input_tokens + usage.output_tokens, unpriced if cost is None else cost)


@dataclass(slots=True)
class _SpendingAccount:
    """The sums of one subject and day, or of one turn."""

    day: str
    used: Spent | None = None
    """None: not read yet."""
    held: Spent = NOTHING
    """The most that calls in flight may use."""
    lock: anyio.Lock = field(default_factory=anyio.Lock)

    @property
    def total(self) -> Spent:
        """What is used or may still be."""
        return (self.used or NOTHING).plus(self.held)


@dataclass(slots=True)
class _Hold:
    """What the attempt in flight of a call may use, and where it counts."""

    candidates: Sequence[tuple[str, str]]
    """The providers that the attempt may be made at, each with its model: one, once it has begun."""
    sent_tokens: int
    """Tokens of the prompt, estimated."""
    subject: _SpendingAccount
    turn: _SpendingAccount | None
    """None: the call belongs to no turn."""
    today: datetime
    """The day on which it counts."""
    max_tokens: int = 0
    """Most output tokens of the attempt."""
    most: Spent = NOTHING

    def release(self) -> None:
        """Takes back what is booked."""
        for each in self._accounts:
            each.held = each.held.minus(self.most)
        self.most = NOTHING

    def book(self, most: Spent) -> None:
        """Books the most that the attempt may use."""
        self.most = most
        for each in self._accounts:
            each.held = each.held.plus(most)

    def charge(self, used: Spent) -> None:
        """Counts what an answer used, or what was sent for one."""
        for each in self._accounts:
            each.used = (each.used or NOTHING).plus(used)

    @property
    def totals(self) -> tuple[Spent, Spent]:
        """What the subject has used today or may still use, and the turn."""
        return self.subject.total, self.turn.total if self.turn is not None else NOTHING

    @property
    def _accounts(self) -> tuple[_SpendingAccount, ...]:
        return (self.subject,) if self.turn is None else (self.subject, self.turn)


class SpendingBook:
    """What the subjects of a process have used today.

    Args:
        limits: what a subject and a turn may use
        prices: of models, as in `[router.prices]`
        clock: tells when a day ends
    """

    def __init__(self, limits: SpendingConfig, prices: Mapping[str, ModelPrice], clock: Clock) -> None:
        self._limits, self._prices, self._clock = limits, prices, clock
        self.earlier: EarlierSpending = _nothing_earlier
        """Reads what was used before this process began."""
        self._subjects: OrderedDict[str, _SpendingAccount] = OrderedDict()
        self._turns: OrderedDict[str, _SpendingAccount] = OrderedDict()
        self._needs_prices = limits.subject_day is not None or limits.turn is not None

    async def open(self, request: PromptRequest, candidates: Sequence[tuple[str, str]]) -> _Hold | None:
        """Finds where a call counts. Nothing is booked yet. Returns None if only built-in models can answer the call."""
        if all(provider_id in _FREE for provider_id, _ in candidates):
            return None
        now = datetime.fromtimestamp(self._clock.time_us() / 1_000_000, UTC)
        today = now.replace(hour=0, minute=0, second=0, microsecond=0)
        return _Hold(
            candidates=candidates,
            sent_tokens=tokens_of_bytes(_sent_bytes(request)) + request.part_tokens,
            subject=await self._subject(request.subject_id, today),
            turn=_account(self._turns, request.turn_id, "") if request.turn_id else None,
            today=today,
        )

    def most_output(self, hold: _Hold) -> int | None:
        """The output tokens for which the limits leave room in a call, of which nothing is booked; None: as many as it likes.

        Raises:
            ProviderError: `spending_limit`: the price of the call is unknown
        """
        limits, (of_day, of_turn) = self._limits, hold.totals
        sent, million = (self._most(each, hold.candidates) for each in (Usage(hold.sent_tokens, 0), Usage(0, 1_000_000)))
        left = list[float]()
        if limits.subject_day_tokens is not None:
            left.append(limits.subject_day_tokens - of_day.tokens - sent.tokens)
        for limit, used in ((limits.subject_day, of_day), (limits.turn, of_turn)):
            if limit is not None and million.cost:
                left.append((limit - used.cost - sent.cost) / million.cost * 1_000_000)
        return max(0, int(min(left))) if left else None

    def book(self, hold: _Hold, max_tokens: int) -> None:
        """Books the most that the next attempt of a call may use, in place of what is booked.

        Args:
            hold: the call
            max_tokens: most output tokens of the attempt

        Raises:
            ProviderError: `spending_limit`: it may pass a limit, or its price is unknown. Nothing is booked for the call then
        """
        hold.release()
        most = self._most(Usage(hold.sent_tokens, max_tokens), hold.candidates)
        if most != NOTHING:
            self._check(hold, most)
        hold.max_tokens = max_tokens
        hold.book(most)

    def charge(self, hold: _Hold, provider_id: str, model_id: str, usage: Usage) -> None:
        """Counts the tokens of an answer, usable or not."""
        hold.charge(spent_by_call(self._prices, provider_id, model_id, usage, unpriced=hold.most.cost))

    def charge_sent(self, hold: _Hold) -> None:
        """Counts what was sent for an answer that was not waited for to its end: the provider may charge it."""
        hold.charge(self._most(Usage(hold.sent_tokens, 0), hold.candidates))

    def _most(self, usage: Usage, candidates: Sequence[tuple[str, str]]) -> Spent:
        """What an attempt counts at the dearest of its providers; at built-in ones, nothing."""
        if all(provider_id in _FREE for provider_id, _ in candidates):
            return NOTHING
        tokens = usage.input_tokens + usage.output_tokens
        if not self._needs_prices:
            return Spent(tokens)
        costs = [(each, price_of_call(self._prices, *each, usage)) for each in candidates]
        for (provider_id, model_id), cost in costs:
            if cost is None:
                detail = f'model {model_id!r} has no price, so no limit can be checked: set [router.prices."{model_id}"]'
                raise ProviderError(provider_id, "spending_limit", detail)
        return Spent(tokens, max(cost or 0.0 for _, cost in costs))

    async def _subject(self, subject_id: str, today: datetime) -> _SpendingAccount:
        account = _account(self._subjects, subject_id, today.date().isoformat())
        if account.used is None:
            async with account.lock:
                if account.used is None:
                    account.used = await self.earlier(subject_id, today)
        return account

    def _check(self, hold: _Hold, most: Spent) -> None:
        limits, until = self._limits, (hold.today + timedelta(days=1)).strftime("%Y-%m-%dT%H:%MZ")
        of_day, of_turn = hold.totals
        for limit, used, needed, name, what in (
            (limits.subject_day, of_day.cost, most.cost, "subject_day", f"until {until}"),
            (limits.subject_day_tokens, of_day.tokens, most.tokens, "subject_day_tokens", f"until {until}"),
            (limits.turn, of_turn.cost, most.cost, "turn", "in this turn"),
        ):
            if limit is not None and used + needed > limit + _ROUNDING:
                told = f"spending.{name} = {limit:g} {what}: {used:g} are used, and this call may use {needed:g} more"
                raise ProviderError(hold.candidates[0][0], "spending_limit", told)


class MeteredGateway:
    """A gateway whose calls count against the limits of a `SpendingBook`. It is a `PromptGateway`.

    Args:
        gateway: makes the calls
        candidates: the providers that a call may be made at
        book: knows the limits, and what is used
        with_thoughts: returns a request with the output tokens that a model which thinks gets beside `max_tokens`
    """

    def __init__(
        self,
        gateway: PromptGateway,
        candidates: Candidates,
        book: SpendingBook,
        with_thoughts: Callable[[PromptRequest], PromptRequest] = lambda request: request,
    ) -> None:
        self._gateway, self._candidates, self._book, self._with_thoughts = gateway, candidates, book, with_thoughts

    async def complete(self, request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
        """Returns the model's answer.

        Raises:
            ProviderError: as the gateway's, or `spending_limit`
        """
        hold, request = await self._hold(request)
        if hold is None:
            return await self._gateway.complete(request, on_attempt=on_attempt)
        call = _MeteredCall(self._book, hold, on_attempt)
        with call:
            call.response = await self._gateway.complete(request, on_attempt=call.on_attempt)
            return call.response

    async def stream(self, request: PromptRequest, *, on_attempt: OnAttempt) -> AsyncGenerator[StreamItem, None]:
        """Yields the answer as the provider produces it.

        Raises:
            ProviderError: as the gateway's, or `spending_limit`
        """
        hold, request = await self._hold(request)
        call = _MeteredCall(self._book, hold, on_attempt) if hold is not None else None
        stream = self._gateway.stream(request, on_attempt=on_attempt if call is None else call.on_attempt)
        try:
            with call or nullcontext():
                async for item in stream:
                    if call is not None and isinstance(item, PromptResponse):
                        call.response = item
                    yield item
        finally:
            if (close := getattr(stream, "aclose", None)) is not None:
                await close()

    async def _hold(self, request: PromptRequest) -> tuple[_Hold | None, PromptRequest]:
        """Books a call. Returns the request, whose thoughts may have as many tokens as the limits leave."""
        hold = await self._book.open(request, self._candidates(request))
        if hold is None:
            return None, request
        if (most := self._book.most_output(hold)) is not None:
            left = request.tokens_left
            request = request._replace(tokens_left=most if left is None else min(most, left))
        self._book.book(hold, self._with_thoughts(request).max_tokens)
        return hold, request


class _MeteredCall:
    """Keeps the books of one call, attempt by attempt, until it ends.

    Args:
        book: knows the limits
        hold: what is booked for the call
        listener: the caller's, which hears of each attempt after this object
    """

    def __init__(self, book: SpendingBook, hold: _Hold, listener: OnAttempt) -> None:
        self._book, self._hold, self._listener = book, hold, listener
        self.response: PromptResponse | None = None
        self._is_in_flight = False

    async def on_attempt(self, attempt: Attempt) -> None:
        """Counts what a failed attempt used, and books the next one.

        Raises:
            ProviderError: `spending_limit`: the next attempt may pass a limit, because of those before it or of its thoughts
        """
        self._is_in_flight = False
        if attempt.usage is not None:
            self._book.charge(self._hold, attempt.provider_id, attempt.model_id, attempt.usage)
        elif attempt.reason == "timeout":
            self._book.charge_sent(self._hold)
        if attempt.state == "started":
            self._hold.candidates = ((attempt.provider_id, attempt.model_id),)
            if attempt.attempt > 1 or attempt.max_tokens > self._hold.max_tokens:
                self._book.book(self._hold, attempt.max_tokens)
        await self._listener(attempt)
        self._is_in_flight = attempt.state == "started"

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        """Replaces what is booked by what the call used."""
        if (response := self.response) is not None:
            self._book.charge(self._hold, response.provider_id, response.model_id, response.usage)
        elif self._is_in_flight:
            self._book.charge_sent(self._hold)
        self._hold.release()


def _sent_bytes(request: PromptRequest) -> int:
    """Bytes of the texts that a call sends: of its messages, of the tool calls in them, and of the tools that it offers."""
    called = [(dict(use.arguments), use.echo) for each in request.messages for use in each.tool_uses]
    offered = [[each.tool_id, each.description, dict(each.parameters)] for each in request.tools]
    return request.text_bytes + sum(len(orjson.dumps(each)) for each in (called, offered) if each)


def _account(accounts: OrderedDict[str, _SpendingAccount], key: str, day: str) -> _SpendingAccount:
    """The account of a key and day. The oldest without calls in flight are dropped when there are too many."""
    account = accounts.get(key)
    if account is None or account.day != day:
        account = accounts[key] = _SpendingAccount(day)
    accounts.move_to_end(key)
    if len(accounts) > _REMEMBERED:
        oldest = next(iter(accounts))
        if accounts[oldest].held.tokens <= 0:
            del accounts[oldest]
        else:
            accounts.move_to_end(oldest)
    return account
