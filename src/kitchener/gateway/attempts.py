"""Decides for one call when to retry, when to fall back to another provider, and when to give up.

One `Attempts` serves one call. `begin` waits until the next attempt may start and reports it. The caller makes the attempt and
calls `answered`, `failed` or `abandoned`. Complete answers and streams both use it. Explained in `docs/gateway.md`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import anyio

from kitchener.config import ProviderConfig
from kitchener.errors import ProviderError
from kitchener.gateway.resilience import CircuitBreaker, FairLimiter, backoff
from kitchener.gateway.routing import Candidate
from kitchener.gateway.switch import model_calls_forbidden
from kitchener.gateway.traits import ProviderTraits
from kitchener.logs import get_logger
from kitchener.records.prompt import Attempt, OnAttempt, PromptRequest, PromptResponse, Provider
from kitchener.records.tokens import tokens_of_bytes

_log = get_logger(__name__)

_OF_THE_ANSWER: Final = ("malformed", "empty")
"""Failures of an answer's content. They are retried, but do not count for the circuit breaker."""


@dataclass(slots=True)
class GuardedProvider:
    """One provider with its limiter and circuit breaker."""

    provider_id: str
    provider: Provider
    config: ProviderConfig
    timeout_s: float
    """Longest attempt, seconds."""
    traits: ProviderTraits
    limiter: FairLimiter
    breaker: CircuitBreaker
    is_failing: bool = False
    """Whether its newest attempts failed. Logged where it changes."""
    has_opened: bool = False
    """Whether its circuit has opened since it last answered. Logged where it changes."""


@dataclass(frozen=True, slots=True)
class PlannedAttempt:
    """One step of a call's plan: a provider to try and the model to request."""

    lane: GuardedProvider
    model_id: str | None
    """The model to request; None: the provider's own."""
    model_name: str
    """The model's name in records: the requested one, else the provider's own, else the provider's id."""
    route_reason: str
    """`explicit`, `domain_tag:<tag>`, `default` or `fallback`."""

    @classmethod
    def of(cls, candidate: Candidate, lanes: Mapping[str, GuardedProvider]) -> "PlannedAttempt":
        """Returns the step for a candidate of a route plan."""
        lane = lanes[candidate.provider_id]
        model_name = candidate.model_id or lane.traits.model_id or lane.provider_id
        return cls(lane, candidate.model_id, model_name, candidate.route_reason)


@dataclass(frozen=True, slots=True)
class CallSettings:
    """The providers and settings that apply to every call of a gateway."""

    lanes: Mapping[str, GuardedProvider]
    """The providers by id."""
    allow_model_calls: bool
    """False: only built-in providers may be called."""
    now: Callable[[], float]
    """The event loop's clock, seconds."""
    jitter: Callable[[], float]
    """Returns a new number in [0, 1)."""


