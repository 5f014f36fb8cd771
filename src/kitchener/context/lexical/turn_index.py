"""Ranks earlier turns by their relevance to a question, the most relevant first.

Ranking uses words only: no model, no vectors, no clock. The score of a turn is computed from about a dozen named parts, each
with a reason (`LexicalWeights`), so that an order can be explained. The cost of a ranking is bounded: it reads only the newest
positions of a common word, and scores only turns that may be among the best. This module knows no budgets, life cycles or
access rules. Below it, `postings.py` stores the words; above it, the projection packs the turns.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from heapq import nlargest, nsmallest
from itertools import compress, pairwise
from typing import Final, NamedTuple

from kitchener.context.lexical.features import DateParts, date_parts, may_have_date
from kitchener.context.lexical.postings import ALIKE, DEFAULT_WEIGHTS, LexicalTurn, LexicalTurns, LexicalWeights
from kitchener.context.lexical.words import FRAME_TERMS, terms_of, words_of

__all__ = ["LexicalIndex", "LexicalTurn", "LexicalWeights", "Ranked"]

POSTINGS: Final = 1_024
"""Most postings that a ranking reads, by default. All other limits of a ranking are shares of it."""
_PER_WEIGHED: Final = 4
"""`postings` divided by this: most turns with a word of the question that are scored."""
MIN_SEEDS: Final = 32
"""Least number of best matching turns that pass a share of their score to their neighbours."""
_PER_SEED: Final = 2
"""Wanted turns divided by this: the turns that pass on a share of their score, but at least `MIN_SEEDS`."""
_PER_FEATURE: Final = 16
"""`postings` divided by this: most standing statements, and most turns of a day in the question, that are scored."""
_PER_FED_BACK: Final = 16
"""`postings` divided by this: most positions of a word that the second round reads."""
_BEST: Final = 0.34
"""Least share of the expected score that the best turn has if any turn is about the question."""
_RELATED: Final = 0.11
"""Least share of the expected score that a turn about the question has."""
_SHORT: Final = 6
"""The expected score counts at most so many terms of a question, because a turn seldom has all terms of a longer one."""
_LITTLE_ELSE: Final = 4
"""A turn says little else than the question if it has at most so many times the question's terms."""
_PER_AGAIN: Final = 4
"""Wanted turns times this: the best turns that `_order_again` orders."""


class Ranked(NamedTuple):
    """The result of a ranking."""

    order: list[int]
    """Positions, the most relevant first, and the newest first among equals. Turns that match too little are missing."""
    matched: Sequence[int]
    """The positions in `order` that share a word with the question or are next to a turn that does. With `hints`, also those
    of a day in the question."""
    scores: Mapping[int, float]
    """The score of each position in `order`; comparable only within one ranking."""
    possible: float = 0.0
    """About the score of a turn with every term of the question; 0: nothing was ranked."""
    related: float = 0.0
    """Least score of a turn that is about the question; infinite if no turn is."""


