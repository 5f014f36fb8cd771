"""Posts requests to one endpoint over one pool of connections, and reads their bounded answers.

The caller's scope is the deadline; ending it closes the connection. Redirects are not followed, so a key reaches no other host.
`bodies.py` has the limits of an answer. Explained in `docs/gateway.md`.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import anyio.lowlevel
import orjson

from kitchener.config import ProviderConfig, dotted_key
from kitchener.errors import ConfigError
from kitchener.gateway.providers.authorities import read_authorities
from kitchener.gateway.providers.bodies import MAX_DEPTH, PIECES_AT_ONCE, BodyReader, is_deeper
from kitchener.gateway.providers.chat_completions.http_pool import Connections, PoolTarget
from kitchener.gateway.providers.chat_completions.lent_pool import open_connections
from kitchener.gateway.providers.chat_completions.proxies import proxy_for
from kitchener.gateway.providers.pauses import asked_pause_s
from kitchener.gateway.providers.redaction import Redaction

CONNECT_TIMEOUT_S: Final = 10.0
_SOURCE: Final = "configuration"


class StatusError(Exception):
    """The endpoint answered with an error.

    Attributes:
        status: the HTTP status
        body: the parsed body, or its text if it is not JSON
        retry_after_s: the pause that the endpoint asks for, seconds; None: it asks for none
    """

    def __init__(self, status: int, body: object, retry_after_s: float | None) -> None:
        self.status, self.body, self.retry_after_s = status, body, retry_after_s
        super().__init__(f"HTTP {status}")


class Part(NamedTuple):
    """What arrived together of an answer."""

    bodies: list[bytes]
    """The data of events, or the whole body."""
    are_events: bool
    is_last: bool
    """Whether the whole answer has arrived with it, so that its connection is free."""


class ChatTransport:
    """Posts to one URL. `open_transport` opens it and closes it at the end of its block.

    Args:
        connections: the connections to the endpoint
        url: the address of every request
        max_bytes: limit of an answer, both as received and decompressed
    """

    def __init__(self, connections: Connections, url: str, max_bytes: int) -> None:
        self.url = url
        self._connections, self._max_bytes = connections, max_bytes

    async def post(self, content: bytes) -> AsyncGenerator[Part, None]:
        """Yields the data of the events of the answer to one request, up to 256 that arrived together, or its whole body alone.

        Close it (`contextlib.aclosing`) to end the request early.

        Raises:
            StatusError: the endpoint answered with another status than 2xx
            UnusableAnswer: the answer passed a limit
        """
        answer = await self._connections.post(content)
        status, headers = answer.status, answer.headers
        is_read = False
        try:
            reader = BodyReader(
                encoding=headers.get("content-encoding", ""), status=status, max_bytes=self._max_bytes, is_checked=False
            )
            pieces = 0
            while raw := await answer.read():
                reader.take(raw)
                if reader.is_over:
                    break
                if status < 300 and reader.ready:
                    events, reader.ready = reader.ready, []
                    for at in range(0, len(events), PIECES_AT_ONCE):
                        has_arrived = at + PIECES_AT_ONCE >= len(events) and answer.is_over()
                        yield Part(events[at : at + PIECES_AT_ONCE], True, has_arrived)
                pieces += 1
                if pieces % PIECES_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
            else:
                is_read = True
                reader.end()
            if status >= 300:
                raise StatusError(status, _error_body(reader.ready), asked_pause_s(headers.get))
            if reader.ready:
                yield Part(reader.ready, reader.has_events, True)
        finally:
            if not is_read and not answer.is_over():
                answer.close()


@asynccontextmanager
async def open_transport(
    provider_id: str, config: ProviderConfig, secret: str | None, redaction: Redaction, *, path: str = "chat/completions"
) -> AsyncIterator[ChatTransport]:
    """Opens a pool of connections to an endpoint for the block.

    Args:
        provider_id: the provider's id in the configuration, for errors
        config: the provider's settings
        secret: the API key; None: no key is sent
        redaction: the password of a proxy is added to it
        path: what is asked for, under the endpoint's root

    Raises:
        ConfigError: a proxy, the key or the certificate authorities cannot be used
    """
    base = config.base_url or ""
    url = f"{base.rstrip('/')}/{path}"
    target = PoolTarget(
        url=url,
        headers=_headers(provider_id, secret),
        proxy=proxy_for(base, redaction),
        authorities=read_authorities(provider_id, config),
        connect_timeout_s=min(CONNECT_TIMEOUT_S, config.timeout_s),
        read_timeout_s=config.timeout_s,
    )
    async with open_connections(target) as connections:
        yield ChatTransport(connections, url, config.max_response_bytes)


def _headers(provider_id: str, secret: str | None) -> dict[str, str]:
    headers = {"content-type": "application/json", "accept-encoding": "gzip", "user-agent": "kitchener"}
    if secret is not None:
        if not secret.isascii() or not secret.isprintable():
            key = dotted_key(("router", "providers", provider_id, "api_key"))
            raise ConfigError(_SOURCE, key, "", "leads to a key with characters that no HTTP header can carry")
        headers["authorization"] = f"Bearer {secret}"
    return headers


def _error_body(ready: list[bytes]) -> object:
    text = ready[0] if ready else b""
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.decode(errors="replace")
    return None if is_deeper(body, MAX_DEPTH) else body
