"""Detects features of a turn's text: a standing statement, a report with a time, a question, a date.

The patterns are written by hand, for English. A text in another language has fewer features and is ranked by its words.
"""

import re
from collections.abc import Container
from dataclasses import dataclass
from itertools import repeat

__all__ = ["DateParts", "TextFeatures", "date_parts", "features_of", "may_have_date"]

DateParts = frozenset[tuple[str, int]]
"""The parts of a date in a text: ("year", 2024), ("month", 5), ("day", 8), or some of them."""

_SELF = frozenset(("i", "me", "my", "mine", "myself", "we", "us", "our", "ours", "ourselves"))
_OTHER = frozenset(("you", "your", "yours", "yourself"))
_BALANCE = dict.fromkeys(_SELF, 1) | dict.fromkeys(_OTHER, -1)
_TIMED = frozenset(
    (
        *(
            "yesterday",
            "today",
            "tomorrow",
            "tonight",
            "last",
            "next",
            "ago",
            "since",
            "weekend",
            "week",
            "month",
            "year",
            "years",
        ),
        *("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"),
        *("january", "february", "april", "june", "july", "august", "september", "october", "november", "december"),
    )
)
# A capital inside a sentence, or a quoted title.
_NAME = re.compile(r"(?:(?<=[\w,;] )[A-ZÀ-ÖØ-ÞΑ-ΩА-Я]|(?<=[\"“«])[A-ZÀ-ÖØ-ÞΑ-ΩА-Я])\w{2,}")
# Without one of these words, the regular expression cannot match and does not run.
_MAY_STAND = frozenset(("always", "never", "prefer", "usually", "now", "forward", "mind", "future", "hate", "avoid", "stand"))
_MAY_DIRECT = _MAY_STAND | {"remember", "only"}
_DIRECTIVE = re.compile(
    # As below, only the last line break of a run starts a match.
    r"(?:^|[.!?:;,]\s*+|\n[^\S\n]*+)(?:please\s+|so\s+|and\s+|but\s+)?"
    r"(?:(?:always|never)\s+(?!\w+ing\b)\w|i\s+(?:always|never|only|prefer|hate|avoid|can(?:no|['’])t stand)\b"
    r"|from now on\b|going forward\b|keep in mind\b|remember (?:that|to)\b|in (?:the )?future,)",
    re.IGNORECASE,
)
_STANDING = re.compile(
    r"\b(?:i|we)(?:['’]\w+)?(?:\s+\w+)?\s+(?:always|never|prefer|usually)\b"
    # Only the last line break of a run starts a match; otherwise the search would be quadratic.
    r"|(?:^|[.!?:;,]\s*+|\n[^\S\n]*+)(?:please\s+|so\s+|and\s+)?(?:always|never)\b"
    r"|\b(?:must|should)\s+(?:always|never)\b"
    r"|\b(?:from now on|going forward|keep in mind)\b|\bin (?:the )?future,"
    r"|\bi (?:hate|avoid|can(?:no|['’])t stand)\b",
    re.IGNORECASE,
)
_MONTHS = (
    "january",
    "february",
    "march",
    "april",
    "may",
    "june",
    "july",
    "august",
    "september",
    "october",
    "november",
    "december",
)
_ISO_DATE = re.compile(r"\b(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?!\d)")
_DATE = re.compile(
    rf"\b(?:(\d{{1,2}})(?:st|nd|rd|th)?\s+(?:of\s+)?)?({'|'.join(_MONTHS)}|(?:jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)\b\.?)"
    r"(?!\w)(?:\s+(\d{1,2})(?:st|nd|rd|th)?(?![\d:]))?",
    re.IGNORECASE,
)
_YEAR = re.compile(r"\b(?:19|20)\d\d\b")


_MAY_DATE = re.compile(rf"\d|\b(?:{'|'.join(month[:3] for month in _MONTHS)})", re.IGNORECASE)


def may_have_date(text: str) -> bool:
    """Whether a text may contain a date. If not, `date_parts` finds none."""
    return _MAY_DATE.search(text) is not None


def date_parts(text: str) -> DateParts:
    """The years, months and days in a text; "may" and "march" are months only with a day or a capital."""
    parts: set[tuple[str, int]] = set()
    for year, month, day in _ISO_DATE.findall(text):
        parts |= {("year", int(year)), ("month", int(month)), ("day", int(day))}
    for before, name, after in _DATE.findall(text):
        if name in ("may", "march") and not (before or after):
            continue
        parts.add(("month", next(i for i, month in enumerate(_MONTHS, 1) if month.startswith(name.lower()[:3]))))
        if before or after:
            parts.add(("day", int(before or after)))
    parts |= {("year", int(year)) for year in _YEAR.findall(text)}
    return frozenset(parts)


@dataclass(frozen=True, slots=True)
class TextFeatures:
    """Features of one turn besides its words."""

    asks: bool
    """Whether it ends in a question."""
    stands: bool
    """Whether it is a standing statement, such as "I never …" or "from now on …"."""
    timed: bool
    """Whether it says when something happened or will happen."""
    names: bool
    """Whether it contains a name or a title, other than that of a speaker."""
    of_self: int
    """1: "I" is more frequent than "you"; -1: "you" is more frequent; 0: neither."""


def features_of(text: str, words: list[str], speakers: Container[str], *, directives: bool = True) -> TextFeatures:
    """Detects the features of a text.

    Args:
        text: the text
        words: its folded words
        speakers: folded names that do not count as names
        directives: True: a standing statement must begin a clause, such as "Never …"; False: "We have always …" is one too
    """
    may_stand, standing = (_MAY_DIRECT, _DIRECTIVE) if directives else (_MAY_STAND, _STANDING)
    balance = sum(map(_BALANCE.get, words, repeat(0)))
    return TextFeatures(
        asks=text.rstrip().endswith(("?", "\uff1f", "\u061f")),
        stands=not may_stand.isdisjoint(words) and standing.search(text) is not None,
        timed=not _TIMED.isdisjoint(words),
        names=any(name.casefold() not in speakers for name in _NAME.findall(text)),
        of_self=(balance > 0) - (balance < 0),
    )
