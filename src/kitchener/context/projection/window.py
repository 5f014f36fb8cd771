"""Chooses which of a session's turns are in the prompt as chat messages.

They are the newest ones: a window whose start depends on the turns alone, not on the message or on earlier projections. It
moves in steps. Between two steps the messages are only appended to, so a provider's cache can serve all that came before. This
module does not know which other turns match the message (`projection.py`).
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from kitchener.context.fold.items import Item, turn_of
from kitchener.context.ruleset import Ruleset


class Window(NamedTuple):
    """How much of a session's past is shown as chat messages."""

    room: int
    """Most tokens of all messages."""
    step: int
    """Tokens by which the window moves when it is full."""
    most: int
    """A message or a reply with more tokens is cut to its beginning."""

    @classmethod
    def under(cls, ruleset: Ruleset) -> "Window":
        """The window of a policy. It depends on no turn."""
        budget = ruleset.context_budget
        # The rest is for goals, learned lines, work orders and matches. Before version 6, matches took room of the history.
        room = budget * 7 // 10 if ruleset.is_steady else budget * 17 // 20
        step = max(1, int(room * (1 - ruleset.evict_to)))
        # Two items of this size leave the newest turn in the window wherever a step ends.
        return cls(room, step, max(0, min(ruleset.excerpt_tokens, (room - step) // 2)))

    def start(self, items: Sequence[Item], ends: Sequence[int]) -> int:
        """The position of the first shown item, which is the first of its turn.

        Args:
            items: the items of turns, oldest first
            ends: running totals; entry n holds the tokens of items 0 to n
        """
        total = ends[-1] if ends else 0
        if total <= self.room:
            return 0
        passed = -((self.room - total) // self.step) * self.step
        start = bisect_left(ends, passed) + 1
        while start < len(items) and turn_of(items[start]) == turn_of(items[start - 1]):
            start += 1
        return start


def kept_recent(turns: int, evict_to: float) -> int:
    """How many of a session's newest `turns` are left after a step of the window."""
    return math.ceil(turns * evict_to)


def first_recent(items: Sequence[Item], turns: int, kept: int | None = None) -> int:
    """The position of the first item of the session's newest turns, which are shown whatever their intent.

    The position moves in steps, so that not every turn changes the beginning of the history.

    Args:
        items: the items of the session's turns, oldest first, two of most turns
        turns: how many turns may be shown
        kept: how many are left after a step; None: about half of them
    """
    step = turns // 2 if kept is None else turns - kept
    most, step = 2 * turns, max(1, step) * 2
    first = max(0, -((most - len(items)) // step) * step) if turns else len(items)
    while 0 < first < len(items) and turn_of(items[first]) == turn_of(items[first - 1]):
        first += 1
    return first
