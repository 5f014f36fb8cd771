"""Every real provider, through one multi-provider library (the extra `models`).

Requests go out and answers come back in our own types; the library's types, errors and retries end here, in
`model_messages.py` and `model_errors.py`. One attempt is one HTTP request: trying again is the gateway's business, because
there it is on record. This module imports the library, which takes a second: `opening.py` imports it when it is needed.
Explained in `docs/gateway.md`.
"""

from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from inspect import signature
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
from openai import AsyncOpenAI
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider as VendorProvider
from pydantic_ai.providers import infer_provider_class
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

from kitchener.config import ProviderConfig, dotted_key
from kitchener.errors import ConfigError, ProviderError
from kitchener.gateway.providers.model_errors import VENDOR_ERRORS, hide, translated
from kitchener.gateway.providers.model_messages import parameters_for, response_from, text_of, vendor_messages
from kitchener.gateway.traits import Traits
from kitchener.records.prompt import PromptRequest, PromptResponse, TextPiece

CONNECT_TIMEOUT_S = 10.0
REMEMBERED_MODELS = 64
ASYNCIO_ONLY_VENDORS = frozenset(("bedrock", "bedrock-mantle", "cohere", "huggingface", "mistral", "xai"))
"""Vendors whose own client needs asyncio; under trio they are refused when they are opened."""
OPENAI_HOSTS = ("api.openai.com", "openai.azure.com")

_SOURCE = "configuration"


class ModelProvider:
    """One configured endpoint. Made by `open_model_provider`, usable until its block is left.

    Args:
        provider_id: its name in the configuration, for responses and errors
        build: makes the library's model for a model name
        model_id: what to ask for where a request names nothing
        settings: settings of every request
        secret: the API key, only to keep it out of error texts
    """

    def __init__(
        self,
        provider_id: str,
        build: Callable[[str], Model],
        *,
        model_id: str | None,
        settings: ModelSettings,
        secret: str | None,
    ) -> None:
        self._provider_id, self._build, self._model_id = provider_id, build, model_id
        self._settings, self._secret = settings, secret
        self._models: OrderedDict[str, Model] = OrderedDict()
        self.traits = Traits(model_id=model_id)
        if model_id is not None:
            self._model(model_id)  # imports the vendor's package now rather than in the first turn

    def __repr__(self) -> str:
        return f"ModelProvider({self._provider_id!r}, model_id={self._model_id!r})"

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """One HTTP request, no retries.

        Raises:
            ProviderError: there was no usable answer
        """
        try:
            model = self._model(request.model_id or self._model_id)
            answer = await model_request(
                model,
                vendor_messages(request.messages),
                model_settings=self._settings_for(request),
                model_request_parameters=parameters_for(request, model),
            )
            return response_from(answer, request, self._provider_id)
        except VENDOR_ERRORS as error:
            failure = translated(error, self._provider_id, self._secret)
            raise failure from hide(error, self._secret)

    async def stream(self, request: PromptRequest) -> AsyncGenerator[TextPiece | PromptResponse, None]:
        """One HTTP request whose text comes in pieces; then the whole response.

        Raises:
            ProviderError: there was no usable answer, or it broke off
        """
        try:
            model = self._model(request.model_id or self._model_id)
            async with model_request_stream(
                model,
                vendor_messages(request.messages),
                model_settings=self._settings_for(request),
                model_request_parameters=parameters_for(request, model),
            ) as events:
                async for event in events:
                    if text := text_of(event):
                        yield TextPiece(1, text)
                answer = events.get()
            yield response_from(answer, request, self._provider_id)
        except VENDOR_ERRORS as error:
            failure = translated(error, self._provider_id, self._secret)
            raise failure from hide(error, self._secret)

    def _model(self, name: str | None) -> Model:
        if name is None:
            raise ProviderError(self._provider_id, "bad_request", "neither the request nor the configuration names a model")
        model = self._models.get(name)
        if model is None:
            if len(self._models) >= REMEMBERED_MODELS:
                self._models.popitem(last=False)
            model = self._models[name] = self._build(name)
        return model

    def _settings_for(self, request: PromptRequest) -> ModelSettings:
        return {**self._settings, "max_tokens": request.max_tokens, "temperature": request.temperature}


