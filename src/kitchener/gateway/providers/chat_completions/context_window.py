"""Asks an endpoint how many tokens one call of a model can have, prompt and answer together.

The format of chat completions has no such question, so each kind of server is asked in its own way. Ollama cuts a longer prompt
and says nothing, so that a model is not shown what is on record; that is why `kitchener doctor --probe` asks. Explained in
`docs/gateway.md`.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from kitchener.config import ProviderConfig
from kitchener.gateway.providers.bodies import UnusableAnswer, parsed_json
from kitchener.gateway.providers.chat_completions.http_pool import TRANSPORT_ERRORS
from kitchener.gateway.providers.chat_completions.transport import StatusError, open_transport
from kitchener.gateway.providers.sent_values import SentValues

_OF_MODELS: Final = ("max_model_len", "context_length", "context_window", "max_context_length")
"""The field with the window in a list of models: of vLLM, of OpenRouter and Together, of Groq, and of Mistral."""
_ROOT_OF_FORMAT: Final = "/v1"
"""The end of an address below which a server has the chat completions, and above it what is its own."""
_LATEST: Final = ":latest"
"""Ollama's tag of a model that is named without one."""


async def read_context_window(provider_id: str, config: ProviderConfig, sent: SentValues, model: str) -> int | None:
    """Returns the tokens of one call of a model; None: the endpoint does not say.

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
                if (window := _tokens(each.get(name))) is not None:
                    return window
    base = (config.base_url or "").rstrip("/")
    if not base.endswith(_ROOT_OF_FORMAT):
        return None
    server = config.model_copy(update={"base_url": base.removesuffix(_ROOT_OF_FORMAT)})
    for each in _objects(await _read(provider_id, server, sent, "api/ps"), "models"):  # Ollama's loaded models
        if each.get("name") in (model, model + _LATEST):
            return _tokens(each.get("context_length"))
    props = await _read(provider_id, server, sent, "props")  # llama.cpp's
    settings = props.get("default_generation_settings") if isinstance(props, dict) else None
    return _tokens(settings.get("n_ctx")) if isinstance(settings, dict) else None


async def _read(provider_id: str, config: ProviderConfig, sent: SentValues, path: str) -> object:
    """Returns what an endpoint has at a path, as parsed JSON; None: it has none."""
    try:
        async with open_transport(provider_id, config, sent, sent.redaction(), path=path, method="GET") as transport:
            answer = await transport.post(b"")
            try:
                bodies = await answer.read()
            finally:
                answer.close()
            return parsed_json(bodies[0]) if bodies else None
    except (UnusableAnswer, StatusError, *TRANSPORT_ERRORS):
        return None


def _objects(found: object, name: str) -> Iterator[Mapping[str, object]]:
    """The objects in a list of an answer."""
    listed = found.get(name) if isinstance(found, dict) else None
    return (each for each in listed if isinstance(each, dict)) if isinstance(listed, list) else iter(())


def _tokens(value: object) -> int | None:
    return value if type(value) is int and value > 0 else None  # a bool is no number of tokens
