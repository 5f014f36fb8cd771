"""Bounds the total size of all sessions' lexical indexes: releases the least recently used ones.

An index is derived from turns, so releasing it costs time at its next ranking, but changes no result. This module does not know
how an index ranks.
"""

from collections import OrderedDict
from typing import Final
from weakref import ref

from kitchener.actors.authority.ranking import TurnWords

MAX_HELD_TERMS: Final = 1_048_576
"""Most different terms in all indexes of an agent class together. A term with its positions takes about 400 bytes, so the limit
is about 400 MiB. The index of an ordinary session has a few thousand terms."""


class IndexCache:
    """The indexes in use, in the order of their last use.

    Args:
        max_terms: most terms in all indexes together; the index that is in use is never released
    """

    def __init__(self, max_terms: int = MAX_HELD_TERMS) -> None:
        self._max_terms = max_terms
        self._held: OrderedDict[int, tuple[ref[TurnWords], int]] = OrderedDict()
        self._terms = 0

    @property
    def terms(self) -> int:
        """Number of terms in all indexes, each as counted at its last use."""
        return self._terms

    def used(self, words: TurnWords) -> None:
        """Counts an index that was just used. While there are too many terms, releases the least recently used index."""
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
