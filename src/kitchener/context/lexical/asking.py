"""Tells whether a message asks for something: by a question mark, or by its first word. Pure."""

from typing import Final

from kitchener.context.lexical.words import words_of

_MARKS: Final = ("?", "\uff1f", "\u061f", "\u037e")
_OPENING_CHARS: Final = 200
"""Characters in which the first word is looked for."""
_OPENERS: Final = frozenset(
    """what when where who whom whose which why how did do does is are was were has have had can could will would
    tell remind recall remember""".split()  # noqa: SIM905
)


def asks(message: str) -> bool:
    """Whether a message asks for something. In languages other than English, only a question mark says so."""
    if any(mark in message for mark in _MARKS):
        return True
    return any(word.casefold() in _OPENERS for word in words_of(message[:_OPENING_CHARS])[:1])
