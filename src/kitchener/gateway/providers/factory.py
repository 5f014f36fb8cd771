"""Turns the router's settings into open providers, and closes them at the end.

`chat_completions/chat_endpoint.py` implements endpoints that speak OpenAI's format, `library/models.py` the vendors of the
extra `models`. `gateway/gateway.py` gets the providers by id.
"""

import os
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.config.request_fields import value_problem
from kitchener.config.settings_parser import SettingPath, dotted_key
from kitchener.config.shown import REFERENCE, is_reference, read_reference, shown_reference
from kitchener.errors import ConfigError, ProviderError
from kitchener.errors.root import CONFIGURATION
from kitchener.extras import needs
from kitchener.gateway.providers.offline import OfflineProvider
from kitchener.gateway.providers.sent_values import SentValues
from kitchener.records.prompt import PromptRequest, PromptResponse, Provider
from kitchener.small_files import read_regular

if TYPE_CHECKING:
    from kitchener.gateway.providers.chat_completions.context_window import ContextWindow

MAX_KEY_BYTES: Final = 65_536
"""Largest file that may hold the key of a provider, bytes."""


@asynccontextmanager
async def build_providers(config: RouterConfig, *, given: Collection[str] = ()) -> AsyncIterator[dict[str, Provider]]:
    """Opens the configured providers for the block and yields them by id; `offline` is always included.

    If model calls are not allowed, real providers are not opened and need neither their library nor a key.

    Args:
        config: the router's settings
        given: ids of provider objects that the program passes to the gateway; they are left out

    Raises:
        ConfigError: a key reference points to nothing, the extra `models` is missing, or the library does not know the vendor
    """
    async with AsyncExitStack() as stack:
        providers: dict[str, Provider] = {}
        for provider_id, provider in {"offline": ProviderConfig(kind="offline"), **config.providers}.items():
            if provider_id in given:
                continue
            if provider.is_built_in or config.allow_model_calls:
                providers[provider_id] = await _open(stack, provider_id, provider)
            else:
                providers[provider_id] = _ForbiddenProvider(provider_id)
        yield providers


async def context_window(provider_id: str, config: ProviderConfig, model: str) -> "ContextWindow | None":
    """Asks a provider for the context window of a model; None: it does not say.

    Raises:
        ConfigError: a key reference points to nothing
    """
    if not config.is_endpoint:
        return None
    at = ("router", "providers", provider_id)
    key, proxy = _key_and_proxy(config, at)
    from kitchener.gateway.providers.chat_completions.context_window import read_context_window

    return await read_context_window(provider_id, config, _sent_values(config, key, proxy, at), model)


async def _open(stack: AsyncExitStack, provider_id: str, config: ProviderConfig) -> Provider:
    match config.kind:
        case "offline":
            return OfflineProvider(provider_id)
        case "openai_compatible":
            return await _open_endpoint(stack, provider_id, config)
        case "model":
            return await _open_vendor(stack, provider_id, config)
        case _:
            assert_never(config.kind)


# The clients are imported where they are opened, because offline use needs none, and the library is slow to import.


async def _open_endpoint(stack: AsyncExitStack, provider_id: str, config: ProviderConfig) -> Provider:
    at = ("router", "providers", provider_id)
    key, proxy = _key_and_proxy(config, at)
    from kitchener.gateway.providers.chat_completions.chat_endpoint import open_chat_endpoint

    return await stack.enter_async_context(open_chat_endpoint(provider_id, config, _sent_values(config, key, proxy, at)))


async def _open_vendor(stack: AsyncExitStack, provider_id: str, config: ProviderConfig) -> Provider:
    at = ("router", "providers", provider_id)
    key, proxy = _key_and_proxy(config, at)
    try:
        from kitchener.gateway.providers.library.models import open_model_provider

        return await stack.enter_async_context(open_model_provider(provider_id, config, key, proxy))
    except ImportError as error:
        raise ConfigError(CONFIGURATION, dotted_key(at), "", f"{needs('models')} ({error})") from error


def _key_and_proxy(config: ProviderConfig, at: SettingPath) -> tuple[str | None, str | None]:
    """The secrets that the references `api_key` and `proxy` lead to; None: the setting is no reference."""
    key = read_secret(config.api_key, dotted_key((*at, "api_key")))
    proxy = read_secret(config.proxy, dotted_key((*at, "proxy"))) if is_reference(config.proxy) else None
    return key, proxy


def _sent_values(config: ProviderConfig, key: str | None, proxy: str | None, at: SettingPath) -> SentValues:
    """What an endpoint is sent with every request. Reads the references."""
    secrets: list[str] = []

    def read(name: str, value: str, table: str) -> str:
        if not is_reference(value):
            return value
        where = dotted_key((*at, table, name))
        secret = read_secret(value, where) or ""
        if (problem := value_problem(secret)) is not None:
            raise ConfigError(CONFIGURATION, where, "", f"leads to a value that {problem}")
        secrets.append(secret)
        return secret

    headers = {name: read(name, value, "headers") for name, value in config.headers.items()}
    query = {name: read(name, value, "query") for name, value in config.query.items()}
    return SentValues(key, headers, query, proxy, tuple(secrets))


def read_secret(reference: str | None, key: str) -> str | None:
    """Returns the secret that the reference points to, without surrounding white space; None for no reference.

    Args:
        reference: `env:NAME` or `file:/path`
        key: the setting that holds the reference, for errors

    Raises:
        ConfigError: the text is not a reference, or it points to nothing; the error never contains the secret
    """
    if reference is None:
        return None
    found, shown = read_reference(reference), shown_reference(reference)
    if found is None:
        raise ConfigError(CONFIGURATION, key, "", REFERENCE)
    if found.kind == "env":
        secret = os.environ.get(found.name)
        problem = f"environment variable {found.name if reference == shown else 'of that name'} is not set"
    else:
        secret, problem = _read(found.name)
    if secret is None or not secret.strip():
        raise ConfigError(CONFIGURATION, key, repr(shown), problem if secret is None else "leads to an empty value")
    return secret.strip()


def _read(path: str) -> tuple[str | None, str]:
    try:
        data = read_regular(Path(path).expanduser(), MAX_KEY_BYTES + 1)
        return (data.decode(), "") if len(data) <= MAX_KEY_BYTES else (None, f"is larger than {MAX_KEY_BYTES:,} bytes")
    except OSError as error:
        return None, f"cannot be read: {error.strerror or error}"
    except UnicodeDecodeError:
        return None, "is not UTF-8 text"


class _ForbiddenProvider:
    """Replaces a real provider while model calls are not allowed."""

    def __init__(self, provider_id: str) -> None:
        self._provider_id = provider_id

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """Always raises ProviderError with reason `forbidden`."""
        raise ProviderError(self._provider_id, "forbidden", "`allow_model_calls` is false; only built-in providers answer")
