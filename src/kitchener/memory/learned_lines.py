"""Checks learned lines, which a model wrote from what users said: they must be short, plain, and not instructions. Pure.

The main defence is elsewhere: a prompt shows learned lines as data about the user. This module keeps lines short and printable,
and refuses the most obvious attempts to give the model instructions through them.
"""

import re
import unicodedata
from typing import Final

_BREAKS: Final = re.compile(r"\s+")
_HIDDEN: Final = frozenset(("Cc", "Cs", "Cf"))
"""Unicode categories of invisible characters that can hide content: controls, surrogates, and format characters, which can
reverse the direction of text or spell invisible sentences."""
_NEEDED: Final = frozenset("\u200c\u200d\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u08e2")
"""Format characters that plain text needs: joiners of some scripts and of emoji, and visible signs."""
_COMMANDS: Final = (
    re.compile(
        r"\b(ignore|disregard|forget|override|bypass)\b.{0,40}"
        r"\b(instruction|rule|prompt|message|guideline|restriction|above|previous|prior|earlier|everything)s?\b",
        re.IGNORECASE,
    ),
    re.compile(
        r"\b(system prompt|developer mode|jailbreak|you are now|pretend (to be|you)|new instructions?)\b", re.IGNORECASE
    ),
    re.compile(r"(^|[\s\"'(\[])(system|assistant|developer|user)\s*:", re.IGNORECASE),
    re.compile(r"```|<\||\[/?INST\]|\{[{%]", re.IGNORECASE),
)
_TAG: Final = re.compile(r"</?[a-z]", re.IGNORECASE)


def tidy(text: str) -> str:
    """The text on one line, without invisible characters."""
    return _BREAKS.sub(" ", "".join(" " if _is_break(char) else char for char in text if not _is_hidden(char))).strip()


def problem_of(text: str, max_chars: int) -> str | None:
    """Why a text cannot be a learned line, as the end of an error message; None: it can."""
    if not text.strip():
        return "expected some text"
    if len(text) > max_chars:
        return f"expected at most max_line_chars = {max_chars} characters, found {len(text)}"
    if any(_is_hidden(char) or _is_break(char) for char in text):
        return "expected one line without control characters"
    if any(command.search(text) for command in _COMMANDS) or _has_tag(text):
        return "expected a statement about the subject, found what reads like an instruction to the model"
    return None


def _has_tag(text: str) -> bool:
    """Whether a tag starts and a `>` follows. Only the first tag is checked, so the search stays linear."""
    tag = _TAG.search(text)
    return tag is not None and ">" in text[tag.end() :]


def _is_break(char: str) -> bool:
    return char in "\t\n\v\f\r\x1c\x1d\x1e\x1f\x85\u2028\u2029"


def _is_hidden(char: str) -> bool:
    return unicodedata.category(char) in _HIDDEN and char not in _NEEDED and not _is_break(char)
