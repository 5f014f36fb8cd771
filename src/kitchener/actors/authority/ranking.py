"""Ranks turns against a message by the words that they share and, where there are embeddings, by recorded scores of similarity.

A turn's rank depends on the other turns in the index. So the index holds all turns of the session, across intents, or all turns
of the subject if the policy may recall them, in the order of the ledger. Neither earlier rankings nor a restart change the
result.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from kitchener.context import ContextState, Item, Ruleset
from kitchener.context.fold.items import place_of, recalled
from kitchener.context.lexical.postings import DEFAULT_WEIGHTS, WEIGHTS_BEFORE_3, WEIGHTS_BEFORE_5, LexicalWeights
from kitchener.context.lexical.relayed_speakers import RelayedNames
from kitchener.context.lexical.turn_index import LexicalIndex, LexicalTurn, Ranked
from kitchener.context.projection.window import Window
from kitchener.records.embedding import FULL_SCORE, Similarity
from kitchener.records.spoken import ASSISTANT_LABEL, label_of, speaker_of

_ASSISTANT: Final = f"\n{ASSISTANT_LABEL}"


class RankedTurns(NamedTuple):
    """The result of ranking turns against a message."""

    numbers: list[int]
    """Numbers of the turns, best first, without duplicates."""
    matched: Sequence[int]
    """Index positions of the texts that match the message, see `Ranked.matched`."""
    scores: Mapping[int, float] = {}
    """The scores of texts, by index position."""
    possible: float = 0.0
    """About the score of a text with every word of the message."""
    related: float = 0.0
    """The least score of a text that is about the message; infinite if no text is."""


class TurnWords:
    """An index of the words of turns. Noted turns are indexed on the first ranking after they were noted.

    Args:
        postings: most word occurrences that one ranking reads
        excerpt_tokens: most shown tokens of one item; 0: no limit
        speaker_weight: factor for turns whose speaker the message names
        reads_names: whether a name before a text is its speaker, as in a conversation that a program relays
        weights: the constants of the ranking; `speaker_weight` replaces `named`
    """

    __slots__ = (
        "__weakref__",
        "_ends",
        "_evidence",
        "_excerpt_tokens",
        "_index",
        "_last",
        "_numbers",
        "_owners",
        "_postings",
        "_reads_names",
        "_relayed",
        "_tokens",
        "_weights",
        "turns",
    )

    def __init__(
        self,
        postings: int,
        excerpt_tokens: int = 0,
        speaker_weight: float = 1.0,
        *,
        reads_names: bool = False,
        weights: LexicalWeights = DEFAULT_WEIGHTS,
    ) -> None:
        self._postings, self._excerpt_tokens, self._reads_names = postings, excerpt_tokens, reads_names
        self._relayed = RelayedNames()
        self._weights = _with_named(weights, speaker_weight)
        self._index: LexicalIndex | None = None
        self._owners: list[int] = []
        self._ends: list[int] = []
        self._last: tuple[str, int, int, Similarity | None, RankedTurns] = ("", 0, 0, None, _NONE)
        self._numbers: dict[str, int] = {}
        self.turns: list[Item] = []
        """The turns in order; a turn's number is its index in this list."""
        self._evidence: dict[int, Item] = {}
        self._tokens = [0]

    def note(self, item: Item) -> None:
        """Appends the newest turn."""
        self.turns.append(item)
        self._tokens.append(self._tokens[-1] + self._shown_tokens(item))

    def tokens(self, among: int) -> int:
        """Tokens of the first `among` turns in the form in which they are shown."""
        return self._tokens[among]

    def _shown_tokens(self, item: Item) -> int:
        return min(item.tokens, self._excerpt_tokens) if self._excerpt_tokens else item.tokens

    @property
    def held_terms(self) -> int:
        """Number of different terms in the index."""
        return self._index.terms if self._index is not None else 0

    def release(self) -> None:
        """Drops the index. The next ranking builds it again from the turns, with the same result."""
        self._index, self._owners, self._ends, self._last = None, [], [], ("", 0, 0, None, _NONE)
        self._evidence.clear()

    def rank(self, message: str, wanted: int, among: int, similar: Similarity | None = None) -> RankedTurns:
        """Ranks the first `among` turns against a message. Later turns have no effect.

        Args:
            message: the user's message
            wanted: how many turns are likely to be shown
            among: how many turns had been noted when the message arrived
            similar: how similar turns are to the message; None: their words alone count
        """
        if self._last[:4] != (message, wanted, among, similar):  # one turn may ask for the same ranking twice
            self._last = (message, wanted, among, similar, self._ranked(message, wanted, among, similar) if among else _NONE)
        return self._last[4]

    def _ranked(self, message: str, wanted: int, among: int, similar: Similarity | None) -> RankedTurns:
        ranked = self._read().rank(message, wanted=wanted, among=self._ends[among - 1])
        order, matched, scores = ranked.order, ranked.matched, ranked.scores
        if similar is not None and similar.weight and similar.scores:
            order, matched, scores = self._joined(ranked, similar, among)
        numbers = [*dict.fromkeys(map(self._owners.__getitem__, order))]
        return RankedTurns(numbers, matched, scores, ranked.possible, ranked.related)

    def _joined(self, ranked: Ranked, similar: Similarity, among: int) -> tuple[list[int], list[int], Mapping[int, float]]:
        """The order, the matches and the scores, after similar turns have gained a share of the best score by words."""
        for number in range(len(self._numbers), len(self.turns)):
            self._numbers[self.turns[number].ref.entry_id] = number
        scores, matched = dict(ranked.scores), dict.fromkeys(ranked.matched)
        unit = similar.weight * (max(scores.values(), default=0.0) or 1.0) / FULL_SCORE
        for entry_id, score in similar.scores.items():
            number = self._numbers.get(entry_id, among)
            if number < among:
                for position in range(self._ends[number - 1] if number else 0, self._ends[number]):
                    scores[position] = scores.get(position, 0.0) + unit * score
                    matched[position] = None
        order = sorted(scores, reverse=True)
        order.sort(key=scores.__getitem__, reverse=True)
        return order, [*matched], scores

    def grade(self, number: int, ranked: RankedTurns) -> float:
        """How well a turn matches: its best text's score, as a share of the score of a text with every word of the message."""
        return self._best_score(number, ranked) / ranked.possible if ranked.possible else 0.0

    def _best_score(self, number: int, ranked: RankedTurns) -> float:
        start, end = self._ends[number - 1] if number else 0, self._ends[number]
        if end - start == 1:  # nearly always: a message or a reply is one text
            return ranked.scores.get(start, 0.0)
        return max([ranked.scores.get(each, 0.0) for each in range(start, end)], default=0.0)

    def said(self, number: int) -> str:
        """The words of a turn, a message or a reply, without the names of the speakers."""
        return "\n".join([text for _, text in _said(self.turns[number].text)])

    def evidence(self, number: int) -> Item:
        """A turn as evidence recalled from another intent. Kept, because most turns are recalled many times."""
        found = self._evidence.get(number)
        if found is None:
            found = self._evidence[number] = recalled(self.turns[number])
        return found

    def matched(self, ranked: RankedTurns, similar: Similarity | None = None) -> Iterator[tuple[int, bool]]:
        """The numbers of the turns with a text in `ranked.matched`, best first, each with whether it is about the message.

        A turn that is only similar to the message counts as about it, too. If no turn is about it by its words, only a very
        similar one does.
        """
        numbers = set(map(self._owners.__getitem__, ranked.matched))
        alike = similar.scores if similar is not None and similar.weight else {}
        least = _ALIKE if ranked.related == math.inf else 1
        # The best come first.
        end = bisect_right(ranked.numbers, -ranked.related, key=lambda number: -self._best_score(number, ranked))
        for place, number in enumerate(ranked.numbers):
            if number in numbers:
                yield number, place < end or (bool(alike) and alike.get(self.turns[number].ref.entry_id, 0) >= least)

    def _read(self) -> LexicalIndex:
        """Returns the index after adding all turns that were noted since the last call."""
        return self._indexed(len(self.turns))

    def index_ahead(self, at_once: int) -> bool:
        """Indexes `at_once` noted turns if more are left, and returns whether it did. The next ranking indexes the rest.

        Many turns are never ranked, because all that their session may show fits. Those that are left are not indexed for them.
        """
        if len(self.turns) - len(self._ends) <= at_once:
            return False
        self._indexed(len(self._ends) + at_once)
        return True

    def _indexed(self, end: int) -> LexicalIndex:
        index = self._index
        if index is None:
            index = self._index = LexicalIndex(postings=self._postings, weights=self._weights)
            self._relayed = RelayedNames()
        for number in range(len(self._ends), end):
            item = self.turns[number]
            tokens = self._shown_tokens(item) if self._excerpt_tokens else None
            session = item.session_id or ""
            for speaker, text in _said(item.text):
                name = self._relayed.speaker(session, speaker, text) if self._reads_names else None
                index.append(LexicalTurn(text, session, name or speaker, item.timestamp[:10] or None, tokens))
                self._owners.append(number)
            self._ends.append(len(self._owners))
        return index


