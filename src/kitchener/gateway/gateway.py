"""Turns one prompt request into one response: routes it, calls the provider, and uses retries and fallbacks.

The gateway reports each attempt, but writes no ledger and holds no cognitive policy. HO1 knows it as a `PromptGateway`.
`routing.py` decides which providers to try; `attempts.py` and `resilience.py` decide how often and when. Explained in
`docs/gateway.md`.
"""

import random  # noqa: TID251 - the one place where waits get their jitter; it never reaches a decision that is recorded
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

import anyio

from kitchener.cancellation import is_own_failure
from kitchener.clock import loop_clock
from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import ActorStopped, ProviderError
from kitchener.gateway.attempts import Attempts, CallSettings, GuardedProvider, PlannedAttempt, ProviderUsage
from kitchener.gateway.foreign import check_response, checked_failure, checked_item, provider_failure, translated_failures
from kitchener.gateway.providers.offline import OfflineProvider
from kitchener.gateway.providers.rules import RulesProvider
from kitchener.gateway.resilience import CircuitBreaker, Pace
from kitchener.gateway.routing import check_router, plan_route
from kitchener.gateway.traits import traits_of
from kitchener.lanes.fair_queue import LaneStatistics
from kitchener.lanes.lane import Lane
from kitchener.media import accepts
from kitchener.records.prompt import (
    RULES_PROVIDER,
    OnAttempt,
    PromptRequest,
    PromptResponse,
    Provider,
    StreamItem,
    StreamRestart,
    TextPiece,
)

_NO_PROVIDERS: Mapping[str, Provider] = MappingProxyType({})
_REMEMBERED_PLANS = 1_024


