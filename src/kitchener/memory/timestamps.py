"""Reads times as whole microseconds since the Unix epoch, and refuses what is not a time. Pure."""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

from kitchener.errors import InvalidTimestamp
from kitchener.memory.bias import parse_time
from kitchener.times import EPOCH

HOUR_US: Final = 3_600_000_000
_MICROSECOND: Final = timedelta(microseconds=1)
# Bounds that keep window arithmetic and conversion to UTC within the range of `datetime`.
_FIRST_US: Final = (datetime(1900, 1, 1, tzinfo=UTC) - EPOCH) // _MICROSECOND
_LAST_US: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // _MICROSECOND
_FORM: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d", re.ASCII)
_LENGTH: Final = len("2026-01-01T00:00:00.000000+00:00")


def us_of(value: datetime | str, what: str) -> int:
    """A time as microseconds since the epoch.

    Args:
        value: an aware datetime, or ISO text with a zone
        what: name of the value, for the error

    Raises:
        InvalidTimestamp: the value has no zone, is not a time, or lies before 1900
    """
    try:
        if type(value) is str and len(value) == _LENGTH and value[19] == "." and value.endswith("+00:00"):
            # The form that ledgers write. A turn converts about a dozen such texts, most within the same second or two.
            since, micros = _second(value[:19]), value[20:26]
            if since is not None and value.isascii() and micros.isdecimal():
                return since + int(micros)
        time_us = (parse_time(value) - EPOCH) // _MICROSECOND
    except (ValueError, TypeError) as error:
        raise InvalidTimestamp(what, value) from error
    if not _FIRST_US <= time_us <= _LAST_US:
        raise InvalidTimestamp(what, value)
    return time_us


@lru_cache(1_024)
def _second(text: str) -> int | None:
    """The microseconds of a full second in UTC; None: another form or a time before 1900, which needs the full parser.

    The cache saves 0.3 % of the bytecodes of a turn (`benchmarks.steps --memory --context enforce`), and seven times 17,000
    instructions (`valgrind --tool=cachegrind`), which is about 1 % of them.
    """
    if _FORM.fullmatch(text) is None:
        return None
    time_us = (datetime.fromisoformat(text).replace(tzinfo=UTC) - EPOCH) // _MICROSECOND
    return time_us if time_us >= _FIRST_US else None
