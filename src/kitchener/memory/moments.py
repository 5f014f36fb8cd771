"""Moments as whole microseconds since the Unix epoch, and back to the text that ledgers hold. Pure."""

from datetime import UTC, datetime, timedelta
from typing import Final

from kitchener.errors import InvalidTimestamp
from kitchener.memory.bias import moment

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
HOUR_US: Final = 3_600_000_000
_MICROSECOND: Final = timedelta(microseconds=1)
# So that counting windows back, or moving to UTC, never leaves the calendar.
_FIRST_US: Final = (datetime(1900, 1, 1, tzinfo=UTC) - EPOCH) // _MICROSECOND
_LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND


def us_of(value: datetime | str, what: str) -> int:
    """Microseconds since the epoch.

    Args:
        value: an aware datetime, or ISO text with a zone
        what: what the moment is, for the error

    Raises:
        InvalidTimestamp: it has no zone, is no moment, or lies before 1900
    """
    try:
        time_us = (moment(value) - EPOCH) // _MICROSECOND
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidTimestamp(what, value) from error
    if not _FIRST_US <= time_us <= _LAST_US:
        raise InvalidTimestamp(what, value)
    return time_us


def text_of(time_us: int) -> str:
    """ISO text, UTC, microseconds."""
    return datetime_of(time_us).isoformat(timespec="microseconds")


def datetime_of(time_us: int) -> datetime:
    """The aware UTC datetime."""
    return EPOCH + timedelta(microseconds=time_us)
