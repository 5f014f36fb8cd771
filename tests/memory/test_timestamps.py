"""Moments: the form in which ledgers write them is read a short way, and means what it means the long way."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kitchener.errors import InvalidTimestamp
from kitchener.memory.timestamps import us_of
from kitchener.times import EPOCH, iso_of

_FIRST = datetime(1900, 1, 1, tzinfo=UTC)


def _the_long_way(text: str) -> int | None:
    """What the calendar says; None where the text is no moment that may stand here."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    if found.tzinfo is None or found < _FIRST:
        return None
    return (found - EPOCH) // timedelta(microseconds=1)


@given(st.datetimes(min_value=_FIRST.replace(tzinfo=None), timezones=st.just(UTC)))
@example(_FIRST)
@example(datetime.max.replace(tzinfo=UTC))
def test_what_a_ledger_writes_is_read_back_to_the_microsecond(moment: datetime) -> None:
    text = moment.isoformat(timespec="microseconds")
    assert us_of(text, "x") == us_of(moment, "x") == _the_long_way(text)
    assert iso_of(us_of(text, "x")) == text


@pytest.mark.parametrize(
    "text",
    [
        "2026-02-18T10:30:00.000001+00:00",
        "2026-02-18 10:30:00.000001+00:00",
        "2026-W08-3T10:30:00.000001+00:00",
        "20260218T103000.123.123456+00:00",
        "2026-02-18T10:30:00.00000٣+00:00",
        "2026-02-18T10:30:00.00_001+00:00",
        "2026-02-18T10:30:00.-00001+00:00",
        "2026-02-18T10:30:0Z.000001+00:00",
        "2026-02-30T10:30:00.000001+00:00",
        "2026-02-18T24:30:00.000001+00:00",
        "1899-12-31T23:59:59.999999+00:00",
        "2026-02-18T10:30:00.000001-00:00",
        "2026-02-18T10:30:00.0001+00:00:00",
        "2026-02-18T10:30:00,000001+00:00",
    ],
)
def test_a_text_that_only_looks_so_means_what_the_calendar_says(text: str) -> None:
    expected = _the_long_way(text)
    if expected is None:
        with pytest.raises(InvalidTimestamp):
            us_of(text, "x")
    else:
        assert us_of(text, "x") == expected
