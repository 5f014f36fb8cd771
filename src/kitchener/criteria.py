"""Reads acceptance criteria: short texts that say what a reply must be like, such as `max_chars:200`. Pure.

Settings, tools and callers give criteria, and refuse unknown ones with `criterion_problem`. The quality gate applies them to a
reply with `is_met`.
"""

from collections.abc import Callable, Mapping
from typing import Final

_MAX_DIGITS: Final = 9
_MAX_CHARS: Final = 2_000
MAX_CRITERIA: Final = 50
"""Most criteria that one source may give."""
_NUMBERS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    "min_chars": lambda length, limit: length >= limit,
    "max_chars": lambda length, limit: length <= limit,
}
_TEXTS: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "contains": lambda text, part: part in text,
    "not_contains": lambda text, part: part not in text,
}
EXPECTED: Final = "expected min_chars:N, max_chars:N, contains:TEXT or not_contains:TEXT"
_BY_MODEL: Final = "; a statement such as `names the price` needs verify_with_model"


def is_for_model(criterion: str) -> bool:
    """Whether a criterion is a statement that only a model can judge, such as "names the price in euros"."""
    kind = criterion.partition(":")[0]
    return kind not in _NUMBERS and kind not in _TEXTS and criterion.strip() != "" and len(criterion) <= _MAX_CHARS


def criterion_problem(criterion: str, *, by_model: bool = False) -> str | None:
    """What is wrong with a criterion, for a reader; None: it can be applied.

    Args:
        criterion: the criterion
        by_model: whether a model verifies replies, so that it can judge statements
    """
    kind, _, operand = criterion.partition(":")
    if by_model and is_for_model(criterion):
        return None
    if kind in _NUMBERS and operand.isascii() and operand.isdecimal() and len(operand) <= _MAX_DIGITS:
        return None
    if kind in _TEXTS and operand and len(operand) <= _MAX_CHARS and not any("\ud800" <= each <= "\udfff" for each in operand):
        return None
    return f"{EXPECTED}, where N has at most {_MAX_DIGITS} digits and TEXT 1 to {_MAX_CHARS:,} characters" + (
        "" if by_model else _BY_MODEL
    )


def is_met(criterion: str, text: str) -> bool:
    """Whether a text meets a criterion. A criterion with a problem is never met."""
    kind, _, operand = criterion.partition(":")
    if criterion_problem(criterion) is not None:
        return False
    return _NUMBERS[kind](len(text), int(operand)) if kind in _NUMBERS else _TEXTS[kind](text, operand)
