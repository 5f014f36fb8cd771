"""Bounds the warnings and errors that clients can cause, so that a client who causes one with each request cannot fill the
disk.

Lines beyond the limit are counted, and the count is logged when the minute has ended, at the latest when the server stops. The
first lines of each kind are logged whole. It knows loggers and records, not requests.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass
from threading import RLock
from typing import Final

import anyio

from kitchener.clock import Clock, SystemClock
from kitchener.logs import RECORD_FILTERS, tell_broken_handler

_MINUTE_S: Final = 60.0
_SERVER: Final = "kitchener.serve."
_KIND_FIELDS: Final = ("error", "address")
"""Fields of an event with the cause of an error. Lines of one text with different causes are of different kinds."""
MAX_KINDS: Final = 1_024
"""Most kinds of lines in a minute that differ only in their fields; beyond it, only the texts of lines are compared."""


@dataclass(slots=True)
class _KindInMinute:
    """Lines of one kind in the present minute."""

    since: float
    """When the minute began, seconds since 1970."""
    lines: int = 0
    left_out: int = 0
    last: logging.LogRecord | None = None
    """The newest line that was left out."""

    def has_ended(self, now: float) -> bool:
        """Whether the minute is over; also where the clock was set back."""
        return not 0 <= now - self.since < _MINUTE_S


class LogLimit(logging.Filter):
    """Passes few warnings and errors of each kind a minute, and everything of other levels.

    Lines are of one kind if they have the same logger, level and text, and the same error, as its class and its place say it.

    Safe to use from several threads.

    Args:
        loggers: write the lines, besides those of this library
        lines_per_minute: lines of one kind that it passes; texts are those of the source, so there are few
    """

    def __init__(self, loggers: Iterable[logging.Logger], lines_per_minute: int) -> None:
        super().__init__()
        self._loggers = {each.name: each for each in loggers}
        self._lines_per_minute, self._lock = lines_per_minute, RLock()
        self._said: dict[tuple[object, ...], _KindInMinute] = {}
        self._is_telling = False

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged."""
        if record.levelno < logging.WARNING:
            return True
        with self._lock:
            if self._is_telling:
                return True
            self.tell_left_out(record.created)
            said = self._said.setdefault(self._kind(record), _KindInMinute(record.created))
            if said.lines >= self._lines_per_minute:
                said.left_out += 1
                said.last = record
                return False
            said.lines += 1
            return True

    def filter_event(self, record: logging.LogRecord) -> bool:
        """Filters an event of this library. Bounds only what requests cause: errors, and warnings of the server."""
        is_bounded = record.levelno >= logging.ERROR or record.name.startswith(_SERVER)
        return self.filter(record) if is_bounded else True

    def tell_left_out(self, now: float | None = None) -> None:
        """Logs how many lines of each kind were left out in a minute that has ended.

        Args:
            now: seconds since 1970; None: the present minute ends, too
        """
        with self._lock:
            ended = [kind for kind, said in self._said.items() if now is None or said.has_ended(now)]
            for said in [self._said.pop(kind) for kind in ended]:
                if said.last is not None:
                    self._tell(said.last, said.left_out)

    def _tell(self, last: logging.LogRecord, left_out: int) -> None:
        told = copy(last)  # with its fields, but without a traceback, which the first lines have
        told.msg, told.args = f"{last.getMessage()} (and {left_out} more like it in a minute, not logged)", ()
        told.exc_info, told.exc_text, told.stack_info = None, None, None
        self._is_telling = True
        try:
            (self._loggers.get(last.name) or logging.getLogger(last.name)).handle(told)
        except Exception as error:  # noqa: BLE001  a handler of the program may raise anything
            tell_broken_handler(error, last.name, str(told.msg))
        finally:
            self._is_telling = False

    def _kind(self, record: logging.LogRecord) -> tuple[object, ...]:
        text = (record.name, record.levelno, str(record.msg))
        if len(self._said) >= MAX_KINDS:
            return text
        raised = record.exc_info[0] if record.exc_info else None
        return (*text, raised, *(getattr(record, each, None) for each in _KIND_FIELDS))

    def wait_s(self, now: float) -> float:
        """Seconds until the end of the earliest minute in which records were left out; 60 if none were."""
        with self._lock:
            ends = [said.since + _MINUTE_S - now for said in self._said.values() if said.left_out]
        return max(0.0, min([_MINUTE_S, *ends]))


@asynccontextmanager
async def limited(
    loggers: Sequence[logging.Logger], lines_per_minute: int, *, clock: Clock | None = None
) -> AsyncIterator[None]:
    """Bounds what these loggers and this library's loggers pass on until the block ends.

    Args:
        loggers: which ones besides, those of the HTTP server and of its event loop
        lines_per_minute: lines of one kind that pass
        clock: the clock of log records; None: the system's
    """
    limit, clock = LogLimit(loggers, lines_per_minute), clock or SystemClock()

    async def tell() -> None:
        while True:
            await anyio.sleep(limit.wait_s(clock.time_us() / 1_000_000))
            limit.tell_left_out(clock.time_us() / 1_000_000)

    for logger in loggers:
        logger.addFilter(limit)
    RECORD_FILTERS.append(limit.filter_event)
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell)
            yield
            tasks.cancel_scope.cancel()
    finally:
        RECORD_FILTERS.remove(limit.filter_event)
        for logger in loggers:
            logger.removeFilter(limit)
        limit.tell_left_out()
