"""How commands speak: data on standard output, everything else on standard error.

A command with `--json` prints one JSON value and nothing else. What came from a user, a model or a tool is stripped of control
characters before it reaches a terminal, where it could otherwise move the cursor or rewrite what stands above.
"""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from pydantic.fields import FieldInfo

from kitchener.sealing import is_sealed

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_NONE = re.compile(r"\bNone\b")
UNREADABLE: Final = "(erased, or sealed without its key)"
"""Stands for text that cannot be opened, where it is not known why."""
_NO_VALUE: Final = "–"


def print_json(value: Any) -> None:
    """Prints the one JSON value of a `--json` command."""
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")


def say(text: str) -> None:
    """Prints a line for the reader on standard error."""
    print(text, file=sys.stderr, flush=True)


def harmless(text: str) -> str:
    """`text` without control characters other than line feed and tab."""
    return _CONTROL.sub("�", text)


def dim(text: str) -> str:
    """`text` in a paler colour, unless the user asked for none (`NO_COLOR`) or the terminal has none."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\x1b[2m{text}\x1b[0m"


def is_interactive() -> bool:
    """Whether a person types the input and sees the output."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def readable(value: Any) -> Any:
    """A value for JSON; None in the place of one that is sealed, because its key is gone or not at hand."""
    return None if is_sealed(value) else value


def one_line(text: str, width: int) -> str:
    """`text` on one line of at most `width` characters."""
    flat = " ".join(harmless(text).split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def meaning(field: FieldInfo) -> str:
    """What a setting's docstring says, on one line, in words of a settings file: there is no `None` in it."""
    return _NONE.sub("unset", " ".join((field.description or "").split()))


def print_table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Prints rows under the names of their columns, aligned; numbers to the right, a missing value as a dash."""
    for line in table_lines(columns, rows):
        print(line)


def table_lines(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The lines of such a table."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[n]) for line in cells), 0) for n, column in enumerate(columns)]
    for line in ([column.replace("_", " ") for column in columns], *cells):
        padded = (
            cell.rjust(width) if cell.replace(",", "").isdigit() else cell.ljust(width)
            for cell, width in zip(line, widths, strict=True)
        )
        yield "  ".join(padded).rstrip()


def _cell(value: Any) -> str:
    if value is None:
        return _NO_VALUE
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else harmless(str(value))
