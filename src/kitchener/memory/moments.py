"""Moments as whole microseconds since the Unix epoch, and back to the text that ledgers hold. Pure."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from kitchener.errors import InvalidTimestamp
from kitchener.memory.bias import moment

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
HOUR_US: Final = 3_600_000_000
_MICROSECOND: Final = timedelta(microseconds=1)
# So that counting windows back, or moving to UTC, never leaves the calendar.
_FIRST_US: Final = (datetime(1900, 1, 1, tzinfo=UTC) - EPOCH) // _MICROSECOND
_LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND
_FORM: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", re.ASCII)
_LENGTH: Final = len("2026-01-01T00:00:00.000000+00:00")


def us_of(value: datetime | str, what: str) -> int:
    """Microseconds since the epoch.

    Args:
        value: an aware datetime, or ISO text with a zone
        what: what the moment is, for the error

    Raises:
        InvalidTimestamp: it has no zone, is no moment, or lies before 1900
    """
    try:
        if type(value) is str and len(value) == _LENGTH and value[19] == "." and value.endswith("+00:00"):
            # As ledgers write it. A turn asks a dozen times, mostly within a second or two.
            since, micros = _second(value[:19]), value[20:26]
            if since is not None and value.isascii() and micros.isdecimal():
                return since + int(micros)
        time_us = (moment(value) - EPOCH) // _MICROSECOND
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidTimestamp(what, value) from error
    if not _FIRST_US <= time_us <= _LAST_US:
        raise InvalidTimestamp(what, value)
    return time_us


@lru_cache(1_024)
def _second(text: str) -> int | None:
    """A second in UTC, written in full; None where the text is another form, or too early, and has to be looked at whole."""
    if _FORM.fullmatch(text) is None:
        return None
    time_us = (datetime.fromisoformat(text).replace(tzinfo=UTC) - EPOCH) // _MICROSECOND
    return time_us if time_us >= _FIRST_US else None


def text_of(time_us: int) -> str:
    """ISO text, UTC, microseconds."""
    return datetime_of(time_us).isoformat(timespec="microseconds")


def datetime_of(time_us: int) -> datetime:
    """The aware UTC datetime."""
    return EPOCH + timedelta(microseconds=time_us)
