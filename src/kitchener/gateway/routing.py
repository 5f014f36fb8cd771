"""Chooses the provider and the model for a request: explicit, then the first routed domain tag, then the default. Pure.

It knows only names, no provider objects, retries or limits. The gateway tries the planned providers in order. Explained in
`docs/gateway.md`.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.config.settings_parser import SettingPath, dotted_key
from kitchener.config.shown import REFERENCE, address_problem, described, described_name, described_names, is_reference
from kitchener.errors import ConfigError, ProviderError
from kitchener.records.prompt import PromptRequest

URL_NOT_TAKEN = (
    "the library takes no `base_url` for {0!r}, so messages and key would go to the vendor itself;"
    " use kind 'openai_compatible' for this endpoint, or leave `base_url` out"
)
"""Error text for a `base_url` that the library would ignore; `{0}` is the model."""
FIXED_URL_VENDORS = frozenset(
    (
        "azure",
        "azure-responses",
        "cerebras",
        "cohere",
        "crusoe",
        "deepseek",
        "fireworks",
        "github",
        "litellm",
        "meta",
        "nebius",
        "openai-chatgpt",
        "openai-codex",
        "openrouter",
        "ovhcloud",
        "together",
        "vercel",
        "xai",
    )
)
"""Vendors for which the library takes no `base_url`. The list lets settings be checked without importing the library. Opening
a provider asks the library itself."""
_MODEL_NAME = re.compile(r"[A-Za-z0-9_-]+:\S+")


@dataclass(frozen=True, slots=True)
class Candidate:
    """One provider to try."""

    provider_id: str
    """The provider to try."""
    model_id: str | None
    """The model to request; None: the provider's own."""
    route_reason: str
    """`explicit`, `domain_tag:<tag>`, `default` or `fallback`."""


@dataclass(frozen=True, slots=True)
class RoutePlan:
    """The providers to try for a request."""

    candidates: tuple[Candidate, ...]
    """At least one provider, in the order of trying. All but the first are fallbacks."""


def route(request: PromptRequest, config: RouterConfig) -> RoutePlan:
    """Returns the providers to try for this request, in order.

    Raises:
        ProviderError: the request names a provider that is not configured (reason `bad_request`)
    """
    return plan_route(request.provider_id, request.model_id, request.domain_tags, config)


def plan_route(provider_id: str | None, model_id: str | None, domain_tags: tuple[str, ...], config: RouterConfig) -> RoutePlan:
    """Returns the providers to try, from the three deciding fields of a request, so that callers can cache plans.

    A model named by the request applies only to the first provider, because a fallback has its own models.

    Raises:
        ProviderError: `provider_id` is not configured (reason `bad_request`)
    """
    first = _first(provider_id, model_id, domain_tags, config)
    fallbacks = (Candidate(each, _own_model(each, config), "fallback") for each in config.fallbacks.get(first.provider_id, ()))
    return RoutePlan((first, *fallbacks))


def plan_longer(provider_id: str, config: RouterConfig) -> tuple[Candidate, ...]:
    """Returns the providers to try for a request that is longer than the context of this one, in order."""
    others = config.context_window_fallbacks.get(provider_id, ())
    return tuple(Candidate(each, _own_model(each, config), "fallback") for each in others)


def _first(provider_id: str | None, model_id: str | None, domain_tags: tuple[str, ...], config: RouterConfig) -> Candidate:
    if provider_id is not None:
        if provider_id not in config.providers:
            known = described_names(config.providers)
            raise ProviderError(provider_id, "bad_request", f"no provider of this name is configured; there are: {known}")
        return Candidate(provider_id, model_id or _own_model(provider_id, config), "explicit")
    for tag in domain_tags:
        if (by_tag := config.domain_tag_routes.get(tag)) is not None:
            model = model_id or by_tag.model_id or _own_model(by_tag.provider_id, config)
            return Candidate(by_tag.provider_id, model, f"domain_tag:{tag}")
    default = config.default_provider
    return Candidate(default, model_id or config.default_model or _own_model(default, config), "default")


def _own_model(provider_id: str, config: RouterConfig) -> str | None:
    provider = config.providers.get(provider_id)
    return provider.model if provider is not None else None


