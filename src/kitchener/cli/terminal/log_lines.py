"""Prints log messages on standard error: `[warning] circuit breaker opened provider_id=openai`, or as JSON."""

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Final, Literal, TextIO, cast

from cyclopts import Parameter

from kitchener.cli.terminal.output import StandardError
from kitchener.logs import ROOT

LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    Parameter(name="--log-level", help="Lowest level of the log messages that standard error shows. Default: warning."),
]
LogFormat = Annotated[
    Literal["text", "json"],
    Parameter(name="--log-format", help="`json`: standard error shows each log message as a JSON object with its time."),
]
_OF_EVERY_RECORD: Final = frozenset((*logging.makeLogRecord({}).__dict__, "message", "asctime"))


class LogLines(logging.Formatter):
    """Formats each event with its fields as one line. A traceback follows on separate lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the text of a record, without values of variables."""
        fields = _fields(record)
        frames = fields.pop("traceback", "")
        shown = (f"{key}={_on_one_line(each)}" for key, each in fields.items())
        parts = [f"[{record.levelname.lower()}] {super().format(record)}", *shown]
        return " ".join(parts) + (f"\n{str(frames).rstrip()}" if frames else "")


class JsonLogLines(logging.Formatter):
    """Formats each event as a JSON object on one line: `time` (UTC), `level`, `logger`, `event`, then its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the text of a record, without values of variables. Its own fields replace none of the four."""
        fields = _fields(record)
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        return json.dumps({**told, **fields, **told}, default=str)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """What the event says beside its message."""
    return {key: value for key, value in record.__dict__.items() if key not in _OF_EVERY_RECORD}


def _on_one_line(value: object) -> str:
    """A value without line breaks, so that text from a provider or a file name cannot look like a separate event."""
    return "\\n".join(str(value).splitlines())


def show_logs() -> None:
    """Shows warnings of all libraries on standard error, from now on. They may quote a message or an answer."""
    handler = logging.StreamHandler(cast(TextIO, StandardError()))
    handler.setFormatter(LogLines("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


def show_logs_as(log_format: LogFormat) -> None:
    """Changes how `show_logs` shows log messages, from now on."""
    formatter = JsonLogLines() if log_format == "json" else LogLines("%(message)s")
    for handler in logging.getLogger().handlers:
        if isinstance(handler.formatter, LogLines | JsonLogLines):
            handler.setFormatter(formatter)


@contextmanager
def nothing_logged() -> Iterator[None]:
    """Logs nothing inside the block. For replayed turns, which were logged when they first ran."""
    logger = logging.getLogger(ROOT)
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


@contextmanager
def logged_from(level: LogLevel) -> Iterator[None]:
    """Logs messages of at least this level inside the block; None: the level stays as it is."""
    logger = logging.getLogger(ROOT)
    before = logger.level
    if level is not None:
        logger.setLevel(level.upper())
    try:
        yield
    finally:
        logger.setLevel(before)
