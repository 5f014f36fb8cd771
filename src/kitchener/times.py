"""Converts times between whole microseconds since the Unix epoch, aware datetimes and ISO text. Reads no clock. Pure."""

from datetime import UTC, datetime, timedelta
from typing import Final

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def iso_of(time_us: int) -> str:
    """Returns a time in microseconds since the epoch as ISO text, UTC, with microseconds: the form that ledgers use."""
    return iso_text(datetime_of(time_us))


def iso_text(time: datetime) -> str:
    """Returns an aware UTC datetime as ISO text in the form that ledgers use."""
    return time.isoformat(timespec="microseconds")


def as_utc(time: datetime) -> datetime:
    """Returns a datetime in UTC. One without a zone counts as UTC.

    Raises:
        OverflowError: in UTC it lies outside of the years that a datetime can have
    """
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def datetime_of(time_us: int) -> datetime:
    """Returns a time in microseconds since the epoch as an aware UTC datetime, without rounding."""
    return EPOCH + timedelta(microseconds=time_us)
