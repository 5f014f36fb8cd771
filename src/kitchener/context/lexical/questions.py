"""Tells whether a message asks for something that may have been said before. Pure."""

from itertools import pairwise
from typing import Final

from kitchener.context.lexical.words import words_of

_MARKS: Final = ("?", "\uff1f", "\u061f", "\u037e")
_OPENERS: Final = frozenset(
    """what when where who whom whose which why how did do does is are was were has have had can could will would
    tell remind recall remember""".split()  # noqa: SIM905
)
"""First words of a question without a question mark."""
_OF_FACTS: Final = frozenset(
    """what when where who whom whose which why how did was were had tell remind recall remember recommend suggest
    advise""".split()  # noqa: SIM905
)
"""Words that make even a request one for facts: "Could you remind me …"."""
_REQUESTS: Final = frozenset((verb, who) for verb in ("can", "could", "will", "would") for who in ("you", "i", "we"))
"""Words with which a question asks that something be done: "Can you book a table?"."""


def asks(message: str) -> bool:
    """Whether a message asks for something, and not only that something be done.

    In languages other than English, only a question mark says so.
    """
    is_marked = any(mark in message for mark in _MARKS)
    words = words_of(message.casefold())
    if not is_marked and (not words or words[0] not in _OPENERS):
        return False
    return not _OF_FACTS.isdisjoint(words) or _REQUESTS.isdisjoint(pairwise(words))
