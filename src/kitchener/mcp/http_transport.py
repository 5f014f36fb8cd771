"""Carries requests of HTTP to a server, limits its answers, and answers for a server that is not there.

The vendor's library ends a connection with all its calls where one request raises, and says little of an answer that is no
success. So what goes wrong with a request becomes its answer, an error of the protocol, whose data say what became of the
request. `protocol_errors.py` reads it. Explained in `docs/mcp.md`.
"""

from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import orjson

from kitchener.connection_problems import problem_of_system, told_of_connect_to
from kitchener.mcp.protocol_errors import CUT_OFF, OF_HTTP, TOO_LARGE, HttpFailure
from kitchener.plain_names import error_text

if TYPE_CHECKING:
    import httpx2

_SESSION: Final = "mcp-session-id"
"""The header with which servers of older versions of the protocol know a connection again."""
_PHRASES: Final = {each.value: f" ({each.phrase})" for each in HTTPStatus}


def bounded_transport(closed: int, limit: int) -> "httpx2.AsyncHTTPTransport":
    """Returns a transport for a client of HTTP.

    Args:
        closed: the code of the errors that it makes
        limit: largest answer, bytes; streams of events have limits of their own
    """
    import httpx2 as http  # when it is needed, because it takes a moment

    def failed(failure: HttpFailure, text: str) -> http.Response:
        error = {"code": closed, "message": text, "data": {OF_HTTP: failure}}
        return http.Response(502, json={"jsonrpc": "2.0", "id": None, "error": error})

    class Bounded(http.AsyncHTTPTransport):
        async def handle_async_request(self, request: http.Request) -> http.Response:
            try:
                response = await super().handle_async_request(request)
            except (http.ConnectError, http.ConnectTimeout, http.PoolTimeout) as error:
                return failed("not taken", _told_of_connect(request, error))
            except http.TransportError as error:
                return failed("unanswered", _told_of_loss(request, error))
            if request.method != "POST" or (response.status_code < 400 and _is_stream(response)):
                return response
            assert isinstance(response.stream, http.AsyncByteStream)
            response.stream = _limited(response.stream, limit)
            try:
                await response.aread()
            except _TooLarge:
                return failed("too large", f"{TOO_LARGE} {limit:,} bytes")
            except (http.RequestError, http.StreamError):
                return failed("unanswered", CUT_OFF)
            finally:
                await response.aclose()
            failure = _failure_of(request, response)
            return response if failure is None else failed(*failure)

    return Bounded(limits=http.Limits(max_connections=None, max_keepalive_connections=20))  # `max_calls` bounds the calls


def _told_of_connect(request: "httpx2.Request", error: Exception) -> str:
    if (problem := problem_of_system(error)) is not None:
        return told_of_connect_to(str(request.url), problem)
    return f"no connection to {request.url.host} within {_limit_of(request, 'connect')}; check `url` and the network"


def _told_of_loss(request: "httpx2.Request", error: Exception) -> str:
    import httpx2 as http

    match error:
        case http.TimeoutException():
            return f"it did not answer within {_limit_of(request, 'read')}"
        case http.NetworkError():
            return "it closed the connection before it answered"
        case http.RemoteProtocolError() if "without sending" in str(error):
            return "it closed the connection before it answered"
        case http.RemoteProtocolError():
            return "its answer is not valid HTTP; check `url`"
    return error_text(error)


def _limit_of(request: "httpx2.Request", kind: str) -> str:
    return f"{request.extensions.get('timeout', {}).get(kind) or 0:g} s"


def _is_stream(response: "httpx2.Response") -> bool:
    return response.headers.get("content-type", "").lower().startswith("text/event-stream")


def _failure_of(request: "httpx2.Request", response: "httpx2.Response") -> tuple[HttpFailure, str] | None:
    """What became of a request whose answer has been read; None: the answer is no error, or one of the protocol."""
    status = response.status_code
    if status < 400:
        return None
    if _SESSION in request.headers and _has_forgotten(status, response.content):
        return "not taken", "it no longer knows this session"
    if status in (401, 403):
        return "rejected", f"the server refuses the token or the headers (HTTP {status})"
    if _is_error_of_protocol(response):
        return None
    if status in (404, 405):
        return "rejected", f"no MCP server is at its address (HTTP {status}); check `url`"
    return "unanswered", f"it answered HTTP {status}{_PHRASES.get(status, '')}"


def _has_forgotten(status: int, body: bytes) -> bool:
    """Whether a server that was started again refuses a session from before. The protocol says 404, and some say 400."""
    return status == 404 or (status == 400 and b"session" in body.lower())


def _is_error_of_protocol(response: "httpx2.Response") -> bool:
    """Whether the library finds an error of the protocol in the answer."""
    if not response.headers.get("content-type", "").lower().startswith("application/json"):
        return False
    try:
        message: Any = orjson.loads(response.content)
    except ValueError:
        return False
    error = message.get("error") if isinstance(message, dict) and message.get("jsonrpc") == "2.0" else None
    return isinstance(error, dict) and type(error.get("code")) is int and isinstance(error.get("message"), str)


class _TooLarge(Exception):
    """A body is larger than the limit."""


def _limited(stream: "httpx2.AsyncByteStream", limit: int) -> "httpx2.AsyncByteStream":
    """A body that ends with an error beyond a limit."""
    import httpx2 as http

    class Limited(http.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            total = 0
            async for chunk in stream:
                total += len(chunk)
                if total > limit:
                    raise _TooLarge
                yield chunk

        async def aclose(self) -> None:
            await stream.aclose()

    return Limited()


__all__ = ["bounded_transport"]
