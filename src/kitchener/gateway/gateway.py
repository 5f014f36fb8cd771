"""Turns one prompt request into one response: routes it, calls the provider, and uses retries and fallbacks.

The gateway reports each attempt, but writes no ledger and holds no cognitive policy. HO1 knows it as a `PromptGateway`.
`routing.py` decides which providers to try; `attempts.py` and `resilience.py` decide how often and when. Explained in
`docs/gateway.md`.
"""

import random  # noqa: TID251 - the one place where waits get their jitter; it never reaches a decision that is recorded
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import astuple, replace
from functools import lru_cache
from types import MappingProxyType
from typing import TypeGuard

import anyio

from kitchener.cancellation import ended_by, ends_caller, failed_alone
from kitchener.clock import loop_clock
from kitchener.config import LimitsConfig, ProviderConfig, RouterConfig
from kitchener.errors import ProviderError, ProviderReason
from kitchener.errors.nested import sole_error
from kitchener.gateway.attempts import Attempts, CallSettings, PlannedAttempt
from kitchener.gateway.guarded_provider import FailureCounts, GuardedProvider, ProviderUsage
from kitchener.gateway.provider_faults import check_provider, check_response, checked_failure, checked_item, provider_failure
from kitchener.gateway.providers.offline import OfflineProvider
from kitchener.gateway.providers.rules_provider import RulesProvider
from kitchener.gateway.routing import check_router, plan_longer, plan_route
from kitchener.lanes.envelope import Outlet
from kitchener.lanes.fair_queue import LaneStatistics
from kitchener.lanes.mailbox import RESTART_WINDOW_S, Mailbox
from kitchener.lanes.worker_lane import LaneLimits
from kitchener.media.media_types import accepts
from kitchener.records.prompt import (
    RULES_PROVIDER,
    OnAttempt,
    PromptRequest,
    PromptResponse,
    Provider,
    StreamingProvider,
    StreamItem,
    StreamRestart,
    TextPiece,
)

_NO_PROVIDERS: Mapping[str, Provider] = MappingProxyType({})
_REMEMBERED_PLANS = 1_024
_NEVER = float("inf")