class Attempts:
    """The attempts of one call. Between `begin` and its outcome exactly one attempt is in flight."""

    __slots__ = (
        "_failures",
        "_last",
        "_made_elsewhere",
        "_next",
        "_on_attempt",
        "_request",
        "_rules",
        "_started",
        "_ticket",
        "_way",
        "_ways",
        "lane",
        "number",
        "output_begun",
        "request",
        "stop_at",
    )

    lane: GuardedProvider
    """The provider of the current attempt."""
    request: PromptRequest
    """The request for the current provider, with the routed model."""
    number: int
    """Number of the current attempt, from 1, counted over all providers."""
    stop_at: float
    """Deadline of the current attempt, on the event loop's clock, seconds."""
    output_begun: bool
    """Whether a reader has text that was not withdrawn. `LLMGateway.stream` sets it."""

    def __init__(
        self, request: PromptRequest, ways: Sequence[PlannedAttempt], on_attempt: OnAttempt, rules: CallSettings
    ) -> None:
        self._request, self._ways, self._on_attempt, self._rules = request, ways, on_attempt, rules
        self.number = self._next = 0
        self.output_begun = False
        self._failures: list[str] = []
        self._last: tuple[str, ProviderError] | None = None
        self._take_next()

    async def begin(self) -> GuardedProvider:
        """Waits until the next attempt may start, and reports its start through `on_attempt`.

        Raises:
            ProviderError: no provider allows another attempt
        """
        while not self._enters():
            refusal = await self._wait_to_enter()
            if refusal is None:
                break
            if not self._has_fallback():
                raise self._final(refusal)
            self._take_next()
        self.number += 1
        lane, way = self.lane, self._way
        try:
            await self._on_attempt(
                Attempt("started", self._request.call, self.number, lane.provider_id, way.model_name, way.route_reason)
            )
        except BaseException:
            self.abandoned()
            raise
        self.start_clock()
        return lane

    def start_clock(self) -> None:
        """Starts the provider's time limit now, so that queueing and recording the attempt do not count."""
        self._started = started = self._rules.now()
        self.stop_at = min(started + self.lane.timeout_s, self._request.deadline)

    def abandoned(self) -> None:
        """Ends an attempt that was cancelled or met a bug, without an effect on the circuit breaker's count."""
        self.lane.limiter.leave(self._request.subject_id)
        self.lane.breaker.abandoned(self._ticket)

    def answered(self, response: PromptResponse) -> PromptResponse:
        """Ends a successful attempt. Returns the response with attempts, route and latency filled in."""
        lane = self.lane
        lane.limiter.leave(self._request.subject_id)
        lane.breaker.succeeded(self._ticket)
        if lane.is_failing:
            _note_success(lane)
        latency_ms = int((self._rules.now() - self._started) * 1_000)
        way = self._way
        if (
            response.route_reason == way.route_reason
            and response.provider_id == lane.provider_id
            and response.latency_ms == latency_ms
            and response.attempts == self.number
        ):
            return response  # a prepared answer of a built-in provider already has them
        return PromptResponse(
            provider_id=lane.provider_id,
            model_id=response.model_id or way.model_name,
            text=response.text,
            structured=response.structured,
            tool_uses=response.tool_uses,
            usage=response.usage,
            latency_ms=latency_ms,
            finish_reason=response.finish_reason,
            served_model=response.served_model,
            attempts=self.number,
            route_reason=way.route_reason,
        )

    async def failed(self, error: ProviderError) -> None:
        """Reports a failed attempt. Returns when the next attempt may begin, at this provider or at a fallback.

        Raises:
            ProviderError: no further attempt is made. Its reason is that of the last attempt; its detail lists all attempts
        """
        lane, now = self.lane, self._rules.now()
        is_late = now >= self._request.deadline
        self._close(error, now, is_late)
        self._failures.append(f"{self.number} {lane.provider_id} {error.reason}")
        self._last = lane.provider_id, error
        await self._on_attempt(
            Attempt(
                "failed",
                self._request.call,
                self.number,
                lane.provider_id,
                self._way.model_name,
                self._way.route_reason,
                error.reason,
                error.detail,
                self.output_begun,
            )
        )
        if is_late or not error.is_retryable or (self.output_begun and not self._request.restart_streams):
            raise self._final(error) from error
        pause_s = self._pause_before_retry(error)
        if pause_s is not None:
            if pause_s:
                await anyio.sleep(pause_s)
        elif self._has_fallback():
            self._take_next()
        else:
            raise self._final(error) from error

    def _close(self, error: ProviderError, now: float, is_late: bool) -> None:
        """Releases the slot and reports the outcome to the circuit breaker."""
        lane = self.lane
        if is_late and error.reason == "timeout":
            lane.breaker.abandoned(self._ticket)  # the caller's deadline passed, not the provider's limit
        elif error.reason in _OF_THE_ANSWER:
            lane.breaker.abandoned(self._ticket)  # one user's message can cause it, so it must not block the others
        elif not error.is_retryable:
            lane.breaker.succeeded(self._ticket)  # a refusal of this request: the provider works
        else:
            has_opened = lane.breaker.failed(self._ticket, now)
            if has_opened:
                lane.limiter.send_away()
            _note_failure(lane, error, has_opened=has_opened)
        if error.retry_after_s:
            # Limited, so that an absurd header cannot block a provider for hours.
            lane.limiter.hold_until(now + min(error.retry_after_s, lane.config.breaker_reset_s))
        lane.limiter.leave(self._request.subject_id)

    def _pause_before_retry(self, error: ProviderError) -> float | None:
        """Seconds to wait before a retry at the same provider; None: do not retry it."""
        config, tries = self.lane.config, self.number - self._made_elsewhere
        if tries > config.max_retries or self.lane.breaker.is_open(self._rules.now()):
            return None
        pause_s = backoff(tries, config, error.retry_after_s, self._rules.jitter)
        return None if self._rules.now() + pause_s >= self._request.deadline else pause_s

    def _has_fallback(self) -> bool:
        return self._next < len(self._ways)

    def _take_next(self) -> None:
        self._way = way = self._ways[self._next]
        self._next += 1
        self._made_elsewhere = self.number
        self.lane = way.lane
        request = self._request
        self.request = request if way.model_id == request.model_id else request._replace(model_id=way.model_id)

    def _enters(self) -> bool:
        """Takes a breaker ticket and a slot, if that is possible without waiting. Returns whether it did.

        Raises:
            ProviderError: model calls are forbidden, or the request's deadline has passed
        """
        lane, request, rules = self.lane, self._request, self._rules
        if not lane.traits.built_in and (not rules.allow_model_calls or model_calls_forbidden()):
            detail = "model calls are switched off; only built-in providers answer"
            raise self._final(ProviderError(lane.provider_id, "forbidden", detail))
        now = rules.now()
        if now >= request.deadline:
            raise self._final(ProviderError(lane.provider_id, "timeout", "the deadline passed before the call could go out"))
        self._ticket = ticket = lane.breaker.enter(now)
        if not ticket:
            return False
        limiter = lane.limiter
        if limiter.try_enter(_token_estimate(request) if limiter.counts_tokens else 0, now, request.subject_id):
            return True
        lane.breaker.abandoned(ticket)
        return False

    async def _wait_to_enter(self) -> ProviderError | None:
        """Waits for a breaker ticket and a slot. Returns None, or a refusal for which a fallback may help."""
        lane, request, now = self.lane, self._request, self._rules.now
        moment = now()
        if lane.breaker.is_open(moment):
            return self._circuit_open(moment)
        tokens = _token_estimate(request) if lane.limiter.counts_tokens else 0
        try:
            is_in = await lane.limiter.enter(request.subject_id, tokens, request.deadline)
        except ProviderError as refusal:
            return refusal
        moment = now()
        if not is_in:
            return self._circuit_open(moment)
        self._ticket = lane.breaker.enter(moment)
        if not self._ticket:
            lane.limiter.leave(request.subject_id)
            return self._circuit_open(moment)
        return None

    def _circuit_open(self, now: float) -> ProviderError:
        lane = self.lane
        seconds = lane.breaker.opens_in(now)
        return ProviderError(
            lane.provider_id,
            "breaker_open",
            f"it failed {lane.config.breaker_failures} times in a row; it is tried again in {seconds:.1f} s",
        )

    def _final(self, error: ProviderError) -> ProviderError:
        """Returns the error of the whole call."""
        # A provider's own errors may name another id than the configured one.
        provider_id, cause, detail = self.lane.provider_id, error, error.detail
        if error.reason == "breaker_open" and self._last is not None:
            provider_id, cause = self._last
            detail = f"{cause.detail}; then {self.lane.provider_id!r}: {error.detail}"
        if len(self._failures) > 1 or (self._failures and (self._last is None or error is not self._last[1])):
            detail = f"{detail} (attempts: {', '.join(self._failures)})"
        return ProviderError(
            provider_id,
            cause.reason,
            detail,
            status=cause.status,
            retry_after_s=cause.retry_after_s,
            output_begun=self.output_begun,
        )


def _note_failure(lane: GuardedProvider, error: ProviderError, *, has_opened: bool) -> None:
    """Logs the first failure in a row, and the first opening of the circuit. The attempts themselves are on record."""
    if not lane.is_failing:
        lane.is_failing = True
        _log.warning("provider does not answer", provider_id=lane.provider_id, reason=error.reason)
    if has_opened and not lane.has_opened:
        lane.has_opened = True
        config = lane.config
        _log.warning(
            "circuit breaker opened",
            provider_id=lane.provider_id,
            failures=config.breaker_failures,
            next_try_in_s=config.breaker_reset_s,
        )


def _note_success(lane: GuardedProvider) -> None:
    if lane.has_opened:
        _log.warning("circuit breaker closed", provider_id=lane.provider_id)
    _log.warning("provider answers again", provider_id=lane.provider_id)
    lane.is_failing = lane.has_opened = False


def _token_estimate(request: PromptRequest) -> int:
    """Estimates the most tokens that a call may use: a third of the messages' bytes, plus `max_tokens`."""
    return tokens_of_bytes(sum(len(message.content.encode()) for message in request.messages)) + request.max_tokens
