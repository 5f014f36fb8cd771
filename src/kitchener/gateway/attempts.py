"""Decides for one call when to retry, when to fall back to another provider, and when to give up.

One `Attempts` serves one call. It is the message of the gateway's mailbox. The asker calls `check` before each attempt and
`failed` after one without an answer. A worker calls `begin`, and then `answered`, `broke` or `abandoned`. Complete answers and
streams both use it. Explained in `docs/gateway.md`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import anyio

from kitchener.cancellation import failed_alone
from kitchener.errors import ProviderError, ProviderReason
from kitchener.gateway.guarded_provider import GuardedProvider
from kitchener.gateway.resilience import backoff, is_throttled, too_long_a_pause
from kitchener.gateway.routing import Candidate
from kitchener.gateway.switch import model_calls_forbidden
from kitchener.lanes.envelope import Outlet
from kitchener.logs import get_logger
from kitchener.records.prompt import (
    Attempt,
    OnAttempt,
    PromptRequest,
    PromptResponse,
    StreamRestart,
    TextPiece,
)
from kitchener.records.tokens import tokens_of_bytes

_log = get_logger(__name__)

_OF_THE_ANSWER: Final = ("malformed", "empty")
"""Failures of an answer's content. They are retried, but do not count for the circuit breaker."""
_OF_THE_MODEL: Final = ("context_length", "bad_request")
"""Refusals of too many tokens that hold for a model. What a minute or an account has left changes."""
_LEAST_ROOM: Final = 256
"""Tokens for thoughts that a call asks for at least, when it looks for how many a provider takes. Fewer hardly hold any."""


@dataclass(frozen=True, slots=True)
class PlannedAttempt:
    """One step of a call's plan: a provider to try and the model to request."""

    target: GuardedProvider
    model_id: str | None
    """The model to request; None: the provider's own."""
    model_name: str
    """The model's name in records: the requested one, else the provider's own, else the provider's id."""
    route_reason: str
    """`explicit`, `domain_tag:<tag>`, `default` or `fallback`."""

    @classmethod
    def of(cls, candidate: Candidate, targets: Mapping[str, GuardedProvider]) -> "PlannedAttempt":
        """Returns the step for a candidate of a route plan."""
        target = targets[candidate.provider_id]
        model_name = candidate.model_id or target.traits.model_id or target.provider_id
        return cls(target, candidate.model_id, model_name, candidate.route_reason)


@dataclass(frozen=True, slots=True)
class CallSettings:
    """The providers and settings that apply to every call of a gateway."""

    targets: Mapping[str, GuardedProvider]
    """The providers that may be tried, by id."""
    allow_model_calls: bool
    """False: only built-in providers may be called."""
    now: Callable[[], float]
    """The event loop's clock, seconds."""
    jitter: Callable[[], float]
    """Returns a new number in [0, 1)."""
    longer: Callable[[str, PromptRequest], Sequence[PlannedAttempt]]
    """Returns the plan of a request that is longer than the context of a provider."""
    refuse: Callable[[str, Callable[[], Exception], Callable[["Attempts"], bool]], None]
    """Ends the wait of the calls in the lane of a provider with an error, if the last argument returns True of them."""


class _ReportedFailure(NamedTuple):
    """The failed attempt that was reported last. Not its exception, whose traceback would hold the call."""

    planned: PlannedAttempt
    reason: ProviderReason
    detail: str
    status: int | None
    retry_after_s: float | None


