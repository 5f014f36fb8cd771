"""What can go wrong at a vendor, in our own words, and without the API key in it.

It looks at the HTTP status and at the transport's error under the library's own, since these two are stable and say enough.
"""

from contextlib import suppress
from math import inf

import httpx
import httpx2
from pydantic_ai.exceptions import AgentRunError, ContentFilterError, UserError

from kitchener.connection_problems import problem_of_system, told_of_connect_to
from kitchener.errors import ConfigError, ProviderError, ProviderReason
from kitchener.errors.nested import with_causes
from kitchener.gateway.providers.bodies import UnusableAnswer
from kitchener.gateway.providers.endpoint_errors import (
    CUT_OFF,
    LOST,
    NO_CONNECTION_IN_TIME,
    NOT_ANSWERED,
    NOTHING_IN_TIME,
    reason_of,
    reason_of_proxy,
    redacted_line,
    told_by,
    told_of_protocol,
    told_of_proxy,
)
from kitchener.gateway.providers.proxies import proxy_for
from kitchener.gateway.providers.redaction import Redaction

# An answer of an unexpected shape surfaces in the libraries as whatever their code happens to stumble over.
VENDOR_ERRORS = (
    UnusableAnswer,
    AgentRunError,
    UserError,
    httpx2.HTTPError,
    httpx2.InvalidURL,
    httpx2.StreamError,
    httpx.HTTPError,
    httpx.InvalidURL,
    httpx.StreamError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,  # a RecursionError, too
    TypeError,
    ValueError,
)
"""What the vendor libraries raise, and what `translated` takes."""


def translated(error: Exception, provider_id: str, redaction: Redaction, proxy: str | None = "env") -> ProviderError:
    """The error as our own. Its text is the vendor's, in one line, with the keys taken out.

    Args:
        error: what the library raised
        provider_id: the provider's id in the configuration
        redaction: the keys
        proxy: the address of the proxy; `env`: the one that the environment names, None: there is none
    """
    for each in with_causes(error):
        if isinstance(each, UnusableAnswer):
            return ProviderError(provider_id, each.reason, redaction.text(each.detail))
    status = getattr(error, "status_code", None)
    status = status if isinstance(status, int) else None
    retry_after_s = getattr(error, "retry_after", None)
    return ProviderError(
        provider_id,
        _reason(error, status),
        redacted_line(_error_text(error, status, proxy), redaction),
        status=status,
        retry_after_s=retry_after_s if isinstance(retry_after_s, float | int) and 0 <= retry_after_s < inf else None,
    )


def _reason(error: Exception, status: int | None) -> ProviderReason:
    if status is not None:
        return reason_of(status, getattr(error, "body", None))
    causes = tuple(with_causes(error))
    if any(isinstance(each, httpx2.TimeoutException | httpx.TimeoutException | TimeoutError) for each in causes):
        return "timeout"
    if proxy := next((each for each in causes if isinstance(each, httpx2.ProxyError | httpx.ProxyError)), None):
        return reason_of_proxy(str(proxy)[:3])
    if any(isinstance(each, httpx2.TransportError | httpx.TransportError | OSError) for each in causes):
        return "connection"
    if isinstance(error, ContentFilterError):
        return "refused"
    if isinstance(error, UserError):
        return "bad_request"
    return "empty" if isinstance(error, IndexError) else "malformed"


def _error_text(error: Exception, status: int | None, proxy: str | None) -> str:
    if status is not None:
        return told_by(status, getattr(error, "body", None))
    if isinstance(error, IndexError):
        return "the answer holds no choices"
    for each in with_causes(error):
        if isinstance(each, httpx2.TransportError | httpx.TransportError):
            return _told_of_transport(each, proxy)
    return str(error) or type(error).__name__


def _told_of_transport(error: httpx2.TransportError | httpx.TransportError, proxy: str | None) -> str:
    match error:
        case httpx2.ReadError() | httpx.ReadError() | httpx2.WriteError() | httpx.WriteError():
            return LOST
        case httpx2.RemoteProtocolError() | httpx.RemoteProtocolError() if "without sending complete" in str(error):
            return CUT_OFF
        case httpx2.RemoteProtocolError() | httpx.RemoteProtocolError() if "without sending a response" in str(error):
            return NOT_ANSWERED
        case httpx2.RemoteProtocolError() | httpx.RemoteProtocolError():
            return told_of_protocol(str(error).partition(": bytearray(")[0])
        case httpx2.ConnectTimeout() | httpx.ConnectTimeout():
            return NO_CONNECTION_IN_TIME
        case httpx2.ReadTimeout() | httpx.ReadTimeout():
            return NOTHING_IN_TIME
        case httpx2.ProxyError() | httpx.ProxyError() if str(error)[:3].isdecimal():
            return told_of_proxy(*str(error).split(" ", 1))
        case httpx2.ConnectError() | httpx.ConnectError() if (problem := problem_of_system(error)) is not None:
            return _told_of_endpoint(str(error.request.url), problem, proxy)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _told_of_endpoint(url: str, problem: OSError, proxy: str | None) -> str:
    with suppress(ConfigError):  # a proxy that our own adapter cannot use
        used = proxy_for(url, Redaction()) if proxy == "env" else proxy
        if used is not None:
            return told_of_connect_to(used, problem, is_proxy=True)
    return told_of_connect_to(url, problem)
