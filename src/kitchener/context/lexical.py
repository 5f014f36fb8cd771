"""Turns a question into an order of the turns that were said: what the answer may need stands first.

Words alone decide: no model, no vectors, no clock. The score of a turn is put together from a dozen named parts, each with a
reason (`LexicalWeights`), so that an order can be explained. Of a common word only the newest places are looked at, and only
turns that may be among the best are weighed: a ranking costs the same among a hundred thousand turns as among a thousand. This
module knows neither budgets nor life cycles nor who may see what. Below it, `lexical_turns` keeps the words; the projection
above it packs.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Final, NamedTuple

from kitchener.context.lexical_marks import DateParts, date_parts
from kitchener.context.lexical_turns import ALIKE, DEFAULT_WEIGHTS, LexicalTurn, LexicalTurns, LexicalWeights
from kitchener.context.lexical_words import FRAME_TERMS, KIN, terms_of, words_of

__all__ = ["LexicalIndex", "LexicalTurn", "LexicalWeights", "Ranked"]

POSTINGS: Final = 1_024
"""Places of words that a ranking looks at, unless its index is told otherwise."""
_PER_WEIGHED: Final = 4
"""So many of them for each turn with a word of the question that is weighed."""
MIN_SEEDS: Final = 32
"""At least so many of those, the best of them, hand on to their neighbours."""
_PER_SEED: Final = 2
"""One of so many turns that are wanted does."""
_PER_MARKED: Final = 16
"""So many of those for each standing statement, and for each turn of a day that is asked for."""
_PER_FED_BACK: Final = 16
"""The same for each place that is looked at of a word that is fed back."""


class Ranked(NamedTuple):
    """What a question found."""

    order: list[int]
    """Positions, the most useful first; of equals the newest first. Others have nothing of what was asked, or too little."""
    matched: Sequence[int]
    """Those of them that share a word with the question, or stand next to a turn that does."""
    scored: list[tuple[float, int]]
    """The same order with the scores; those are only comparable with one another."""


class LexicalIndex(LexicalTurns):
    """Turns in the order in which they were appended, ready to be ranked against a question.

    Appending one by one gives the same index as appending all at once, and the same turns and question give the same order on
    every machine.

    Args:
        turns: the first ones
        weights: the constants
        postings: places of words that a ranking looks at; whatever else it looks at is a share of that
    """

    def __init__(
        self, turns: Iterable[LexicalTurn] = (), *, weights: LexicalWeights = DEFAULT_WEIGHTS, postings: int = POSTINGS
    ) -> None:
        self._most = max(1, postings)
        super().__init__(turns, weights=weights)

    def rank(self, question: str, *, wanted: int = 0, among: int | None = None) -> Ranked:
        """The turns that the question may need, best first.

        A question of which no turn has a word finds the standing statements, and what was said on a day that it names.

        Args:
            question: what is asked
            wanted: so many turns are likely to be shown; the ranking is exact for about as many, and cheaper for fewer
            among: the first so many turns are ranked, as if the later ones had never been said; None: all
        """
        count = len(self._terms) if among is None else min(among, len(self._terms))
        if count <= 0:
            return _NOTHING
        words = words_of(question)
        asked, named = self._asked_terms(words, count), self._named_speakers(words, count)
        matches, shares = self._look_up(asked, count)
        found = self._spread(matches, max(MIN_SEEDS, wanted // _PER_SEED), count)
        matched = len(found.positions)
        self._mark(found, date_parts(question), count)
        scored = self._weigh(found, shares, named)
        if matched and self._weights.feedback_terms and self._feed_back(found, scored, asked, count):
            scored = self._weigh(found, shares, named)
        return Ranked([position for _, position in scored], found.positions[:matched], scored)

    # ---- what is asked

    def _asked_terms(self, words: Iterable[str], count: int) -> list[str]:
        """The terms of the question, each once; names of speakers and words of form only if nothing else is left."""
        terms = dict.fromkeys(term for word in words for term in terms_of(word.casefold()))
        names = {term for name in self._speakers_by_name if self._is_known(name, count) for term in terms_of(name)}
        asked = [term for term in terms if term not in names and term not in FRAME_TERMS] or list(terms)
        if len(asked) > self._weights.asked_terms:
            rarity = [(having, term) for term in asked if (having := self._having(term, count))]
            rarity.sort(key=_having_of)
            asked = [term for _, term in rarity[: self._weights.asked_terms]]
        return asked

    def _is_known(self, name: str, count: int) -> bool:
        return any(self._speakers[speaker] < count for speaker in self._speakers_by_name[name])

    def _named_speakers(self, words: Collection[str], count: int) -> frozenset[str]:
        """The speakers whom the question names, by a name of theirs or by its beginning ("Mel" for "Melanie")."""
        if not self._speakers_by_name:
            return _NOBODY
        named: set[str] = set()
        for place, word in enumerate(words):
            folded, proper = word.casefold(), place > 0 and word[0].isupper()
            for name, speakers in self._speakers_by_name.items():
                # "Will you" names no Will, and "the car" no Caroline.
                if (name == folded and (proper or terms_of(name))) or (proper and len(folded) > 2 and name.startswith(folded)):
                    named.update([each for each in speakers if self._speakers[each] < count])
        return frozenset(named)

    def _having(self, term: str, count: int) -> int:
        """How many of the first so many turns have a term."""
        postings = self._postings.get(term)
        if postings is None:
            return 0
        return len(postings) if postings[-1][0] < count else bisect_left(postings, (count, 0))

    def _alternatives(self, term: str, count: int) -> Iterator[tuple[int, str, float]]:
        """The terms that answer to a term of the question: how many turns have each, and how far it answers: 1 for itself."""
        found = dict.fromkeys(KIN.get(term, ()), self._weights.kin)
        if len(term) >= ALIKE:
            for other in self._alike.get(term[:ALIKE], ()):
                found[other] = max(found.get(other, 0.0), self._weights.prefix)
        found[term] = 1.0
        for other, weight in found.items():
            if weight and (having := self._having(other, count)):
                yield having, other, weight

    # ---- where its words are

    def _look_up(self, asked: list[str], count: int) -> tuple[list[dict[int, float]], Mapping[int, float]]:
        """How well each turn matches each term, the best of its alternatives counting; and what each session gets for all."""
        weights, lengths, session_of = self._weights, self._lengths, self._session_of
        constant, slope = self._norm(count)
        plan = [
            (having, n, other, weight)
            for n, term in enumerate(asked)
            for having, other, weight in self._alternatives(term, count)
        ]
        plan.sort(key=_having_of)
        matches: list[dict[int, float]] = [{} for _ in asked]
        sessions: dict[int, float] = {}
        session_count = bisect_left(self._first_turns, count) if len(self._first_turns) > 1 else 1
        left = self._most
        for n, (having, number, term, weight) in enumerate(plan):
            # The rarest come first, so what they do not need is shared by the common ones.
            looked_at = min(having, max(1, left // (len(plan) - n)))
            left -= looked_at
            postings = self._postings[term][having - looked_at : having]
            top, found = weight * _rarity(having, count) * (weights.k1 + 1), matches[number]
            if found:
                for position, times in postings:
                    score = top * times / (times + constant + slope * lengths[position])
                    if score > found.get(position, 0.0):
                        found[position] = score
            else:
                matches[number] = {each: top * n / (n + constant + slope * lengths[each]) for each, n in postings}
            if session_count > 1:
                said: dict[int, int] = {}
                for position, times in postings:
                    session = session_of[position]
                    said[session] = said.get(session, 0) + times
                self._match_sessions(said, weight, session_count, count, sessions)
        best = max(sessions.values(), default=0.0)
        return matches, {session: weights.session * score / best for session, score in sessions.items()}

    def _norm(self, count: int) -> tuple[float, float]:
        """BM25's share of a turn's length in the weight of its terms: a constant, and what a term adds."""
        k1, b = self._weights.k1, self._weights.b
        return k1 * (1 - b), k1 * b * count / max(1, self._sums[count - 1])

    def _match_sessions(
        self, said: Mapping[int, int], weight: float, session_count: int, count: int, sessions: dict[int, float]
    ) -> None:
        """Adds BM25 of whole sessions for one term."""
        k1, b = self._weights.k1, self._weights.b
        slope = b * session_count / max(1, self._sums[count - 1])
        top = weight * _rarity(len(said), session_count) * (k1 + 1)
        for session, times in said.items():
            norm = k1 * (1 - b + slope * self._session_length(session, count))
            sessions[session] = sessions.get(session, 0.0) + top * times / (times + norm)

    def _session_length(self, session: int, count: int) -> int:
        members, sums = self._members[session], self._session_sums[session]
        return sums[-1] if members[-1] < count else sums[bisect_left(members, count) - 1]

    # ---- which turns may be among the best

    def _spread(self, matches: list[dict[int, float]], most: int, count: int) -> "_Found":
        """The turns that match best and their neighbours, each with what its terms and its neighbours' give it.

        Of each term the best that reaches a turn counts: its own match, or what a neighbour hands on.
        """
        direct: dict[int, float] = {}
        for found in matches:
            if direct:
                for position, score in found.items():
                    direct[position] = direct.get(position, 0.0) + score
            else:
                direct = found.copy()
        ordered = sorted(sorted(direct, reverse=True), key=direct.__getitem__, reverse=True)
        total = {position: direct[position] for position in ordered[: self._most // _PER_WEIGHED or 1]}
        first: dict[int, tuple[int, float]] = {}
        further: dict[int, list[tuple[int, float]]] = {}
        near, is_whole = self._near, count == len(self._near)
        for position in ordered[:most]:
            for other, part in near[position] if is_whole else [each for each in near[position] if each[0] < count]:
                if other in first:
                    further.setdefault(other, []).append((position, part))
                else:
                    first[other] = (position, part)
        # Most are reached from one side and have no match of their own: then there is nothing to compare.
        total.update([(other, direct[seed] * part) for other, (seed, part) in first.items() if other not in direct])
        for other, way in first.items():
            if other in direct or other in further:
                total[other] = _best_of_each(matches, other, [way, *further.get(other, ())])
        return _Found({position: n for n, position in enumerate(total)}, [*total], [*total.values()], [0.0] * len(total))

    def _mark(self, found: "_Found", date: DateParts, count: int) -> None:
        """Adds what turns get for standing and for their date, as a share of the best score."""
        most = self._most // _PER_MARKED or 1
        if self._weights.standing:
            for position in _newest(self._standing, most, count):
                found.shares[found.place(position)] += self._weights.standing
        if date and self._weights.dated:
            for part in sorted(date):
                for position in _newest(self._on.get(part, _NOWHERE), most, count):
                    found.place(position)
            for n, position in enumerate(found.positions):
                if common := len(date & self._date_of[position]):
                    found.shares[n] += self._weights.dated * common / len(date)

    # ---- what they are worth

    def _weigh(self, found: "_Found", shares: Mapping[int, float], named: frozenset[str]) -> list[tuple[float, int]]:
        """The score: matches and shares, times what the turn is and who said it; the best first, of equals the newest."""
        positions, total = found.positions, found.total
        best = max(total, default=0.0) or 1.0
        if len(self._members) > 1:
            session_of = self._session_of
            gained = [share + shares.get(session_of[each], 0.0) for share, each in zip(found.shares, positions, strict=True)]
        else:
            common = shares.get(0, 0.0)
            gained = [share + common for share in found.shares] if common else found.shares
        factors = list(map(self._factors.__getitem__, positions))
        if named:
            speaker_of, factor = self._speaker_of, self._weights.named
            factors = [
                each * factor if speaker_of[position] in named else each
                for each, position in zip(factors, positions, strict=True)
            ]
        weighed = zip(total, gained, factors, positions, strict=True)
        return sorted([((match + best * more) * factor, position) for match, more, factor, position in weighed], reverse=True)

    def _feed_back(self, found: "_Found", scored: list[tuple[float, int]], asked: Collection[str], count: int) -> bool:
        """Adds what the words of the best turns match: the way from one piece of evidence to the next. Whether any did."""
        weights, lengths = self._weights, self._lengths
        constant, slope = self._norm(count)
        rarity: dict[str, float] = dict.fromkeys((*asked, *self._speakers_by_name), 0.0)
        strength: dict[str, float] = {}
        for score, position in scored[: weights.feedback_turns]:
            for term in self._terms[position]:
                rare = rarity.get(term)
                if rare is None:
                    having = self._having(term, count)
                    rare = rarity[term] = _rarity(having, count) if having > 1 else 0.0
                if rare:
                    strength[term] = strength.get(term, 0.0) + score * rare
        chosen = sorted([(-each, term) for term, each in strength.items()])[: weights.feedback_terms]
        most, places, total = self._most // _PER_FED_BACK or 1, found.places, found.total
        for share, term in chosen:
            having = self._having(term, count)
            top = weights.feedback * share / chosen[0][0] * rarity[term] * (weights.k1 + 1)
            for position, times in self._postings[term][max(0, having - most) : having]:
                place = places[position] if position in places else found.place(position)
                total[place] += top * times / (times + constant + slope * lengths[position])
        return bool(chosen)


class _Found(NamedTuple):
    """The turns that a ranking weighs, each list by their places in it."""

    places: dict[int, int]
    """Position to place."""
    positions: list[int]
    total: list[float]
    """What words gave each."""
    shares: list[float]
    """What it gets besides, as a share of the best total."""

    def place(self, position: int) -> int:
        """The place of a position, a new one where it has none."""
        known = self.places.setdefault(position, len(self.positions))
        if known == len(self.positions):
            self.positions.append(position)
            self.total.append(0.0)
            self.shares.append(0.0)
        return known


def _best_of_each(matches: list[dict[int, float]], position: int, ways: list[tuple[int, float]]) -> float:
    """What a turn gets: of each term its own match, or the most that one of these neighbours hands on."""
    total = 0.0
    for found in matches:
        best = found.get(position, 0.0)
        for other, part in ways:
            score = found.get(other)
            if score is not None and score * part > best:
                best = score * part
        total += best
    return total


def _rarity(having: int, among: int) -> float:
    """BM25's weight of a term that so many have among so many."""
    return math.log(1 + (among - having + 0.5) / (having + 0.5))


def _newest(positions: Sequence[int], most: int, count: int) -> Sequence[int]:
    """The newest of these positions that were there among the first so many turns."""
    end = len(positions) if not positions or positions[-1] < count else bisect_left(positions, count)
    return positions[max(0, end - most) : end]


_having_of: Final = itemgetter(0)
_NOTHING: Final = Ranked([], (), [])
_NOWHERE: Final[Sequence[int]] = ()
_NOBODY: Final[frozenset[str]] = frozenset()
