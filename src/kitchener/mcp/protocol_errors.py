"""Says what an error of the protocol means, which may come from the server, from our transport or from the vendor's library.

Over HTTP, what goes wrong with a request becomes an error of the protocol: `http_transport.py` makes it where there is no
answer or one that is no success, and the library where it cannot read the answer. `connection.py` asks here. Pure.
"""

import re
from typing import Final, Literal

from kitchener.mcp.connection_errors import (
    LAST_WORDS_CHARS,
    AnswerTooLarge,
    ConnectionEnded,
    ConnectionLost,
    RequestNotTaken,
    RequestRejected,
    ServerRefused,
)
from kitchener.plain_names import quoted

TOO_LARGE: Final = "its answer is larger than"
"""Begins the error of a request whose answer was dropped."""
UNREADABLE: Final = "its answer is no message of the protocol"
"""The error of a request whose answer cannot be read."""
CUT_OFF: Final = "its answer was cut off"
"""The error of a request whose answer over HTTP has no end."""

HttpFailure = Literal["not taken", "rejected", "too large", "unanswered"]
"""What became of a request over HTTP. `rejected`: whatever is at the address refused it unread, such as for its token.
`too large`: it was answered with more than is read. `unanswered`: nobody knows whether it had an effect."""
OF_HTTP: Final = "kitchener"
"""Key of the `HttpFailure` in the `data` of an error that our transport makes."""

_HAS_CLOSED: Final = "Connection closed"
"""What the library says of each request when the connection has ended."""
_EVENT_TOO_LARGE: Final = re.compile(r"SSE stream failed: .{0,80} exceeded the (\d{1,18}) byte limit")
_CONTENT_TYPE: Final = "Unexpected content type: "
_REDIRECT: Final = re.compile(r"Redirect to (\S{1,2000}) not followed; use ")
_OF_LIBRARY: Final = (
    ("Failed to parse", UNREADABLE),
    ("SSE stream failed", UNREADABLE),
    ("SSE stream ended", CUT_OFF),
    ("server answered a request with 202", "it took the request, and answered nothing (HTTP 202)"),
)
"""How the library's texts about answers over HTTP begin, and what we say."""


def meaning_of(code: int, text: str, data: object, *, closed: int) -> Exception:
    """Returns an error of this package for an error of the protocol.

    Args:
        code: its code
        text: its message
        data: its further data
        closed: the library's code for a connection that has ended; servers use it for errors of their own
    """
    match data.get(OF_HTTP) if isinstance(data, dict) else None:
        case "not taken":
            return RequestNotTaken(text)
        case "rejected":
            return RequestRejected(text)
        case "too large":
            return AnswerTooLarge(text)
        case "unanswered":
            return ConnectionLost(text)
    if code == closed and text == _HAS_CLOSED:
        return ConnectionEnded("the connection was closed")
    if TOO_LARGE in text:
        return AnswerTooLarge(text[text.index(TOO_LARGE) :])
    if text == UNREADABLE:
        return ConnectionLost(text)
    return _of_library(text) or ServerRefused(f"{text or 'it gives no reason'} ({code})")


def _of_library(text: str) -> Exception | None:
    """What the library found wrong with an answer over HTTP; None: the server wrote the text."""
    if (event := _EVENT_TOO_LARGE.match(text)) is not None:
        return AnswerTooLarge(f"{TOO_LARGE} {int(event[1]):,} bytes")
    for beginning, told in _OF_LIBRARY:
        if text.startswith(beginning):
            return ConnectionLost(told)
    if text.startswith(_CONTENT_TYPE):
        kind = quoted(text.removeprefix(_CONTENT_TYPE).partition(";")[0])
        return ConnectionLost(f"it answered with {kind}, which is no message of the protocol; check `url`")
    if (redirect := _REDIRECT.match(text)) is not None:
        target = quoted(redirect[1], 300)
        return RequestRejected(f"it redirects to {target}; set `url` to this address if it is the right server")
    if text.startswith("Redirect to "):  # from `https` to `http`, for which the library gives advice
        return RequestRejected(" ".join(text.split())[:LAST_WORDS_CHARS])
    return None


__all__ = ["CUT_OFF", "OF_HTTP", "TOO_LARGE", "UNREADABLE", "HttpFailure", "meaning_of"]
