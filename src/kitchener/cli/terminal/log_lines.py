"""Prints log messages on standard error, with the formatters of `kitchener.logs`."""

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Annotated, Literal, TextIO, cast

from cyclopts import Parameter

from kitchener.cli.terminal.output import StandardError
from kitchener.logs import ROOT, JsonLogLines, LogLines

LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"] | None,
    Parameter(name="--log-level", help="Lowest level of the log messages that standard error shows. Default: warning."),
]
LogFormat = Annotated[
    Literal["text", "json"],
    Parameter(name="--log-format", help="`json`: standard error shows each log message as a JSON object with its time."),
]


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


def nothing_logged() -> AbstractContextManager[None]:
    """Logs nothing inside the block. For replayed turns, which were logged when they first ran."""
    return _logged_from(logging.CRITICAL + 1)


def logged_from(level: LogLevel) -> AbstractContextManager[None]:
    """Logs messages of at least this level inside the block; None: the level stays as it is."""
    return nullcontext() if level is None else _logged_from(level.upper())


@contextmanager
def _logged_from(level: int | str) -> Iterator[None]:
    logger = logging.getLogger(ROOT)
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)
