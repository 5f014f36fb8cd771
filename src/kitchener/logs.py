"""Gives each module a logger that writes structured events to the standard library's `logging`, and nowhere else.

`LogLines` and `JsonLogLines` are formatters for a handler of the program, which show the fields of an event.

An event is the message of a log record, its fields are attributes of the record (`extra`), and the record's logger has the name
of the module (`kitchener.gateway.attempts`). Nothing is written until the program adds a handler. Fields name ids and places in
the code, never what was said. Explained in `docs/runtime.md`.
"""

import json
import logging
import sys
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

from kitchener.plain_names import origin_of

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

ROOT: Final = "kitchener"
"""The logger above all loggers of this package."""

FIELDS: Final[list[Callable[[], Mapping[str, str]]]] = []
"""Give further fields of an event, such as the ids of the turn in which it is logged. They are asked only if somebody reads
the event, so that a turn in which nothing is logged does nothing for them."""

RECORD_FILTERS: Final[list[Callable[[logging.LogRecord], bool]]] = []
"""Say whether a record of this package is logged. A filter of a logger sees nothing of the loggers below it, so these stand for
one that would."""

_OF_EVERY_RECORD: Final = frozenset((*logging.makeLogRecord({}).__dict__, "message", "asctime"))

logging.getLogger(ROOT).addHandler(logging.NullHandler())


class _RecordFilters(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return all(passes(record) for passes in list(RECORD_FILTERS))


_FILTER: Final = _RecordFilters()


def get_logger(name: str) -> "FilteringBoundLogger":
    """Returns the logger of a module.

    Args:
        name: the module's `__name__`
    """
    logging.getLogger(name).addFilter(_FILTER)
    return cast("FilteringBoundLogger", _LoggerOnFirstUse(name))


class _LoggerOnFirstUse:
    """Makes the logger when something is logged, so that importing Kitchener does not import structlog and rich."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Any:
        found = _apart_from_handlers(getattr(_structured_logger(self._name), method), self._name)
        setattr(self, method, found)  # so that this is asked once
        return found


def _apart_from_handlers(log: Callable[..., object], name: str) -> Callable[..., None]:
    def apart(event: str, **fields: object) -> None:
        try:
            log(event, **fields)
        except Exception as error:  # noqa: BLE001  a handler of the program may raise anything
            tell_broken_handler(error, name, event)

    return apart


def tell_broken_handler(error: Exception, name: str, event: str) -> None:
    """Writes to standard error that a handler raised, as `logging` does for its own handlers, unless its `raiseExceptions` is
    off. Gives no text of an error, which may quote what was said.

    Args:
        error: what the handler raised
        name: the logger
        event: the event that was not logged
    """
    if logging.raiseExceptions and sys.stderr is not None:
        sys.stderr.write(f"{name}: a log handler raised {origin_of(error)}, so this is not logged: {event}\n")


def _structured_logger(name: str) -> "FilteringBoundLogger":
    import structlog

    wrapped: FilteringBoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[_only_if_read, _with_fields, structlog.stdlib.render_to_log_kwargs],
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        context_class=dict,
    )
    return wrapped.bind()


def _only_if_read(logger: logging.Logger, method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Drops an event that no handler would take, before a record is made of it."""
    if not logger.isEnabledFor(logging.getLevelNamesMapping()[method.upper()]) or not _has_reader(logger):
        from structlog import DropEvent

        raise DropEvent
    return event


def _with_fields(_: logging.Logger, __: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Adds the fields that `FIELDS` return. Fields of the event itself are kept."""
    for fields in FIELDS:
        for key, value in fields().items():
            event.setdefault(key, value)
    return event


def _has_reader(logger: logging.Logger) -> bool:
    here: logging.Logger | None = logger
    while here is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in here.handlers):
            return True
        here = here.parent if here.propagate else None
    return False


class LogLines(logging.Formatter):
    """Formats each event with its fields as one line: `[warning] circuit breaker opened provider_id=openai`.

    A traceback follows on separate lines. The arguments are those of `logging.Formatter`.
    """

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
