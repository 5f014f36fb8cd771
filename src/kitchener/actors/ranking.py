"""Ranks a session's turns against a message: the lexical index, fed with turns as they come up for ranking."""

from collections.abc import Iterable, Iterator, Sequence

from kitchener.context import Item
from kitchener.context.lexical import LexicalIndex, LexicalTurn

_USER, _ASSISTANT = "user: ", "\nassistant: "


class TurnRanking:
    """The index of the turns that one session, or one subject, was ever offered. Grows with them; each is read once."""

    __slots__ = ("_index", "_known", "_turns")

    def __init__(self) -> None:
        self._index: LexicalIndex | None = None
        self._turns: list[str] = []
        self._known: set[str] = set()

    def add(self, items: Iterable[Item]) -> None:
        """Takes further turns, oldest first; known ones are left out."""
        if self._index is None:
            self._index = LexicalIndex()
        for item in items:
            if item.entity_id not in self._known:
                self._known.add(item.entity_id)
                for speaker, text in _said(item.text):
                    self._index.append(LexicalTurn(text, item.session_id or "", speaker, item.timestamp[:10] or None))
                    self._turns.append(item.entity_id)

    def rank(self, message: str, items: Sequence[Item]) -> Iterator[int]:
        """Positions in `items`, best first; a turn may come twice, for each of its two sides."""
        self.add(items)
        if self._index is None:
            return
        where = {item.entity_id: n for n, item in enumerate(items)}
        for position in self._index.rank(message):
            found = where.get(self._turns[position])
            if found is not None:
                yield found

    def best(self, message: str) -> Iterator[str]:
        """Ids of the turns, best first; each may come twice."""
        if self._index is not None:
            for position in self._index.rank(message):
                yield self._turns[position]


def _said(text: str) -> Iterator[tuple[str, str]]:
    """The two sides of a turn's text."""
    user, _, assistant = text.removeprefix(_USER).partition(_ASSISTANT)
    yield "user", user
    if assistant:
        yield "assistant", assistant
