"""Calls real model providers through one multi-provider library (the extra `models`).

Requests and answers have Kitchener's own types. `model_messages.py` and `model_errors.py` convert the library's types and
errors. One attempt is one HTTP request; the gateway retries, because it records each attempt. Importing this module imports
the library, which takes a second, so `factory.py` imports it only if it is needed. Explained in `docs/gateway.md`.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from inspect import signature
from typing import Any, Literal, cast
from urllib.parse import urlsplit

import anyio
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import Model, StreamedResponse, infer_model
from pydantic_ai.providers import Provider as VendorProvider
from pydantic_ai.providers import infer_provider_class
from pydantic_ai.settings import ModelSettings

from kitchener.config import ProviderConfig
from kitchener.config.settings_parser import dotted_key
from kitchener.config.shown import described
from kitchener.errors import ConfigError, ProviderError
from kitchener.errors.root import CONFIGURATION
from kitchener.gateway.providers.authorities import read_authorities, read_client_certificate
from kitchener.gateway.providers.chat_completions.chat_endpoint import is_of_openai
from kitchener.gateway.providers.endpoint_errors import Hiding
from kitchener.gateway.providers.impossible_counts import CountCheck
from kitchener.gateway.providers.library.http_client import HttpConnection, open_former_http_client, open_http_client
from kitchener.gateway.providers.library.model_errors import VENDOR_ERRORS, translated
from kitchener.gateway.providers.library.model_messages import (
    check_stream_part,
    event_text,
    parameters_for,
    response_from,
    told_usage,
    vendor_messages,
)
from kitchener.gateway.providers.library.vendors import (
    ASYNCIO_ONLY_VENDORS,
    FORMER_HTTPX_VENDORS,
    OPENAI_VENDORS,
    OWN_CLIENT_VENDORS,
    VENDORS_WITH_CONTENT,
    unbounded_vendor,
    unknown_vendor,
)
from kitchener.gateway.providers.proxies import chosen_proxy
from kitchener.gateway.providers.redaction import RedactedPieces, Redaction
from kitchener.gateway.routing import URL_NOT_TAKEN
from kitchener.gateway.traits import ALL_CONTENT, TEXT_FILES, ProviderTraits
from kitchener.plain_names import cut_to
from kitchener.records.prompt import ANY_TOOL_CHOICE, NO_TOOL_CHOICE, PromptRequest, PromptResponse, TextPiece

REMEMBERED_MODELS = 64
Caching = Literal["marks", "key"]
"""How requests tell a provider's cache what to keep: by marks in the conversation, or by the session as a key."""

_NOT_TAKEN = {
    "base_url": URL_NOT_TAKEN,
    "api_key": "the library takes no API key for {0!r}; leave `api_key` out and set what the vendor documents",
}


