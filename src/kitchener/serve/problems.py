"""Turns errors into answers: one table from error classes to status codes, and one form of the body.

An answer of 500 never repeats the error's text, which may name files of this machine. Explained in `docs/server.md`.
"""

import math
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from starlette.exceptions import HTTPException
from starlette.responses import Response

from kitchener.errors import (
    ApprovalAnswered,
    ApprovalVoid,
    CallerError,
    IdempotencyConflict,
    InvalidLifecycle,
    KitchenerError,
    LedgerClockError,
    NotOnRecord,
    OutcomeUnknown,
    Overloaded,
    RuntimeClosed,
    SealingError,
    SessionBusy,
    SessionEnded,
    SessionMismatch,
    SubjectErased,
    TurnOverloaded,
    TurnReplaced,
    TurnShutDown,
    TurnTimeout,
    UnknownApproval,
    UnknownArtifact,
    UnknownSession,
    UnknownSubject,
)
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of, quoted
from kitchener.serve.sendable import as_json

_log = get_logger(__name__)


ProblemCode = Literal[
    "approval_closed",
    "approval_not_found",
    "call_closed",
    "call_not_found",
    "cannot_delete",
    "idempotency_conflict",
    "internal_error",
    "invalid_api_key",
    "invalid_lifecycle",
    "invalid_request",
    "model_failed",
    "model_not_found",
    "no_such_route",
    "not_found",
    "not_json",
    "not_sealed",
    "outcome_unknown",
    "overloaded",
    "rate_limited",
    "request_timeout",
    "request_too_large",
    "response_not_found",
    "response_running",
    "right_missing",
    "session_busy",
    "session_ended",
    "session_invalid",
    "session_not_found",
    "shutting_down",
    "spending_limit",
    "subject_erased",
    "subject_invalid",
    "subject_missing",
    "subject_token_invalid",
    "too_many_requests",
    "too_many_wrong_keys",
    "turn_replaced",
    "turn_stopped",
    "turn_timeout",
    "two_lengths",
    "unsupported",
    "wrong_api",
    "wrong_host",
    "wrong_origin",
]
"""The word that a program reads in the answer to a request that failed. `docs/server.md` says what each means."""


class RequestRefused(KitchenerError):
    """A request cannot be served. Nothing was started.

    Attributes:
        status: the HTTP status of the answer
        code: a word for programs
        retry_after_s: when it may be sent again, seconds; None: not said
    """

    def __init__(self, status: int, code: ProblemCode, message: str, *, retry_after_s: float | None = None) -> None:
        self.status, self.code, self.retry_after_s = status, code, retry_after_s
        super().__init__(message)


class Problem(NamedTuple):
    """The answer of the server to an error."""

    status: int
    code: ProblemCode
    message: str
    retry_after_s: float | None = None
    allowed: str | None = None
    """The methods of the path, where the request has another one."""
    has_begun: bool = False
    """Whether a turn had begun, whose tools may have run."""

    @property
    def kind(self) -> str:
        """The family of the error, as clients of the OpenAI API expect it."""
        return _KINDS.get(self.status, "server_error" if self.status >= 500 else "invalid_request_error")

    @property
    def _may_pass(self) -> bool:
        """Whether nothing has begun and a later request may succeed.

        Official clients send failed requests again by themselves. That would begin a second turn, or fail again.
        """
        if self.has_begun:
            return False
        return (self.status in _PASSING and self.code not in _LASTING) or self.code in _PASSING_CODES

    def body(self) -> dict[str, object]:
        """The JSON object of the answer."""
        return {"error": {"message": self.message, "type": self.kind, "param": None, "code": self.code}}

    def response(self, headers: Mapping[str, str] | None = None) -> Response:
        """The whole answer."""
        sent = dict(headers or {})
        sent["x-should-retry"] = str(self._may_pass).lower()
        if self.allowed is not None:
            sent["allow"] = self.allowed
        if self.retry_after_s is not None:
            sent["retry-after"] = str(max(1, math.ceil(self.retry_after_s)))
        if self.code == "shutting_down":
            sent["connection"] = "close"  # so that what comes next reaches the server after this one
        if self.status == 401:
            sent["www-authenticate"] = "Bearer"
        return json_response(self.body(), self.status, sent)


