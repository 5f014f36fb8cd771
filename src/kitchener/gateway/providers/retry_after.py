"""Reads from the headers of a refused request when an endpoint can be asked again."""

import re
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from math import inf
from typing import Final

from kitchener.clock import SystemClock

_MAX_CHARS: Final = 100
_COUNTED: Final = ("requests", "tokens")
_DURATION: Final = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?", re.ASCII)
_UNITS_S: Final = (3_600.0, 60.0, 1.0, 0.001)

Headers = Callable[[str], str | None]
"""Returns the value of a header by its name in lower case; None: it is absent."""


def asked_pause_s(headers: Headers) -> float | None:
    """Returns the pause that an endpoint asks for, seconds; None: it asks for none.

    `retry-after-ms` comes first, then `Retry-After` in seconds or as a date. Without them, it is the longest
    `x-ratelimit-reset-*` of what has nothing left, such as `6m0s` or `120ms`.
    """
    for read in (_in_milliseconds, _of_retry_after, _of_resets):
        pause_s = read(headers)
        if pause_s is not None and 0 <= pause_s < inf:
            return pause_s
    return None


def _in_milliseconds(headers: Headers) -> float | None:
    pause_ms = _number(headers("retry-after-ms"))
    return None if pause_ms is None else pause_ms / 1_000


def _of_retry_after(headers: Headers) -> float | None:
    text = headers("retry-after")
    pause_s = _number(text)
    if pause_s is not None or text is None or len(text) > _MAX_CHARS:
        return pause_s
    try:
        return parsedate_to_datetime(text).timestamp() - SystemClock().time_us() / 1_000_000
    except (ValueError, OverflowError):
        return None


def _of_resets(headers: Headers) -> float | None:
    used_up = [counted for counted in _COUNTED if _number(headers(f"x-ratelimit-remaining-{counted}")) == 0]
    pauses = [_duration_s(headers(f"x-ratelimit-reset-{counted}")) for counted in used_up]
    return max((pause_s for pause_s in pauses if pause_s is not None), default=None)


def _duration_s(text: str | None) -> float | None:
    if not text or len(text) > _MAX_CHARS or (found := _DURATION.fullmatch(text)) is None:
        return None
    return sum(float(number) * unit_s for number, unit_s in zip(found.groups(), _UNITS_S, strict=True) if number)


def _number(text: str | None) -> float | None:
    if text is None or len(text) > _MAX_CHARS:
        return None
    try:
        return float(text)
    except ValueError:
        return None