class LLMGateway:
    """Answers prompt requests through the configured providers.

    Args:
        config: routes, fallbacks, and the limits, retries and circuit breaker of each provider
        providers: the provider objects by id; `offline` and `rules` are added if they are missing. An id that `config` does
            not mention gets the default limits
        jitter: returns a new number in [0, 1) for the waits between attempts; None: the system's random source
        now: the event loop's clock, seconds; None: that of the running loop
        queue: most calls in the queue of one provider's lane. Further calls wait for room until their deadlines

    Raises:
        ConfigError: a route, fallback or default names a provider without an object
    """

    def __init__(
        self,
        config: RouterConfig,
        providers: Mapping[str, Provider] = _NO_PROVIDERS,
        *,
        jitter: Callable[[], float] | None = None,
        now: Callable[[], float] | None = None,
        queue: int = 64,
    ) -> None:
        now = now or loop_clock()
        objects: dict[str, Provider] = {"offline": OfflineProvider(), RULES_PROVIDER: RulesProvider(), **providers}
        known = {each: config.providers.get(each) or ProviderConfig(kind="offline") for each in objects}
        routed = config.model_copy(update={"providers": known})
        check_router(routed, given=objects.keys(), source="LLMGateway")
        targets = {
            each: GuardedProvider(
                each,
                provider,
                known[each],
                known[each].timeout_s,
                traits_of(provider),
                _lane(each, known[each], pace := Pace(known[each]), queue, now),
                pace,
                CircuitBreaker(known[each].breaker_failures, known[each].breaker_reset_s),
                media_types=_media_types(known[each], provider),
            )
            for each, provider in objects.items()
        }
        self._rules = CallSettings(targets, config.allow_model_calls, now, jitter or random.Random().random)

        @lru_cache(_REMEMBERED_PLANS)
        def plan(provider_id: str | None, model_id: str | None, domain_tags: tuple[str, ...]) -> tuple[PlannedAttempt, ...]:
            candidates = plan_route(provider_id, model_id, domain_tags, routed).candidates
            return tuple([PlannedAttempt.of(candidate, targets) for candidate in candidates])

        self._plan: Callable[[str | None, str | None, tuple[str, ...]], tuple[PlannedAttempt, ...]] = plan

    def media_types(self, provider_id: str | None, model_id: str | None, domain_tags: tuple[str, ...]) -> tuple[str, ...]:
        """The types of images and files that the provider takes to which such requests go first; empty: text only."""
        return self._plan(provider_id, model_id, domain_tags)[0].target.media_types

    def _ways(self, request: PromptRequest) -> Sequence[PlannedAttempt]:
        """The planned attempts of a request at the providers that take all of its content.

        Raises:
            ProviderError: none of them does
        """
        ways = self._plan(request.provider_id, request.model_id, request.domain_tags)
        for message in request.messages:
            if message.parts:
                break
        else:
            return ways
        brought = {each.stored.media_type for message in request.messages for each in message.parts}
        able = [way for way in ways if all(accepts(way.target.media_types, each) for each in brought)]
        if not able:
            takes = f"the request has {', '.join(sorted(brought))}, which no provider of its route takes"
            raise ProviderError(ways[0].target.provider_id, "bad_request", takes)
        return able

    def statistics(self) -> dict[str, LaneStatistics]:
        """The calls that run and wait in the lane of each provider, and the lane's waits so far."""
        return {each: target.lane.statistics() for each, target in self._rules.targets.items()}

    def usage(self) -> dict[str, ProviderUsage]:
        """What the calls of each provider used that has answered since the gateway began. Built-in ones are left out."""
        return {each: replace(target.used) for each, target in self._rules.targets.items() if target.used.calls}

    def stop(self) -> None:
        """Refuses further calls with `ActorStopped`, before the providers close."""

        def stopped(*_: object) -> tuple[PlannedAttempt, ...]:
            raise ActorStopped("the gateway has stopped")

        self._plan = stopped

    async def complete(self, request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
        """Returns the model's answer, after retries and fallbacks.

        `on_attempt` is called before each attempt and again if the attempt fails. Cancelling this call cancels the attempt.

        Raises:
            ProviderError: no attempt gave an answer. Its reason is that of the last attempt, its detail lists all attempts
            Overloaded: the queue of a provider's lane was full until the request's deadline
            ActorStopped: the gateway has stopped
        """
        attempts = Attempts(request, self._ways(request), on_attempt, self._rules)
        while True:
            target = await attempts.begin()
            try:
                if target.traits.needs_timeout:
                    response = await _in_time(attempts)
                else:
                    response = await target.provider.complete(attempts.request)
                check_response(target.provider_id, response)
            except ProviderError as error:
                await attempts.failed(checked_failure(attempts.target.provider_id, error))
            except BaseException as error:  # a provider is foreign code and may raise anything
                if not is_own_failure(error):
                    attempts.abandoned()
                    raise
                await attempts.failed(provider_failure(target.provider_id, error))
            else:
                return attempts.answered(response)

    async def stream(self, request: PromptRequest, *, on_attempt: OnAttempt) -> AsyncGenerator[StreamItem, None]:
        """Yields the answer as the provider produces it: pieces of text, then the whole response, exactly once.

        Before the first piece of text, a failed attempt is retried as in `complete`. After it, an attempt is retried only if
        the request has `restart_streams`. A `StreamRestart` then withdraws the text shown so far. Close the stream
        (`contextlib.aclosing`) if you stop reading early.

        Raises:
            ProviderError: no attempt gave an answer; `output_begun` says whether shown text was not withdrawn by a restart
            Overloaded: the queue of a provider's lane was full until the request's deadline
            ActorStopped: the gateway has stopped
        """
        attempts = Attempts(request, self._ways(request), on_attempt, self._rules)
        has_shown = False
        while True:
            await attempts.begin()
            try:
                if has_shown:
                    yield StreamRestart(attempts.number)
                    attempts.output_begun = False
                    attempts.start_clock()
                async with aclosing(_pieces(attempts, self._rules.now)) as items:
                    async for item in items:
                        if isinstance(item, PromptResponse):
                            response = item
                            break
                        has_shown = attempts.output_begun = True
                        yield item
            except ProviderError as error:
                await attempts.failed(checked_failure(attempts.target.provider_id, error))
            except BaseException:
                attempts.abandoned()
                raise
            else:
                yield attempts.answered(response)
                return


def _media_types(config: ProviderConfig, provider: Provider) -> tuple[str, ...]:
    return config.media_types if config.media_types is not None else traits_of(provider).media_types


def _lane(provider_id: str, config: ProviderConfig, pace: Pace, queue: int, now: Callable[[], float]) -> Lane:
    name = f"the queue of the gateway for provider {provider_id!r}"
    return Lane(name, config.max_concurrency, queue, now=now, pacing=pace)


async def _in_time(attempts: Attempts) -> PromptResponse:
    with anyio.CancelScope(deadline=attempts.stop_at):
        return await attempts.target.provider.complete(attempts.request)
    raise _too_slow(attempts)


def _too_slow(attempts: Attempts) -> ProviderError:
    target = attempts.target
    if attempts.stop_at >= attempts.request.deadline:
        return ProviderError(target.provider_id, "timeout", "no answer before the request's deadline")
    return ProviderError(target.provider_id, "timeout", f"no answer within timeout_s = {target.timeout_s:g}")


async def _pieces(attempts: Attempts, now: Callable[[], float]) -> AsyncGenerator[TextPiece | PromptResponse, None]:
    """Yields the text of one attempt, then its response. The reader's own time does not count against the provider."""
    target, request = attempts.target, attempts.request
    stream = getattr(target.provider, "stream", None)
    if stream is None:
        with translated_failures(target.provider_id):
            response = await (_in_time(attempts) if target.traits.needs_timeout else target.provider.complete(request))
            check_response(target.provider_id, response)
        if response.text:
            yield TextPiece(attempts.number, response.text)
        yield response
        return
    with translated_failures(target.provider_id):
        items: AsyncIterator[TextPiece | PromptResponse] = stream(request)
    try:
        while True:
            item = await _next_item(items, attempts)
            if isinstance(item, PromptResponse):
                yield item
                return
            if item.text:
                shown_at = now()
                yield item if item.attempt == attempts.number else TextPiece(attempts.number, item.text)
                attempts.stop_at = min(attempts.stop_at + now() - shown_at, request.deadline)
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            with translated_failures(target.provider_id):
                await close()


async def _next_item(items: AsyncIterator[TextPiece | PromptResponse], attempts: Attempts) -> TextPiece | PromptResponse:
    provider_id = attempts.target.provider_id
    with translated_failures(provider_id):
        try:
            if not attempts.target.traits.needs_timeout:
                return checked_item(provider_id, await anext(items))
            # One scope for each wait, never across a yield, because the generator may be read by different tasks.
            with anyio.CancelScope(deadline=attempts.stop_at):
                return checked_item(provider_id, await anext(items))
        except StopAsyncIteration:
            raise ProviderError(provider_id, "malformed", "the stream ended without a response") from None
    raise _too_slow(attempts)