@asynccontextmanager
async def open_model_provider(provider_id: str, config: ProviderConfig, secret: str | None) -> AsyncIterator[ModelProvider]:
    """A provider with an HTTP client of its own, which is closed when the block is left.

    Args:
        provider_id: its name in the configuration
        config: its settings, of kind `openai_compatible` or `model`
        secret: its API key; None: no key is sent (`openai_compatible`), or the vendor's own environment variable (`model`)

    Raises:
        ConfigError: no such vendor, a missing key, or a vendor that does not work on this event loop
        ImportError: the vendor's package is not installed
    """
    async with AsyncExitStack() as stack:
        if config.kind == "openai_compatible":
            yield await _open_endpoint(stack, provider_id, config, secret)
        else:
            yield await _open_vendor(stack, provider_id, config, secret)


async def _open_endpoint(stack: AsyncExitStack, provider_id: str, config: ProviderConfig, secret: str | None) -> ModelProvider:
    withheld = ("OpenAI-Organization", "OpenAI-Project", *(() if secret else ("Authorization",)))

    async def withhold(outgoing: httpx2.Request) -> None:
        # The library takes these from the environment or makes them up; this endpoint is not meant to have them.
        for name in withheld:
            outgoing.headers.pop(name, None)

    http_client = await stack.enter_async_context(
        httpx2.AsyncClient(
            event_hooks={"request": [withhold]},
            timeout=httpx2.Timeout(config.timeout_s, connect=min(CONNECT_TIMEOUT_S, config.timeout_s)),
            limits=httpx2.Limits(max_connections=config.max_concurrency, max_keepalive_connections=config.max_concurrency),
        )
    )
    # The key is never empty, or the library would look for one in the environment.
    client = AsyncOpenAI(base_url=config.base_url, api_key=secret or "no-key", http_client=http_client, max_retries=0)
    host = urlsplit(config.base_url or "").hostname or ""
    profile = OpenAIModelProfile(
        # Only OpenAI itself insists on the newer field; many others know the older one alone.
        openai_chat_supports_max_completion_tokens=host.endswith(OPENAI_HOSTS),
        # Without it a reply that was cut off between two pieces would pass for a whole one.
        openai_chat_streaming_requires_finish_reason=True,
    )
    vendor = OpenAIProvider(openai_client=client)

    def build(name: str) -> Model:
        return OpenAIChatModel(name, provider=vendor, profile=profile)

    return ModelProvider(provider_id, build, model_id=config.model, settings={}, secret=secret)


async def _open_vendor(stack: AsyncExitStack, provider_id: str, config: ProviderConfig, secret: str | None) -> ModelProvider:
    at = ("router", "providers", provider_id)
    vendor_name, _, model_name = (config.model or "").partition(":")
    if vendor_name in ASYNCIO_ONLY_VENDORS and anyio.get_cancelled_exc_class().__module__.startswith("trio"):
        expected = f"the client library of {vendor_name!r} works on asyncio only, and this program runs on trio"
        raise ConfigError(_SOURCE, dotted_key((*at, "model")), repr(config.model), expected)
    try:
        vendor_class = infer_provider_class(vendor_name)
    except ValueError:
        expected = f"the library knows no vendor {vendor_name!r}"
        raise ConfigError(_SOURCE, dotted_key((*at, "model")), repr(config.model), expected) from None
    vendor = _vendor(vendor_class, config, secret, dotted_key((*at, "api_key")))
    await stack.enter_async_context(vendor)

    def build(name: str) -> Model:
        return infer_model(f"{vendor_name}:{name.removeprefix(f'{vendor_name}:')}", lambda _: vendor)

    settings: ModelSettings = {"max_retries": 0, "timeout": config.timeout_s}
    return ModelProvider(provider_id, build, model_id=model_name, settings=settings, secret=secret)


def _vendor(
    vendor_class: type[VendorProvider[Any]], config: ProviderConfig, secret: str | None, key: str
) -> VendorProvider[Any]:
    accepted = signature(vendor_class).parameters
    arguments = {"api_key": secret, "base_url": config.base_url}
    chosen = {name: value for name, value in arguments.items() if value is not None and name in accepted}
    try:
        return vendor_class(**chosen)
    except UserError as error:
        raise ConfigError(_SOURCE, key, "", f"the vendor's library asks for more: {error}") from error
