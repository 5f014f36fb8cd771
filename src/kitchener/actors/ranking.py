"""Ranks turns against a message: the lexical index of a session, fed with its turns in the order of the ledger.

How well a turn ranks depends on the other turns in the index. So all of the session's turns are in it, whatever intent they
belong to: what was ranked before, and whether the process was restarted since, makes no difference.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from kitchener.context import Item
from kitchener.context.lexical import LexicalIndex, LexicalTurn

_USER, _ASSISTANT = "user: ", "\nassistant: "
_NONE: Final[Mapping[str, Item]] = {}


class TurnRanking:
    """The index of one session's turns, and of those of its subject where they may be recalled.

    Turns are noted as they come and read when something is ranked: a session whose turns all fit into its budget never has one
    read.
    """

    __slots__ = ("_index", "_known", "_ranked", "_source", "_taken", "_turns", "_unread")

    def __init__(self) -> None:
        self._source: Mapping[str, Item] | None = None
        self._reset()

    def _reset(self) -> None:
        self._index: LexicalIndex | None = None
        self._turns: list[str] = []
        self._known: set[str] = set()
        self._unread: list[Item] = []
        self._taken = 0
        self._ranked: tuple[str, int, list[int]] = ("", 0, [])

    def follow(self, turns: Mapping[str, Item], others: Mapping[str, Item] = _NONE) -> None:
        """Takes note of what is new; to be called before each ranking.

        Args:
            turns: the session's, in order: `ContextState.turns`, which only grows until the state is folded again
            others: the subject's, in order, those of this session among them
        """
        if turns is not self._source:  # folded again: an entry was declared void, or came late
            self._reset()
            self._source = turns
        if others:
            self._note(others.values())
        self._note(islice(turns.values(), self._taken, None))
        self._taken = len(turns)

    def rank(self, message: str, items: Sequence[Item]) -> Iterator[int]:
        """Positions in `items`, best first; a turn may come twice, for each of its two sides."""
        where = {item.entity_id: n for n, item in enumerate(items)}
        for turn in self.best(message):
            found = where.get(turn)
            if found is not None:
                yield found

    def best(self, message: str) -> Iterator[str]:
        """Ids of the turns, best first; each may come twice."""
        index = self._read()
        if index is None:
            return
        if self._ranked[:2] != (message, len(self._turns)):  # else the same turn asks for it again
            self._ranked = (message, len(self._turns), index.rank(message))
        for position in self._ranked[2]:
            yield self._turns[position]

    def _note(self, items: Iterable[Item]) -> None:
        for item in items:
            if item.entity_id not in self._known:
                self._known.add(item.entity_id)
                self._unread.append(item)

    def _read(self) -> LexicalIndex | None:
        """The index with all that was noted; None: nothing was."""
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
