"""Prints the output of commands: data on standard output, everything else on standard error.

With `--json` a command prints one JSON value and nothing else, also if it fails. Only this module writes to a terminal or a
pipe, so every character passes `harmless`, whether it comes from a user, a model, a tool, a provider's error or a file name.
Otherwise text could move the cursor, overwrite earlier lines, set the clipboard, or appear in another order than it was
written.
"""

import json
import os
import re
import shutil
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal, Protocol, TextIO

import orjson
from rich.cells import set_cell_size

from kitchener.inspection.shown_text import INVISIBLE, harmless, one_line

_HARMFUL_IN_JSON = re.compile(f"[{INVISIBLE}]")
Style = Literal["plain", "pale", "user", "agent"]
"""The style of text: plain, pale, or in the colour of a speaker."""
_STYLES: Final[Mapping[Style, str]] = {"pale": "2", "user": "1;36", "agent": "1;32"}
_STATUS_CHARS: Final = 200
_NO_VALUE: Final = "–"


class OutputFailed(OSError):
    """Standard output takes nothing more, for example because its disk is full."""


def file_problem(error: OSError) -> str:
    """Names the file, the problem and, for a missing permission, the remedy."""
    if isinstance(error, PermissionError):
        problem = "permission denied; run this command as a user who has access"
    else:
        problem = error.strerror or str(error)
    return problem if error.filename is None else f"{os.fsdecode(error.filename)}: {problem}"


def print_text(text: str = "", *, end: str = "\n", style: Style = "plain") -> None:
    """Prints text on standard output, unbuffered; with a style if colours are shown."""
    plain = harmless(text)
    _write(sys.stdout, (f"\x1b[{_STYLES[style]}m{plain}\x1b[0m" if style != "plain" and has_colour() else plain) + end)


def discard_output() -> None:
    """Discards what is and will be printed on standard output, after a write failed.

    Buffered text would raise again when the interpreter flushes it.
    """
    _discard(sys.stdout)


def flush_output() -> None:
    """Writes what is buffered for standard output and standard error, and discards what they do not take."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _discard(stream)


def _discard(stream: TextIO) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


def can_rewrite() -> bool:
    """Whether standard output is a terminal whose lines can be rewritten."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def has_colour() -> bool:
    """Whether colours are shown: on a terminal that supports them, unless `NO_COLOR` is set."""
    return can_rewrite() and not os.environ.get("NO_COLOR")


def styled_prompt(text: str, style: Style) -> str:
    """A prompt for `input` with `readline`. Marks colour codes, because `readline` must not count them as characters."""
    plain = harmless(text)
    return f"\1\x1b[{_STYLES[style]}m\2{plain}\1\x1b[0m\2" if style != "plain" and has_colour() else plain


def show_status(text: str | None) -> None:
    """Shows one pale line that the next output replaces; None removes it. Does nothing unless `can_rewrite`."""
    _write(sys.stdout, "")
    if text is not None:
        line = set_cell_size(one_line(text, _STATUS_CHARS), min(len(text), shutil.get_terminal_size().columns - 1)).rstrip()
        print_text(line, end="", style="pale")
        _status.is_shown, _status.is_in_line = True, False


def say(text: str) -> None:
    """Prints a line on standard error."""
    _write(sys.stderr, harmless(text) + "\n")


def say_instead(text: str) -> None:
    """Replaces the terminal's current line by text, on standard error."""
    _write(sys.stderr, f"\r\x1b[K{harmless(text)}")


def ask_person(question: str) -> str:
    """Asks the person at the terminal and returns the answered line; raises EOFError at the end of the input."""
    return input(harmless(question))


def say_traceback(error: BaseException) -> None:
    """Prints the traceback of a bug on standard error, without values of variables."""
    say("".join(traceback.format_exception(error)).rstrip("\n"))


class StandardError:
    """A file object for logs: writes harmless text to standard error."""

    def write(self, text: str) -> int:
        """Prints the text."""
        _write(sys.stderr, harmless(text))
        return len(text)

    def flush(self) -> None:
        """Does nothing, because nothing is buffered."""


