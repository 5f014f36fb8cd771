"""Reads times as whole microseconds since the Unix epoch, and refuses what is not a time. Pure."""

from datetime import UTC, datetime, timedelta
from typing import Final

from kitchener.errors import InvalidTimestamp
from kitchener.memory.bias import parse_time
from kitchener.times import EPOCH

HOUR_US: Final = 3_600_000_000
_MICROSECOND: Final = timedelta(microseconds=1)
# Bounds that keep window arithmetic and conversion to UTC within the range of `datetime`.
_FIRST_US: Final = (datetime(1900, 1, 1, tzinfo=UTC) - EPOCH) // _MICROSECOND
_LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND


def us_of(value: datetime | str, what: str) -> int:
    """A time as microseconds since the epoch.

    Args:
        value: an aware datetime, or ISO text with a zone
        what: name of the value, for the error

    Raises:
        InvalidTimestamp: the value has no zone, is not a time, or lies before 1900
    """
    try:
        time_us = (parse_time(value) - EPOCH) // _MICROSECOND
    except (ValueError, TypeError) as error:
        raise InvalidTimestamp(what, value) from error
    if not _FIRST_US <= time_us <= _LAST_US:
        raise InvalidTimestamp(what, value)
    return time_us
