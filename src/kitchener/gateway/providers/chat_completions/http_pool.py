"""The connections to one endpoint, over aiohttp: sends a body and reads the answer piece by piece.

All that has arrived since the last read comes as one piece, and on asyncio no thread takes part: both save CPU where tokens
stream. `lent_pool.py` lends the same connections to trio, which aiohttp does not know. `transport.py` bounds what is
read. Explained in `docs/gateway.md`.
"""

import select
import ssl
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, Literal, Protocol
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import HttpProcessingError, RawResponseMessage
from yarl import URL

from kitchener.connection_problems import problem_of_socket, told_of_connect
from kitchener.errors import ProviderError, ProviderReason
from kitchener.gateway.providers.authorities import ClientCertificate, trust_nobody
from kitchener.gateway.providers.endpoint_errors import (
    CUT_OFF,
    LOST,
    NO_CONNECTION_IN_TIME,
    NOT_ANSWERED,
    NOTHING_IN_TIME,
    reason_of_proxy,
    redacted_line,
    told_of_protocol,
    told_of_proxy,
)
from kitchener.gateway.providers.redaction import Redaction

IDLE_S: Final = 90.0
"""How long a connection is kept for the next call, seconds."""
MAX_UNREAD_BYTES: Final = 65_536
"""Received bytes that wait for the reader, before the connection is read no further. It may be twice as many for a moment."""
_MOST_INTERIM: Final = 16
"""Heads that may come before that of the answer. Reading ever more would keep the processor busy until the deadline."""

_IS_CUT: Final = "payload is not completed"
"""aiohttp's words for a body whose connection ended. It has one class for all that is wrong with a body."""

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
    client_certificate: ClientCertificate | None = None
    """The certificate that the endpoint is shown; None: none."""
    method: Literal["POST", "GET"] = "POST"


class HttpAnswer(Protocol):
    """The answer to one request. Only its head was read so far."""

    @property
    def status(self) -> int:
        """The HTTP status of the answer itself, not of interim answers before it."""
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
        """Closes the connection before the body is over."""
        ...


class Connections(Protocol):
    """A pool of connections to one endpoint."""

    async def post(self, content: bytes, read_timeout_s: float | None, lines: bytes = b"") -> HttpAnswer:
        """Sends a body, and returns the answer as soon as its head is there.

        Args:
            content: the body
            read_timeout_s: longest wait for the next bytes of the answer, seconds; None: the caller's scope ends the wait
            lines: further lines of the head of this request, each with its end
        """
        ...


class OwnAnswer:
    """An answer on the event loop that has the connection.

    Args:
        message: its head
        content: its body
        connection: goes back into the pool when the whole answer has arrived
    """

    def __init__(self, message: RawResponseMessage, content: aiohttp.StreamReader, connection: Connection) -> None:
        self.status: int = message.code
        self.headers: Mapping[str, str] = message.headers
        self.read, self.is_over = content.readany, content.at_eof
        self._connection = connection
        content.on_eof(self._release)

    def close(self) -> None:
        """See `HttpAnswer`."""
        _close(self._connection)

    def _release(self) -> None:
        transport = self._connection.transport
        if transport is not None and transport.get_write_buffer_size():  # it answered before it had read the request
            _close(self._connection)
        else:
            self._connection.release()


def _close(connection: Connection) -> None:
    transport = connection.transport
    if transport is not None and transport.get_write_buffer_size():
        transport.abort()  # closing it would wait until the rest of the request is sent, which may be never
    connection.close()


class OwnConnections:
    """Connections of the running event loop, which is asyncio's. `open_own_connections` opens them.

    Every request has the same head but for its end, so it is written once, and aiohttp's session, which makes a dozen
    objects and a task for each request, is left out: that is two fifths of a call's CPU time (`benchmarks/model_calls.py`).

    Args:
        connector: the pool
        target: where requests go
    """

    def __init__(self, connector: aiohttp.BaseConnector, target: PoolTarget) -> None:
        self._connector, self._timeout = connector, aiohttp.ClientTimeout(sock_connect=target.connect_timeout_s)
        self._request = _model_request(target)
        self._head = _head_of(self._request)
        self._used = WeakSet[ResponseHandler]()
        """Connections that have received at least one answer."""

    async def post(self, content: bytes, read_timeout_s: float | None, lines: bytes = b"") -> OwnAnswer:
        """See `Connections`."""
        connection = await self._connection()
        try:
            protocol, transport = connection.protocol, connection.transport
            if protocol is None or transport is None or transport.is_closing():
                raise aiohttp.ServerDisconnectedError
            protocol.set_response_params(
                read_until_eof=True,
                auto_decompress=False,  # `BodyReader` decompresses, because it counts
                read_timeout=read_timeout_s,
                read_bufsize=MAX_UNREAD_BYTES,
            )
            transport.write(b"%b%d\r\n%b\r\n%b" % (self._head, len(content), lines, content))
            if read_timeout_s is not None:
                protocol.start_timeout()
            message, body = await protocol.read()
            interim = 0
            while message.code < 200 and message.code != HTTPStatus.SWITCHING_PROTOCOLS:  # such as 103 Early Hints
                interim += 1
                if interim > _MOST_INTERIM:
                    raise aiohttp.ClientConnectionError(f"more than {_MOST_INTERIM} interim answers before the answer")
                message, body = await protocol.read()
        except HttpProcessingError as error:
            _close(connection)
            raise aiohttp.ClientResponseError(
                self._request.request_info, (), status=error.code, message=error.message, headers=error.headers
            ) from error
        except BaseException:
            _close(connection)
            raise
        self._used.add(protocol)
        return OwnAnswer(message, body, connection)

    async def _connection(self) -> Connection:
        """A connection that has received nothing since its last answer. Unrequested bytes, such as a second answer to the call
        before, would be read as the answer to this call, and may belong to another user.
        """
        while True:
            try:
                connection = await self._connector.connect(self._request, [], self._timeout)
            except TimeoutError as error:
                # Names the host alone: the query may hold a key.
                raise aiohttp.ConnectionTimeoutError(f"Connection timeout to host {self._request.url.host}") from error
            protocol = connection.protocol
            if protocol is None or protocol not in self._used or not (protocol.should_close or _has_unread(protocol)):
                return connection
            _close(connection)