def _with_named(weights: LexicalWeights, speaker_weight: float) -> LexicalWeights:
    """The weights with another weight of speakers."""
    return replace(weights, named=speaker_weight)


def words_under(ruleset: Ruleset) -> TurnWords:
    """An index without turns, for rankings under a policy."""
    weights = WEIGHTS_BEFORE_3
    if ruleset.is_split:
        weights = DEFAULT_WEIGHTS if ruleset.policy_version > 4 else WEIGHTS_BEFORE_5
    return TurnWords(
        ruleset.ranking_postings,
        ruleset.excerpt_tokens,
        ruleset.speaker_weight,
        reads_names=ruleset.is_terse,
        weights=weights,
    )


class TurnRanking:
    """Ranks the turns of one session, in an index of these turns or of all turns of the subject.

    Args:
        ruleset: sets the limit of postings and the token budget of the context
    """

    __slots__ = ("_among", "_is_shared", "_resting", "_ruleset", "_taken", "_tokens", "_turns", "_words", "similar")

    admits_all: Final = True
    """`rank` ends with all turns of the session, newest first; evidence was found by its words."""

    def __init__(self, ruleset: Ruleset) -> None:
        self._ruleset = ruleset
        self._turns: Sequence[Item] = ()
        self._words = self._resting = self._no_words()
        self._taken = self._tokens = self._among = 0
        self._is_shared = False
        self.similar: Similarity | None = None
        """The similarity of the turns to the message of the running turn; None: only their words count."""

    def follow(self, state: ContextState, subject: tuple[TurnWords, int] | None = None) -> None:
        """Adds the session's new turns. Call it in each turn before any ranking.

        Args:
            state: the fold of the session's entries
            subject: the index of all turns of the subject, and how many there were when the turn started; None: only the
                session's turns are ranked
        """
        turns, is_own = state.turn_list, subject is None
        if turns is not self._turns:  # the state was folded again, because an entry became invalid or arrived late
            self._turns, self._taken, self._tokens = turns, 0, 0
            if is_own:
                self._words = self._no_words()
        for number in range(self._taken, len(turns)):
            self._tokens += turns[number].tokens
            if is_own:
                self._words.note(turns[number])
        self._taken = len(turns)
        self._words, self._among = subject if subject is not None else (self._words, len(turns))
        self._is_shared = not is_own

    def rest(self) -> None:
        """Releases the subject's index after a turn, so that it can be evicted. The next turn takes it again."""
        if self._is_shared:
            self._words = self._resting

    def _no_words(self) -> TurnWords:
        return words_under(self._ruleset)

    @property
    def words(self) -> TurnWords:
        """The index that is ranked: the session's or the subject's."""
        return self._words

    @property
    def among(self) -> int:
        """Number of items of `words` that are ranked."""
        return self._among

    def answering(self, message: str) -> Iterator[tuple[int, bool]]:
        """The numbers of turns that share a word with the message, or have a neighbour that does, see `TurnWords.matched`."""
        return self._words.matched(self._best(message), self.similar)

    def _best(self, message: str) -> RankedTurns:
        # Estimates how many turns fit the budget from the average size of a turn.
        count, tokens, budget = self._taken, self._tokens, self._ruleset.context_budget
        if self._ruleset.is_split:
            if self._ruleset.is_chat and self._ruleset.is_steady:  # the newest turns are shown without a ranking
                budget -= min(tokens, Window.under(self._ruleset).room)
            count, tokens = self._among, self._words.tokens(self._among)
        wanted = budget * count // tokens if tokens else 0
        return self._words.rank(message, wanted, self._among, self.similar)

    def rank(self, message: str, items: Sequence[Item]) -> Iterator[int]:
        """Yields positions in `items`, best first, and then those of all turns, newest first. Some positions come twice.

        Args:
            message: the user's message
            items: turns of the session by age, then evidence
        """
        for place, _ in self._placed(message, items):
            yield place
        count = len(items)
        while count and items[count - 1].kind == "evidence":
            count -= 1
        yield from range(count - 1, -1, -1)

    def grade(self, message: str, items: Sequence[Item]) -> Iterator[tuple[int, float]]:
        """Yields the positions of matching `items`, best first, each with how well it matches, see `TurnWords.grade`."""
        words, best, similar = self._words, self._best(message), self.similar
        alike = similar.scores if similar is not None and similar.weight else {}
        for place, number in self._placed(message, items):
            is_alike = bool(alike) and alike.get(items[place].ref.entry_id, 0) >= _ALIKE
            yield place, 1.0 if is_alike else words.grade(number, best)

    def _placed(self, message: str, items: Sequence[Item]) -> Iterator[tuple[int, int]]:
        """Positions in `items` with the numbers of their turns, best first."""
        evidence: dict[str, int] = {}
        count = len(items)
        while count and items[count - 1].kind == "evidence":
            count -= 1
            evidence[items[count].entity_id] = count
        turns = self._words.turns
        for number in self._best(message).numbers:
            item = turns[number]
            if number < count and items[number] is item:  # the usual case: all turns belong to one intent
                yield number, number
            elif item.entity_id in evidence:
                yield evidence[item.entity_id], number
            else:
                place = bisect_left(items, item.place, 0, count, key=place_of)
                if place < count and items[place].entity_id == item.entity_id:
                    yield place, number


def _said(text: str) -> Iterator[tuple[str, str]]:
    """Splits the text of a turn, a message or a reply into parts, each with its speaker."""
    if text.startswith(ASSISTANT_LABEL):
        yield "assistant", text.removeprefix(ASSISTANT_LABEL)
        return
    label = label_of(text)
    said, _, assistant = text.removeprefix(label).partition(_ASSISTANT)
    yield speaker_of(label) or "user", said
    if assistant:
        yield "assistant", assistant


_ALIKE: Final = FULL_SCORE * 9 // 10
"""An item with at least this similarity matches as if it had every word of the message."""
_NONE: Final = RankedTurns([], ())
