"""What can go wrong at a vendor, in our own words, and without the API key in it.

It looks at the HTTP status and at the transport's error under the library's own, since these two are stable and say enough.
"""

from collections.abc import Iterator
from math import inf

import httpx
import httpx2
from pydantic_ai.exceptions import AgentRunError, ContentFilterError, UserError

from kitchener.errors import ProviderError, ProviderReason
from kitchener.gateway.providers.bodies import UnusableAnswer
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

MAX_DETAIL_CHARS = 500

_REASON_OF_STATUS: dict[int, ProviderReason] = {
    401: "authentication",
    402: "rate_limited",
    403: "authentication",
    408: "timeout",
    409: "server_error",
    425: "server_error",
    429: "rate_limited",
}


def translated(error: Exception, provider_id: str, redaction: Redaction) -> ProviderError:
    """The error as our own. Its text is the vendor's, shortened, with the keys taken out."""
    for each in _chain(error):
        if isinstance(each, UnusableAnswer):
            return ProviderError(provider_id, each.reason, redaction.text(each.detail))
    status = getattr(error, "status_code", None)
    status = status if isinstance(status, int) else None
    retry_after_s = getattr(error, "retry_after", None)
    return ProviderError(
        provider_id,
        _reason(error, status),
        _detail(error, status, redaction),
        status=status,
        retry_after_s=retry_after_s if isinstance(retry_after_s, float | int) and 0 <= retry_after_s < inf else None,
    )


def hide(error: Exception, redaction: Redaction) -> Exception | None:
    """The error as a cause to chain, or None if its text or that of its own causes holds a key."""
    if any(redaction.is_in(f"{each} {each!r}") for each in _chain(error)):
        return None
    return error


def _reason(error: Exception, status: int | None) -> ProviderReason:
    if status is not None:
        known = _REASON_OF_STATUS.get(status)
        return known if known is not None else "server_error" if status >= 500 else "bad_request"
    causes = tuple(_chain(error))
    if any(isinstance(each, httpx2.TimeoutException | httpx.TimeoutException | TimeoutError) for each in causes):
        return "timeout"
    if any(isinstance(each, httpx2.TransportError | httpx.TransportError | OSError) for each in causes):
        return "connection"
    if isinstance(error, ContentFilterError):
        return "refused"
    if isinstance(error, UserError):
        return "bad_request"
    return "empty" if isinstance(error, IndexError) else "malformed"


def _detail(error: Exception, status: int | None, redaction: Redaction) -> str:
    text = redaction.text(" ".join(_told(error, status).split()))
    return text if len(text) <= MAX_DETAIL_CHARS else text[: MAX_DETAIL_CHARS - 1] + "…"


def _told(error: Exception, status: int | None) -> str:
    if status is not None:
        body = getattr(error, "body", None)
        body = body.get("error", body) if isinstance(body, dict) else body
        message = body.get("message", body) if isinstance(body, dict) else body
        return f"HTTP {status}: {message or 'no further explanation'}"
    if isinstance(error, IndexError):
        return "the answer holds no choices"
    for each in _chain(error):
        if isinstance(each, httpx2.TransportError | httpx.TransportError):
            return f"{type(each).__name__}: {each}" if str(each) else type(each).__name__
    return str(error) or type(error).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        yield each
        each = each.__cause__ or each.__context__
