"""Routes recorded model calls by another router's settings, and adds up the results. Pure.

`gateway/routing.py` plans each request. Recorded failures happen again: a provider that failed fails again, and one that was
never asked is assumed to answer. Explained in `docs/gateway.md`.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple, Self, TypedDict

from kitchener.actors.work.plan import model_choice, tags_for
from kitchener.config import HO2Config, ProviderConfig, RouterConfig
from kitchener.config.router import price_of
from kitchener.errors import RETRYABLE_REASONS, ProviderError, ProviderReason
from kitchener.gateway.routing import Candidate, plan_longer, plan_route
from kitchener.model_usage import UsageMapping
from kitchener.records.prompt import RULES_PROVIDER, route_kind
from kitchener.records.work_order import TYPE_TAGS

CallOutcome = Literal["answered", "failed", "cut off"]
"""How a call ended; `cut off`: it was cancelled, or the process died."""

_OF_THE_PROVIDER: Final[frozenset[ProviderReason]] = frozenset(
    ("rate_limited", "out_of_credit", "server_error", "connection", "timeout", "authentication")
)
"""Failures that any other model of the same provider would have had, too."""


class PastAttempt(NamedTuple):
    """One recorded attempt."""

    provider_id: str
    model_id: str
    route_reason: str
    failure: ProviderReason | None = None
    """Why the attempt failed; None: it answered, or the call was cut off."""
    output_begun: bool = False
    """Whether text had been streamed before it failed."""


class Tokens(NamedTuple):
    """Tokens that a call used."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    """Input tokens that the provider's cache served."""
    cache_write_tokens: int = 0
    """Input tokens that the provider wrote to its cache."""

    @classmethod
    def of(cls, usage: UsageMapping) -> Self:
        """The tokens of an answer on record."""
        read, written = usage.get("cached_tokens") or 0, usage.get("cache_write_tokens") or 0
        return cls(usage["input_tokens"], usage["output_tokens"], read, written)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedCall:
    """One recorded model call: what the request asked for, and the attempts of the gateway."""

    wo_id: str
    wo_type: str
    call: int
    """Number within the work order."""
    session_id: str
    turn_id: str | None = None
    """None: the call belongs to a consolidation."""
    provider_id: str | None = None
    """The provider that the request named; None: it named none."""
    model_id: str | None = None
    """The model that the request named; None: it named none."""
    domain_tags: tuple[str, ...] = ()
    tries: tuple[PastAttempt, ...]
    """In order; at least one."""
    state: CallOutcome
    tokens: Tokens | None = None
    """None: it was not answered."""

    @property
    def choice(self) -> "RouteChoice":
        """The provider that answered or failed last."""
        last = self.tries[-1]
        return RouteChoice(last.provider_id, last.model_id, last.route_reason, self.state, last.failure)


class RouteChoice(NamedTuple):
    """The provider that answers a call, or fails last."""

    provider_id: str
    model_id: str
    route_reason: str
    """`explicit`, `domain_tag:<tag>`, `default` or `fallback`."""
    state: CallOutcome
    failure: ProviderReason | None = None
    """Why it failed."""
    is_assumed: bool = False
    """Whether no attempt of this provider is recorded, so that it is assumed to answer."""

    def is_elsewhere(self, other: "RouteChoice") -> bool:
        """Whether provider, model or outcome differ, or only one of the two is a fallback. The route alone does not count."""
        mine, theirs = ((each.provider_id, each.model_id, each.state, each.fell_back) for each in (self, other))
        return mine != theirs

    @property
    def fell_back(self) -> bool:
        """Whether a fallback was asked instead of the first provider."""
        return route_kind(self.route_reason)[0] == "fallback"


@dataclass(frozen=True, slots=True)
class Rerouted:
    """One call under both routers."""

    call: RecordedCall
    recorded: RouteChoice
    other: RouteChoice
    recorded_cost: float | None
    """In the currency of the prices; None: the price is unknown."""
    other_cost: float | None

    @property
    def is_changed(self) -> bool:
        """Whether another provider or model would have answered, or the outcome would differ."""
        return self.recorded.is_elsewhere(self.other)

    def as_json(self) -> dict[str, object]:
        return {
            **{name: getattr(self.call, name) for name in ("session_id", "turn_id", "wo_id", "wo_type", "call")},
            "changed": self.is_changed,
            "recorded": {**self.recorded._asdict(), "cost": self.recorded_cost},
            "other": {**self.other._asdict(), "cost": self.other_cost},
        }


