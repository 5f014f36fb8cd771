"""Turns what an endpoint answers in place of a reply into reasons and short texts, for every kind of real provider."""

import re
from functools import partial
from http import HTTPStatus
from typing import Final

from kitchener.errors import ProviderReason
from kitchener.errors.nested import all_behind
from kitchener.gateway.providers.redaction import Redaction
from kitchener.plain_names import cut_to, without_halves

MAX_DETAIL_CHARS: Final = 500
CONNECT_TIMEOUT_S: Final = 10.0
"""Longest wait for a connection, seconds; a shorter `timeout_s` bounds it, too."""

NOT_ANSWERED: Final = "the endpoint closed the connection before it answered"
CUT_OFF: Final = (
    "the connection was closed in the middle of the answer; the endpoint, or a proxy in front of it, may have stopped or may "
    "have a shorter time limit: see its log"
)
LOST: Final = "the connection to the endpoint was lost"
NO_CONNECTION_IN_TIME: Final = (
    "no connection to the endpoint in time: it, or a firewall in front of it, does not answer; check `base_url` and the network"
)
NOTHING_IN_TIME: Final = "the endpoint sent nothing for too long (`timeout_s`), or stopped in the middle of its answer"
"""What is said of a connection that was not made or ended too early, by every kind of real provider."""
CHECK_KEY: Final = 'check `api_key`; if there is none, set `api_key = "env:NAME"`'
"""The remedy if an endpoint wants a key, or another one."""

_REASON_OF_STATUS: Final[dict[int, ProviderReason]] = {
    401: "authentication",
    402: "out_of_credit",
    403: "authentication",
    407: "authentication",
    408: "timeout",
    409: "server_error",
    425: "server_error",
    429: "rate_limited",
}
_REASON_OF_CODE: Final[dict[str, ProviderReason]] = {
    "billing_hard_limit_reached": "out_of_credit",
    "billing_not_active": "out_of_credit",
    "content_filter": "refused",
    "content_policy_violation": "refused",
    "context_length_exceeded": "context_length",
    "data_inspection_failed": "refused",
    "exceed_context_size_error": "context_length",
    "exceeded_current_quota_error": "out_of_credit",
    "insufficient_quota": "out_of_credit",
    "insufficient_user_quota": "out_of_credit",
    "json_validate_failed": "malformed",
    "tool_use_failed": "malformed",
}
"""What endpoints call an error in its `code` or `type`, where that says more than the status: the filters of Azure, OpenAI and
Alibaba, a request that is longer than the model's context (llama.cpp answers 500), Groq's checks of what the model wrote, and
accounts without money, for which OpenAI, Moonshot and One API answer 429 or 403."""
_STATUS_OF_CODE: Final = {
    "engine_overloaded_error": 429,
    "overloaded": 503,
    "overloaded_error": 503,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "resource_exhausted": 429,
    "server_overloaded": 503,
    "service_unavailable": 503,
    "too_many_requests": 429,
    "unavailable": 503,
}
"""The status that stands for an error's `code`, `type` or `status` in lower case, in an answer whose own status is 200."""
_MODERATED: Final = ("reasons", "flagged_input")
"""What OpenRouter's `metadata` has of a request that a moderation stopped; its status is 403, as for a wrong key."""

_TOO_LONG: Final = re.compile(
    r"maximum context length"
    r"|(?:prompt|request|input|messages).{0,80}exceeds?.{0,40}(?:\bcontext|maximum number of (?:input )?tokens)"
    r"|(?:prompt|input|request) is too long"
    r"|reduce the length of (?:the|your) (?:messages|prompt|input)",
    re.IGNORECASE,
)
"""What vLLM, Anthropic, Bedrock, Google, Groq and others say of a request that is longer than the context, without a code."""
_LOADING: Final = re.compile(r"\bloading model\b|\bmodel\b.{0,120}\bis (?:currently )?loading\b", re.IGNORECASE)
"""What llama.cpp and Hugging Face say with status 503 while they load a model."""
_STATUS: Final = re.compile("[45][0-9]{2}")
_NOT_THERE: Final = (404, 405)
"""What a server answers to an address or a method that it does not have."""
_WRONG_KEY: Final = (401, 403)
"""What a server answers to a wrong or missing key. A 403 may have other reasons, which its body then names."""
_PHRASES: Final = {each.value: each.phrase for each in HTTPStatus}
_WEB_PAGE: Final = re.compile(r"\s*<(?:!doctype html|html|head|body)\b", re.IGNORECASE)
_TITLE: Final = re.compile(r"<title[^<>]{0,100}>([^<]{0,200})", re.IGNORECASE)


def told_of_protocol(problem: str) -> str:
    """Returns the error text for an answer that is not HTTP."""
    return f"the answer is not valid HTTP ({problem}); check `base_url`"