class Attempts:
    """The attempts of one call. At each moment either its asker or the worker of its one attempt in flight uses it."""

    __slots__ = (
        "_failures",
        "_is_lasting",
        "_last",
        "_needs_room",
        "_next",
        "_on_attempt",
        "_plan",
        "_refusals",
        "_refused_room",
        "_request",
        "_room",
        "_rules",
        "_started",
        "_ticket",
        "_uncounted",
        "begin_by",
        "has_begun",
        "has_shown",
        "is_return",
        "number",
        "outlet",
        "output_begun",
        "planned",
        "request",
        "stop_at",
        "target",
    )

    planned: PlannedAttempt
    """The current attempt: its provider and its model."""
    target: GuardedProvider
    """The provider of the current attempt."""
    request: PromptRequest
    """The request for the current provider, with the routed model, and tokens for its thoughts if it thinks."""
    number: int
    """Number of the current attempt, from 1, counted over all providers."""
    begin_by: float
    """When the current attempt must have begun, on the event loop's clock, seconds; else the call goes elsewhere or ends."""
    is_return: bool
    """Whether the provider refused the newest attempt for its rate. The call then comes first in the provider's queue: it has
    waited before."""
    stop_at: float
    """Deadline of the current attempt, on the event loop's clock, seconds."""
    output_begun: bool
    """Whether a reader has text that was not withdrawn."""
    has_shown: bool
    """Whether a reader was ever given text."""
    has_begun: bool
    """Whether a worker began the newest attempt."""
    outlet: Outlet[TextPiece | StreamRestart] | None
    """Receives the text of a stream; None: the caller wants only the complete answer."""

    def __init__(
        self, request: PromptRequest, plan: Sequence[PlannedAttempt], on_attempt: OnAttempt, rules: CallSettings
    ) -> None:
        self._request, self._plan, self._on_attempt, self._rules = request, plan, on_attempt, rules
        self.number = self._next = 0
        self.output_begun = self.has_shown = self.has_begun = False
        self.outlet = None
        self._failures: list[str] = []
        self._last: _ReportedFailure | None = None
        self._take_next()

    @property
    def subject_id(self) -> str:
        """The subject whose share of the lane counts."""
        return self._request.subject_id

    def cost(self) -> int:
        """The tokens that the provider's pace books for an attempt; 0 if it counts none."""
        return _cost(self._request) if self.target.pace.counts_tokens else 0

    def check(self) -> None:
        """Raises ProviderError if the provider cannot be asked now: forbidden, too late, or its circuit is open.

        Sets `begin_by`. A call that has a fallback hardly waits for the pace of a provider that refuses calls.
        """
        target, now = self.target, self._rules.now()
        if not target.traits.built_in and (not self._rules.allow_model_calls or model_calls_forbidden()):
            detail = "model calls are switched off; only built-in providers answer"
            raise ProviderError(target.provider_id, "forbidden", detail)
        self.begin_by = deadline = self._request.deadline
        if now >= deadline:
            raise ProviderError(target.provider_id, "timeout", "the deadline passed before the call could go out")
        if target.breaker.is_open(now):
            raise self._circuit_open()
        if target.pace.is_learned and self.has_fallback():
            self.begin_by = min(deadline, now + target.config.backoff_initial_s)

    async def begin(self) -> BaseException | None:
        """Begins an attempt and reports it. Returns what the listener raised: it belongs to the asker.

        Raises:
            ProviderError: the circuit has opened, or another call probes the provider
        """
        target, planned = self.target, self.planned
        self._ticket = ticket = target.breaker.enter(self._rules.now())
        if not ticket:
            raise self._circuit_open()
        self.has_begun = True
        self.number += 1
        try:
            await self._on_attempt(
                Attempt(
                    "started",
                    self._request.call,
                    self.number,
                    target.provider_id,
                    planned.model_name,
                    planned.route_reason,
                    max_tokens=self.request.max_tokens,
                )
            )
        except BaseException as error:
            self.abandoned()
            if not await failed_alone(error, in_own_task=True):
                raise
            if isinstance(error, ProviderError):  # of `[spending]`, which refuses this attempt
                return self._give_up(error, is_reported=False)
            return error
        self.start_clock()
        return None

    def start_clock(self) -> None:
        """Starts the provider's time limit now, so that queueing and recording the attempt do not count."""
        self._started = started = self._rules.now()
        self.stop_at = min(started + self.target.timeout_s, self._request.deadline)

    def abandoned(self) -> None:
        """Ends an attempt that was cancelled or met a bug, without an effect on the circuit breaker's count."""
        self.target.breaker.abandoned(self._ticket)

    def answered(self, response: PromptResponse) -> PromptResponse:
        """Ends a successful attempt. Returns the response with attempts, route and latency filled in."""
        target, planned = self.target, self.planned
        target.breaker.succeeded(self._ticket)
        if target.is_failing:
            target.note_success()
        if not target.traits.built_in:
            target.used[response.model_id].add(response.usage)
            target.thinking.heard(planned.model_name, response)
            if self._refused_room and self._is_lasting:
                sent = response.usage.input_tokens
                target.thinking.was_too_much(planned.model_name, self._request, sent, self._refused_room)
        latency_ms = int((self._rules.now() - self._started) * 1_000)
        if (
            response.route_reason == planned.route_reason
            and response.provider_id == target.provider_id
            and response.latency_ms == latency_ms
            and response.attempts == self.number
            and response.thinking_tokens == self._room
        ):
            return response  # a prepared answer of a built-in provider already has them
        return PromptResponse(
            provider_id=target.provider_id,
            model_id=response.model_id or planned.model_name,
            text=response.text,
            structured=response.structured,
            tool_uses=response.tool_uses,
            usage=response.usage,
            latency_ms=latency_ms,
            finish_reason=response.finish_reason,
            served_model=response.served_model,
            attempts=self.number,
            route_reason=planned.route_reason,
            thinking_tokens=self._room,
        )

    def broke(self, error: ProviderError) -> None:
        """Ends a failed attempt: reports it to the circuit breaker, and keeps the pause that the provider asked for."""
        target, now = self.target, self._rules.now()
        if error.usage is not None and not target.traits.built_in:
            target.used[self.planned.model_name].add_unusable(error.usage)
        if error.reason == "timeout" and now >= self._request.deadline:
            target.breaker.abandoned(self._ticket)  # the caller's deadline passed, not the provider's limit
        elif error.reason in _OF_THE_ANSWER:
            target.breaker.abandoned(self._ticket)  # one user's message can cause it, so it must not block the others
        elif not error.is_retryable:
            target.breaker.succeeded(self._ticket)  # a refusal of this request: the provider works
        elif self._room and (error.reason == "timeout" or _is_about_tokens(error)):
            # One user's message can cause long thoughts, and the same request without room shows whether the provider works.
            target.breaker.abandoned(self._ticket)
        elif is_throttled(error) and not self._slow_down(error, now):
            target.breaker.abandoned(self._ticket)  # calls in flight are refused together, which is one failure
        else:
            has_opened = target.breaker.failed(self._ticket, now)
            if has_opened:
                self._rules.refuse(target.provider_id, self._circuit_open, _is_any)
            if has_opened or not is_throttled(error):
                target.note_failure(error.reason, has_opened=has_opened)
        if error.retry_after_s:
            # Limited, so that an absurd header cannot block a provider for hours.
            target.pace.hold_until(now + min(error.retry_after_s, target.config.breaker_reset_s))

    def _slow_down(self, error: ProviderError, now: float) -> bool:
        """Lets calls to the provider begin at the pace that it lets through. Returns whether the refusal was news.

        Calls that wait and have a fallback leave for it.
        """
        target, was_learned = self.target, self.target.pace.is_learned
        if not target.pace.refuse(self._started, now, error.retry_after_s):
            return False
        if not was_learned:
            _log.warning("provider asks for a slower pace", provider_id=target.provider_id)
        self._rules.refuse(target.provider_id, self._told_to_slow_down, Attempts.has_fallback)
        return True

    async def failed(self, error: ProviderError) -> None:
        """Reports a failed attempt. Returns when the next attempt may begin, at this provider or at a fallback.

        An attempt that did not begin is not reported, and is not tried again at its provider.

        Raises:
            ProviderError: no further attempt is made. Its reason is that of the last attempt; its detail lists all attempts
        """
        target = self.target
        is_late = self._rules.now() >= self._request.deadline
        if not self.has_begun:
            if is_late or error.reason == "forbidden" or not self.has_fallback():
                raise self._give_up(error, is_reported=False) from error.__cause__
            self._take_next()
            return
        self.has_begun = False
        self._failures.append(f"{self.number} {target.provider_id} {error.reason}")
        self._last = _ReportedFailure(self.planned, error.reason, error.detail, error.status, error.retry_after_s)
        await self._on_attempt(
            Attempt(
                "failed",
                self._request.call,
                self.number,
                target.provider_id,
                self.planned.model_name,
                self.planned.route_reason,
                error.reason,
                error.detail,
                self.output_begun,
                error.usage,
            )
        )
        if error.usage is not None and (left := self._request.tokens_left) is not None:
            self._request = self._request._replace(tokens_left=left - error.usage.new_tokens)
        if not is_late and self._has_other_room(error):
            target.failures_of(self.planned.model_name, error.reason).retries += 1
            return
        if error.reason == "context_length" and not is_late and self._goes_to_longer():
            target.failures_of(self.planned.model_name, error.reason).retries += 1
            self._take_next()
            return
        if is_late or not error.is_retryable or (self.output_begun and not self._request.restart_streams):
            raise self._give_up(error, is_reported=True) from error
        pause_s = self._pause_before_retry(error)
        if pause_s is None and not self.has_fallback():
            why = too_long_a_pause(error, self._request.deadline - self._rules.now())
            raise self._give_up(error, is_reported=True, why=why) from error
        target.failures_of(self.planned.model_name, error.reason).retries += 1
        if pause_s is None:
            self._take_next()
        elif pause_s:
            await anyio.sleep(pause_s)

    def _pause_before_retry(self, error: ProviderError) -> float | None:
        """Seconds to wait before a retry at the same provider; None: do not retry it."""
        config = self.target.config
        self.is_return = is_throttled(error)
        if error.reason == "out_of_credit" or (error.only_thoughts and self._room):  # it would think as long again
            return None
        if error.reason == "rate_limited" and self.is_return and not self.has_fallback():
            self._refusals += 1
            has_tries = self._refusals <= config.max_rate_limited
            pause_s = error.retry_after_s or 0.0  # the provider's lane keeps the pace
        else:
            tries = self.number - self._uncounted - self._refusals
            has_tries = tries <= config.max_retries
            pause_s = backoff(tries, config, error.retry_after_s, self._rules.jitter)
        now = self._rules.now()
        if not has_tries or self.target.breaker.is_open(now) or now + pause_s >= self._request.deadline:
            return None
        return pause_s

    def _goes_to_longer(self) -> bool:
        """Replaces what is left of the plan by the providers with a longer context. Returns whether there are any."""
        asked = self._plan[: self._next]
        known = {each.target.provider_id for each in asked}
        longer = self._rules.longer(self.target.provider_id, self._request)
        self._plan = [*asked, *(each for each in longer if each.target.provider_id not in known)]
        return self.has_fallback()

    def has_fallback(self) -> bool:
        """Whether the call has a further provider to go to."""
        return self._next < len(self._plan)

    def _take_next(self) -> None:
        self.planned = planned = self._plan[self._next]
        self._next += 1
        self._uncounted, self._refusals, self.is_return = self.number, 0, False
        self.target = target = planned.target
        self._refused_room, self._needs_room, self._is_lasting = 0, False, False
        self._ask_with(target.thinking.of(planned.model_name, self._request) if target.thinking else 0)

    def _ask_with(self, room: int) -> None:
        """Makes the request for the current provider, with so many tokens for thoughts."""
        request, planned, self._room = self._request, self.planned, room
        if planned.model_id != request.model_id:
            request = request._replace(model_id=planned.model_id)
        self.request = request if not room else request._replace(max_tokens=request.max_tokens + room)

    def _has_other_room(self, error: ProviderError) -> bool:
        """Whether the attempt failed for its tokens for thoughts, and can be made again at once with other ones.

        At a provider, this is so at most twice, and once more for each time that it refuses half of what it refused before.
        """
        if self.output_begun and not self._request.restart_streams:
            return False
        if self._room and _is_about_tokens(error):
            self._refused_room, room = self._room, self._room // 2 if self._needs_room else 0
            self._is_lasting = error.reason in _OF_THE_MODEL
            if self._needs_room and room < _LEAST_ROOM:
                return False
            self._uncounted += 1
        elif error.only_thoughts:
            thinking, model = self.target.thinking, self.planned.model_name
            thinking.thinks(model)
            self._needs_room = True
            room = thinking.of(model, self._request)
            if self._refused_room:
                room = min(room, self._refused_room // 2)
            if room <= self._room:
                return False
        else:
            return False
        self._ask_with(room)
        return True

    def _circuit_open(self) -> ProviderError:
        target = self.target
        seconds = target.breaker.opens_in(self._rules.now())
        return ProviderError(
            target.provider_id,
            "breaker_open",
            f"it failed {target.config.breaker_failures} times in a row; it is tried again in {seconds:.1f} s",
        )

    def _told_to_slow_down(self) -> ProviderError:
        return ProviderError(self.target.provider_id, "rate_limited", "it refuses calls for their rate")

    def _give_up(self, error: ProviderError, *, is_reported: bool, why: str = "") -> ProviderError:
        """Counts the call as failed, and returns its error.

        Args:
            error: why no further attempt is made
            is_reported: whether it is the failure of the attempt that was reported last
            why: what is added to the error's own text
        """
        planned, reason, status, retry_after_s = self.planned, error.reason, error.status, error.retry_after_s
        detail = f"{error.detail}{why}"
        if error.reason == "breaker_open" and self._last is not None:
            planned, reason, detail, status, retry_after_s = self._last
            detail = f"{detail}; then {self.target.provider_id!r}: {error.detail}"
        if len(self._failures) > (1 if is_reported else 0):
            detail = f"{detail} (attempts: {', '.join(self._failures)})"
        planned.target.failures_of(planned.model_name, reason).calls += 1
        # A provider's own errors may name another id than the configured one.
        return ProviderError(
            planned.target.provider_id,
            reason,
            detail,
            status=status,
            retry_after_s=retry_after_s,
            output_begun=self.output_begun,
        )


def _is_about_tokens(error: ProviderError) -> bool:
    """Whether a request may have been refused for the number of its tokens: by a window, a limit of output, of a minute (which
    the request alone passes), or of money."""
    told = error.detail.lower()
    match error.reason:
        case "context_length":
            return True
        case "bad_request" | "out_of_credit":
            return "token" in told
        case "rate_limited":
            return "too large" in told
        case _:
            return False


def _is_any(_: Attempts) -> bool:
    return True


def _cost(request: PromptRequest) -> int:
    """Estimates the most tokens that a call may use: a third of the messages' bytes, plus `max_tokens`."""
    return tokens_of_bytes(request.text_bytes) + request.max_tokens
