"""Opens the HTTP client of one provider, which calls only the configured endpoint and bounds its answers.

The limits are below the vendors' libraries, so they apply to every library. `bodies.py` has the limits, `redaction.py`
remembers the keys that were sent, and `models.py` gives the client to a library.
"""

from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import ModuleType
from typing import Any, Final, NamedTuple

import anyio.lowlevel
import httpx
import httpx2

from kitchener.config import ProviderConfig
from kitchener.gateway.providers.authorities import ClientCertificate, trust_nobody
from kitchener.gateway.providers.bodies import PIECES_AT_ONCE, BodyReader, UnusableAnswer
from kitchener.gateway.providers.endpoint_errors import CONNECT_TIMEOUT_S
from kitchener.gateway.providers.impossible_counts import CountCheck
from kitchener.gateway.providers.redaction import Redaction

_KEY_HEADERS: Final = ("authorization", "x-api-key", "x-goog-api-key", "api-key")


class HttpConnection(NamedTuple):
    """How a client reaches its endpoint."""

    authorities: bytes | None = None
    """PEM certificates of authorities to trust beside the library's own; None: only its own."""
    certificate: ClientCertificate | None = None
    """The certificate that the endpoint is shown; None: none."""
    proxy: str | None = None
    """The address of the proxy that the settings name; None: the environment's, if `config.proxy` is `env`."""


DIRECT: Final = HttpConnection()
"""The library's own authorities, no certificate, and the proxy of the environment."""


def open_http_client(
    config: ProviderConfig, redaction: Redaction, counts: CountCheck, connection: HttpConnection = DIRECT
) -> httpx2.AsyncClient:
    """Returns a client, to be opened with `async with`.

    Args:
        config: the provider's settings; with a `base_url`, a request to any other host fails before it is sent
        redaction: remembers each key that is sent
        counts: mends what answers count
        connection: how it reaches the endpoint
    """
    return httpx2.AsyncClient(**_options(config, redaction, counts, httpx2, connection))


def open_former_http_client(
    config: ProviderConfig, redaction: Redaction, counts: CountCheck, connection: HttpConnection = DIRECT
) -> httpx.AsyncClient:
    """Like `open_http_client`, with `httpx` in place of `httpx2`, for vendors whose library takes no other client."""
    return httpx.AsyncClient(**_options(config, redaction, counts, httpx, connection))


class BoundedBody(httpx2.AsyncByteStream, httpx.AsyncByteStream):
    """The body of one response, decompressed and bounded: the events of a stream one by one, and any other body as a whole.

    Args:
        body: the received bytes, still compressed
        encoding: the response's `Content-Encoding`
        status: the response's HTTP status
        max_bytes: limit of a body that is not an error's, both as received and decompressed
        counts: mends what the answer counts
    """

    def __init__(
        self,
        body: httpx2.AsyncByteStream | httpx.AsyncByteStream,
        *,
        encoding: str,
        status: int,
        max_bytes: int,
        counts: CountCheck,
    ) -> None:
        self._body, self._source = body, body.__aiter__()
        self._reader = BodyReader(encoding=encoding, status=status, max_bytes=max_bytes, counts=counts)
        self._pieces = 0

    def __aiter__(self) -> "BoundedBody":
        return self

    async def __anext__(self) -> bytes:
        """Returns the next event, or once the whole body.

        Raises:
            UnusableAnswer: the body passed a limit; the connection was closed
        """
        reader = self._reader
        try:
            while not reader.ready and not reader.is_over:
                try:
                    raw = await anext(self._source)
                except StopAsyncIteration:
                    reader.end()
                else:
                    reader.take(raw)
                    self._pieces += 1
                    if self._pieces % PIECES_AT_ONCE == 0:
                        await anyio.lowlevel.checkpoint()
        finally:
            if reader.is_over:
                await self._close()
        if reader.ready:
            return reader.ready.pop(0)
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Returns the connection to the pool, or closes it if the body was not read to its end."""
        self._reader.is_over = True
        await self._close()

    async def _close(self) -> None:
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()
        await self._body.aclose()


def _options(
    config: ProviderConfig, redaction: Redaction, counts: CountCheck, library: ModuleType, connection: HttpConnection
) -> dict[str, Any]:
    """Returns the arguments of a client; both libraries take the same."""
    connect_timeout_s = min(CONNECT_TIMEOUT_S, config.timeout_s)
    only = _origin(library.URL(config.base_url)) if config.base_url is not None else None

    async def prepare(request: httpx2.Request | httpx.Request) -> None:
        if only is not None and _origin(request.url) != only:
            raise UnusableAnswer("bad_request", f"a request to {request.url.host!r} was stopped: `base_url` names another host")
        # The libraries set one limit for everything with each request.
        request.extensions["timeout"] = {**request.extensions.get("timeout", {}), "connect": connect_timeout_s}
        request.headers["Accept-Encoding"] = "gzip"  # only encodings that can be decompressed piece by piece
        for name in _KEY_HEADERS:
            if value := request.headers.get(name):
                redaction.note(value.rpartition(" ")[2])

    async def bound(response: httpx2.Response | httpx.Response) -> None:
        body = response.stream
        if not isinstance(body, httpx2.AsyncByteStream | httpx.AsyncByteStream):
            raise TypeError(f"an asynchronous body was expected, not {type(body).__name__}")
        encoding = response.headers.pop("Content-Encoding", "")
        status, limit = response.status_code, config.max_response_bytes
        response.stream = BoundedBody(body, encoding=encoding, status=status, max_bytes=limit, counts=counts)

    # One context, because a client would make its own for each proxy of the environment.
    trusted = trust_nobody() if only is not None and only[0] == "http" else library.create_ssl_context()
    if connection.authorities is not None:
        trusted.load_verify_locations(cadata=connection.authorities.decode("ascii"))
    if connection.certificate is not None:
        connection.certificate.load(trusted)
    return {
        "verify": trusted,
        "proxy": connection.proxy,
        "trust_env": config.proxy == "env",
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=())),  # an endpoint could fill a cookie jar without limit
        "event_hooks": {"request": [prepare], "response": [bound]},
        "timeout": library.Timeout(config.timeout_s, connect=connect_timeout_s),
        "limits": library.Limits(max_connections=config.max_concurrency, max_keepalive_connections=config.max_concurrency),
    }


def _origin(url: httpx2.URL | httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
