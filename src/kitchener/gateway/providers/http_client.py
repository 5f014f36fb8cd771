"""Opens the HTTP client of one provider, which calls only the configured endpoint and bounds its answers.

The limits are below the vendors' libraries, so they apply to every library. `bodies.py` bounds a body, `redaction.py` remembers
the keys that were sent, and `models.py` gives the client to a library.
"""

from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import ModuleType
from typing import Any, Final

import httpx
import httpx2

from kitchener.config import ProviderConfig
from kitchener.gateway.providers.bodies import BoundedBody, UnusableAnswer
from kitchener.gateway.providers.redaction import Redaction

CONNECT_TIMEOUT_S: Final = 10.0

_KEY_HEADERS: Final = ("authorization", "x-api-key", "x-goog-api-key", "api-key")
_NEVER_SENT: Final = ("OpenAI-Organization", "OpenAI-Project")
"""Headers that the library takes from the environment. They are removed, because only OpenAI itself should get them."""


def open_http_client(config: ProviderConfig, redaction: Redaction, *, withhold_key: bool = False) -> httpx2.AsyncClient:
    """Returns a client, to be opened with `async with`.

    Args:
        config: the provider's settings; with a `base_url`, a request to any other host fails before it is sent
        redaction: remembers each key that is sent
        withhold_key: whether to remove the placeholder key that a library sends if none is configured
    """
    return httpx2.AsyncClient(**_options(config, redaction, httpx2, withhold_key=withhold_key))


def open_former_http_client(config: ProviderConfig, redaction: Redaction) -> httpx.AsyncClient:
    """Like `open_http_client`, with `httpx` in place of `httpx2`, for vendors whose library takes no other client."""
    return httpx.AsyncClient(**_options(config, redaction, httpx, withhold_key=False))


def _options(config: ProviderConfig, redaction: Redaction, library: ModuleType, *, withhold_key: bool) -> dict[str, Any]:
    """Returns the arguments of a client; both libraries take the same."""
    withheld = (*(_NEVER_SENT if config.kind == "openai_compatible" else ()), *(("Authorization",) if withhold_key else ()))
    only = _origin(library.URL(config.base_url)) if config.base_url is not None else None

    async def prepare(request: httpx2.Request | httpx.Request) -> None:
        if only is not None and _origin(request.url) != only:
            raise UnusableAnswer("bad_request", f"a request to {request.url.host!r} was stopped: `base_url` names another host")
        for name in withheld:
            request.headers.pop(name, None)
        request.headers["Accept-Encoding"] = "gzip"  # only encodings that can be decompressed piece by piece
        for name in _KEY_HEADERS:
            if value := request.headers.get(name):
                redaction.note(value.rpartition(" ")[2])

    async def bound(response: httpx2.Response | httpx.Response) -> None:
        body = response.stream
        if not isinstance(body, httpx2.AsyncByteStream | httpx.AsyncByteStream):
            raise TypeError(f"an asynchronous body was expected, not {type(body).__name__}")
        encoding = response.headers.pop("Content-Encoding", "")
        response.stream = BoundedBody(body, encoding=encoding, status=response.status_code, max_bytes=config.max_response_bytes)

    return {
        "cookies": CookieJar(DefaultCookiePolicy(allowed_domains=())),  # an endpoint could fill a cookie jar without limit
        "event_hooks": {"request": [prepare], "response": [bound]},
        "timeout": library.Timeout(config.timeout_s, connect=min(CONNECT_TIMEOUT_S, config.timeout_s)),
        "limits": library.Limits(max_connections=config.max_concurrency, max_keepalive_connections=config.max_concurrency),
    }


def _origin(url: httpx2.URL | httpx.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port
