"""The settings of `[router]`: which provider answers which request, at which address, within which limits, at what price."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, Self, assert_never

from pydantic import Field, model_validator

from kitchener.config.request_fields import (
    Effort,
    ExtraBody,
    Seed,
    SentHeaders,
    SentQuery,
    StopTexts,
    Temperature,
    TopP,
)
from kitchener.config.settings_parser import Name, Positive, Seconds, Settings, dotted_key, parse_settings, read_settings_file
from kitchener.config.shown import address_problem, described_name, described_names, is_reference
from kitchener.errors import ConfigError
from kitchener.media.media_types import MediaPattern

_MILLION: Final = 1_000_000
_FIELDS: Final = ("temperature", "top_p", "seed", "stop", "reasoning_effort")
"""Settings of a provider that are sent under their own name."""
PROXY_FORMS: Final = (
    "expected `env`, `none`, the address of an HTTP proxy, such as `http://proxy.example:3128`, or, for one with a password, a"
    " reference to it, `env:NAME` or `file:/path`"
)
"""The expectation in errors about `proxy`."""
Price = Annotated[float, Field(ge=0, allow_inf_nan=False)]
ProviderKind = Literal["offline", "openai_compatible", "model"]


class ProviderConfig(Settings):
    """`[router.providers.<id>]`: an endpoint or a library that answers model calls."""

    gone_keys: ClassVar[Mapping[str, str]] = {
        "max_rate_limited": "was removed: a call that is refused with 429 makes five times `max_retries` further attempts",
    }

    kind: ProviderKind = "openai_compatible"
    """`offline`: the built-in rule-based model. `openai_compatible`: any server with a /chat/completions endpoint.
    `model`: a vendor of the multi-provider library, named in `model`, such as `anthropic:claude-sonnet-4-6`."""
    model: Name | None = None
    """Model to ask for where neither the request nor its route names one."""
    base_url: str | None = None
    """Root of an OpenAI-compatible endpoint, such as `http://127.0.0.1:8080/v1`."""
    api_key: str | None = None
    """Reference to the key, never the key itself: `env:OPENAI_API_KEY` or `file:/run/secrets/key`. None: no key is sent."""
    ca_file: str | None = None
    """PEM file of certificate authorities to trust beside the system's, for an endpoint with a private certificate. None: only
    the system's."""
    client_cert: str | None = None
    """PEM file with the certificate by which the endpoint knows this program (mutual TLS), and those between it and its
    authority. None: none is shown."""
    client_key: str | None = None
    """PEM file with the private key of `client_cert`, not encrypted. None: it is in the file of the certificate."""
    proxy: str = "env"
    """The HTTP proxy for this provider. `env`: the one that the environment names, if any (`HTTPS_PROXY`, `HTTP_PROXY`,
    `ALL_PROXY`, `NO_PROXY`). `none`: no proxy, whatever the environment names. Otherwise its address, or a reference to it,
    `env:NAME` or `file:/path`, if it has a password."""
    media_types: tuple[MediaPattern, ...] | None = None
    """Types of images and files that the model takes, such as `image/*`, `application/pdf` or `text/*`. None: what is known of
    the provider: of OpenAI, Anthropic and Google all three, of other vendors and endpoints `text/*`, of `offline` none."""
    prompt_cache: Literal["auto", "on", "marks", "off"] = "auto"
    """Whether requests tell the provider's prompt cache what to keep. `auto`: OpenAI gets the session as `prompt_cache_key`,
    and Anthropic, also by kind `openai_compatible` through OpenRouter, gets marks after the system message and the history.
    `on`: other endpoints of OpenAI's format get the key too. `marks`: they get the marks, for a gateway to Anthropic or another
    vendor that needs them. `off`: none. Most other providers cache without being told."""
    send_traceparent: bool = False
    """Whether requests of `kind = "openai_compatible"` name the span of their attempt in `traceparent`, so that the spans of
    the endpoint belong to the trace of the turn. Needs `[telemetry]`. It tells the endpoint which calls belong together."""
    temperature: Temperature | None = None
    """Sampling temperature of every request to this provider, 0 to 2, for models that work at one only. It takes precedence
    over those of agent classes, contracts and retries. None: theirs."""
    top_p: TopP | None = None
    """Share of the probability that the model samples from, above 0 and up to 1. None: not sent."""
    seed: Seed | None = None
    """Seed of the sampling, where the endpoint takes one. None: not sent."""
    stop: StopTexts = ()
    """Texts at which the model stops. Empty: not sent."""
    reasoning_effort: Effort | None = None
    """How much a model thinks before it answers, in the endpoint's words, such as `none`, `low` or `high`. None: not sent."""
    extra_body: ExtraBody = Field(default_factory=dict)
    """Further fields of every request's body, such as `top_k`, `chat_template_kwargs` or OpenRouter's `provider`. They are
    recorded, so they are no place for secrets. Fields that Kitchener writes itself are refused."""
    headers: SentHeaders = Field(default_factory=dict)
    """Further headers of every request: a text, or a reference to a secret, `env:NAME` or `file:/path`. A header whose name
    speaks of a key, a token or the like takes a reference only."""
    query: SentQuery = Field(default_factory=dict)
    """Parameters behind the address of every request, such as Azure's `api-version`. Values are as in `headers`."""
    thinking_tokens: Annotated[int, Field(ge=0, le=1_000_000)] = 8_192
    """Output tokens for the thoughts of a model that thinks, beside the `max_tokens` of a call, which are for its answer. Its
    answers show whether a model thinks. 0: none, so that thoughts and answer share `max_tokens`."""
    max_concurrency: Positive = 64
    """Calls in flight at this provider. Further calls wait, in a fair order of subjects."""
    requests_per_minute: Positive | None = None
    """Calls that may start within a minute; further calls wait. None: no limit."""
    tokens_per_minute: Positive | None = None
    """Estimated input tokens plus reserved output tokens of the calls that start within a minute. None: no limit."""
    timeout_s: Seconds = 60.0
    """Longest single attempt, seconds. The deadline of the turn may cut it shorter."""
    max_response_bytes: Annotated[int, Field(ge=1_024, le=1_073_741_824)] = 16 * 1_048_576
    """Longest answer, bytes after decompression. A longer one fails as malformed and its connection is closed. A streamed
    answer takes about 300 bytes for each token."""
    max_retries: Annotated[int, Field(ge=0, le=20)] = 2
    """Further attempts after a failure that may pass: 5xx, connection, timeout, malformed answer; and 429 if the call has a
    fallback. Without a fallback, a call that is refused with 429 makes five times as many, at the pace that the provider lets
    through; they do not count among the others."""
    backoff_initial_s: Seconds = 0.5
    """Longest wait before the first retry, seconds. It doubles with each retry; the wait is random below it. `Retry-After`
    sets the least."""
    backoff_max_s: Seconds = 20.0
    """Longest wait before any retry, seconds."""
    breaker_failures: Positive = 5
    """Failures in a row after which calls fail at once, because the provider is probably down."""
    breaker_reset_s: Seconds = 30.0
    """How long calls fail at once before one call may try again, seconds."""

    @property
    def max_rate_limited(self) -> int:
        """Further attempts of a call that is refused with 429 and has no fallback."""
        return 5 * self.max_retries

    @property
    def is_built_in(self) -> bool:
        """Whether it answers in this process without a model: it needs no network, costs nothing and is always allowed."""
        match self.kind:
            case "offline":
                return True
            case "openai_compatible" | "model":
                return False
            case _:
                assert_never(self.kind)

    @property
    def is_endpoint(self) -> bool:
        """Whether it is an endpoint in OpenAI's format, at `base_url`, that gets the fields and headers of these settings."""
        match self.kind:
            case "openai_compatible":
                return True
            case "offline" | "model":
                return False
            case _:
                assert_never(self.kind)

    @property
    def is_vendor(self) -> bool:
        """Whether `model` is `vendor:model`, which the multi-provider library calls."""
        match self.kind:
            case "model":
                return True
            case "offline" | "openai_compatible":
                return False
            case _:
                assert_never(self.kind)

    @property
    def request_fields(self) -> dict[str, object]:
        """The fields of the body that these settings add to every request."""
        set_here = {name: value for name in _FIELDS if (value := getattr(self, name)) not in (None, ())}
        return {name: list(each) if name == "stop" else each for name, each in set_here.items()} | self.extra_body

    @model_validator(mode="after")
    def _check_connection(self) -> Self:
        if self.proxy not in ("env", "none") and not is_reference(self.proxy) and address_problem(self.proxy) is not None:
            raise ValueError(f"proxy: {PROXY_FORMS}")
        if self.client_key is not None and self.client_cert is None:
            raise ValueError("client_key: set `client_cert`, too: the file of its certificate")
        if self.client_cert is not None and (self.base_url or "").lower().startswith("http://"):
            raise ValueError("client_cert: only an address that begins with https:// can ask for it")
        if self.is_built_in and (self.client_cert is not None or self.proxy != "env"):
            raise ValueError(f"client_cert, proxy: kind {self.kind!r} calls no endpoint")
        return self

    @model_validator(mode="after")
    def _check_sent(self) -> Self:
        if not self.is_endpoint:
            for name in (*_FIELDS, "extra_body", "headers", "query"):
                if getattr(self, name) not in (None, (), {}):
                    raise ValueError(f"{name}: only kind 'openai_compatible' sends it; most vendors have such an endpoint")
        if self.api_key is not None and any(name.lower() == "authorization" for name in self.headers):
            raise ValueError("headers: `api_key` is sent as `Authorization`; leave out one of the two")
        return self


