"""Defines the two shapes of the page: a bar of tokens, and a text that is folded if it is long. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kitchener.inspection.shown_text import one_line
from kitchener.plain_names import counted

_COLOURS: Final = 8
_OPEN_CHARS: Final = 600
_OPEN_LINES: Final = 12
_PREVIEW: Final = 90


class Segment(NamedTuple):
    """One part of a bar."""

    name: str
    tokens: int
    start: str
    """Percent of the bar's width, as SVG takes it."""
    width: str
    colour: int
    """Number of the colour, 1 to 8; 0: the unused part."""


class Bar(NamedTuple):
    """Tokens by part. The full width is the limit, or all tokens if they exceed the limit."""

    segments: Sequence[Segment]
    limit_at: str | None
    """Where the limit is, in percent; None: nothing exceeds it."""


def bar_of(parts: Iterable[tuple[str, int]], limit: int | None = None) -> Bar:
    """A bar of parts in their order.

    Args:
        parts: names with tokens
        limit: most tokens; the unused rest is a segment, too. None: there is no limit
    """
    known = list(parts)
    used = sum(tokens for _, tokens in known)
    whole = max(used, limit or 0, 1)
    segments, at = [], 0
    for number, (name, tokens) in enumerate(known):
        segments.append(Segment(name, tokens, _percent(at, whole), _percent(tokens, whole), number % _COLOURS + 1))
        at += tokens
    if limit is not None and used < limit:
        segments.append(Segment("left", limit - used, _percent(at, whole), _percent(limit - used, whole), 0))
    return Bar(segments, _percent(limit, whole) if limit is not None and used > limit else None)


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3f}"


class FoldedText(NamedTuple):
    """A text in full. A long one is closed at first, below its beginning."""

    title: str
    text: str
    preview: str
    """The beginning and the size of a long text; "": it is short."""

    @property
    def is_open(self) -> bool:
        """Whether the text shows without a click."""
        return not self.preview


def folded(title: str, text: str) -> FoldedText:
    """A text with its title."""
    lines = text.count("\n") + 1
    if len(text) <= _OPEN_CHARS and lines <= _OPEN_LINES:
        return FoldedText(title, text, "")
    size = f"{counted(len(text), 'character')}, {counted(lines, 'line')}"
    return FoldedText(title, text, f"{one_line(text[: 2 * _PREVIEW], _PREVIEW)} ({size})")