class LexicalIndex(LexicalTurns):
    """Ranks turns against a question. Equal turns and questions give the same order on every machine.

    Appending turns one by one gives the same index as appending them all at once.

    Args:
        turns: the first turns
        weights: the constants of the ranking
        postings: most postings that a ranking reads; all other limits are shares of it
    """

    def __init__(
        self, turns: Iterable[LexicalTurn] = (), *, weights: LexicalWeights = DEFAULT_WEIGHTS, postings: int = POSTINGS
    ) -> None:
        self._most = max(1, postings)
        super().__init__(turns, weights=weights)

    def rank(self, question: str, *, wanted: int = 0, among: int | None = None) -> Ranked:
        """Ranks the turns by their relevance to a question.

        If no turn shares a word with the question, it finds standing statements and the turns of a day that it names.

        Args:
            question: the text to match
            wanted: number of turns that are likely to be shown; the ranking is exact for about that many, and cheaper for fewer
            among: rank only this many first turns, as if the index had no others; None: all
        """
        count = len(self._terms) if among is None else min(among, len(self._terms))
        if count <= 0:
            return _NOTHING
        words, hints = words_of(question), _hints(self._weights, wanted)
        names = [name for name, first in self._first_named.items() if first < count]
        asked, named = self._asked_terms(words, names, count), self._named_speakers(words, count)
        matches, sessions = self._look_up(asked, hints.kin, count)
        total = self._spread(matches, max(MIN_SEEDS, wanted // _PER_SEED), count)
        matched = [*total]
        best = max(total.values(), default=0.0) or 1.0
        top = self._weights.session * best / max(sessions.values(), default=1.0)
        shares = {session: top * score for session, score in sessions.items()}
        date = date_parts(question) if may_have_date(question) else _NO_DATE
        matched += self._mark(total, date, best, count)
        scores = self._weigh(total, shares, named, hints.named)
        if matched and self._weights.feedback_terms:
            gains = self._feed_back(scores, (*asked, *names), hints.feedback, count)
            fed_back = {each: gain + total.get(each, 0.0) for each, gain in gains.items()}
            scores.update(self._weigh(fed_back, shares, named, hints.named))
        order = sorted(scores, reverse=True)
        order.sort(key=scores.__getitem__, reverse=True)
        rarities = [_rarity(self._having(term, count), count) for term in asked]
        possible = sum(rarities)
        related = 0.0
        if order and not date:  # words alone do not tell what is about a day
            is_told = not self._weights.hints or self._says_more_than_numbers(question, asked, matches, rarities)
            related = _related(scores[order[0]], possible, len(asked)) if is_told else math.inf
        if hints.again < 1.0:
            self._order_again(order, scores, wanted, hints.again)
        return Ranked(order, matched, scores, possible, related)

    # ---- the question

    def _asked_terms(self, words: Iterable[str], speakers: Iterable[str], count: int) -> list[str]:
        """The terms of the question, each once; names of speakers and words of form only if there are no others."""
        terms = dict.fromkeys(term for word in words for term in terms_of(word.casefold()))
        names = {term for name in speakers for term in terms_of(name)}
        asked = [term for term in terms if term not in names and term not in FRAME_TERMS] or list(terms)
        if len(asked) > self._weights.asked_terms:
            rarity = [(having, term) for term in asked if (having := self._having(term, count))]
            asked = [term for _, term in nsmallest(self._weights.asked_terms, rarity)]
        return asked

    def _named_speakers(self, words: Collection[str], count: int) -> frozenset[str]:
        """The speakers that the question names, by a name or its beginning ("Mel" for "Melanie")."""
        if not self._speakers_by_name:
            return _NOBODY
        named: set[str] = set()
        for position, word in enumerate(words):
            folded, proper = word.casefold(), position > 0 and word[0].isupper()
            for name, speakers in self._speakers_by_name.items():
                # "Will you" does not name Will, and "the car" does not name Caroline.
                if (name == folded and (proper or terms_of(name))) or (proper and len(folded) > 2 and name.startswith(folded)):
                    named.update([each for each in speakers if self._speakers[each] < count])
        return frozenset(named)

    def _having(self, term: str, count: int) -> int:
        """The number of turns with a term among the first `count` turns."""
        found = self._often.get(term)
        if found is None:
            once = self._once.get(term)
            return 0 if once is None else int(once.position < count)
        positions = found.positions
        return len(positions) if positions[-1] < count else bisect_left(positions, count)

    def _forms(self, term: str, kin: float, count: int) -> list["_MatchingTerm"]:
        """The terms that match a term of the question; the most significant one comes last."""
        prefix = self._weights.prefix
        found = dict.fromkeys(self._akin.get(term, ()), kin)
        for other in self._alike.get(term[:ALIKE], ()) if len(term) >= ALIKE else ():
            found[other] = max(found.get(other, 0.0), prefix)
        found[term] = 1.0
        forms = [
            _MatchingTerm(weight * _rarity(having, count), other, weight, 0, having)
            for other, weight in found.items()
            if weight and (having := self._having(other, count))
        ]
        forms.sort()
        return forms

    # ---- the positions of its words

    def _look_up(self, asked: list[str], kin: float, count: int) -> tuple[list[dict[int, float]], dict[int, float]]:
        """The score of each turn for each term, by the term's most significant form, and the score of each session.

        The newest positions of each form come first.
        """
        matches: list[dict[int, float]] = []
        sessions: dict[int, float] = {}
        session_count = bisect_left(self._first_turns, count) if len(self._first_turns) > 1 else 1
        for forms in self._afforded([self._forms(term, kin, count) for term in asked]):
            found: dict[int, float] = {}
            for top, term, weight, start, having in forms:
                if (postings := self._postings_of(term)) is None:
                    continue
                positions, impacts = postings.positions, postings.impacts
                looked_at = positions[start:having][::-1]
                found.update(zip(looked_at, [top * impact for impact in impacts[start:having][::-1]], strict=True))
                if session_count > 1:
                    self._match_sessions(looked_at, weight, session_count, sessions)
            matches.append(found)
        return matches, sessions

    def _afforded(self, asked: list[list["_MatchingTerm"]]) -> list[list["_MatchingTerm"]]:
        """Limits the positions to read. The most significant form chooses first, up to half of the remaining postings."""
        left = self._most
        if sum([form.having for forms in asked for form in forms]) <= left:
            return asked
        afforded: list[list[_MatchingTerm]] = [[] for _ in asked]
        for form, n in sorted([(form, n) for n, forms in enumerate(asked) for form in forms], reverse=True):
            looked_at = min(form.having, (left + 1) // 2)
            left -= looked_at
            if looked_at:
                afforded[n].insert(0, form._replace(start=form.having - looked_at))
        return afforded

    def _match_sessions(self, positions: Iterable[int], weight: float, session_count: int, sessions: dict[int, float]) -> None:
        """Adds a term's score to its sessions: BM25 of the number of their turns with it."""
        said = Counter(map(self._session_of.__getitem__, positions))
        top, k1 = weight * _rarity(len(said), session_count), self._weights.k1
        for session, times in said.items():
            sessions[session] = sessions.get(session, 0.0) + top * times / (times + k1)

    # ---- the candidates

    def _spread(self, matches: list[dict[int, float]], most: int, count: int) -> dict[int, float]:
        """The best matching turns and their neighbours, with scores by their own terms and those of their neighbours.

        For each term the better one counts: the turn's own match, or the share passed on by its best neighbour.
        """
        direct = _sums_of(matches)
        ordered = sorted(direct, key=direct.__getitem__, reverse=True)  # among equals the newest first, as looked up
        total = {position: direct[position] for position in ordered[: self._most // _PER_WEIGHED or 1]}
        best, second = self._hand_on(ordered[:most], direct)
        found_in = {seed: [found for found in matches if seed in found] for seed in ordered[:most]}
        for other, (gain, part, seed) in best.items():
            if other >= count:
                continue
            if other in direct:
                gain = direct[other]
                for found in found_in[seed]:
                    more = found[seed] * part - found[other] if other in found else found[seed] * part
                    if more > 0.0:
                        gain += more
            total[other] = gain + self._weights.second * second[other] if other in second else gain
        return total

    def _hand_on(
        self, seeds: Iterable[int], direct: Mapping[int, float]
    ) -> tuple[dict[int, tuple[float, float, int]], dict[int, float]]:
        """The best share that each neighbour gets, with factor and seed, and the second best share."""
        best: dict[int, tuple[float, float, int]] = {}
        second: dict[int, float] = {}
        for seed in seeds:
            score = direct[seed]
            for other, part in self._near[seed]:
                gain = score * part
                known = best.get(other)
                if known is None:
                    best[other] = (gain, part, seed)
                elif gain > known[0]:
                    best[other], second[other] = (gain, part, seed), known[0]
                elif gain > second.get(other, 0.0):
                    second[other] = gain
        return best, second

    def _mark(self, total: dict[int, float], date: DateParts, best: float, count: int) -> list[int]:
        """Adds the shares for standing statements and for dates. Returns further turns that match by their date."""
        weights, most = self._weights, self._most // _PER_FEATURE or 1
        standing = _newest(self._standing, most, count) if weights.standing else _NOWHERE
        on_day: list[int] = []
        if date and weights.dated:
            found = [each for part in sorted(date) for each in _newest(self._on.get(part, _NOWHERE), most, count)]
            for position in dict.fromkeys((*total, *found, *standing)):
                if common := len(date & self._date_of[position]):
                    if weights.hints and 2 * common >= len(date) and position not in total:
                        on_day.append(position)
                    total[position] = total.get(position, 0.0) + best * weights.dated * common / len(date)
        for position in standing:
            total[position] = total.get(position, 0.0) + best * weights.standing
        return on_day

    # ---- the scores

    def _weigh(
        self, total: dict[int, float], shares: Mapping[int, float], named: frozenset[str], factor: float
    ) -> dict[int, float]:
        """The final scores: those of turns and of their sessions, times the factors of turn and speaker."""
        factors, session_of, speaker_of = self._factors, self._session_of, self._speaker_of
        if shares:
            scores = {each: (got + shares.get(session_of[each], 0.0)) * factors[each] for each, got in total.items()}
        else:
            scores = {each: got * factors[each] for each, got in total.items()}
        if named:
            for each in scores:
                if speaker_of[each] in named:
                    scores[each] *= factor
        return scores

    def _feed_back(self, scores: Mapping[int, float], skipped: Iterable[str], feedback: float, count: int) -> dict[int, float]:
        """The scores of turns for the words of the best turns, to get from one piece of evidence to the next.

        `skipped` are the terms that lead nowhere new: those of the question, and the names of speakers.
        """
        weights = self._weights
        rarity: dict[str, float] = dict.fromkeys(skipped, 0.0)
        strength: dict[str, float] = {}
        for score, position in nlargest(weights.feedback_turns, zip(scores.values(), scores, strict=True)):
            for term in self._terms[position]:
                if term not in rarity:
                    having = self._having(term, count)
                    rarity[term] = _rarity(having, count) if having > 1 else 0.0
                strength[term] = strength.get(term, 0.0) + score * rarity[term]
        chosen = nsmallest(weights.feedback_terms, [(-each, term) for term, each in strength.items() if each])
        most, gains = self._most // _PER_FED_BACK or 1, dict[int, float]()
        for share, term in chosen:
            top, having = feedback * share / chosen[0][0] * rarity[term], self._having(term, count)
            postings = self._often[term]  # a term of only one turn leads to no other
            looked_at = slice(max(0, having - most), having)
            for position, impact in zip(postings.positions[looked_at], postings.impacts[looked_at], strict=True):
                gains[position] = gains.get(position, 0.0) + top * impact
        return gains

    def _says_more_than_numbers(
        self, question: str, asked: Sequence[str], matches: Sequence[dict[int, float]], rarities: Sequence[float]
    ) -> bool:
        """Whether a question is about more than numbers of one or two digits, which may be about anything.

        True if the question's other words that turns have weigh enough against the numbers, or if a turn has all terms of the
        question and little else. A time such as 12:25 does not count as a number.
        """
        is_number = [len(term) <= 2 and term.isdecimal() for term in asked]
        numbers = [*compress(asked, is_number)]
        if not numbers or any(f"{one}{mark}{two}" in question for one, two in pairwise(numbers) for mark in ":."):
            return True
        most, terms = _LITTLE_ELSE * len(asked), self._terms
        if any(len(terms[each]) <= most for each in set(matches[0]).intersection(*matches[1:])):
            return True
        told = sum([rarity for rarity, found, skips in zip(rarities, matches, is_number, strict=True) if found and not skips])
        return told >= _BEST * (told + sum(compress(rarities, is_number)))

    def _order_again(self, order: list[int], scores: dict[int, float], wanted: int, again: float) -> None:
        """Reorders the best turns: each counts less, the more turns of its session are better."""
        factors: dict[int, float] = {}
        best, session_of = order[: _PER_AGAIN * wanted], self._session_of
        for each in best:
            factor = factors.get(session_of[each], 1.0)
            factors[session_of[each]] = factor * again
            scores[each] *= factor
        best.sort(key=scores.__getitem__, reverse=True)
        order[: len(best)] = best


class _Hints(NamedTuple):
    """The weights of hints in one ranking, see `LexicalWeights.wide_turns`."""

    kin: float
    feedback: float
    named: float
    again: float


def _hints(weights: LexicalWeights, wanted: int) -> _Hints:
    """The weights of hints for a number of wanted turns."""
    few = weights.wide_turns
    if not few or wanted <= few:
        return _Hints(weights.kin, weights.feedback, weights.named, 1.0)
    part = min(1.0, wanted / few - 1.0)
    return _Hints(
        weights.kin + part * (weights.wide_kin - weights.kin),
        weights.feedback + part * (weights.wide_feedback - weights.feedback),
        math.pow(weights.named, 1.0 + part * (weights.wide_named - 1.0)),
        1.0 - part * (1.0 - weights.wide_again),
    )


class _MatchingTerm(NamedTuple):
    """A term that matches one of the question's terms."""

    top: float
    """Score of a turn in which its impact is 1."""
    term: str
    weight: float
    """How well it matches; 1 for the same term."""
    start: int
    """Index of the first position that is read."""
    having: int
    """Number of turns with the term."""


def _sums_of(matches: Sequence[dict[int, float]]) -> dict[int, float]:
    """The sum of each turn's scores."""
    total: dict[int, float] = {}
    for found in matches:
        both = [(each, score + total[each]) for each, score in found.items() if each in total] if total else ()
        total.update(found)  # most turns have only one of the words, and `update` runs in C
        total.update(both)
    return total


def _rarity(having: int, among: int) -> float:
    """BM25's weight of a term that `having` of `among` documents contain."""
    return math.log(1 + (among - having + 0.5) / (having + 0.5))


def _related(best: float, possible: float, terms: int) -> float:
    """The least score of a turn that is about the question, see `Ranked.related`."""
    expected = possible * min(1.0, _SHORT / terms) if terms else 0.0
    return _RELATED * expected if best >= _BEST * expected else math.inf


def _newest(positions: Sequence[int], most: int, count: int) -> Sequence[int]:
    """The newest positions among the first `count` turns, at most `most`."""
    end = len(positions) if not positions or positions[-1] < count else bisect_left(positions, count)
    return positions[max(0, end - most) : end]


_NOTHING: Final = Ranked([], (), {})
_NOWHERE: Final[Sequence[int]] = ()
_NOBODY: Final[frozenset[str]] = frozenset()
_NO_DATE: Final[DateParts] = frozenset()
