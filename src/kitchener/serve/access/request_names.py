"""Reads from the headers of a request which session and which subject it names."""

from starlette.datastructures import Headers
from starlette.requests import Request

from kitchener.config import ServeConfig
from kitchener.serve.problems import RequestRefused

SESSION_HEADER = "X-Kitchener-Session"
"""Names the session by its id, or the conversation by any name of the client."""


def named_session(request: Request, config: ServeConfig) -> str | None:
    """The session that a request names; None: none."""
    return _first(request, (SESSION_HEADER, *config.session_headers))


def named_subject(request: Request, config: ServeConfig) -> str | None:
    """The subject that a request names; None: none. Only keys with the right `act_for` may."""
    return _first(request, config.subject_headers)


def subject_token(request: Request, config: ServeConfig) -> str | None:
    """The signed token that names the subject of a request; None: it has none."""
    return _first(request, (config.subject_token_header,))


def _first(request: Request, names: tuple[str, ...]) -> str | None:
    values = ((only_value(request.headers, each) or "").strip() for each in names)
    return next((each for each in values if each), None)


def only_value(headers: Headers, name: str) -> str | None:
    """The value of a header; None: there is none.

    Raises:
        RequestRefused: there are two. A proxy in front may have checked, or added, the one that would not count here
    """
    values = headers.getlist(name)
    if len(values) > 1:
        raise RequestRefused(400, "invalid_request", f"the request has the header {name} more than once")
    return values[0] if values else None
