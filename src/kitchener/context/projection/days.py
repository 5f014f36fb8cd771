"""Puts turns under the dates of their days, so that "yesterday" in an old message can be dated.

What was said on one day of one session stands under one heading. The running session's turns of today stand under today's
date, which is always shown. The packer counts the headings, and the rendering writes them.
"""

from collections.abc import Iterable
from datetime import date
from typing import Final

from kitchener.context.fold.items import LINE, SEPARATOR, Item
from kitchener.records.tokens import Estimator

Day = tuple[str | None, str]
"""A session, and a date in it in ISO form."""
_DATED: Final = ("turn", "evidence")
"""Kinds of items that stand under the date of their day."""


def day_of(item: Item) -> Day:
    """The day of an item."""
    return (item.session_id, item.timestamp[:10])


def heading(day: str) -> str:
    """The heading of a day, such as `[Fri 2026-02-20]`; a date that cannot be read stays as it is."""
    return f"[{_named(day)}]"


def heading_of_today(today: str) -> str:
    """The heading of the running turn's day."""
    return f"[today, {_named(today)}]"


def _named(day: str) -> str:
    try:
        return f"{_WEEKDAYS[date.fromisoformat(day).weekday()]} {day}"
    except ValueError:
        return day or "undated"


_WEEKDAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class Days:
    """The headings of one projection.

    Args:
        today: the date of the running turn, ISO form
        session_id: the running session
        estimate: counts the tokens of a text
    """

    def __init__(self, today: str, session_id: str | None, estimate: Estimator) -> None:
        self.tokens_of_today = estimate(heading_of_today(today) + SEPARATOR)
        self._tokens = estimate(heading("2026-02-20") + LINE)
        self._open: set[Day] = {(session_id, today)}

    def tokens(self, items: Iterable[Item]) -> int:
        """Tokens of the further headings that these items need."""
        days = {day_of(item) for item in items if item.kind in _DATED}
        return self._tokens * len(days - self._open)

    def tokens_of(self, item: Item) -> int:
        """Tokens of the heading that one item needs; 0 if its heading is there."""
        return self._tokens if item.kind in _DATED and day_of(item) not in self._open else 0

    def open(self, item: Item) -> int:
        """Records that an item is shown. Returns the tokens of its new heading; 0 if its day has one already."""
        if item.kind not in _DATED or (day := day_of(item)) in self._open:
            return 0
        self._open.add(day)
        return self._tokens


class NoDays(Days):
    """Items without headings, as before dates were shown."""

    def __init__(self) -> None:
        self.tokens_of_today = 0

    def tokens(self, items: Iterable[Item]) -> int:
        """Always 0."""
        return 0

    def tokens_of(self, item: Item) -> int:
        """None are needed."""
        return 0

    def open(self, item: Item) -> int:
        """Always 0; records nothing."""
        return 0