class Route(Settings):
    """`[router.domain_tag_routes.<tag>]`: the provider and model of requests with this tag."""

    provider_id: Name
    """A provider of `[router.providers]`."""
    model_id: Name | None = None
    """Model to ask for where the request names none. None: the provider's own."""


class ModelPrice(Settings):
    """`[router.prices."<model>"]` or `[router.prices."<provider>/<model>"]`: what a model's tokens cost, in the one currency of
    all prices."""

    input_per_million: Price
    """Price of a million input tokens."""
    output_per_million: Price
    """Price of a million output tokens."""
    cached_per_million: Price | None = None
    """Price of a million input tokens that came from the provider's cache. None: `input_per_million`."""
    cache_write_per_million: Price | None = None
    """Price of a million input tokens that the provider wrote to its cache. None: `input_per_million`."""

    def cost(self, input_tokens: int, output_tokens: int, cached_tokens: int, cache_write_tokens: int) -> float:
        """What tokens cost; cached ones and those written to the cache are among `input_tokens`."""
        per_input = self.input_per_million
        per_read = per_input if self.cached_per_million is None else self.cached_per_million
        per_write = per_input if self.cache_write_per_million is None else self.cache_write_per_million
        cached = min(cached_tokens, input_tokens)
        written = min(cache_write_tokens, input_tokens - cached)
        cost = (input_tokens - cached - written) * per_input + cached * per_read + written * per_write
        return (cost + output_tokens * self.output_per_million) / _MILLION