def _has_unread(protocol: ResponseHandler) -> bool:
    """Whether bytes have arrived that the event loop has not read yet."""
    held = protocol.transport.get_extra_info("socket") if protocol.transport is not None else None
    if held is None or held.fileno() < 0 or not hasattr(select, "poll"):  # only POSIX has it
        return False
    asked = select.poll()
    asked.register(held.fileno(), select.POLLIN)
    return bool(asked.poll(0))


@asynccontextmanager
async def open_own_connections(target: PoolTarget) -> AsyncIterator[OwnConnections]:
    """Opens connections of the running event loop for the block."""
    is_plain = all(URL(each).scheme == "http" for each in (target.url, target.proxy) if each is not None)
    context = trust_nobody() if is_plain else ssl.create_default_context()
    if target.authorities is not None:
        context.load_verify_locations(cadata=target.authorities.decode("ascii"))
    if target.client_certificate is not None:
        target.client_certificate.load(context)
    # The gateway's lanes limit the calls.
    async with aiohttp.TCPConnector(limit=0, ssl=context, keepalive_timeout=IDLE_S) as connector:
        yield OwnConnections(connector, target)


def _model_request(target: PoolTarget) -> aiohttp.ClientRequest:
    """Returns the template of all requests. It is never sent; it tells the pool which connection to give."""
    url, proxy = URL(target.url), URL(target.proxy) if target.proxy is not None else None
    headers, proxy_headers = dict(target.headers), dict[str, str]()
    if proxy is not None and proxy.user:
        named = proxy_headers if url.scheme == "https" else headers  # a tunnel is asked for in a request of its own
        named[aiohttp.hdrs.PROXY_AUTHORIZATION] = aiohttp.encode_basic_auth(proxy.user, proxy.password or "")
    if url.user:
        headers.setdefault(aiohttp.hdrs.AUTHORIZATION, aiohttp.encode_basic_auth(url.user, url.password or ""))
    url = url.with_user(None)
    host = url.host_port_subcomponent or ""
    request = aiohttp.ClientRequest(
        target.method,
        url,
        headers=headers,
        skip_auto_headers=(aiohttp.hdrs.ACCEPT,),
        proxy=proxy.with_user(None) if proxy is not None else None,  # so no error quotes its password
        # The pool would add the host, and then not find connections again, which it knows by these headers.
        proxy_headers={**proxy_headers, aiohttp.hdrs.HOST: host},
    )
    return request


def _head_of(request: aiohttp.ClientRequest) -> bytes:
    """Returns the head of a request up to the number of bytes of its body, which comes last."""
    path = str(request.url) if request.proxy and not request.is_ssl() else request.url.raw_path_qs
    lines = [f"{request.method} {path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in request.headers.items() if name != aiohttp.hdrs.CONTENT_LENGTH]
    lines.append(f"{aiohttp.hdrs.CONTENT_LENGTH}: ")
    if any(not line.isprintable() for line in lines):
        raise ValueError("a header or the address has characters that no request can carry")
    return "\r\n".join(lines).encode("ascii")


def failure_reason(error: Exception) -> ProviderReason:
    """Returns the reason for a request that got no answer, or lost the rest of one."""
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return reason_of_proxy(error.status)
    return "timeout" if isinstance(error, TimeoutError) else "connection"


def failure_text(error: Exception) -> str:
    """What happened to a request that got no answer, or lost the rest of one, in one sentence without a full stop.

    aiohttp's own texts name its classes and TLS settings, and omit the operating system's description.
    """
    match error:
        case aiohttp.ClientConnectorCertificateError() if isinstance(error.certificate_error, OSError):
            return told_of_connect(error.host, error.port, error.certificate_error)
        case aiohttp.ClientConnectorError():
            is_proxy = isinstance(error, aiohttp.ClientProxyConnectionError)
            return told_of_connect(error.host, error.port, error.os_error, is_proxy=is_proxy)
        case aiohttp.ConnectionTimeoutError():
            return NO_CONNECTION_IN_TIME
        case aiohttp.ServerTimeoutError():
            return NOTHING_IN_TIME
        case aiohttp.ServerDisconnectedError():
            return NOT_ANSWERED
        case aiohttp.ClientPayloadError() if _IS_CUT in str(error):
            return CUT_OFF
        case aiohttp.ClientOSError():
            return f"{LOST}: {problem_of_socket(error)}"
        case aiohttp.ClientHttpProxyError():
            return told_of_proxy(error.status, error.message)
        case aiohttp.ClientResponseError():
            return told_of_protocol(error.message.partition("\n")[0].rstrip(":"))
        case aiohttp.ClientConnectionError() if type(error) is aiohttp.ClientConnectionError:
            return str(error) or LOST
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def connection_failure(provider_id: str, error: Exception, url: str, redaction: Redaction) -> ProviderError:
    """The error of a provider for one of `TRANSPORT_ERRORS`.

    Args:
        provider_id: names the provider
        error: what happened
        url: where the request went. The text does not repeat it
        redaction: removes keys from the text
    """
    detail = failure_text(error).replace(url, "the endpoint")
    return ProviderError(provider_id, failure_reason(error), redacted_line(detail, redaction))
