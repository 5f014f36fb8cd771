"""Prints log messages on standard error: `[warning] circuit breaker opened provider_id=openai`."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final, Literal, TextIO, cast

from cyclopts import Parameter

from kitchener.cli.terminal.output import StandardError
from kitchener.logs import ROOT

LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    Parameter(name="--log-level", help="Lowest level of the log messages that standard error shows. Default: warning."),
]
_OF_EVERY_RECORD: Final = frozenset((*logging.makeLogRecord({}).__dict__, "message", "asctime"))


class LogLines(logging.Formatter):
    """Formats each event with its fields as one line. A traceback follows on separate lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the text of a record, without values of variables."""
        fields = {key: value for key, value in record.__dict__.items() if key not in _OF_EVERY_RECORD}
        frames = fields.pop("traceback", "")
        shown = (f"{key}={_on_one_line(each)}" for key, each in fields.items())
        parts = [f"[{record.levelname.lower()}] {super().format(record)}", *shown]
        return " ".join(parts) + (f"\n{str(frames).rstrip()}" if frames else "")


def _on_one_line(value: object) -> str:
    """A value without line breaks, so that text from a provider or a file name cannot look like a separate event."""
    return "\\n".join(str(value).splitlines())


def show_logs() -> None:
    """Shows warnings of all libraries on standard error, from now on. They may quote a message or an answer."""
    handler = logging.StreamHandler(cast(TextIO, StandardError()))
    handler.setFormatter(LogLines("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])


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
