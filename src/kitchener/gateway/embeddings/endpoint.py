"""Gets vectors from an OpenAI-compatible `/embeddings` endpoint.

Vectors are asked for as base64, because a list of numbers takes four times the bytes; both are read. The answer is bounded
while it is read. Redirects are not followed, so a key reaches no other host. An error never quotes a key or a text.
"""

from array import array
from base64 import b64decode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Final
from urllib.parse import quote, urlsplit

import httpx2
import orjson

from kitchener.config import EmbeddingsConfig
from kitchener.errors import ProviderError, ProviderReason

MAX_ANSWER_BYTES: Final = 32 * 1_048_576
"""Longest answer, bytes. 2,048 vectors of 3,072 numbers take 25 MiB."""
_ID: Final = "embeddings"


class EndpointEmbeddings:
    """An `EmbeddingProvider` over HTTP. Made by `open_endpoint`.

    Args:
        client: the HTTP client
        url: address of the endpoint
        model: the model to ask for
    """

    def __init__(self, client: httpx2.AsyncClient, url: str, model: str) -> None:
        self._client, self._url, self._model = client, url, model
        # With the host, because two servers may have different models of one name.
        self.model_id = f"{urlsplit(url).netloc.rpartition('@')[2]}/{quote(model, safe='/:')}"

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """See `EmbeddingProvider`.

        Raises:
            ProviderError: there was no usable answer
        """
        request = {"model": self._model, "input": list(texts), "encoding_format": "base64"}
        try:
            async with self._client.stream("POST", self._url, content=orjson.dumps(request)) as response:
                if not response.is_success:
                    reason: ProviderReason = "authentication" if response.status_code in (401, 403) else "server_error"
                    raise ProviderError(_ID, reason, f"the endpoint answered with status {response.status_code}")
                body = await _bounded(response)
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise ProviderError(_ID, "connection", type(error).__name__) from None
        return _vectors(body, len(texts))


@asynccontextmanager
async def open_endpoint(config: EmbeddingsConfig, secret: str | None) -> AsyncIterator[EndpointEmbeddings]:
    """Opens an HTTP client of its own for the block.

    Args:
        config: the settings, of kind `openai_compatible`
        secret: the API key; None: no key is sent
    """
    headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
    if secret is not None:
        headers["Authorization"] = f"Bearer {secret}"
    async with httpx2.AsyncClient(
        headers=headers,
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=())),
        timeout=config.deadline_s,
        follow_redirects=False,
    ) as client:
        yield EndpointEmbeddings(client, f"{(config.base_url or '').rstrip('/')}/embeddings", config.model or "")


async def _bounded(response: httpx2.Response) -> bytes:
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ProviderError(_ID, "malformed", "the answer is compressed, although that was not asked for")
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > MAX_ANSWER_BYTES:
            raise ProviderError(_ID, "malformed", f"the answer is longer than {MAX_ANSWER_BYTES:,} bytes")
    return bytes(body)


def _vectors(body: bytes, count: int) -> list[Sequence[float]]:
    """The vectors of an answer, in the order of the texts."""
    found: dict[int, Sequence[float]] = {}
    try:
        for place, each in enumerate(orjson.loads(body)["data"]):
            found[int(each.get("index", place))] = _numbers(each["embedding"])
        return [found[place] for place in range(count)]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        raise ProviderError(_ID, "malformed", f"the answer has not the form of {count} vectors") from None


def _numbers(value: object) -> Sequence[float]:
    if isinstance(value, str):
        numbers = array("f", b64decode(value, validate=True))
        return numbers
    if isinstance(value, list):
        return value
    raise TypeError
