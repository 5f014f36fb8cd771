"""Determines the subject of a request: from its key, from a signed token, or from a header. Explained in `docs/server.md`."""

from typing import Final

import jwt
from jwt.types import Options
from starlette.datastructures import Headers

from kitchener.clock import Clock
from kitchener.config import ServeConfig
from kitchener.serve.access.callers import Caller
from kitchener.serve.access.request_names import named_subject, subject_token
from kitchener.serve.problems import RequestRefused

_LEEWAY_S: Final = 30
"""How far the clocks of the front end and of this machine may differ, seconds."""
_CHECKED: Final[Options] = {
    "require": ["exp", "sub"],
    "verify_aud": False,
    "verify_exp": False,
    "verify_iat": False,
    "verify_nbf": False,
}
"""Times are compared here, with the clock of the server."""


class RequestSubjects:
    """Finds the subjects of requests.

    Args:
        config: the settings of the server
        clock: the time of day, for tokens
    """

    def __init__(self, config: ServeConfig, clock: Clock) -> None:
        self._config, self._clock = config, clock

    def of(self, headers: Headers, caller: Caller) -> str:
        """The subject that a request acts for.

        Args:
            headers: those of the request
            caller: who sends it

        Raises:
            RequestRefused: it names no subject, or one that its key does not reach, or its token is not valid for that subject
        """
        if caller.settings.subject is not None:
            return caller.subject(None)  # whatever the headers say
        if caller.token_secret is None:
            return caller.subject(named_subject(headers, self._config))
        # If a front end signs the subject that it acts for, its plain headers prove nothing.
        token = subject_token(headers, self._config)
        if token is None:
            header = self._config.subject_token_header
            raise RequestRefused(400, "subject_missing", f"this key acts for others: name the subject in a signed {header}")
        return caller.subject(self._signed_for(token, caller.token_secret))

    def _signed_for(self, token: str, secret: str) -> str:
        try:
            claims = jwt.decode(token, secret, ["HS256"], _CHECKED)
        except (jwt.InvalidTokenError, ValueError) as error:
            raise _wrong(f"it cannot be verified ({type(error).__name__})") from None
        now_s = self._clock.time_us() / 1_000_000
        times = {name: claims.get(name) for name in ("exp", "nbf")}
        if any(each is not None and (isinstance(each, bool) or not isinstance(each, int | float)) for each in times.values()):
            raise _wrong("its times are no numbers")
        if not now_s < (times["exp"] or 0) + _LEEWAY_S:
            raise _wrong("it has expired")
        if not (times["nbf"] or 0) - _LEEWAY_S <= now_s:
            raise _wrong("it is not valid yet")
        return str(claims["sub"])


def _wrong(why: str) -> RequestRefused:
    return RequestRefused(
        401,
        "subject_token_invalid",
        f"the token that names the subject: {why}; sign it with HS256 and the `subject_secret` of this key",
    )
