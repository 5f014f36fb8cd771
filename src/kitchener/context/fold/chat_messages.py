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
        """The items; a long one as its beginning."""
        self.ends: list[int] = []
        """The tokens of all items up to and including each."""

    def follow(self, turns: Sequence[Item], most: int) -> None:
        """Adds the turns that are new since the last call.

        Args:
            turns: the same list as at the last call, with what was appended since; another list is read from its start
            most: tokens above which an item is shown as its beginning
        """
        if turns is not self._turns or most != self._most:
            self._turns, self._most, self.items, self.ends = turns, most, [], []
        items, ends = self.items, self.ends
        for number in range(len(items), len(turns)):
            item = beginning(turns[number], most, self._estimate)
            items.append(item)
            ends.append((ends[-1] if ends else 0) + item.tokens)


def spoken(item: Item) -> tuple[tuple[bool, str], ...]:
    """What an item of a turn says: each part with whether it is a reply, without the labels `user` and `assistant`."""
    return ((True, item.text.removeprefix(ASSISTANT_LABEL)),) if item.is_reply else spoken_in(item.text)