class ModelProvider:
    """One configured endpoint. `open_model_provider` opens it and closes it at the end of its block.

    Args:
        provider_id: the provider's id in the configuration, for responses and errors
        build: returns the library's model for a model name
        model_id: the model of requests that name none; None: such requests fail
        settings: the settings of every request
        redaction: removes the API keys from answers and error texts
        media_types: the types of images and files that its models take
        caching: how requests tell the provider's cache what to keep; None: they do not
        proxy: the proxy's address, for errors; `env`: the one that the environment names, None: there is none
    """

    def __init__(
        self,
        provider_id: str,
        build: Callable[[str], Model],
        *,
        model_id: str | None,
        settings: ModelSettings,
        redaction: Redaction,
        media_types: tuple[str, ...] = ("text/*",),
        caching: Caching | None = None,
        proxy: str | None = "env",
    ) -> None:
        self._provider_id, self._build, self._model_id = provider_id, build, model_id
        self._settings, self._redaction, self._caching = settings, redaction, caching
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._proxy = proxy
        self.traits = ProviderTraits(model_id=model_id, media_types=media_types)
        if model_id is not None:
            self._model(model_id)  # imports the vendor's package now instead of in the first turn

    def __repr__(self) -> str:
        return f"ModelProvider({self._provider_id!r}, model_id={self._model_id!r})"

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """Returns the answer to one HTTP request. Does not retry.

        Raises:
            ProviderError: there was no usable answer
        """
        asked = request.model_id or self._model_id
        answer: ModelResponse | None = None
        try:
            model = self._model(asked)
            answer = await model_request(
                model,
                vendor_messages(request.messages, marks_history=self._caching == "marks"),
                model_settings=self._settings_for(request, model),
                model_request_parameters=parameters_for(request, model),
                instrument=False,  # whatever the program says of its own agents: those spans have content
            )
            return response_from(answer, request, self._provider_id, asked or "", self._redaction)
        except VENDOR_ERRORS as error:
            with Hiding(error, self._redaction) as cause:
                raise self._failure(error, answer) from cause

    async def stream(self, request: PromptRequest) -> AsyncGenerator[TextPiece | PromptResponse, None]:
        """Yields the text of the answer to one HTTP request in pieces, then the whole response.

        Raises:
            ProviderError: there was no usable answer, or it was cut off
        """
        asked, pieces = request.model_id or self._model_id, RedactedPieces(self._redaction)
        events: StreamedResponse | None = None
        try:
            model = self._model(asked)
            async with model_request_stream(
                model,
                vendor_messages(request.messages, marks_history=self._caching == "marks"),
                model_settings=self._settings_for(request, model),
                model_request_parameters=parameters_for(request, model),
                instrument=False,
            ) as events:
                async for event in events:
                    check_stream_part(event)
                    if text := pieces.take(event_text(event)):
                        yield TextPiece(1, text)
                answer = events.get()
            if text := pieces.rest():
                yield TextPiece(1, text)
            yield response_from(answer, request, self._provider_id, asked or "", self._redaction)
        except VENDOR_ERRORS as error:
            with Hiding(error, self._redaction) as cause:
                raise self._failure(error, events.get() if events is not None else None) from cause

    def _failure(self, error: Exception, answer: ModelResponse | None) -> ProviderError:
        """An error as our own, with the tokens of an answer that came, or began."""
        failure = translated(error, self._provider_id, self._redaction, self._proxy)
        failure.usage = told_usage(answer) if answer is not None else None
        return failure

    def _model(self, name: str | None) -> Model:
        if name is None:
            raise ProviderError(self._provider_id, "bad_request", "neither the request nor the configuration names a model")
        model = self._models.get(name)
        if model is None:
            if len(self._models) >= REMEMBERED_MODELS:
                self._models.popitem(last=False)
            model = self._models[name] = self._build(name)
        return model

    def _settings_for(self, request: PromptRequest, model: Model) -> ModelSettings:
        asked: ModelSettings = {**self._settings, "max_tokens": request.max_tokens}
        if takes_temperature(model):
            asked["temperature"] = request.temperature
        if request.tool_choice is not None and request.tools:
            asked["tool_choice"] = _tool_choice(request.tool_choice)
        if self._caching == "key":
            return cast(ModelSettings, {**asked, "openai_prompt_cache_key": request.session_id})
        if self._caching == "marks":
            # After the results of tools the next call continues, so that it begins with all of this one.
            goes_on = request.messages[-1].role == "tool"
            return cast(ModelSettings, {**asked, "anthropic_cache_instructions": True, "anthropic_cache_messages": goes_on})
        return asked


def _tool_choice(choice: str) -> Literal["none", "required"] | list[str]:
    if choice == NO_TOOL_CHOICE:
        return "none"
    return "required" if choice == ANY_TOOL_CHOICE else [choice]


def takes_temperature(model: Model) -> bool:
    """Whether a model takes a temperature while it thinks as much as it does unasked.

    The library leaves it out for a model that takes none, but warns each time, and a program may treat warnings as errors.
    """
    known: Mapping[str, object] = {**model.profile}
    if known.get("anthropic_disallows_sampling_settings"):
        return False
    if not known.get("openai_supports_reasoning"):
        return True
    efforts = known.get("openai_reasoning_efforts")
    can_stop = "none" in efforts if isinstance(efforts, Collection) else known.get("openai_supports_reasoning_effort_none")
    return bool(can_stop) and not known.get("thinking_enabled_by_default")


@asynccontextmanager
async def open_model_provider(
    provider_id: str, config: ProviderConfig, secret: str | None, proxy: str | None = None
) -> AsyncIterator[ModelProvider]:
    """Opens a provider with an HTTP client of its own for the block, and yields it.

    Args:
        provider_id: the provider's id in the configuration
        config: the provider's settings, of kind `model`
        secret: the API key; None: that of the vendor's environment variable
        proxy: the address to which `proxy` refers; None: it is no reference

    Raises:
        ConfigError: the vendor is unknown, the key is missing, or the vendor's library works neither on this event loop nor
            with an HTTP client that bounds answers
        ImportError: the vendor's package is not installed
    """
    async with AsyncExitStack() as stack:
        yield await _open_vendor(stack, provider_id, config, secret, proxy)


