"""Reads from the headers of a request which session and which subject it names."""

from starlette.requests import Request

from kitchener.config import ServeConfig

SESSION_HEADER = "X-Kitchener-Session"
"""Names the session by its id, or the conversation by any name of the client."""


def named_session(request: Request, config: ServeConfig) -> str | None:
    """The session that a request names; None: none."""
    return _first(request, (SESSION_HEADER, *config.session_headers))


def named_subject(request: Request, config: ServeConfig) -> str | None:
    """The subject that a request names; None: none. Only keys with the right `act_for` may."""
    return _first(request, config.subject_headers)


def _first(request: Request, names: tuple[str, ...]) -> str | None:
    values = (request.headers.get(each, "").strip() for each in names)
    return next((each for each in values if each), None)