def print_json(value: object) -> None:
    """Prints the one JSON value of a `--json` command. Escapes characters that could harm a terminal; the value stays exact."""
    _status.has_printed_json = True
    _write(sys.stdout, json_text(value) + "\n")


def begin_command() -> None:
    """Forgets what an earlier command of this process has printed."""
    _status.has_printed_json = _status.is_in_line = False


def print_json_failure(kind: str, message: str) -> None:
    """Prints the JSON value of a `--json` command that failed, unless the command has printed its value."""
    if not _status.has_printed_json:
        print_json({"error": {"kind": kind, "message": message}})


def json_text(value: object) -> str:
    """A value as indented JSON. Escapes characters that could harm a terminal."""
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
    except orjson.JSONEncodeError:  # a lone surrogate, as in the name of a file, or a number beyond 64 bits
        text = json.dumps(value, indent=2, default=str)
    return _escaped(text)


def print_json_lines(values: Iterable[object]) -> None:
    """Prints values as JSON lines, with the same escapes."""
    for value in values:
        _write(sys.stdout, _escaped(orjson.dumps(value).decode()) + "\n")


def _escaped(text: str) -> str:
    # In JSON such characters occur only inside strings, where an escape has the same meaning.
    return _HARMFUL_IN_JSON.sub(lambda found: json.dumps(found[0])[1:-1], text)


class _Status:
    """Tracks what was printed."""

    is_shown = False
    """Whether the terminal's current line is a status line."""
    is_in_line = False
    """Whether standard output ended within a line, such as one of a reply that is still written."""
    has_printed_json = False
    """Whether the command's value came."""


_status = _Status()


def _write(stream: TextIO, text: str) -> None:
    if _status.is_shown:
        _status.is_shown = False
        sys.stdout.write("\r\x1b[K")
        sys.stdout.flush()
    if stream is sys.stdout:
        _status.is_in_line = not text.endswith("\n") if text else _status.is_in_line
    elif _status.is_in_line and text and is_one_terminal():
        _status.is_in_line = False
        text = f"\n{text}"  # a log message within a line of a reply would read as a part of it
    try:
        try:
            stream.write(text)
        except UnicodeEncodeError:  # the locale's encoding lacks a character
            stream.write(text.encode(stream.encoding, "replace").decode(stream.encoding))
        stream.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        # A message or a log line that cannot be written must not end a command. Later ones may be: a disk may get room again.
        if stream is sys.stdout:
            raise OutputFailed(*error.args) from error


def is_one_terminal() -> bool:
    """Whether standard output and standard error are both shown on a terminal."""
    return sys.stdout.isatty() and sys.stderr.isatty()


def is_interactive() -> bool:
    """Whether a person types the input and sees the output."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def print_table(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> None:
    """Prints rows under the names of their columns, aligned: numbers to the right, a missing value as a dash."""
    print_text("\n".join(table_lines(columns, rows)))


def table_lines(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> Iterator[str]:
    """The lines of the table that `print_table` prints."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[n]) for line in cells), 0) for n, column in enumerate(columns)]
    for line in ([column.replace("_", " ") for column in columns], *cells):
        padded = (
            cell.rjust(width) if cell.replace(",", "").isdigit() else cell.ljust(width)
            for cell, width in zip(line, widths, strict=True)
        )
        yield "  ".join(padded).rstrip()


def _cell(value: object) -> str:
    if value is None:
        return _NO_VALUE
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    # A line feed or tab in a cell would forge a row or a column.
    return harmless(str(value)).replace("\n", " ").replace("\t", " ")


class CommandOutput(Protocol):
    """One finding of a command."""

    def as_json(self) -> Mapping[str, object]: ...

    def lines(self) -> Iterable[str]:
        """The finding as lines of text."""
        ...


def print_answer(answer: CommandOutput, *, is_json: bool) -> None:
    """Prints a command's finding, as one JSON value or as lines of text."""
    if is_json:
        print_json(answer.as_json())
    else:
        print_text("\n".join(answer.lines()))