def check_router(
    config: RouterConfig, *, given: Collection[str] = (), source: str = "configuration", at: SettingPath = ("router",)
) -> None:
    """Checks what a schema cannot: that named providers exist and that each provider has the settings that its kind needs.

    Args:
        config: the router's settings
        given: ids of provider objects that the program passes in; they need no settings
        source: the file or argument to name in errors
        at: location of the router's settings in that source

    Raises:
        ConfigError: names the first wrong setting by key
    """
    known = {"offline", *config.providers, *given}
    for key, provider_id in config.named_providers():
        if provider_id not in known:
            expected = f"no such provider; there are: {described_names(known)}"
            raise ConfigError(source, f"{dotted_key(at)}.{key}" if at else key, described_name(provider_id), expected)
    for key, lists in (("fallbacks", config.fallbacks), ("context_window_fallbacks", config.context_window_fallbacks)):
        _check_fallbacks(lists, source, (*at, key))
    for provider_id, provider in config.providers.items():
        if provider_id not in given:
            _check_provider(provider, source, (*at, "providers", provider_id))
    _check_models(config, given, source, at)


def _check_fallbacks(lists: Mapping[str, tuple[str, ...]], source: str, at: SettingPath) -> None:
    for provider_id, others in lists.items():
        for number, other in enumerate(others):
            key = dotted_key((*at, provider_id, number))
            if other == provider_id:
                raise ConfigError(source, key, described_name(other), "a provider cannot be its own fallback")
            if other in others[:number]:
                raise ConfigError(source, key, described_name(other), "is in this list twice")


def _check_provider(provider: ProviderConfig, source: str, at: SettingPath) -> None:
    if provider.api_key is not None and not is_reference(provider.api_key):
        # The value is not shown, because it is probably the key itself.
        raise ConfigError(source, dotted_key((*at, "api_key")), "", REFERENCE)
    if provider.base_url is not None and (problem := address_problem(provider.base_url)) is not None:
        raise ConfigError(source, dotted_key((*at, "base_url")), "", problem)
    if provider.kind == "openai_compatible" and provider.base_url is None:
        expected = "kind 'openai_compatible' needs the root of its endpoint, e.g. `http://127.0.0.1:8080/v1`"
        raise ConfigError(source, dotted_key((*at, "base_url")), "", expected)
    if provider.kind == "model" and not _MODEL_NAME.fullmatch(provider.model or ""):
        expected = "kind 'model' needs `vendor:model`, e.g. `anthropic:claude-sonnet-4-6`"
        raise ConfigError(source, dotted_key((*at, "model")), described(provider.model), expected)
    if provider.send_traceparent and provider.kind != "openai_compatible":
        raise ConfigError(source, dotted_key((*at, "send_traceparent")), "true", "only kind 'openai_compatible' can send it")
    vendor = (provider.model or "").partition(":")[0]
    if provider.kind == "model" and provider.base_url is not None and vendor in FIXED_URL_VENDORS:
        raise ConfigError(source, dotted_key((*at, "base_url")), "", URL_NOT_TAKEN.format(provider.model))


def _check_models(config: RouterConfig, given: Collection[str], source: str, at: SettingPath) -> None:
    """Checks that each route to an OpenAI-compatible provider has a model. Otherwise its first request would fail."""
    ways: list[tuple[SettingPath, str, str | None]] = [(("default_provider",), config.default_provider, config.default_model)]
    ways += [(("domain_tag_routes", tag), by.provider_id, by.model_id) for tag, by in config.domain_tag_routes.items()]
    for key, lists in (("fallbacks", config.fallbacks), ("context_window_fallbacks", config.context_window_fallbacks)):
        ways += [((key, first), other, None) for first, others in lists.items() for other in others]
    for way, provider_id, model_id in ways:
        provider = config.providers.get(provider_id)
        if provider is None or provider_id in given or provider.kind != "openai_compatible":
            continue
        if provider.model is None and model_id is None:
            expected = f"must name a model, because `{dotted_key((*at, *way))}` leads here without one"
            raise ConfigError(source, dotted_key((*at, "providers", provider_id, "model")), "", expected)