async def _open_vendor(
    stack: AsyncExitStack, provider_id: str, config: ProviderConfig, secret: str | None, referred: str | None
) -> ModelProvider:
    at = ("router", "providers", provider_id)
    vendor_name, _, model_name = (config.model or "").partition(":")
    if vendor_name in OWN_CLIENT_VENDORS:
        raise unbounded_vendor(vendor_name, config.model, at)
    if vendor_name in ASYNCIO_ONLY_VENDORS and anyio.get_cancelled_exc_class().__module__.startswith("trio"):
        expected = f"the client library of {vendor_name!r} works on asyncio only, and this program runs on trio"
        raise ConfigError(CONFIGURATION, dotted_key((*at, "model")), described(config.model), expected)
    try:
        vendor_class = infer_provider_class(vendor_name)
    except ValueError:
        raise unknown_vendor(vendor_name, config.model, at) from None
    if "http_client" not in signature(vendor_class.__init__).parameters:
        raise unbounded_vendor(vendor_name, config.model, at)
    redaction = Redaction(secret)
    proxy = None if config.proxy == "env" else chosen_proxy(provider_id, config, referred, redaction)
    connection = HttpConnection(read_authorities(provider_id, config), read_client_certificate(provider_id, config), proxy)
    client = (open_former_http_client if vendor_name in FORMER_HTTPX_VENDORS else open_http_client)(
        config, redaction, CountCheck(provider_id), connection
    )
    vendor = _vendor(vendor_class, config, at, {"api_key": secret, "base_url": config.base_url, "http_client": client})
    await stack.enter_async_context(client)
    await stack.enter_async_context(vendor)

    def build(name: str) -> Model:
        return infer_model(f"{vendor_name}:{name.removeprefix(f'{vendor_name}:')}", lambda _: vendor)

    settings: ModelSettings = {"max_retries": 0, "timeout": config.timeout_s}
    try:
        takes = ALL_CONTENT if vendor_name in VENDORS_WITH_CONTENT else TEXT_FILES
        return ModelProvider(
            provider_id,
            build,
            model_id=model_name,
            settings=settings,
            redaction=redaction,
            media_types=takes,
            proxy="env" if config.proxy == "env" else proxy,
            caching=_caching(vendor_name, config),
        )
    except (UserError, ValueError, TypeError) as error:
        expected = f"the vendor's library refuses this model: {cut_to(redaction.text(str(error)), 300)}"
        with Hiding(error, redaction) as cause:
            raise ConfigError(CONFIGURATION, dotted_key((*at, "model")), described(config.model), expected) from cause


def _caching(vendor_name: str, config: ProviderConfig) -> Caching | None:
    if config.prompt_cache == "off":
        return None
    if vendor_name == "anthropic":
        return "marks"
    is_elsewhere = config.base_url is not None and not is_of_openai(config.base_url)
    return "key" if vendor_name in OPENAI_VENDORS and (config.prompt_cache == "on" or not is_elsewhere) else None


def _vendor(
    vendor_class: type[VendorProvider[Any]], config: ProviderConfig, at: tuple[str, ...], wanted: dict[str, Any]
) -> VendorProvider[Any]:
    """Returns the library's object for a vendor. Refuses settings that the library would ignore."""
    accepted = signature(vendor_class.__init__).parameters
    given = {name: value for name, value in wanted.items() if value is not None}
    for name in ("base_url", "api_key"):
        if name in given and name not in accepted:
            raise ConfigError(CONFIGURATION, dotted_key((*at, name)), "", _NOT_TAKEN[name].format(config.model))
    try:
        vendor = vendor_class(**{name: value for name, value in given.items() if name in accepted})
    except (UserError, ValueError, TypeError) as error:
        redaction = Redaction(wanted["api_key"])
        told = cut_to(redaction.text(str(error)), 300)
        expected = f"set it to a reference, such as `env:NAME`, or set what the vendor's library asks for: {told}"
        with Hiding(error, redaction) as cause:
            raise ConfigError(CONFIGURATION, dotted_key((*at, "api_key")), "", expected) from cause
    if config.base_url is not None and _host(str(vendor.base_url)) != _host(config.base_url):
        raise ConfigError(CONFIGURATION, dotted_key((*at, "base_url")), "", _NOT_TAKEN["base_url"].format(config.model))
    return vendor


def _host(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc.lower()
