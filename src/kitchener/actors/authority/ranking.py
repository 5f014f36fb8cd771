"""Ranks turns against a message: their words, fed in the order of the ledger, and whose words a session's turn looks at.

How well a turn ranks depends on the other turns in the index. So all of the session's turns are in it, whatever intent they
belong to, or all of the subject's where those may be recalled: what was ranked before, and whether the process was restarted
since, makes no difference.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from kitchener.context import ContextState, Item, Ruleset
from kitchener.context.lexical.index import LexicalIndex, LexicalTurn

_USER, _ASSISTANT = "user: ", "\nassistant: "
_place_of: Final = attrgetter("place")


class RankedTurns(NamedTuple):
    """What answers to a message."""

    numbers: list[int]
    """Numbers of turns, best first, each once."""
    matched: Sequence[int]
    """Places of words in those that share one with the message, or stand next to something that does."""


class TurnWords:
    """The words of turns. They are noted as they come and read when something is ranked: where all turns fit, none is read.

    Args:
        postings: places of words that one ranking looks at
    """

    __slots__ = ("__weakref__", "_ends", "_index", "_last", "_owners", "_postings", "turns")

    def __init__(self, postings: int) -> None:
        self._postings = postings
        self._index: LexicalIndex | None = None
        self._owners: list[int] = []
        self._ends: list[int] = []
        self._last: tuple[str, int, int, RankedTurns] = ("", 0, 0, _NONE)
        self.turns: list[Item] = []
        """The turns in order; a turn's number is its place here."""

    def note(self, item: Item) -> None:
        """Takes note of the newest turn."""
        self.turns.append(item)

    @property
    def held_terms(self) -> int:
        """Different terms that the index holds now."""
        return self._index.terms if self._index is not None else 0

    def release(self) -> None:
        """Drops the index. The next ranking builds the same one again from the turns."""
        self._index, self._owners, self._ends, self._last = None, [], [], ("", 0, 0, _NONE)

    def rank(self, message: str, wanted: int, among: int) -> RankedTurns:
        """The turns that answer to a message, among the first so many; of the others nothing is known then.

        Args:
            message: what is asked
            wanted: so many are likely to be shown
            among: how many of the turns that were noted there were when it was asked
        """
        if self._last[:3] != (message, wanted, among):  # else the same turn asks for it again
            self._last = (message, wanted, among, self._ranked(message, wanted, among) if among else _NONE)
        return self._last[3]

    def _ranked(self, message: str, wanted: int, among: int) -> RankedTurns:
        ranked = self._read().rank(message, wanted=wanted, among=self._ends[among - 1])
        return RankedTurns([*dict.fromkeys(map(self._owners.__getitem__, ranked.order))], ranked.matched)

    def matched(self, ranked: RankedTurns) -> Iterator[Item]:
        """The turns that share a word with the message, or stand next to something that does, best first."""
        numbers = set(map(self._owners.__getitem__, ranked.matched))
        return (self.turns[number] for number in ranked.numbers if number in numbers)

    def _read(self) -> LexicalIndex:
        """The index, with all that was noted."""
        index = self._index
        if index is None:
            index = self._index = LexicalIndex(postings=self._postings)
        for number in range(len(self._ends), len(self.turns)):
            item = self.turns[number]
            for speaker, text in _said(item.text):
                index.append(LexicalTurn(text, item.session_id or "", speaker, item.timestamp[:10] or None))
                self._owners.append(number)
            self._ends.append(len(self._owners))
        return index


class TurnRanking:
    """What one session's turns are ranked by: their own words, or those of all turns of the subject.

    Args:
        ruleset: how much a ranking may look at, and how much room there is for what it finds
    """

    __slots__ = ("_among", "_budget", "_postings", "_taken", "_tokens", "_turns", "_words")

    def __init__(self, ruleset: Ruleset) -> None:
        self._postings, self._budget = ruleset.ranking_postings, ruleset.context_budget
        self._turns: Sequence[Item] = ()
        self._words = TurnWords(self._postings)
        self._taken = self._tokens = self._among = 0

    def follow(self, state: ContextState, subject: tuple[TurnWords, int] | None = None) -> None:
        """Takes note of what is new; to be called in each turn before anything is ranked.

        Args:
            state: the session's fold
            subject: the words of all turns of its subject, and how many of them there were when the turn began; None: the
                session's own are enough
        """
        turns, is_own = state.turn_list, subject is None
        if turns is not self._turns:  # folded again: an entry was declared void, or came late
            self._turns, self._taken, self._tokens = turns, 0, 0
            if is_own:
                self._words = TurnWords(self._postings)
        for number in range(self._taken, len(turns)):
            self._tokens += turns[number].tokens
            if is_own:
                self._words.note(turns[number])
        self._taken = len(turns)
        self._words, self._among = subject if subject is not None else (self._words, len(turns))

    @property
    def words(self) -> TurnWords:
        """The words that it ranks by."""
        return self._words

    def answering(self, message: str) -> Iterator[Item]:
        """The turns that share a word with a message, or stand next to something that does, best first."""
        return self._words.matched(self._best(message))

    def _best(self, message: str) -> RankedTurns:
        # What turns take on average says how many of them there will be room for.
        wanted = self._budget * self._taken // self._tokens if self._tokens else 0
        return self._words.rank(message, wanted, self._among)

    def rank(self, message: str, items: Sequence[Item]) -> Iterator[int]:
        """Positions in `items`, best first, then all turns, the newest first; so some come twice.

        Args:
            message: what is asked
            items: turns of the session by age, then evidence
        """
        evidence: dict[str, int] = {}
        count = len(items)
        while count and items[count - 1].kind == "evidence":
            count -= 1
            evidence[items[count].entity_id] = count
        turns = self._words.turns
        for number in self._best(message).numbers:
            item = turns[number]
            if number < count and items[number] is item:  # most sessions have one intent, and all their turns belong to it
                yield number
            elif item.entity_id in evidence:
                yield evidence[item.entity_id]
            else:
                place = bisect_left(items, item.place, 0, count, key=_place_of)
                if place < count and items[place].entity_id == item.entity_id:
                    yield place
        yield from range(count - 1, -1, -1)


def _said(text: str) -> Iterator[tuple[str, str]]:
    """The two sides of a turn's text."""
    user, _, assistant = text.removeprefix(_USER).partition(_ASSISTANT)
    yield "user", user
    if assistant:
        yield "assistant", assistant


_NONE: Final = RankedTurns([], ())