def told_of_proxy(status: object, phrase: str) -> str:
    """Returns the error text for a proxy that does not connect to the endpoint, with the status that it answered."""
    return f"the proxy refused a connection to the endpoint: HTTP {status}: {phrase}"


def reason_of_proxy(status: object) -> ProviderReason:
    """Returns the reason for the status by which a proxy refused a connection: as for an endpoint's, if it wants a password."""
    return reason_of(407, None) if status in (407, "407") else "connection"


def reason_of(status: int, body: object) -> ProviderReason:
    """Returns the reason for an HTTP status that is not a success, and the parsed body of the answer."""
    error = error_in(body)
    if isinstance(error, dict):
        for name in ("code", "type"):
            if isinstance(code := error.get(name), str) and (known := _REASON_OF_CODE.get(code)) is not None:
                return known
        metadata = error.get("metadata")
        if status in (400, 403) and isinstance(metadata, dict) and any(metadata.get(name) for name in _MODERATED):
            return "refused"
    known_status = _REASON_OF_STATUS.get(status)
    if known_status is None and _TOO_LONG.search(told_by(status, body)):
        return "context_length"
    return known_status if known_status is not None else "server_error" if status >= 500 else "bad_request"


def is_loading(status: int, body: object) -> bool:
    """Whether the server will answer as soon as it has loaded the model."""
    return status == HTTPStatus.SERVICE_UNAVAILABLE and _LOADING.search(told_by(status, body)) is not None


def status_in(body: object) -> int:
    """Returns the HTTP status that an error in an answer with status 200 stands for, by its code or its name; else 500."""
    error = error_in(body)
    if isinstance(error, dict):
        for name in ("code", "status", "status_code", "type"):
            code = error.get(name)
            if isinstance(code, str):
                code = int(code) if _STATUS.fullmatch(code) else _STATUS_OF_CODE.get(code.lower())
            if type(code) is int and 400 <= code < 600:
                return code
    return 500


def error_in(body: object) -> object:
    """Returns what the parsed body of an answer says of an error, wherever it stands. Google puts it in a list."""
    if isinstance(body, list) and len(body) == 1:
        body = body[0]
    return body.get("error", body) if isinstance(body, dict) else body


def told_by(status: int, body: object) -> str:
    """Returns the error text for an HTTP status and the parsed body of the answer."""
    error = error_in(body)
    message = error.get("message", error.get("detail", error)) if isinstance(error, dict) else error
    if isinstance(message, str) and (page := named_web_page(message)) is not None:
        message = f"{page} instead of JSON"
    told = f"{message or _PHRASES.get(status, 'no further explanation')}"
    remedy = _remedy(status, body, told)
    return f"HTTP {status}: {told.rstrip('. ')}; {remedy}" if remedy else f"HTTP {status}: {told}"


def _remedy(status: int, body: object, told: str) -> str:
    """What to do about an HTTP status; "": the endpoint's own text must do."""
    # An endpoint that is there and does not know the model says so.
    if status in _NOT_THERE and "model" not in told.lower():
        return "check `base_url`"
    return CHECK_KEY if status in _WRONG_KEY and reason_of(status, body) == "authentication" else ""


def named_web_page(text: str) -> str | None:
    """Returns "a web page" with its title if the text is HTML, which proxies and wrong addresses answer; otherwise None."""
    if not _WEB_PAGE.match(text):
        return None
    title = _TITLE.search(text)
    words = " ".join(title[1].split()) if title else ""
    return f'a web page "{words}"' if words else "a web page"


def redacted_line(text: str, redaction: Redaction) -> str:
    """Returns the text in one line of at most `MAX_DETAIL_CHARS` characters, without keys."""
    return cut_to(redaction.text(" ".join(without_halves(text).split())), MAX_DETAIL_CHARS)


class Hiding:
    """A block that raises an error for a caught one: `with Hiding(error, redaction) as cause: raise … from cause`.

    If the caught error holds a key, or any error behind it does, the new error has neither cause nor context. `from None`
    alone leaves the context, which logs and debuggers may show.

    Args:
        error: the caught error
        redaction: the keys
    """

    def __init__(self, error: BaseException, redaction: Redaction) -> None:
        self._cause = None if any(map(partial(_holds_key, redaction), all_behind(error))) else error

    def __enter__(self) -> BaseException | None:
        return self._cause

    def __exit__(self, kind: object, raised: BaseException | None, trace: object) -> None:
        if raised is not None:
            raised.__context__ = self._cause


def _holds_key(redaction: Redaction, error: BaseException) -> bool:
    """Whether a key is in the text of an error, in its notes, or in what it was made of, such as a request or a body."""
    return redaction.is_in(f"{error} {error!r} {vars(error)!r}")
