"""What Kitchener logs inside a block, as a handler of the standard library's `logging` sees it."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kitchener.logs import ROOT

_OF_EVERY_RECORD = frozenset((*logging.makeLogRecord({}).__dict__, "message", "asctime"))


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        fields = {key: value for key, value in record.__dict__.items() if key not in _OF_EVERY_RECORD}
        self.events.append({"event": record.msg, "log_level": record.levelname.lower(), "logger": record.name, **fields})


@contextmanager
def captured_logs(level: int = logging.DEBUG) -> Iterator[list[dict[str, Any]]]:
    """Yields the list of events: `event`, `log_level`, `logger` and the event's fields."""
    logger, handler = logging.getLogger(ROOT), _Collector()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield handler.events
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
