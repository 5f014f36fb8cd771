"""Ranks a session's turns against a message: the lexical index, fed with turns as they come up for ranking."""

from collections.abc import Iterable, Iterator, Sequence

from kitchener.context import Item
from kitchener.context.lexical import LexicalIndex, LexicalTurn

_USER, _ASSISTANT = "user: ", "\nassistant: "


class TurnRanking:
    """The index of the turns that one session, or one subject, was ever offered. Grows with them; each is read once.

    Turns are noted when they are offered and read when something is ranked, in the order in which they were offered: a session
    whose turns all fit into its budget never has one read.
    """

    __slots__ = ("_index", "_known", "_turns", "_unread")

    def __init__(self) -> None:
        self._index: LexicalIndex | None = None
        self._turns: list[str] = []
        self._known: set[str] = set()
        self._unread: list[Item] = []

    def add(self, items: Iterable[Item]) -> None:
        """Takes further turns, oldest first; known ones are left out."""
        known = self._known
        for item in items:
            if item.entity_id not in known:
                known.add(item.entity_id)
                self._unread.append(item)

    def rank(self, message: str, items: Sequence[Item]) -> Iterator[int]:
        """Positions in `items`, best first, none left out; a turn may come twice, for each of its two sides."""
        self.add(items)
        where = {item.entity_id: n for n, item in enumerate(items)}
        for turn in self.best(message):
            found = where.get(turn)
            if found is not None:
                yield found

    def best(self, message: str) -> Iterator[str]:
        """Ids of the turns, best first; each may come twice."""
        index = self._read()
        for position in index.rank(message) if index is not None else ():
            yield self._turns[position]

    def _read(self) -> LexicalIndex | None:
        """The index with all that was offered; None: nothing was."""
        if self._unread:
            index = self._index = self._index if self._index is not None else LexicalIndex()
            for item in self._unread:
                for speaker, text in _said(item.text):
                    index.append(LexicalTurn(text, item.session_id or "", speaker, item.timestamp[:10] or None))
                    self._turns.append(item.entity_id)
            self._unread.clear()
        return self._index


def _said(text: str) -> Iterator[tuple[str, str]]:
    """The two sides of a turn's text."""
    user, _, assistant = text.removeprefix(_USER).partition(_ASSISTANT)
    yield "user", user
    if assistant:
        yield "assistant", assistant
