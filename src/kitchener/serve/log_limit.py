"""Bounds the warnings that clients can cause: whoever sends what is no request must not fill the disk with log lines.

A line after a minute with too many says how many were left out. It knows the library's logger, not the requests.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

LINES_A_MINUTE: Final = 10
"""Warnings of one text in a minute; the texts are those of the library's source, so there are few."""
_MINUTE_S: Final = 60.0


@dataclass(slots=True)
class _TextInMinute:
    """One text in the present minute."""

    since: float
    """When the minute began, seconds since 1970."""
    lines: int = 0
    left_out: int = 0


class LogLimit(logging.Filter):
    """Passes few warnings of each text a minute, and everything of other levels."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, _TextInMinute] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged. Adds to its text how many like it were left out before."""
        if record.levelno != logging.WARNING:
            return True
        text = str(record.msg)
        said = self._said.get(text)
        left_out = 0
        if said is None or not 0 <= record.created - said.since < _MINUTE_S:  # a clock that was set back begins anew, too
            left_out = said.left_out if said is not None else 0
            said = self._said[text] = _TextInMinute(record.created)
        if said.lines >= LINES_A_MINUTE:
            said.left_out += 1
            return False
        said.lines += 1
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (and {left_out} more, not logged)", ()
        return True


@contextmanager
def limited(logger: logging.Logger) -> Iterator[None]:
    """Bounds what a logger passes on until the block ends."""
    limit = LogLimit()
    logger.addFilter(limit)
    try:
        yield
    finally:
        logger.removeFilter(limit)
