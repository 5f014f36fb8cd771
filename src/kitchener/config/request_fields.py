"""Checks what users add to the requests of a provider: fields of the body, headers and a query.

The adapter writes the rest of a request. What it writes itself cannot be overwritten, because it would then misread the answer
or send something else than the ledger says. `router.py` has the settings.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import AfterValidator, Field, StringConstraints

from kitchener.canonical import canonical_bytes
from kitchener.config.shown import REFERENCE, described_key, is_reference
from kitchener.errors import KitchenerError

MAX_FIELDS_BYTES: Final = 65_536
"""Largest `extra_body`, bytes of its JSON. It is sent with each request."""
MAX_SENT: Final = 32
"""Most headers, or parameters of a query."""
MAX_VALUE_CHARS: Final = 8_192
"""Longest value of a header or of a parameter."""
_CONTRACT: Final = "it is `max_tokens` of [agents.<class>], and of the prompt contract"
_TOOLS: Final = "the tools of [agents.<class>] are sent"
_OWN_SETTING: Final = "set it in the provider's table itself"
_OWNED: Final[Mapping[str, str]] = {
    "messages": "Kitchener writes it; see `instructions` of [agents.<class>] and the prompt packs",
    "model": "set `model` of the provider",
    "stream": "Kitchener streams whenever the caller reads a stream",
    "stream_options": "Kitchener asks for the counts of tokens with it",
    "tools": _TOOLS,
    "tool_choice": _TOOLS,
    "functions": _TOOLS,
    "function_call": _TOOLS,
    "response_format": "it follows from the object that a caller or a contract asks for",
    "n": "only one answer is read, and further ones cost as much",
    "max_tokens": _CONTRACT,
    "max_completion_tokens": _CONTRACT,
    "prompt_cache_key": "set `prompt_cache`",
    "temperature": _OWN_SETTING,
    "top_p": _OWN_SETTING,
    "seed": _OWN_SETTING,
    "stop": _OWN_SETTING,
    "reasoning_effort": _OWN_SETTING,
}
"""Fields that `extra_body` cannot have, each with what to do instead."""
_TRANSPORT: Final = "Kitchener's HTTP client writes it"
_RESERVED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("connection", "content-length", "content-type", "expect", "host", "keep-alive", "te"), _TRANSPORT),
    **dict.fromkeys(("accept-encoding", "proxy-connection", "trailer", "transfer-encoding", "upgrade"), _TRANSPORT),
    "proxy-authorization": "set the password of a proxy in HTTPS_PROXY",
    "traceparent": "set `send_traceparent`",
    "tracestate": "set `send_traceparent`",
}
"""Headers that `headers` cannot have, each with the reason or what to do instead."""
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]*")
_MAY_BE_SECRET: Final = re.compile(r"key|token|secret|password|auth|cookie|credential|signature", re.IGNORECASE)


def _checked_fields(fields: dict[str, Any]) -> dict[str, Any]:
    for name in fields:
        if (instead := _OWNED.get(name)) is not None:
            raise ValueError(f"cannot have {name!r}: {instead}")
    try:
        size = len(canonical_bytes(fields, at="extra_body"))
    except KitchenerError as error:
        raise ValueError(f"must hold JSON values: {error}") from None
    if size > MAX_FIELDS_BYTES:
        raise ValueError(f"has {size:,} bytes as JSON: expected at most {MAX_FIELDS_BYTES:,}")
    return fields


def _checked_headers(headers: dict[str, str]) -> dict[str, str]:
    _check_values(headers, "headers")
    if len({name.lower() for name in headers}) < len(headers):
        raise ValueError("names one header twice: upper and lower case are the same")
    for name in headers:
        if not _HEADER.fullmatch(name):
            raise ValueError(f"{described_key(name)} is not the name of a header")
        if (instead := _RESERVED.get(name.lower())) is not None:
            raise ValueError(f"cannot have {name!r}: {instead}")
    return headers


def _checked_query(query: dict[str, str]) -> dict[str, str]:
    _check_values(query, "parameters")
    return query


def _check_values(values: Mapping[str, str], what: str) -> None:
    """Raises for a value that cannot be sent, or that is probably a secret. Quotes no value."""
    if len(values) > MAX_SENT:
        raise ValueError(f"has {len(values):,} {what}: expected at most {MAX_SENT}")
    for name, value in values.items():
        is_secret = _MAY_BE_SECRET.search(name) is not None or value.startswith(("env:", "file:"))
        if is_secret and not is_reference(value):
            raise ValueError(f"the value of {described_key(name)} {REFERENCE}")
        if (problem := value_problem(value)) is not None:
            raise ValueError(f"the value of {described_key(name)} {problem}")


def value_problem(value: str) -> str | None:
    """Returns why a text can be no value of a header or of a parameter; None: it can."""
    if len(value) > MAX_VALUE_CHARS:
        return f"has {len(value):,} characters: expected at most {MAX_VALUE_CHARS:,}"
    if not _PRINTABLE.fullmatch(value) or value != value.strip():
        return "must be printable ASCII without blanks around it"
    return None


ExtraBody = Annotated[dict[str, Any], AfterValidator(_checked_fields)]
"""Fields of the body of requests, as JSON types."""
SentHeaders = Annotated[dict[str, str], AfterValidator(_checked_headers)]
"""Headers of requests by name, each a text or a reference to a secret."""
SentQuery = Annotated[dict[str, str], AfterValidator(_checked_query)]
"""Parameters of requests' addresses by name, each a text or a reference to a secret."""
Temperature = Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)]
TopP = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=-(2**53) + 1, le=2**53 - 1)]
StopTexts = Annotated[tuple[Annotated[str, StringConstraints(min_length=1, max_length=256)], ...], Field(max_length=16)]
Effort = Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,24}$")]
