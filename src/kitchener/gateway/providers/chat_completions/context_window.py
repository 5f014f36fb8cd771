"""Asks an endpoint how many tokens one call of a model can have, prompt and answer together.

The format of chat completions has no such question, so each kind of server is asked in its own way. Ollama cuts a longer prompt
and says nothing, so that a model is not shown what is on record; that is why `kitchener doctor --probe` asks. The server itself
is asked, above the address of the format, only where that address is private. Explained in `docs/gateway.md`.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import orjson

from kitchener.config import ProviderConfig
from kitchener.config.shown import is_public_address
from kitchener.gateway.providers.bodies import UnusableAnswer
from kitchener.gateway.providers.chat_completions.http_pool import TRANSPORT_ERRORS
from kitchener.gateway.providers.chat_completions.transport import StatusError, open_transport
from kitchener.gateway.providers.sent_values import SentValues
from kitchener.model_usage import MOST_TOKENS

_OF_MODELS: Final = ("max_model_len", "context_length", "context_window", "max_context_length")
"""The field with the window in a list of models: of vLLM, of OpenRouter and Together, of Groq, and of Mistral."""
_ROOT_OF_FORMAT: Final = "/v1"
"""The end of an address below which a server has the chat completions, and above it what is its own."""
_LATEST: Final = ":latest"
"""Ollama's tag of a model that is named without one."""


class ContextWindow(NamedTuple):
    """What one call of a model can have."""

    tokens: int
    """Of prompt and answer together."""
    is_silent: bool
    """Whether the server may cut a longer prompt without an error, as Ollama does."""


async def read_context_window(provider_id: str, config: ProviderConfig, sent: SentValues, model: str) -> ContextWindow | None:
    """Returns the context window of a model; None: the endpoint does not say.

    Args:
        provider_id: the provider's id in the configuration
        config: the provider's settings, of kind `openai_compatible`
        sent: the API key, and what is sent beside it
        model: the model's name

    Raises:
        ConfigError: the key, the proxy or the certificates cannot be used
    """
    models = await _read(provider_id, config, sent, "models")
    for each in _objects(models, "data"):
        if each.get("id") == model:
            for name in _OF_MODELS:
                if (tokens := _tokens(each.get(name))) is not None:
                    return ContextWindow(tokens, is_silent=False)
    base = (config.base_url or "").rstrip("/")
    if not base.endswith(_ROOT_OF_FORMAT) or is_public_address(base):
        return None
    server = config.model_copy(update={"base_url": base.removesuffix(_ROOT_OF_FORMAT)})
    for each in _objects(await _read(provider_id, server, sent, "api/ps"), "models"):  # Ollama's loaded models
        if each.get("name") in (model, model + _LATEST):
            tokens = _tokens(each.get("context_length"))
            return ContextWindow(tokens, is_silent=True) if tokens is not None else None
    props = await _read(provider_id, server, sent, "props")  # llama.cpp's
    settings = props.get("default_generation_settings") if isinstance(props, dict) else None
    tokens = _tokens(settings.get("n_ctx")) if isinstance(settings, dict) else None
    return ContextWindow(tokens, is_silent=False) if tokens is not None else None


async def _read(provider_id: str, config: ProviderConfig, sent: SentValues, path: str) -> object:
    """Returns what an endpoint has at a path, as parsed JSON; None: it has none."""
    try:
        async with open_transport(provider_id, config, sent, sent.redaction(), path=path, method="GET") as transport:
            answer = await transport.post(b"")
            try:
                bodies = await answer.read()
            finally:
                answer.close()
            # Not within the limits of an answer: a gateway lists hundreds of models, with a dozen values each.
            return orjson.loads(bodies[0]) if bodies else None
    except (UnusableAnswer, StatusError, orjson.JSONDecodeError, *TRANSPORT_ERRORS):
        return None


def _objects(found: object, name: str) -> Iterator[Mapping[str, object]]:
    """The objects in a list of an answer, which Together gives without an object around it."""
    listed = found.get(name) if isinstance(found, dict) else found
    return (each for each in listed if isinstance(each, dict)) if isinstance(listed, list) else iter(())


def _tokens(value: object) -> int | None:
    return value if type(value) is int and 0 < value <= MOST_TOKENS else None  # a bool is no number of tokens