def price_of(prices: Mapping[str, ModelPrice], provider_id: str, model_id: str) -> ModelPrice | None:
    """Returns the price of a model at a provider, else the model's price at any provider; None: it is unknown."""
    return prices.get(f"{provider_id}/{model_id}") or prices.get(model_id)


class RouterConfig(Settings):
    """`[router]`: which provider answers which request. Explicit request, then first matching domain tag, then default."""

    default_provider: Name = "offline"
    """Provider of requests that neither name one nor carry a routed tag. `offline` needs no network and no key."""
    default_model: Name | None = None
    """Model of requests that take the default route and name none. None: the provider's own."""
    providers: dict[Name, ProviderConfig] = Field(default_factory=lambda: {"offline": ProviderConfig(kind="offline")})
    """The providers by id. `offline` is always there."""
    domain_tag_routes: dict[Name, Route] = Field(default_factory=dict)
    """Route of each domain tag. Each work order carries the `domain_tags` of its agent class and the tag of its type:
    `classification`, `synthesis`, `verification`, `consolidation` or `tool`."""
    fallbacks: dict[Name, tuple[Name, ...]] = Field(default_factory=dict)
    """Providers to ask in order after one has used up its retries. A caller's error never falls back."""
    context_window_fallbacks: dict[Name, tuple[Name, ...]] = Field(default_factory=dict)
    """Providers to ask in order for a request that is longer than the context of the first one. Without them, such a request
    fails."""
    prices: dict[Name, ModelPrice] = Field(default_factory=dict)
    """Prices of models by the name under which they are asked for, or by `<provider>/<model>` where a model has another price
    at one provider. They decide only what `[spending]` limits. The built-in model is free."""
    allow_model_calls: bool = True
    """Whether providers that are not built in may be called. Turn it off in test suites."""

    @classmethod
    def from_config_file(cls, path: str | Path, *, given: Collection[str] = ()) -> "RouterConfig":
        """The router's settings out of a JSON or TOML file of their own.

        Args:
            path: a `.json` file; any other name is read as TOML
            given: ids of provider objects that the program itself passes in; routes may name them

        Raises:
            ConfigError: the file cannot be read, a key is unknown, a value is not allowed, or a route names no provider
        """
        router = parse_settings(cls, read_settings_file(path), str(path))
        known = {"offline", *router.providers, *given}
        for key, provider_id in router.named_providers():
            if provider_id not in known:
                there_are = f"no such provider; there are: {described_names(known)}"
                raise ConfigError(str(path), key, described_name(provider_id), there_are)
        return router

    @property
    def request_fields(self) -> dict[str, dict[str, object]]:
        """The fields that providers' settings add to their requests, by provider. Providers without any are left out."""
        return {each: fields for each, config in self.providers.items() if (fields := config.request_fields)}

    def named_providers(self) -> Iterator[tuple[str, str]]:
        """Every mention of a provider outside `providers`: the key where it stands, and the id."""
        yield "default_provider", self.default_provider
        for tag, route in self.domain_tag_routes.items():
            yield dotted_key(("domain_tag_routes", tag, "provider_id")), route.provider_id
        for key, lists in (("fallbacks", self.fallbacks), ("context_window_fallbacks", self.context_window_fallbacks)):
            for provider_id, others in lists.items():
                yield dotted_key((key, provider_id)), provider_id
                for number, other in enumerate(others):
                    yield dotted_key((key, provider_id, number)), other