_KINDS: Final[Mapping[int, str]] = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_RETRY_S: Final = 1.0
_PASSING: Final = (408, 429, 503)
"""Statuses of requests that began nothing and may succeed later."""
_LASTING: Final[tuple[ProblemCode, ...]] = ("spending_limit",)
_PASSING_CODES: Final[tuple[ProblemCode, ...]] = ("session_busy",)

# The first class that fits decides, so subclasses stand before their bases. `docs/server.md` has this table.
STATUS_CODES: Final[tuple[tuple[tuple[type[KitchenerError], ...], int, ProblemCode], ...]] = (
    # Another answer would reveal that the session exists.
    ((UnknownSession, SessionMismatch), 404, "session_not_found"),
    ((UnknownApproval,), 404, "approval_not_found"),
    ((UnknownSubject, UnknownArtifact, NotOnRecord), 404, "not_found"),
    ((SessionEnded,), 410, "session_ended"),
    ((SubjectErased,), 410, "subject_erased"),
    ((IdempotencyConflict,), 409, "idempotency_conflict"),
    ((OutcomeUnknown,), 409, "outcome_unknown"),
    ((ApprovalAnswered, ApprovalVoid), 409, "approval_closed"),
    ((SessionBusy,), 409, "session_busy"),
    ((TurnReplaced,), 409, "turn_replaced"),
    ((InvalidLifecycle,), 409, "invalid_lifecycle"),
    ((CallerError,), 400, "invalid_request"),
    ((TurnTimeout, TurnOverloaded), 504, "turn_timeout"),
    ((Overloaded,), 503, "overloaded"),
    ((RuntimeClosed,), 503, "shutting_down"),
    ((KitchenerError,), 500, "internal_error"),
)


def problem_for(error: Exception, asked_for: str = "this") -> Problem:
    """The answer of the server to an error.

    A failure of the server is logged by its class and its place, and by its text only if that can say nothing but where the
    machine is at fault.

    Args:
        error: what ended the request
        asked_for: the method and the path of the request
    """
    if isinstance(error, RequestRefused):
        return Problem(error.status, error.code, str(error), error.retry_after_s)
    if isinstance(error, HTTPException):
        text = (
            f"there is no {quoted(asked_for)}; GET /openapi.json lists all, and OpenAI clients need a base URL that ends in /v1"
        )
        return Problem(error.status_code, "no_such_route", text, allowed=(error.headers or {}).get("Allow"))
    status, code = next(((status, code) for kinds, status, code in STATUS_CODES if isinstance(error, kinds)), INTERNAL)
    if status == INTERNAL[0]:
        told = {"problem": str(error)} if isinstance(error, _OF_THE_MACHINE) else {}
        _log.error("request failed", error=origin_of(error), **told)
        return Problem(status, code, "the server failed; its log says why")
    has_begun = isinstance(error, TurnShutDown)
    retry_after_s = _RETRY_S if status == 503 and not has_begun else None
    return Problem(status, code, _SAME_TEXTS.get(code, str(error)), retry_after_s, has_begun=has_begun)


_SAME_TEXTS: Final[Mapping[ProblemCode, str]] = {"session_not_found": "there is no session of this id for this key"}
"""Replaces the texts of errors whose difference would reveal whether something exists."""
_OF_THE_MACHINE: Final = (LedgerClockError, SealingError)
"""Errors whose texts name ledgers, files, subjects and times, never what was said. An operator can mend their cause."""
INTERNAL: Final[tuple[int, ProblemCode]] = (500, "internal_error")


def json_response(content: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """An answer that is one JSON value."""
    return Response(as_json(content), status, {**(headers or {}), "cache-control": "no-store"}, "application/json")
