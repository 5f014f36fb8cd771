"""Hands the trace of an attempt from telemetry to the provider that sends it, since neither room knows the other.

Explained in `docs/telemetry.md`.
"""

from contextvars import ContextVar
from typing import Final

TRACE_HEADERS: ContextVar[bytes] = ContextVar("TRACE_HEADERS", default=b"")
"""Lines of the head of a request, each with its end, that name the span of the attempt that runs here; empty: there is none."""
_NAMES: Final = ("traceparent", "tracestate")
_LONGEST: Final = 512
"""Longest value that is handed on, characters: as long as the standard asks everybody to pass on."""


def trace_lines(headers: dict[str, str]) -> bytes:
    """Returns those of these headers that name a trace, as lines of the head of a request.

    A caller may have chosen their values, so one that no line can hold is left out.

    Args:
        headers: their values by lower-case names
    """
    found = ((name, headers.get(name, "")) for name in _NAMES)
    fit = [f"{name}: {value}\r\n" for name, value in found if 0 < len(value) <= _LONGEST and _is_plain(value)]
    return "".join(fit).encode("ascii")


def _is_plain(value: str) -> bool:
    return value.isascii() and value.isprintable()