@dataclass(frozen=True, slots=True)
class Router:
    """A router's settings, and facts about providers that are not in the settings.

    Args:
        config: the settings
        given: providers that a program passed as objects
        own_models: the default model of each provider
        agent: the agent class; its work orders ask for its tags and models. None: they ask for what they asked for on record
    """

    config: RouterConfig
    given: Collection[str] = ()
    own_models: Mapping[str, str] = field(default_factory=dict)
    agent: HO2Config | None = None

    def asked(self, call: RecordedCall) -> RecordedCall:
        """The call with the tags and models of the agent class. A call recorded without tags keeps none."""
        wo_type = next((each for each in TYPE_TAGS if each == call.wo_type), None)
        if self.agent is None or wo_type is None:
            return call
        chosen = model_choice(self.agent, TYPE_TAGS[wo_type])
        tags = tags_for(self.agent, wo_type) if call.domain_tags else ()
        return replace(call, provider_id=chosen.provider, model_id=chosen.model, domain_tags=tags)

    def routed(self) -> RouterConfig:
        """The settings with all providers, as the gateway uses them."""
        known = {each: ProviderConfig(kind="offline") for each in sorted({"offline", RULES_PROVIDER, *self.given})}
        return self.config.model_copy(update={"providers": {**known, **self.config.providers}})

    def built_in(self) -> frozenset[str]:
        """The providers that need no model. They cost nothing and work even if model calls are forbidden."""
        routed = self.routed().providers
        return frozenset(name for name in routed if routed[name].is_built_in and name not in self.given)


class Reroute:
    """Routes recorded calls by another router.

    Args:
        recorded: the configured router, assumed to have routed the calls
        other: the other router
    """

    def __init__(self, recorded: Router, other: Router) -> None:
        self._recorded, self._other = recorded.routed(), other.routed()
        self._asked_now = other.asked
        self._free_then, self._free_now = recorded.built_in(), other.built_in()
        self._own_models = {**recorded.own_models, **other.own_models}
        self._prices = {**recorded.config.prices, **other.config.prices}

    def of(self, call: RecordedCall) -> Rerouted:
        """One call under both routers."""
        before, after = call.choice, self.choose(call)
        costs = self._cost(call, before, self._free_then), self._cost(call, after, self._free_now)
        return Rerouted(call, before, after, *costs)

    def choose(self, call: RecordedCall) -> RouteChoice:
        """The provider that would have answered, or failed last."""
        now = self._asked_now(call)
        try:
            plan = plan_route(now.provider_id, now.model_id, now.domain_tags, self._other).candidates
        except ProviderError as error:
            return RouteChoice(error.provider_id, now.model_id or error.provider_id, "explicit", "failed", error.reason)
        passed_over, has_ended = self._taken_as_given(call)
        left, asked = list(plan), set[str]()
        while left:
            candidate = left.pop(0)
            asked.add(candidate.provider_id)
            found = self._named(candidate)
            if not self._other.allow_model_calls and candidate.provider_id not in self._free_now:
                return found._replace(failure="forbidden")
            if candidate.provider_id in passed_over:
                found = found._replace(failure="breaker_open")
                continue
            found = self._outcome_at(call, found, has_fallback=bool(left))
            if found.failure == "context_length":
                left = [each for each in plan_longer(candidate.provider_id, self._other) if each.provider_id not in asked]
            elif found.state != "failed" or found.failure not in RETRYABLE_REASONS:
                return found
            if has_ended and candidate.provider_id == call.tries[-1].provider_id:
                return found
        return found

    def _outcome_at(self, call: RecordedCall, place: RouteChoice, *, has_fallback: bool) -> RouteChoice:
        """The outcome of a call at one provider, by its recorded attempts."""
        config = self._other.providers[place.provider_id]
        tries = [each for each in call.tries if _speaks_of(each, place)]
        retries = refusals = 0
        for each in tries:
            if each.failure is None:
                return place._replace(state=call.state, failure=None)
            if each.failure == "rate_limited" and not has_fallback:
                refusals += 1
            else:
                retries += 1
            is_last = retries > config.max_retries or refusals > config.max_rate_limited
            if is_last or each.failure not in RETRYABLE_REASONS:
                return place._replace(failure=each.failure)
        if not tries or (call.state != "failed" and call.tries[-1].provider_id == place.provider_id):
            return place._replace(state="answered", failure=None, is_assumed=True)
        # A provider that failed for good on record fails again: the result of further attempts is unknown.
        return place._replace(failure=tries[-1].failure)

    def _taken_as_given(self, call: RecordedCall) -> tuple[set[str], bool]:
        """Providers that were skipped, such as those with an open circuit, and whether the last failure ended the call."""
        last = call.tries[-1]
        try:
            plan = plan_route(call.provider_id, call.model_id, call.domain_tags, self._recorded).candidates
        except ProviderError:
            return set(), last.output_begun
        ids, asked = [each.provider_id for each in plan], {each.provider_id for each in call.tries}
        if last.provider_id not in ids:
            return set(), last.output_begun
        at = ids.index(last.provider_id)
        has_ended = call.state == "failed" and (last.output_begun or at + 1 < len(ids))
        return {each for each in ids[:at] if each not in asked}, has_ended

    def _named(self, candidate: Candidate) -> RouteChoice:
        model = candidate.model_id or self._own_models.get(candidate.provider_id) or candidate.provider_id
        return RouteChoice(candidate.provider_id, model, candidate.route_reason, "failed")

    def _cost(self, call: RecordedCall, choice: RouteChoice, free: Collection[str]) -> float | None:
        """The cost of the call's tokens, in the currency of the prices; None: unknown."""
        if call.tokens is None or choice.state != "answered" or choice.provider_id in free:
            return 0.0
        price = price_of(self._prices, choice.provider_id, choice.model_id)
        return None if price is None else price.cost(*call.tokens)


