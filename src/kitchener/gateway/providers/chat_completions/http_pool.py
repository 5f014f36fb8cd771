"""The connections to one endpoint, over aiohttp: sends a body and reads the answer piece by piece.

All that has arrived since the last read comes as one piece, and on asyncio no thread takes part: both save CPU where tokens
stream. `lent_pool.py` lends the same connections to trio, which aiohttp does not know. `transport.py` bounds what is
read. Explained in `docs/gateway.md`.
"""

import ssl
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import aiohttp
from yarl import URL

IDLE_S: Final = 90.0
"""How long a connection is kept for the next call, seconds."""
MAX_UNREAD_BYTES: Final = 65_536
"""Received bytes that wait for the reader, before the connection is read no further. It may be twice as many for a moment."""

TRANSPORT_ERRORS: Final = (OSError, aiohttp.ClientError)
"""What the client raises if a request fails on its way; `OSError` includes time-outs and refused connections."""


@dataclass(frozen=True, slots=True)
class PoolTarget:
    """Where requests go, and how."""

    url: str
    headers: Mapping[str, str]
    """The headers of every request."""
    proxy: str | None
    """The address of a proxy, with its password if it has one."""
    authorities: bytes | None
    """Certificates in PEM that are trusted beside the system's."""
    connect_timeout_s: float
    read_timeout_s: float
    """Longest wait for the next bytes of an answer, seconds."""


class HttpAnswer(Protocol):
    """The answer to one request, of which only the head was read."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers; their names may be looked up in any case."""
        ...

    def read(self) -> Awaitable[bytes]:
        """Returns what has arrived since the last call, or waits for more; empty: the body is over."""
        ...

    def is_over(self) -> bool:
        """Whether the whole body was read, so that its connection is free for the next request."""
        ...

    def close(self) -> None:
        """Closes the connection, of which no more is wanted."""
        ...


class Connections(Protocol):
    """A pool of connections to one endpoint."""

    async def post(self, content: bytes) -> HttpAnswer:
        """Sends a body, and returns the answer as soon as its head is there."""
        ...


class OwnAnswer:
    """An answer on the event loop that has the connection."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status: int = response.status
        self.headers: Mapping[str, str] = response.headers
        self.read, self.is_over, self.close = response.content.readany, response.content.at_eof, response.close


class OwnConnections:
    """Connections of the running event loop, which is asyncio's. `open_own_connections` opens them.

    Args:
        session: the client
        target: where requests go
    """

    def __init__(self, session: aiohttp.ClientSession, target: PoolTarget) -> None:
        self._session, self._url = session, URL(target.url)
        proxy = URL(target.proxy) if target.proxy is not None else None
        self._proxy = proxy.with_user(None) if proxy is not None else None  # so no error quotes its password
        named: dict[str, str] = {}
        if proxy is not None and proxy.user:
            named[aiohttp.hdrs.PROXY_AUTHORIZATION] = aiohttp.encode_basic_auth(proxy.user, proxy.password or "")
        is_tunnel = self._url.scheme == "https"
        self._headers, self._proxy_headers = ({}, named) if is_tunnel else (named, {})

    async def post(self, content: bytes) -> OwnAnswer:
        """See `Connections`."""
        response = await self._session.post(
            self._url,
            data=content,
            headers=self._headers,
            allow_redirects=False,
            proxy=self._proxy,
            proxy_headers=self._proxy_headers,
        )
        return OwnAnswer(response)


@asynccontextmanager
async def open_own_connections(target: PoolTarget) -> AsyncIterator[OwnConnections]:
    """Opens connections of the running event loop for the block."""
    context = ssl.create_default_context()
    if target.authorities is not None:
        context.load_verify_locations(cadata=target.authorities.decode("ascii"))
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=context, keepalive_timeout=IDLE_S),  # the gateway's lanes limit the calls
        headers=target.headers,
        skip_auto_headers=("accept",),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,  # `BodyReader` decompresses, because it counts
        timeout=aiohttp.ClientTimeout(sock_connect=target.connect_timeout_s, sock_read=target.read_timeout_s),
        read_bufsize=MAX_UNREAD_BYTES,
    ) as session:
        yield OwnConnections(session, target)
