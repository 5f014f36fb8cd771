"""Bounds the warnings that clients can cause: whoever sends what is no request must not fill the disk with log lines.

What is left out is counted, and told once the minute has ended, at the latest when the server stops. It knows the library's
logger, not the requests.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import anyio

from kitchener.clock import Clock, SystemClock

_MINUTE_S: Final = 60.0


@dataclass(slots=True)
class _TextInMinute:
    """One text in the present minute."""

    since: float
    """When the minute began, seconds since 1970."""
    lines: int = 0
    left_out: int = 0
    last: str = ""
    """The newest line that was left out."""

    def has_ended(self, now: float) -> bool:
        """Whether the minute is over; also where the clock was set back."""
        return not 0 <= now - self.since < _MINUTE_S


class LogLimit(logging.Filter):
    """Passes few warnings of each text a minute, and everything of other levels.

    Args:
        logger: writes the lines, and those about what was left out
        lines_per_minute: warnings of one text that it passes; the texts are those of the library's source, so there are few
    """

    def __init__(self, logger: logging.Logger, lines_per_minute: int) -> None:
        super().__init__()
        self._logger, self._lines_per_minute = logger, lines_per_minute
        self._said: dict[str, _TextInMinute] = {}
        self._is_telling = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        if record.levelno != logging.WARNING or self._is_telling:
            return True
        self.tell_left_out(record.created)
        said = self._said.setdefault(str(record.msg), _TextInMinute(record.created))
        if said.lines >= self._lines_per_minute:
            said.left_out += 1
            said.last = record.getMessage()
            return False
        said.lines += 1
        return True

    def tell_left_out(self, now: float | None = None) -> None:
        """Logs how many lines of each text were left out in a minute that has ended.

        Args:
            now: seconds since 1970; None: the present minute ends, too
        """
        ended = [text for text, said in self._said.items() if now is None or said.has_ended(now)]
        for said in [self._said.pop(text) for text in ended]:
            if said.left_out:
                self._tell(said)

    def _tell(self, said: _TextInMinute) -> None:
        self._is_telling = True
        try:
            self._logger.warning("%s (and %d more like it in a minute, not logged)", said.last, said.left_out)
        finally:
            self._is_telling = False

    def wait_s(self, now: float) -> float:
        """Seconds until the first minute ends in which something was left out; at most a minute, where there is none."""
        ends = [said.since + _MINUTE_S - now for said in self._said.values() if said.left_out]
        return max(0.0, min([_MINUTE_S, *ends]))


@asynccontextmanager
async def limited(logger: logging.Logger, lines_per_minute: int, *, clock: Clock | None = None) -> AsyncIterator[None]:
    """Bounds what a logger passes on until the block ends.

    Args:
        logger: which one
        lines_per_minute: warnings of one text that pass
        clock: the clock of log records; None: the system's
    """
    limit, clock = LogLimit(logger, lines_per_minute), clock or SystemClock()

    async def tell() -> None:
        while True:
            await anyio.sleep(limit.wait_s(clock.time_us() / 1_000_000))
            limit.tell_left_out(clock.time_us() / 1_000_000)

    logger.addFilter(limit)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell)
            yield
            tasks.cancel_scope.cancel()
    finally:
        limit.tell_left_out()
        logger.removeFilter(limit)
