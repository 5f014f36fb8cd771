"""A provider as the gateway calls it: with its limits, its circuit breaker, and the counts of its calls.

`attempts.py` decides when to call it. Explained in `docs/gateway.md`.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Self

from kitchener.config import ProviderConfig
from kitchener.errors import ProviderReason
from kitchener.gateway.resilience import CircuitBreaker, Pace
from kitchener.gateway.thinking_room import ThinkingRoom
from kitchener.gateway.traits import ProviderTraits, traits_of
from kitchener.logs import get_logger
from kitchener.model_usage import Usage
from kitchener.records.prompt import Provider

_log = get_logger(__name__)


@dataclass(slots=True)
class ProviderUsage:
    """What the answers of a provider, or of one of its models, used since the gateway began, as the provider counted."""

    calls: int = 0
    """Calls that it answered. The tokens are also those of answers that could not be used."""
    input_tokens: int = 0
    """Tokens sent, including cached ones."""
    cached_tokens: int = 0
    """Sent tokens that the provider's cache served."""
    output_tokens: int = 0
    cache_write_tokens: int = 0
    """Sent tokens that the provider wrote to its cache."""

    def add(self, usage: Usage) -> None:
        """Counts an answer."""
        self.calls += 1
        self.add_unusable(usage)

    def add_unusable(self, usage: Usage) -> None:
        """Counts the tokens of an answer that cannot be used."""
        self.input_tokens += usage.input_tokens
        self.cached_tokens += usage.cached_tokens or 0
        self.output_tokens += usage.output_tokens
        self.cache_write_tokens += usage.cache_write_tokens or 0


@dataclass(slots=True)
class FailureCounts:
    """How often attempts of a model failed for one reason, since the gateway began."""

    calls: int = 0
    """Calls that ended without an answer: their last attempt failed here, or could not begin."""
    retries: int = 0
    """Attempts after which their call continued, at the same provider or at a fallback."""


@dataclass(slots=True)
class GuardedProvider:
    """One provider with its pace and its circuit breaker. Its id is the name of its lane."""

    provider_id: str
    provider: Provider
    config: ProviderConfig
    timeout_s: float
    """Longest attempt, seconds."""
    traits: ProviderTraits
    pace: Pace
    breaker: CircuitBreaker
    thinking: ThinkingRoom
    is_failing: bool = False
    """Whether its newest attempts failed. Logged where it changes."""
    media_types: tuple[str, ...] = ()
    """Types of images and files that it takes, by its settings or by itself."""
    has_opened: bool = False
    """Whether its circuit has opened since it last answered. Logged where it changes."""
    used: defaultdict[str, ProviderUsage] = field(default_factory=lambda: defaultdict(ProviderUsage))
    """By model. Nothing is counted of a built-in provider, which charges nothing."""
    failures: dict[str, dict[ProviderReason, FailureCounts]] = field(default_factory=dict)
    """By model and reason."""

    @classmethod
    def of(cls, provider_id: str, provider: Provider, config: ProviderConfig) -> Self:
        """A provider with its settings."""
        traits = traits_of(provider)
        return cls(
            provider_id,
            provider,
            config,
            config.timeout_s,
            traits,
            Pace(config),
            CircuitBreaker(config.breaker_failures, config.breaker_reset_s),
            ThinkingRoom(provider_id, 0 if config.is_built_in else config.thinking_tokens),
            media_types=config.media_types if config.media_types is not None else traits.media_types,
        )

    def failures_of(self, model_name: str, reason: ProviderReason) -> FailureCounts:
        """The counts of a model and a reason, to be changed."""
        return self.failures.setdefault(model_name, {}).setdefault(reason, FailureCounts())

    def note_failure(self, reason: ProviderReason, *, has_opened: bool) -> None:
        """Logs the first failure in a row, and the first opening of the circuit. The attempts themselves are on record."""
        if not self.is_failing:
            self.is_failing = True
            _log.warning("provider does not answer", provider_id=self.provider_id, reason=reason)
        if has_opened and not self.has_opened:
            self.has_opened = True
            _log.warning(
                "circuit breaker opened",
                provider_id=self.provider_id,
                failures=self.config.breaker_failures,
                next_try_in_s=self.config.breaker_reset_s,
            )

    def note_success(self) -> None:
        """Logs the end of a row of failures."""
        if self.has_opened:
            _log.warning("circuit breaker closed", provider_id=self.provider_id)
        _log.warning("provider answers again", provider_id=self.provider_id)
        self.is_failing = self.has_opened = False
