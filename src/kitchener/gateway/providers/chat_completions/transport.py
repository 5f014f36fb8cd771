"""Posts requests to one endpoint over one pool of connections, and reads their bounded answers.

The caller's scope is the deadline; ending it closes the connection. Redirects are not followed, so a key reaches no other host.
`bodies.py` has the limits of an answer. Explained in `docs/gateway.md`.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment

import anyio.lowlevel
import orjson
import pyqwest

from kitchener.config import ProviderConfig, dotted_key
from kitchener.errors import ConfigError
from kitchener.gateway.providers.authorities import read_authorities
from kitchener.gateway.providers.bodies import MAX_DEPTH, PIECES_AT_ONCE, BodyReader, is_deeper
from kitchener.gateway.providers.pauses import asked_pause_s
from kitchener.gateway.providers.redaction import Redaction

CONNECT_TIMEOUT_S: Final = 10.0
CLOSING_S: Final = 1.0
"""Longest wait for the end of a connection whose answer is not wanted any more, seconds."""
_SOURCE: Final = "configuration"
_LENGTH_DIGITS: Final = 18
"""Most digits of an announced length that are read. A longer answer passes every limit."""

TRANSPORT_ERRORS: Final = (OSError, pyqwest.RemoteProtocolError, pyqwest.ReadError, pyqwest.WriteError)
"""What the client raises if a request fails on its way; `OSError` includes time-outs and refused connections."""


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


class ChatTransport:
    """Posts to one URL. `open_transport` opens it and closes it at the end of its block.

    Args:
        client: the HTTP client
        url: the address of every request
        headers: the headers of every request
        max_bytes: limit of an answer, both as received and decompressed
    """

    def __init__(self, client: pyqwest.HTTPTransport, url: str, headers: dict[str, str], max_bytes: int) -> None:
        self.url = url
        self._client, self._headers, self._max_bytes = client, headers, max_bytes

    async def post(self, content: bytes) -> AsyncGenerator[tuple[list[bytes], bool], None]:
        """Yields the events of the answer to one request, up to 256 that arrived together, or its whole body alone.

        The second value says whether they are events.

        Close it (`contextlib.aclosing`) to end the request early.

        Raises:
            StatusError: the endpoint answered with another status than 2xx
            UnusableAnswer: the answer passed a limit
        """
        response = await self._client.execute(
            pyqwest.Request("POST", self.url, pyqwest.Headers(self._headers.items()), content)
        )
        status, headers = response.status, response.headers
        is_read = False
        try:
            reader = BodyReader(
                encoding=headers.get("content-encoding", ""), status=status, max_bytes=self._max_bytes, is_checked=False
            )
            pieces = received = 0
            length = _length(headers)
            async for raw in response.content:
                reader.take(bytes(raw))
                received += len(raw)
                if reader.is_over:
                    break
                if status < 300 and reader.ready:
                    events, reader.ready = reader.ready, []
                    for at in range(0, len(events), PIECES_AT_ONCE):
                        yield events[at : at + PIECES_AT_ONCE], True
                pieces += 1
                if pieces % PIECES_AT_ONCE == 0:
                    await anyio.lowlevel.checkpoint()
                if received == length:  # to wait for the end takes a quarter of a call's CPU (benchmarks.model_calls)
                    is_read = True
                    break
            else:
                is_read = True
            if is_read:
                reader.end()
            if status >= 300:
                raise StatusError(status, _error_body(reader.ready), asked_pause_s(headers.get))
            if reader.ready:
                yield reader.ready, reader.has_events
        finally:
            if not is_read:
                with anyio.move_on_after(CLOSING_S, shield=True):
                    await response.aclose()


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
    proxy = _proxy(base, redaction)
    headers = _headers(provider_id, secret)
    client = pyqwest.HTTPTransport(
        tls_ca_cert=read_authorities(provider_id, config),
        tls_include_system_certs=True,
        proxy=proxy,
        connect_timeout=min(CONNECT_TIMEOUT_S, config.timeout_s),
        read_timeout=config.timeout_s,
        pool_max_idle_per_host=config.max_concurrency,
        enable_gzip=False,  # `BodyReader` decompresses, because it counts
        enable_brotli=False,
        enable_zstd=False,
        use_system_dns=True,
        follow_redirects=False,
        enable_otel=False,
    )
    try:
        yield ChatTransport(client, f"{base.rstrip('/')}/{path}", headers, config.max_response_bytes)
    finally:
        with anyio.move_on_after(CLOSING_S, shield=True):
            await client.aclose()


def _headers(provider_id: str, secret: str | None) -> dict[str, str]:
    headers = {"content-type": "application/json", "accept-encoding": "gzip", "user-agent": "kitchener"}
    if secret is not None:
        if not secret.isascii() or not secret.isprintable():
            key = dotted_key(("router", "providers", provider_id, "api_key"))
            raise ConfigError(_SOURCE, key, "", "leads to a key with characters that no HTTP header can carry")
        headers["authorization"] = f"Bearer {secret}"
    return headers


def _proxy(base_url: str, redaction: Redaction) -> pyqwest.Proxy | None:
    """Returns the proxy that the environment names for an address, as other programs read it."""
    named, scheme = getproxies_environment(), urlsplit(base_url).scheme
    name = scheme if named.get(scheme) else "all"
    address = named.get(name)
    if not address:
        return None
    address = address if "://" in address else f"http://{address}"
    password = urlsplit(address).password
    if password:
        redaction.note(password)
        redaction.note(unquote(password))
    try:
        return pyqwest.Proxy(address, no_proxy=named.get("no"))
    except ValueError:
        expected = "is not the address of a proxy, such as `http://proxy.example:3128`"
        raise ConfigError("environment", f"{name.upper()}_PROXY", "", expected) from None


def _length(headers: pyqwest.Headers) -> int | None:
    """Returns the length that the answer announces, bytes as received; None: it announces none."""
    text = headers.get("content-length", "")
    return int(text) if text.isdecimal() and len(text) <= _LENGTH_DIGITS else None


def _error_body(ready: list[bytes]) -> object:
    text = ready[0] if ready else b""
    try:
        body = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text.decode(errors="replace")
    return None if is_deeper(body, MAX_DEPTH) else body
