"""Gets vectors from an OpenAI-compatible `/embeddings` endpoint.

Vectors are asked for as base64, because a list of numbers takes four times the bytes; both are read. The client is that of the
chat endpoints: it bounds answers and follows no redirect. An error never quotes a key or a text.
"""

from array import array
from base64 import b64decode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import orjson

from kitchener.config import EmbeddingsConfig, ProviderConfig
from kitchener.errors import ProviderError, ProviderReason
from kitchener.gateway.providers.bodies import UnusableAnswer
from kitchener.gateway.providers.chat_completions.http_pool import TRANSPORT_ERRORS, connection_failure
from kitchener.gateway.providers.chat_completions.transport import (
    ChatTransport,
    StatusError,
    open_transport,
)
from kitchener.gateway.providers.endpoint_errors import CHECK_KEY, Hiding
from kitchener.gateway.providers.redaction import Redaction
from kitchener.gateway.providers.sent_values import SentValues

MAX_ANSWER_BYTES: Final = 64 * 1_048_576
"""Longest answer, bytes. 2,048 vectors of 3,072 numbers take 34 MiB as base64."""
_ID: Final = "embeddings"


class EndpointEmbeddings:
    """An `EmbeddingProvider` over HTTP. Made by `open_endpoint`.

    Args:
        transport: posts to the endpoint
        model: the model to ask for
        redaction: removes the key from the texts of errors
    """

    def __init__(self, transport: ChatTransport, model: str, redaction: Redaction) -> None:
        self._transport, self._model, self._redaction = transport, model, redaction
        # With the host, because two servers may have different models of one name.
        self.model_id = f"{urlsplit(transport.url).netloc}/{model}"

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """See `EmbeddingProvider`.

        Raises:
            ProviderError: there was no usable answer
        """
        request = orjson.dumps({"model": self._model, "input": list(texts), "encoding_format": "base64"})
        body = bytearray()
        try:
            answer = await self._transport.post(request)
            try:
                while bodies := await answer.read():
                    body += b"".join(bodies)
            finally:
                answer.close()
        except (StatusError, UnusableAnswer, *TRANSPORT_ERRORS) as error:
            with Hiding(error, self._redaction) as cause:
                raise self._failure(error) from cause
        return _vectors(bytes(body), len(texts))

    def _failure(self, error: Exception) -> ProviderError:
        if isinstance(error, StatusError):
            reason: ProviderReason = "authentication" if error.status in (401, 403) else "server_error"
            remedy = f"; {CHECK_KEY}" if reason == "authentication" else ""
            return ProviderError(_ID, reason, f"the endpoint answered with status {error.status}{remedy}")
        if isinstance(error, UnusableAnswer):
            return ProviderError(_ID, error.reason, error.detail)
        return connection_failure(_ID, error, self._transport.url, self._redaction)


@asynccontextmanager
async def open_endpoint(config: EmbeddingsConfig, secret: str | None) -> AsyncIterator[EndpointEmbeddings]:
    """Opens a pool of connections of its own for the block.

    Args:
        config: the settings, of kind `openai_compatible`
        secret: the API key; None: no key is sent
    """
    provider = ProviderConfig(base_url=config.base_url, timeout_s=config.deadline_s, max_response_bytes=MAX_ANSWER_BYTES)
    sent = SentValues(secret)
    redaction = sent.redaction()
    async with open_transport(_ID, provider, sent, redaction, path="embeddings") as transport:
        yield EndpointEmbeddings(transport, config.model or "", redaction)


def _vectors(body: bytes, count: int) -> list[Sequence[float]]:
    """The vectors of an answer, in the order of the texts."""
    found: dict[int, Sequence[float]] = {}
    try:
        for place, each in enumerate(orjson.loads(body)["data"]):
            found[int(each.get("index", place))] = _numbers(each["embedding"])
        return [found[place] for place in range(count)]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ProviderError(_ID, "malformed", f"the answer does not have the form of {count} vectors") from None


def _numbers(value: object) -> Sequence[float]:
    if isinstance(value, str):
        return array("f", b64decode(value, validate=True))
    if isinstance(value, list):
        return value
    raise TypeError("neither a list nor base64")
