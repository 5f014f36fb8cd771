"""Times of day: exact to the microsecond, in one spelling."""

import re
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.clock import SystemClock, TimestampText, elapsed_us, to_us
from kitchener.times import datetime_of, iso_of

moments = st.integers(-60_000_000_000_000_000, 250_000_000_000_000_000)
"""Microseconds from the year 68 to the year 9892."""


@given(moments)
def test_a_moment_comes_back_exactly(moment: int) -> None:
    assert to_us(datetime_of(moment)) == moment
    assert to_us(datetime.fromisoformat(iso_of(moment))) == moment


@given(st.lists(st.integers(0, 250_000_000_000_000_000), max_size=8))
def test_the_remembered_second_changes_nothing(times: list[int]) -> None:
    text = TimestampText()
    for moment in times:
        for step in (0, 1, 999_999):
            assert text.render(moment + step) == iso_of(moment + step)


def test_the_spelling_is_fixed() -> None:
    assert iso_of(0) == "1970-01-01T00:00:00.000000+00:00"
    assert iso_of(1_771_410_600_000_001) == "2026-02-18T10:30:00.000001+00:00"
    assert TimestampText().render(1_771_410_600_000_001) == "2026-02-18T10:30:00.000001+00:00"


@pytest.mark.parametrize("hours", [-11, 0, 5.5])
def test_other_zones_are_the_same_moment(hours: float) -> None:
    moment = datetime(2026, 2, 18, 10, 30, tzinfo=UTC)
    assert to_us(moment.astimezone(timezone(timedelta(hours=hours)))) == 1_771_410_600_000_000


def test_the_system_clock_tells_the_time_of_day_in_microseconds() -> None:
    clock = SystemClock()
    before, now, after = datetime.now(UTC), clock.time_us(), datetime.now(UTC)
    assert to_us(before) <= now <= to_us(after)
    assert re.fullmatch(r"20\d\d-.*\+00:00", iso_of(now))


def test_elapsed_time_never_runs_backwards() -> None:
    readings = [elapsed_us() for _ in range(1_000)]
    assert readings == sorted(readings)
