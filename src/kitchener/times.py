"""Converts times between whole microseconds since the Unix epoch, aware datetimes and ISO text. Reads no clock. Pure."""

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def iso_of(time_us: int) -> str:
    """Returns a time in microseconds since the epoch as ISO text, UTC, with microseconds: the form that ledgers use."""
    return datetime_of(time_us).isoformat(timespec="microseconds")


def datetime_of(time_us: int) -> datetime:
    """Returns a time in microseconds since the epoch as an aware UTC datetime, without rounding."""
    return EPOCH + timedelta(microseconds=time_us)
