"""Bounds how many values a message of a server may hold, whatever its size.

The vendor's library validates each value several times, while no other task runs: eight mebibytes of small values took seconds.
`command.py` and `connection.py` ask here. Explained in `docs/mcp.md`.
"""

from typing import Final

MAX_VALUES: Final = 200_000
"""Most values in a message: texts, numbers, objects and lists, at any depth."""


def may_hold_too_many(text: bytes) -> bool:
    """Whether a JSON text could hold too many values. Commas and brackets in strings count too, so look at the values then."""
    if len(text) <= MAX_VALUES:
        return False
    return text.count(b",") + text.count(b"[") + text.count(b"{") >= MAX_VALUES


def holds_too_many(message: object) -> bool:
    """Whether a JSON value holds too many values. Looks at no more of them than that, and does not recurse."""
    level, values = [message], 1
    while level:
        below: list[object] = []
        for each in level:
            if isinstance(each, dict):
                below.extend(each.values())
            elif isinstance(each, list):
                below.extend(each)
            if values + len(below) > MAX_VALUES:
                return True
        level, values = below, values + len(below)
    return False


__all__ = ["MAX_VALUES", "holds_too_many", "may_hold_too_many"]