class LLMGateway:
    """Answers prompt requests through the configured providers.

    Args:
        config: routes, fallbacks, and the limits, retries and circuit breaker of each provider
        providers: the provider objects by id; `offline` and `rules` are added if they are missing. An id that `config` does
            not mention gets the default limits
        jitter: returns a new number in [0, 1) for the waits between attempts; None: the system's random source
        now: the event loop's clock, seconds; None: that of the running loop
        limits: `gateway_queue`, `max_restarts` and `abort_grace_s`; None: their defaults

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
        limits: LimitsConfig | None = None,
    ) -> None:
        now, limits = now or loop_clock(), limits or LimitsConfig()
        objects: dict[str, Provider] = {"offline": OfflineProvider(), RULES_PROVIDER: RulesProvider(), **providers}
        for provider_id, provider in providers.items():
            check_provider(provider_id, provider)
        known = {each: config.providers.get(each) or ProviderConfig(kind="offline") for each in objects}
        routed = config.model_copy(update={"providers": known})
        check_router(routed, given=objects.keys(), source="LLMGateway")
        targets = {each: GuardedProvider.of(each, provider, known[each]) for each, provider in objects.items()}
        self._mailbox: Mailbox[Attempts, PromptResponse | BaseException] = Mailbox(
            self.attempt,
            name="the gateway",
            lanes={each: _lane(target, limits.gateway_queue) for each, target in targets.items()},
            max_restarts=limits.max_restarts,
            restart_window_s=RESTART_WINDOW_S,
            abort_grace_s=limits.abort_grace_s,
            origin=lambda attempts: attempts.subject_id,
            now=now,
        )
        self._rules = CallSettings(
            targets, config.allow_model_calls, now, jitter or random.Random().random, self._longer, self._mailbox.refuse
        )
        self._longer_plans = {
            each: tuple([PlannedAttempt.of(candidate, targets) for candidate in plan_longer(each, routed)]) for each in targets
        }

        @lru_cache(_REMEMBERED_PLANS)
        def plan(provider_id: str | None, model_id: str | None, domain_tags: tuple[str, ...]) -> tuple[PlannedAttempt, ...]:
            candidates = plan_route(provider_id, model_id, domain_tags, routed).candidates
            return tuple([PlannedAttempt.of(candidate, targets) for candidate in candidates])

        self._plan: Callable[[str | None, str | None, tuple[str, ...]], tuple[PlannedAttempt, ...]] = plan

    def media_types(self, provider_id: str | None, model_id: str | None, domain_tags: tuple[str, ...]) -> tuple[str, ...]:
        """The types of images and files that the provider takes to which such requests go first; empty: text only."""
        return self._plan(provider_id, model_id, domain_tags)[0].target.media_types

    def candidates(self, request: PromptRequest) -> list[tuple[str, str]]:
        """The providers that a request may go to, in order, each with the name of the model that it is asked for."""
        plan = self._plan(request.provider_id, request.model_id, request.domain_tags)
        found = dict.fromkeys((planned.target.provider_id, planned.model_name) for planned in plan)
        waiting = list(found)
        while waiting:
            longer = self._longer_plans[waiting.pop(0)[0]]
            new = [each for planned in longer if (each := (planned.target.provider_id, planned.model_name)) not in found]
            found |= dict.fromkeys(new)
            waiting += new
        return list(found)

    def with_thoughts(self, request: PromptRequest) -> PromptRequest:
        """The request with the most output tokens that it may use at one of its `candidates`, thoughts included."""
        targets = self._rules.targets
        room = max(targets[each].thinking.of(model, request) for each, model in self.candidates(request))
        return request._replace(max_tokens=request.max_tokens + room) if room else request

    def _planned(self, request: PromptRequest) -> Sequence[PlannedAttempt]:
        """The planned attempts of a request at the providers that take all of its content.

        Raises:
            ProviderError: none of them does
        """
        plan = self._plan(request.provider_id, request.model_id, request.domain_tags)
        for message in request.messages:
            if message.parts:
                break
        else:
            return plan
        able = _able(request, plan)
        if not able:
            brought = {each.stored.media_type for message in request.messages for each in message.parts}
            takes = f"the request has {', '.join(sorted(brought))}, which no provider of its route takes"
            raise ProviderError(plan[0].target.provider_id, "bad_request", takes)
        return able

    def _longer(self, provider_id: str, request: PromptRequest) -> Sequence[PlannedAttempt]:
        return _able(request, self._longer_plans[provider_id])

    def statistics(self) -> dict[str, LaneStatistics]:
        """The calls that run and wait in the lane of each provider, and the lane's waits so far."""
        return self._mailbox.statistics()

    @asynccontextmanager
    async def open(self) -> AsyncIterator["LLMGateway"]:
        """Takes calls while the context is open. On exit, pending and further calls fail with `ActorStopped`."""
        async with self._mailbox.open():
            yield self

    def usage(self) -> dict[str, ProviderUsage]:
        """What the calls of each provider used that has answered since the gateway began. Built-in ones are left out."""
        by_provider = self.usage_by_model().items()
        return {each: ProviderUsage(*map(sum, zip(*map(astuple, used.values()), strict=True))) for each, used in by_provider}

    def usage_by_model(self) -> dict[str, dict[str, ProviderUsage]]:
        """What the calls used, by provider and model. Built-in ones are left out."""
        targets = self._rules.targets.items()
        return {name: {model: replace(each) for model, each in target.used.items()} for name, target in targets if target.used}

    def failures_by_model(self) -> dict[str, dict[str, dict[ProviderReason, FailureCounts]]]:
        """How many calls failed since the gateway began, by provider, model and reason. Built-in providers are left out.

        `statistics` counts calls that a full queue refused. A call whose caller has left is not a failure.
        """
        return {
            name: {model: {why: replace(each) for why, each in of.items()} for model, of in target.failures.items()}
            for name, target in self._rules.targets.items()
            if target.failures and not target.traits.built_in
        }

    def open_circuits(self) -> dict[str, bool]:
        """Whether the circuit of each provider is open, so that it is not called."""
        now = self._rules.now()
        return {name: target.breaker.is_open(now) for name, target in self._rules.targets.items()}

    async def complete(self, request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
        """Returns the model's answer, after retries and fallbacks.

        `on_attempt` is called before each attempt and again if the attempt fails. Cancelling this call cancels the attempt.

        Raises:
            ProviderError: no attempt gave an answer. Its reason is that of the last attempt, its detail lists all attempts
            Overloaded: the queue of a provider's lane was full until the request's deadline
            ActorStopped: the gateway is not open
        """
        attempts = Attempts(request, self._planned(request), on_attempt, self._rules)
        while True:
            try:
                attempts.check()
                reply = await self._mailbox.ask_within(
                    attempts,
                    lane=attempts.target.provider_id,
                    begin_by=attempts.begin_by,
                    cost=attempts.cost(),
                    is_return=attempts.is_return,
                )
            except (ProviderError, TimeoutError) as error:
                await self._go_on(attempts, error)
                continue
            if isinstance(reply, BaseException):
                try:
                    raise reply
                finally:
                    del reply  # this frame, which the error's traceback holds, must not hold the error
            return reply

    async def stream(self, request: PromptRequest, *, on_attempt: OnAttempt) -> AsyncGenerator[StreamItem, None]:
        """Yields the answer as the provider produces it: pieces of text, then the whole response, exactly once.

        Before the first piece of text, a failed attempt is retried as in `complete`. After it, an attempt is retried only if
        the request has `restart_streams`. A `StreamRestart` then withdraws the text shown so far. Close the stream
        (`contextlib.aclosing`) if you stop reading early.

        Raises:
            ProviderError: no attempt gave an answer; `output_begun` says whether shown text was not withdrawn by a restart
            Overloaded: the queue of a provider's lane was full until the request's deadline
            ActorStopped: the gateway is not open
        """
        attempts = Attempts(request, self._planned(request), on_attempt, self._rules)
        while True:
            attempts.outlet = outlet = Outlet[TextPiece | StreamRestart]()
            raised: BaseException | None = None
            try:
                attempts.check()
                items = self._mailbox.stream(
                    attempts,
                    outlet,
                    lane=attempts.target.provider_id,
                    begin_by=attempts.begin_by,
                    cost=attempts.cost(),
                    is_return=attempts.is_return,
                )
                async with aclosing(items):
                    async for item in items:
                        if isinstance(item, BaseException):
                            raised = item
                        else:
                            yield item
            except (ProviderError, TimeoutError) as error:
                await self._go_on(attempts, error)
                continue
            if raised is not None:
                try:
                    raise raised
                finally:
                    del raised, item  # as in `complete`
            return

    async def _go_on(self, attempts: Attempts, error: ProviderError | TimeoutError) -> None:
        """Returns when the next attempt may begin; raises the error of the call if there is none."""
        if isinstance(error, TimeoutError):
            provider_id, now = attempts.target.provider_id, self._rules.now()
            counts, late = self.statistics()[provider_id], attempts.target.pace.why_late(now, attempts.request.deadline - now)
            detail = f"its limits leave no room before the deadline; {counts.running} calls run and {counts.waiting} wait"
            error = ProviderError(provider_id, "timeout", late or detail)
        await attempts.failed(error)

    async def attempt(self, attempts: Attempts) -> PromptResponse | BaseException:
        """Makes one attempt, in a worker of the provider's lane. Returns the answer, or what the asker's listener raised.

        Raises:
            ProviderError: the attempt failed or could not begin
        """
        if (raised := await attempts.begin()) is not None:
            return raised
        target = attempts.target
        try:
            if attempts.outlet is not None:
                response = await _streamed(attempts, attempts.outlet, self._rules.now)
            elif target.traits.needs_timeout:
                response = await _in_time(attempts)
            else:
                response = await target.provider.complete(attempts.request)
            check_response(target.provider_id, response)
        except BaseException as error:  # a provider is foreign code and may raise anything
            if ends_caller(error, in_own_task=True):
                attempts.abandoned()
            if not await failed_alone(error, in_own_task=True):
                raise
            error = sole_error(error)  # a provider may have raised it in a task group
            if isinstance(error, ProviderError):
                failure = checked_failure(target.provider_id, error)
            else:
                failure = provider_failure(target.provider_id, error)
            attempts.broke(failure)
            try:
                raise failure from failure.__cause__
            finally:
                del failure  # as in `complete`
        return attempts.answered(response)


def _able(request: PromptRequest, plan: Sequence[PlannedAttempt]) -> list[PlannedAttempt]:
    """The planned attempts at providers that take all images and files of a request."""
    brought = {each.stored.media_type for message in request.messages for each in message.parts}
    return [planned for planned in plan if all(accepts(planned.target.media_types, each) for each in brought)]


def _lane(target: GuardedProvider, queue: int) -> LaneLimits:
    name = f"the queue of the gateway for provider {target.provider_id!r}"
    return LaneLimits(target.config.max_concurrency, queue, name=name, pacing=target.pace)


async def _in_time(attempts: Attempts) -> PromptResponse:
    with ended_by(anyio.CancelScope(deadline=attempts.stop_at)):
        return await attempts.target.provider.complete(attempts.request)
    raise _too_slow(attempts)


def _too_slow(attempts: Attempts) -> ProviderError:
    target = attempts.target
    if attempts.stop_at >= attempts.request.deadline:
        return ProviderError(target.provider_id, "timeout", "no answer before the request's deadline")
    return ProviderError(target.provider_id, "timeout", f"no answer within timeout_s = {target.timeout_s:g}")


async def _streamed(attempts: Attempts, outlet: Outlet[TextPiece | StreamRestart], now: Callable[[], float]) -> PromptResponse:
    """Gives the text of one attempt through the outlet, and returns its response.

    The reader's own time does not count against the provider.
    """
    if attempts.has_shown:
        await outlet.give(StreamRestart(attempts.number))
        attempts.output_begun = False
        attempts.start_clock()
    target, provider = attempts.target, attempts.target.provider
    if not _can_stream(provider):
        response = await (_in_time(attempts) if target.traits.needs_timeout else provider.complete(attempts.request))
        check_response(target.provider_id, response)
        if response.text:
            await _give(attempts, outlet, response.text)
        return response
    items: AsyncIterator[object] = provider.stream(attempts.request)
    with ended_by(anyio.CancelScope(deadline=attempts.stop_at if target.traits.needs_timeout else _NEVER)) as limit:
        try:
            async for each in items:
                item = checked_item(target.provider_id, each)
                if isinstance(item, PromptResponse):
                    return item
                if item.text:
                    left_s, limit.deadline = limit.deadline - now(), _NEVER
                    await _give(attempts, outlet, item.text)
                    limit.deadline = min(now() + left_s, attempts.request.deadline)
            raise ProviderError(target.provider_id, "malformed", "the stream ended without a response")
        finally:
            if (close := getattr(items, "aclose", None)) is not None:
                await close()
    raise _too_slow(attempts)


def _can_stream(provider: Provider) -> TypeGuard[StreamingProvider]:
    return getattr(provider, "stream", None) is not None


async def _give(attempts: Attempts, outlet: Outlet[TextPiece | StreamRestart], text: str) -> None:
    attempts.has_shown = attempts.output_begun = True
    await outlet.give(TextPiece(attempts.number, text))
