"""Bounds what the lexical indexes of all sessions hold together: the indexes used last stay, the others are released.

An index is derived from turns, so releasing one costs its next ranking time and changes no result. Knows nothing of ranking.
"""

from collections import OrderedDict
from typing import Final
from weakref import ref

from kitchener.actors.authority.ranking import TurnWords

MAX_HELD_TERMS: Final = 1_048_576
"""Different terms that all indexes of an agent class hold together. A term takes about 400 bytes with its places, so these take
some 400 MiB. The index of an ordinary session has a few thousand terms."""


class IndexCache:
    """The indexes in use, in the order of their last use.

    Args:
        max_terms: terms that they hold together; the index that is in use stays in any case
    """

    def __init__(self, max_terms: int = MAX_HELD_TERMS) -> None:
        self._max_terms = max_terms
        self._held: OrderedDict[int, tuple[ref[TurnWords], int]] = OrderedDict()
        self._terms = 0

    @property
    def terms(self) -> int:
        """Terms that the indexes hold together, as counted when each was used last."""
        return self._terms

    def used(self, words: TurnWords) -> None:
        """Counts an index that was just used. While there are too many terms, releases the one that was used longest ago."""
        key = id(words)
        self._forget(key)
        self._held[key] = ref(words, lambda _: self._forget(key)), words.held_terms
        self._terms += words.held_terms
        while self._terms > self._max_terms and len(self._held) > 1:
            oldest = next(iter(self._held))
            other = self._held[oldest][0]()
            self._forget(oldest)
            if other is not None:
                other.release()

    def _forget(self, key: int) -> None:
        found = self._held.pop(key, None)
        if found is not None:
            self._terms -= found[1]
