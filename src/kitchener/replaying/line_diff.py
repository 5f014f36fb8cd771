"""Compares two texts line by line, as a unified diff."""

import difflib
from collections.abc import Sequence
from typing import Final

_MOST_LINES: Final = 1_000
"""Longest text that is compared line by line; comparing takes up to the square of it."""


def line_diff(before: Sequence[str], after: Sequence[str], old: str = "as recorded", new: str = "now") -> str:
    """A unified diff of two texts; "": they are equal. Of long texts only the numbers of lines.

    Args:
        before: the lines of the earlier text
        after: the lines of the later text
        old: the name of the earlier text
        new: the name of the later text
    """
    if before == after:
        return ""
    if len(before) > _MOST_LINES or len(after) > _MOST_LINES:
        return f"{len(before):,} lines {old}, {len(after):,} lines {new}; too many to compare line by line"
    return "\n".join(difflib.unified_diff(before, after, old, new, lineterm=""))