def _speaks_of(tried: PastAttempt, place: RouteChoice) -> bool:
    """Whether a recorded attempt says what this provider would do with this model."""
    if tried.provider_id != place.provider_id:
        return False
    return tried.model_id == place.model_id or tried.failure in _OF_THE_PROVIDER


@dataclass(slots=True)
class RoutePair:
    """The calls with one recorded choice and one choice of the other router."""

    recorded: RouteChoice
    other: RouteChoice
    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    recorded_cost: float = 0.0
    other_cost: float = 0.0
    unpriced: int = 0
    """Calls with an unknown price under either router; neither cost includes them."""

    @property
    def is_changed(self) -> bool:
        """Whether the two choices differ."""
        return self.recorded.is_elsewhere(self.other)

    def add(self, found: Rerouted) -> None:
        """Counts one more call."""
        self.calls += 1
        if found.call.tokens is not None:
            self.input_tokens += found.call.tokens.input_tokens
            self.output_tokens += found.call.tokens.output_tokens
        if found.recorded_cost is None or found.other_cost is None:
            self.unpriced += 1
        else:
            self.recorded_cost += found.recorded_cost
            self.other_cost += found.other_cost

    def as_json(self) -> dict[str, object]:
        names = ("provider_id", "model_id", "route_reason", "state")
        sides = (("recorded", self.recorded), ("other", self.other))
        return {
            **{side: {name: getattr(choice, name) for name in names} for side, choice in sides},
            "changed": self.is_changed,
            "calls": self.calls,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "cost": {"recorded": self.recorded_cost, "other": self.other_cost, "unpriced_calls": self.unpriced},
        }


class RouteSums(TypedDict):
    """The sums over all calls, in the form that `--json` prints."""

    calls: int
    changed: int
    """Calls that another provider or model would have answered, or that would have ended otherwise."""
    assumed_to_answer: int
    """Calls that would have gone to a provider without a recorded attempt."""
    fallbacks: dict[Literal["recorded", "other", "gained", "lost"], int]
    """Calls that a fallback answered; `gained` and `lost`: under the other router only, and on record only."""
    failed: dict[Literal["recorded", "other"], int]
    cost: dict[Literal["recorded", "other", "difference", "unpriced_calls"], float]
    """In the currency of the prices. Calls without a known price are in `unpriced_calls` and in neither sum."""


class RouteSummary:
    """Adds up rerouted calls, by the route on record and the route under the other router."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[RouteChoice, RouteChoice], RoutePair] = {}
        self._counts: Counter[str] = Counter()

    def add(self, found: Rerouted) -> None:
        """The next call."""
        before, after = (each._replace(failure=None, is_assumed=False) for each in (found.recorded, found.other))
        self._pairs.setdefault((before, after), RoutePair(before, after)).add(found)
        counted = {
            "changed": found.is_changed,
            "recorded fallbacks": before.fell_back,
            "other fallbacks": after.fell_back,
            "fallbacks gained": after.fell_back and not before.fell_back,
            "fallbacks lost": before.fell_back and not after.fell_back,
            "recorded failures": before.state == "failed",
            "other failures": after.state == "failed",
            "assumed": found.other.is_assumed,
        }
        self._counts.update(name for name, holds in counted.items() if holds)

    @property
    def pairs(self) -> list[RoutePair]:
        """All pairs, ordered by recorded choice and then by the other one."""
        return [self._pairs[key] for key in sorted(self._pairs, key=lambda key: tuple(each[:4] for each in key))]

    def sums(self) -> RouteSums:
        """The sums over all calls."""
        pairs, counts = self.pairs, self._counts
        then, now = sum(pair.recorded_cost for pair in pairs), sum(pair.other_cost for pair in pairs)
        return {
            "calls": sum(pair.calls for pair in pairs),
            "changed": counts["changed"],
            "assumed_to_answer": counts["assumed"],
            "fallbacks": {
                "recorded": counts["recorded fallbacks"],
                "other": counts["other fallbacks"],
                "gained": counts["fallbacks gained"],
                "lost": counts["fallbacks lost"],
            },
            "failed": {"recorded": counts["recorded failures"], "other": counts["other failures"]},
            "cost": {
                "recorded": then,
                "other": now,
                "difference": now - then,
                "unpriced_calls": sum(pair.unpriced for pair in pairs),
            },
        }
