"""Turns the messages and replies of a session into chat messages, and adds up their tokens once.

A list of turns only grows, so each turn is read once, however many turns follow. This module does not know which of them are
shown (`projection/window.py`).
"""

from collections.abc import Sequence

from kitchener.context.fold.excerpts import beginning
from kitchener.context.fold.items import Item
from kitchener.records.spoken import ASSISTANT_LABEL, spoken_in
from kitchener.records.tokens import Estimator


class HistoryItems:
    """The items of turns as a history shows them, and their tokens, oldest first.

    Args:
        estimate: counts the tokens of a text
    """

    __slots__ = ("_estimate", "_most", "_turns", "ends", "items")

    def __init__(self, estimate: Estimator) -> None:
        self._estimate = estimate
        self._turns: Sequence[Item] = ()
        self._most = 0
        self.items: list[Item] = []
        """The items. A long one is cut to its beginning."""
        self.ends: list[int] = []
        """Running totals: entry n holds the tokens of items 0 to n."""

    def follow(self, turns: Sequence[Item], most: int) -> None:
        """Adds the turns that are new since the last call.

        Args:
            turns: the list of the last call, with later turns appended; a different list is read from its start
            most: an item with more tokens is cut to its beginning
        """
        if turns is not self._turns or most != self._most:
            self._turns, self._most, self.items, self.ends = turns, most, [], []
        items, ends = self.items, self.ends
        for number in range(len(items), len(turns)):
            item = beginning(turns[number], most, self._estimate)
            items.append(item)
            ends.append((ends[-1] if ends else 0) + item.tokens)


def spoken(item: Item) -> tuple[tuple[bool, str], ...]:
    """The parts of a turn's item, without the labels `user` and `assistant`: whether each is a reply, and its text."""
    return ((True, item.text.removeprefix(ASSISTANT_LABEL)),) if item.is_reply else spoken_in(item.text)
