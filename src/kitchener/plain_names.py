"""Tells a name that a person chose from what may be a secret, and turns paths and values into what errors may show.

A key is often pasted where a name or a path belongs. Knows nothing of settings; `kitchener.config.shown` has their rules.
"""

import os
import re
from pathlib import Path
from typing import Final

_WORD = re.compile(r"[A-Za-z]{0,20}|(?=.{1,8}$)[A-Za-z]*[0-9]{1,3}[A-Za-z]*|[0-9]{4}|20[0-9]{6}")
"""A part of a name that a person chose: letters, few characters with few digits, or a date. Keys are longer and mixed."""
_BETWEEN_WORDS = re.compile(r"[-_.:/]")
_MAX_NAME: Final = 64


def is_plain_name(text: str) -> bool:
    """Whether a name looks as if a person chose it, not as if it were a key: words between `_`, `-`, `.`, `:` and `/`."""
    return len(text) <= _MAX_NAME and text != "" and all(_WORD.fullmatch(word) for word in _BETWEEN_WORDS.split(text))


def shown_path(path: str) -> str:
    """A path up to the first part that is not there, and from there on the parts that are plain names."""
    if _exists(path):
        return path
    shown, here = [], Path()
    for part in Path(path).parts:
        here = here / part
        is_shown = is_plain_name(part) or _exists(str(here))
        shown.append(part if is_shown else f"({counted(len(part), 'character')})")
    return str(Path(*shown))


def counted(number: int, what: str) -> str:
    """A number and what it counts: `1 character`, `2,000 characters`."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def quoted(value: object, chars: int = 80) -> str:
    """The `repr` of a caller's value as an error quotes it: cut, and for every number of digits and every depth."""
    try:
        return f"{value!r:.{chars}}"
    except (ValueError, RecursionError):  # a number of more than 4,300 digits; lists nested deep
        return f"a value of type {type(value).__name__!r}"


def _exists(path: str) -> bool:
    try:
        return os.path.lexists(path)
    except (OSError, ValueError):
        return False
