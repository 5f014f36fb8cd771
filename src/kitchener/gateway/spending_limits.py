"""Refuses model calls that would pass what a subject or a turn may spend, before they are made.

`SpendingBook` holds what each subject has used today and what calls in flight may still use. `MeteredGateway` asks it before
each call and tells it the outcome. What was used before the process began comes from the ledgers, by a function that the
runtime gives. Without limits, none of this runs. Explained in `docs/gateway.md`.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import anyio
import orjson

from kitchener.clock import Clock
from kitchener.config import ModelPrice, SpendingConfig
from kitchener.config.router import price_of
from kitchener.errors import KitchenerError, ProviderError
from kitchener.model_usage import Usage
from kitchener.records.prompt import RULES_PROVIDER, OnAttempt, PromptGateway, PromptRequest, PromptResponse, StreamItem
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


class _Hold(NamedTuple):
    """What a call in flight may use, and where it counts."""

    most: Spent
    sent: Spent
    """The part of it that is sent, which counts even if the answer is no longer awaited."""
    accounts: tuple[_SpendingAccount, ...]


_UNCOUNTED: Final = _Hold(NOTHING, NOTHING, ())
"""Of a call that only built-in models can answer."""


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

    async def hold(self, request: PromptRequest, candidates: Sequence[tuple[str, str]]) -> _Hold:
        """Books the most that a call may use, before it is made.

        Raises:
            ProviderError: `spending_limit`: it may pass a limit, or its price is unknown
        """
        if all(provider_id in _FREE for provider_id, _ in candidates):
            return _UNCOUNTED
        sent = tokens_of_bytes(_sent_bytes(request)) + request.part_tokens
        usages = Usage(sent, request.max_tokens), Usage(sent, 0)
        most, input_only = (Spent(each.input_tokens + each.output_tokens, self._most(each, candidates)) for each in usages)
        now = datetime.fromtimestamp(self._clock.time_us() / 1_000_000, UTC)
        today = now.replace(hour=0, minute=0, second=0, microsecond=0)
        subject = await self._subject(request.subject_id, today)
        turn = _account(self._turns, request.turn_id, "")
        self._check(candidates[0][0], subject, turn, most, today)
        accounts = (subject, turn) if request.turn_id else (subject,)
        for each in accounts:
            each.held = each.held.plus(most)
        return _Hold(most, input_only, accounts)

    def settle(self, hold: _Hold, response: PromptResponse | None, *, is_cut_off: bool = False) -> None:
        """Replaces what was booked for a call by what it used.

        Args:
            hold: what was booked
            response: the answer; None: there is none
            is_cut_off: whether nobody waited for the answer: the provider may charge what was sent
        """
        used = hold.sent if is_cut_off else NOTHING
        if response is not None:
            answered = response.provider_id, response.model_id, response.usage
            used = spent_by_call(self._prices, *answered, unpriced=hold.most.cost)
        for each in hold.accounts:
            each.held = each.held.minus(hold.most)
            each.used = (each.used or NOTHING).plus(used)

    def _most(self, usage: Usage, candidates: Sequence[tuple[str, str]]) -> float:
        """The cost of a call at the dearest of its providers."""
        if not self._needs_prices:
            return 0.0
        costs = [(each, price_of_call(self._prices, *each, usage)) for each in candidates]
        for (provider_id, model_id), cost in costs:
            if cost is None:
                detail = f'model {model_id!r} has no price, so no limit can be checked: set [router.prices."{model_id}"]'
                raise ProviderError(provider_id, "spending_limit", detail)
        return max(cost or 0.0 for _, cost in costs)

    async def _subject(self, subject_id: str, today: datetime) -> _SpendingAccount:
        account = _account(self._subjects, subject_id, today.date().isoformat())
        if account.used is None:
            async with account.lock:
                if account.used is None:
                    account.used = await self.earlier(subject_id, today)
        return account

    def _check(self, provider_id: str, subject: _SpendingAccount, turn: _SpendingAccount, most: Spent, today: datetime) -> None:
        limits, until = self._limits, (today + timedelta(days=1)).strftime("%Y-%m-%dT%H:%MZ")
        of_day, of_turn = subject.total, turn.total
        for limit, used, needed, name, what in (
            (limits.subject_day, of_day.cost, most.cost, "subject_day", f"until {until}"),
            (limits.subject_day_tokens, of_day.tokens, most.tokens, "subject_day_tokens", f"until {until}"),
            (limits.turn, of_turn.cost, most.cost, "turn", "in this turn"),
        ):
            if limit is not None and used + needed > limit + _ROUNDING:
                told = f"spending.{name} = {limit:g} {what}: {used:g} are used, and this call may use {needed:g} more"
                raise ProviderError(provider_id, "spending_limit", told)


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

    async def _hold(self, request: PromptRequest) -> tuple[_Hold, PromptRequest]:
        """Books a call. Returns the request, which may have no more output tokens than were booked, thoughts included."""
        booked = self._with_thoughts(request)
        return await self._book.hold(booked, self._candidates(request)), request._replace(tokens_left=booked.max_tokens)

    async def complete(self, request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
        """Returns the model's answer.

        Raises:
            ProviderError: as the gateway's, or `spending_limit`
        """
        hold, request = await self._hold(request)
        response, is_cut_off = None, True
        try:
            response = await self._gateway.complete(request, on_attempt=on_attempt)
        except KitchenerError as error:  # any other end cuts the call off
            is_cut_off = isinstance(error, ProviderError) and error.reason == "timeout"
            raise
        finally:
            self._book.settle(hold, response, is_cut_off=is_cut_off)
        return response

    async def stream(self, request: PromptRequest, *, on_attempt: OnAttempt) -> AsyncGenerator[StreamItem, None]:
        """Yields the answer as the provider produces it.

        Raises:
            ProviderError: as the gateway's, or `spending_limit`
        """
        hold, request = await self._hold(request)
        stream = self._gateway.stream(request, on_attempt=on_attempt)
        response, is_cut_off = None, True
        try:
            async for item in stream:
                if isinstance(item, PromptResponse):
                    response = item
                yield item
        except KitchenerError as error:  # any other end cuts the call off
            is_cut_off = isinstance(error, ProviderError) and error.reason == "timeout"
            raise
        finally:
            self._book.settle(hold, response, is_cut_off=is_cut_off)
            if (close := getattr(stream, "aclose", None)) is not None:
                await close()


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
