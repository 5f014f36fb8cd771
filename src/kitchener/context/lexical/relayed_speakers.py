"""Finds the speakers of a talk that a program relays: the names that stand before what is said, as in "Ada: Good morning"."""

import re
from collections import Counter
from typing import Final

_NAME: Final = re.compile(r"(\w[\w'’.-]{0,30}(?: \w[\w'’.-]{0,30}){0,2}): ")

MAX_NAMES: Final = 64
"""Most names, the first ones: each ranking compares the question's words with all of them."""


class RelayedNames:
    """Learns from one message after the other whether names stand before them. The same messages give the same speakers.

    A heading such as "Recipe: " stands before few messages, so it is no name: names stand before half of what one side says in
    a session, and again and again.
    """

    def __init__(self) -> None:
        self._times = Counter[str]()
        self._names = set[str]()
        self._sides: dict[tuple[str, str], tuple[int, int]] = {}

    def speaker(self, session: str, side: str, text: str) -> str | None:
        """The name before the next message; None: there is none, or it is not known for one.

        Args:
            session: the session of the message
            side: the label of the side that relays it, such as `user`
            text: the message without that label
        """
        name = name_before(text)
        said, named = self._sides.get((session, side), (0, 0))
        said, named = said + 1, named + (name is not None)
        self._sides[session, side] = said, named
        if name is None:
            return None
        self._times[name] += 1
        if self._times[name] < 2 or 2 * named < said:
            return None
        if len(self._names) < MAX_NAMES:
            self._names.add(name)
        return name if name in self._names else None


def name_before(text: str) -> str | None:
    """Up to three words with a capital, or in a script without capitals, that stand before a text with a colon."""
    found = _NAME.match(text)
    if found is None or not all(word[0].isalpha() and word[0] == word[0].upper() for word in found[1].split()):
        return None
    return found[1]
