"""Reads the session and the subject that the headers of a request name."""

from typing import Final

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import Scope

from kitchener.config import ServeConfig
from kitchener.serve.problems import RequestRefused

SESSION_HEADER = "X-Kitchener-Session"
"""The header with a session id, or with the client's own name of the conversation."""


_ONCE: Final = ("authorization", "content-type", "host", "idempotency-key", "last-event-id", "origin", SESSION_HEADER)
"""Headers that must not be repeated, besides those that the settings name."""


class HeadersOnce:
    """Refuses requests that repeat a header if only one of its values would count.

    A proxy in front may have checked or added the other value.

    Args:
        config: names further headers that say who sends a request, and to which session
    """

    def __init__(self, config: ServeConfig) -> None:
        names = (*_ONCE, *config.session_headers, *config.subject_headers, config.subject_token_header)
        self._names = frozenset(each.lower().encode() for each in names)

    def check(self, scope: Scope) -> None:
        """Raises RequestRefused if such a header occurs twice."""
        seen = set[bytes]()
        for name, _ in scope["headers"]:
            if name in seen and name in self._names:
                raise RequestRefused(400, "invalid_request", f"the request has the header {name.decode()} more than once")
            seen.add(name)


def named_session(request: Request, config: ServeConfig) -> str | None:
    """The session that a request names; None: none."""
    return _first(request.headers, (SESSION_HEADER, *config.session_headers))


def named_subject(headers: Headers, config: ServeConfig) -> str | None:
    """The subject that a request names; None: none. Only keys with the right `act_for` may.

    Raises:
        RequestRefused: it names two. One of them may be forged, and the front end may not know of that header
    """
    found = {value for each in config.subject_headers if (value := _value(headers, each))}
    if len(found) > 1:
        raise RequestRefused(
            400, "subject_invalid", f"the request names different subjects in {', '.join(config.subject_headers)}"
        )
    return next(iter(found), None)


def subject_token(headers: Headers, config: ServeConfig) -> str | None:
    """The signed token that names the subject of a request; None: it has none."""
    return _first(headers, (config.subject_token_header,))


def _first(headers: Headers, names: tuple[str, ...]) -> str | None:
    values = (_value(headers, each) for each in names)
    return next((each for each in values if each), None)


def _value(headers: Headers, name: str) -> str:
    """The value of a header without the white space of HTTP around it, and no other: the UTF-8 forms of `à` and `Å` end in
    bytes that Python takes for white space, and two names must not become one."""
    return headers.get(name, "").strip(" \t")
