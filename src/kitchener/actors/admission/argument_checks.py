"""Checks single arguments of calls. Each error is a `CallerError` that names the argument, its value and the expected form.

`request_checks.py` checks whole calls of a supervisor.
"""

import re
from collections.abc import Sequence
from typing import Final

from kitchener.canonical import canonical_bytes
from kitchener.config import LedgerConfig
from kitchener.config.settings_parser import MAX_COUNT
from kitchener.errors import CallerError, ReentrantTurn
from kitchener.lanes.calling_chain import calling_chain
from kitchener.plain_names import is_printable, quoted
from kitchener.records.spoken import MAX_SPEAKER_CHARS

MAX_NAME: Final = 256
"""Most characters of a name that a caller chooses."""
_MAX_TEXT: Final = 2_000
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_BESIDE_THE_TEXT: Final = 8_192
"""Most bytes that the other fields of an entry with a message or a reply can take."""


def check_is_text(what: str, value: object) -> None:
    """Raises CallerError unless the value is a `str`."""
    if not isinstance(value, str):
        raise CallerError(f"{what} = {quoted(value)}: expected text")


def check_texts_if_given(**values: object) -> None:
    """Raises CallerError unless each value, by its argument's name, is a `str` or None."""
    for what, value in values.items():
        if value is not None:
            check_is_text(what, value)


def check_count(what: str, number: object) -> None:
    """Raises CallerError unless this is a whole number, at least 1 and at most `MAX_COUNT`."""
    if type(number) is not int or not 1 <= number <= MAX_COUNT:
        raise CallerError(f"{what} = {quoted(number)}: expected a whole number from 1 to {MAX_COUNT:,}")


def check_list(what: str, texts: object) -> None:
    """Raises CallerError unless this is a list of texts. A single text is refused, although it is a sequence of texts, too."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise CallerError(f"{what} = {quoted(texts)}: expected a list of texts")
    for each in texts:
        check_is_text(what, each)


def check_name(what: str, name: str) -> None:
    """Raises CallerError unless a name chosen by the caller has 1 to 256 printable characters."""
    if not is_printable(name, MAX_NAME):
        raise CallerError(f"{what} = {quoted(name)}: expected 1 to {MAX_NAME} printable characters")


def check_speaker(what: str, name: object) -> None:
    """Raises CallerError unless this can be the name of a person who talks."""
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_SPEAKER_CHARS or not name.isprintable():
        raise CallerError(f"{what} = {quoted(name)}: expected a name of 1 to {MAX_SPEAKER_CHARS} printable characters")


def check_text(what: str, text: str) -> None:
    """Raises CallerError unless the text is not blank, has at most 2,000 characters, and has no lone surrogate."""
    if not isinstance(text, str) or not text.strip() or len(text) > _MAX_TEXT or _SURROGATE.search(text):
        raise CallerError(f"{what} = {quoted(text)}: expected 1 to {_MAX_TEXT} characters of text")


def check_not_inside(session_id: str, what: str) -> None:
    """Raises ReentrantTurn if a call would wait for the turn whose tool makes the call.

    Args:
        session_id: the session that the call needs
        what: what the call would do, for the error message
    """
    if session_id in calling_chain():
        raise ReentrantTurn(f"session {session_id!r} runs the turn whose tool {what}; do it after the turn, from outside of it")


def fits_entry(text: str, ledger: LedgerConfig) -> bool:
    """Whether a message or a reply fits into one ledger entry beside the entry's other fields."""
    if len(text) * 16 <= ledger.max_entry_bytes:  # six bytes a character at most; at least three eighths of an entry are left
        return True
    limit = ledger.max_entry_bytes - min(_BESIDE_THE_TEXT, ledger.max_entry_bytes // 2)
    if ledger.seal:  # sealed text is written in base64
        limit = limit * 3 // 4
    return len(canonical_bytes(text)) <= limit
