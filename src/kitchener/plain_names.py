"""Turns names, numbers, paths, values and caught errors into text that an error, a log or a record may show.

Users often paste a key where a name or a path belongs. This module knows nothing of settings; `kitchener.config.shown` does.
"""

import errno
import os
import re
import traceback
from pathlib import Path
from typing import Final, TypeGuard

_WORD = re.compile(r"[A-Za-z]{0,20}|(?=.{1,8}$)[A-Za-z]*[0-9]{1,3}[A-Za-z]*|[0-9]{4}|20[0-9]{6}")
"""A part of a name that a person chose: letters, a few characters with few digits, or a date. Keys are longer and mixed."""
_BETWEEN_WORDS = re.compile(r"[-_.:/]")
_MAX_NAME: Final = 64
_CAUSES: Final = 8
"""Most causes of an error that are named."""


def is_plain_name(text: str) -> bool:
    """Whether a name looks like words that a person chose, separated by `_`, `-`, `.`, `:` or `/`, and not like a key."""
    return len(text) <= _MAX_NAME and text != "" and all(_WORD.fullmatch(word) for word in _BETWEEN_WORDS.split(text))


def is_printable(value: object, most: int) -> TypeGuard[str]:
    """Whether a value is a text of 1 to `most` printable characters."""
    return isinstance(value, str) and 1 <= len(value) <= most and value.isprintable()


def shown_path(path: str) -> str:
    """Returns a path for an error. Parts after the last existing directory are shown only if they are plain names."""
    if _exists(path):
        return path
    shown, here = [], Path()
    for part in Path(path).parts:
        here = here / part
        is_shown = is_plain_name(part) or _exists(str(here))
        shown.append(part if is_shown else f"({counted(len(part), 'character')})")
    return str(Path(*shown))


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a number with its noun: `1 character`, `2,000 characters`.

    Args:
        number: how many
        noun: the word for one
        plural: the word for several; None: `noun` with an s
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def shown_seconds(seconds: float) -> str:
    """Returns a measured duration with three digits, or in whole seconds from 100 on: `1.25 s`, `2 s`, `1,235 s`."""
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def without_halves(text: str) -> str:
    """Returns a text that has a UTF-8 form: `U+FFFD` for each lone surrogate. Two together become their character."""
    return text if text.isascii() else text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def first_chars(text: str, most: int) -> str:
    """Returns the first `most` characters of a text, and `…` if it has more."""
    return text if len(text) <= most else f"{text[:most]}…"


def cut_to(text: str, most: int) -> str:
    """Returns a text of at most `most` characters; one that was cut ends with `…`."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def quoted(value: object, chars: int = 80) -> str:
    """Returns the `repr` of a caller's value, for an error; one that was cut ends with `…`. Never raises.

    Args:
        value: anything that a caller gave
        chars: most characters of the result
    """
    try:
        return cut_to(repr(value), chars)
    except (ValueError, RecursionError):  # a number of more than 4,300 digits, or deeply nested lists
        return f"a value of type {type(value).__name__!r}"


def origin_of(error: BaseException) -> str:
    """Returns the class of an error and where it was raised, and the same of its causes, for logs.

    Omits the error's text, which may quote a message, an argument or an answer. The text is recorded or goes to the caller. Of
    an error of the operating system, it says what the system's number means: `OSError (No space left on device)`.
    """
    found, each = list[str](), error
    while len(found) < _CAUSES:
        code, line = next(((frame.f_code, n) for frame, n in reversed([*traceback.walk_tb(each.__traceback__)])), (None, 0))
        place = f" at {code.co_filename.rpartition('/')[2]}:{line} in {code.co_qualname}" if code is not None else ""
        found.append(f"{type(each).__name__}{_meaning(each)}{place}")
        cause = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
        if cause is None:
            break
        each = cause
    return ", from ".join(found)


def _meaning(error: BaseException) -> str:
    """What the number of an error of the operating system means, in brackets; "": it has none."""
    if isinstance(error, OSError) and error.errno is not None and error.errno in errno.errorcode:
        return f" ({os.strerror(error.errno)})"
    return ""


def error_text(error: BaseException) -> str:
    """Returns the class and the text of an error, for a record. Never raises, even if the error has no readable text."""
    try:
        return f"{type(error).__name__}: {error}"
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001  foreign code makes the text
        return f"{type(error).__name__} without a readable text"


def _exists(path: str) -> bool:
    try:
        return os.path.lexists(path)
    except (OSError, ValueError):
        return False
