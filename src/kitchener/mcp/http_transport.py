"""Carries requests of HTTP to a server, limits its answers, and answers for a server that is not there.

The vendor's library ends a connection with all its calls where one request raises. So what goes wrong with a request becomes
its answer, an error of the protocol. `connection.py` reads it. Explained in `docs/mcp.md`.
"""

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Final

from kitchener.connection_problems import problem_of_system, told_of_connect
from kitchener.mcp.command import TOO_LARGE
from kitchener.plain_names import error_text

if TYPE_CHECKING:
    import httpx2

NOT_TAKEN: Final = "the server did not take the request: "
"""Begins the error of a request that had no effect."""
_SESSION: Final = "mcp-session-id"
"""The header with which servers of older versions of the protocol know a connection again."""


def bounded_transport(closed: int, limit: int, note_problem: Callable[[str], None]) -> "httpx2.AsyncHTTPTransport":
    """Returns a transport for a client of HTTP.

    Args:
        closed: the code of the protocol for a connection that has ended
        limit: largest answer, bytes; streams of events have limits of their own
        note_problem: is told why no request can succeed
    """
    import httpx2 as http  # when it is needed, because it takes a moment

    def answer(text: str) -> http.Response:
        return http.Response(502, json={"jsonrpc": "2.0", "id": None, "error": {"code": closed, "message": text}})

    class Bounded(http.AsyncHTTPTransport):
        async def handle_async_request(self, request: http.Request) -> http.Response:
            try:
                response = await super().handle_async_request(request)
            except (http.ConnectError, http.ConnectTimeout, http.PoolTimeout) as error:
                return answer(f"{NOT_TAKEN}{_told_of_connect(request.url, error)}")
            except http.TransportError as error:
                return answer(error_text(error))
            if response.status_code in (401, 403):
                note_problem(f"the server refuses the token or the headers (HTTP {response.status_code})")
            if not response.headers.get("content-type", "").startswith("text/event-stream"):
                assert isinstance(response.stream, http.AsyncByteStream)
                response.stream = _limited(response.stream, limit)
            if _SESSION in request.headers and await _has_forgotten(response):
                return answer(f"{NOT_TAKEN}it no longer knows this session")
            return response

    return Bounded()


def _told_of_connect(url: "httpx2.URL", error: Exception) -> str:
    problem, port = problem_of_system(error), url.port or (443 if url.scheme == "https" else 80)
    return told_of_connect(url.host, port, problem) if problem is not None else error_text(error)


async def _has_forgotten(response: "httpx2.Response") -> bool:
    """Whether a server that was started again refuses a session from before. The protocol says 404, and some say 400."""
    if response.status_code not in (400, 404):
        return False
    body = await response.aread()
    await response.aclose()
    return response.status_code == 404 or b"session" in body.lower()


def _limited(stream: "httpx2.AsyncByteStream", limit: int) -> "httpx2.AsyncByteStream":
    """A body that ends with an error beyond a limit, or where it is cut off."""
    import httpx2 as http

    class Limited(http.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            total = 0
            try:
                async for chunk in stream:
                    total += len(chunk)
                    if total > limit:
                        raise http.StreamError(f"{TOO_LARGE} {limit:,} bytes")
                    yield chunk
            except http.TransportError as error:
                raise http.StreamError(error_text(error)) from error

        async def aclose(self) -> None:
            await stream.aclose()

    return Limited()


__all__ = ["NOT_TAKEN", "bounded_transport"]
