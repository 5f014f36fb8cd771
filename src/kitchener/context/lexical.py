"""Turns a question and the turns that were said into an order of those turns: what the answer may need stands first.

Words alone decide: no model, no vectors, no clock. The score of a turn is put together from a dozen named parts, each with a
reason (`LexicalWeights`), so that an order can be explained. This module knows neither budgets nor life cycles nor who may see
what: it only orders, and never leaves a turn out. Below it, `lexical_words` says what a term is and `lexical_marks` what else a
turn shows; the projection above it packs.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from heapq import nsmallest

from kitchener.context.lexical_marks import DateParts, Marks, date_parts, marks_of
from kitchener.context.lexical_words import FRAME_TERMS, KIN, terms_of, words_of

__all__ = ["LexicalIndex", "LexicalTurn", "LexicalWeights"]


@dataclass(frozen=True, slots=True)
class LexicalTurn:
    """What one speaker said at once."""

    text: str
    """The words said."""
    session: str = ""
    """Names the conversation: only turns of one session are neighbours. Sessions may be interleaved."""
    speaker: str | None = None
    """A name such as "Ada", or a role such as "user"; `None` where it is not known."""
    date: str | None = None
    """When it was said, in ISO form ("2024-05-08T13:56Z") or in English ("1:56 pm on 8 May, 2024"); `None`: not known."""
    tokens: int | None = None
    """What showing it costs, tokens; `None`: a quarter of its characters."""


@dataclass(frozen=True, slots=True)
class LexicalWeights:
    """The constants of the ranking: round numbers set by hand. A share is a share of the best score that words alone gave."""

    asked_terms: int = 24
    """So many terms of a question are looked for, the rarest, so that a pasted page costs no more than a question."""
    k1: float = 1.2
    """BM25: how soon saying a word again stops to count."""
    b: float = 0.75
    """BM25: how far the length of a turn counts against its matches; 0 to 1."""
    prefix: float = 0.5
    """Weight of a word that only begins like the question's word (four letters): forms that the stemmer does not know."""
    kin: float = 0.4
    """Weight of a word akin to the question's word, as "dog" is to "pet"."""
    reach: int = 3
    """So many turns to either side are neighbours: the answer often stands beside the turn that has the question's words."""
    step: float = 0.6
    """What of a match one step hands on to a neighbour."""
    asked_step: float = 0.7
    """The same for the turns after one that asks something: they answer it."""
    session: float = 0.2
    """Share added for the session which as a whole matches best, to others in proportion."""
    dated: float = 0.5
    """Share added where the session's date has all that the question says of a date, else in proportion."""
    standing: float = 0.2
    """Share added to standing statements ("I never …", "from now on …"): they matter to questions without a word of theirs."""
    named: float = 1.4
    """Factor for turns of a speaker whom the question names."""
    asking: float = 0.9
    """Factor for turns that end in a question: they seldom hold facts."""
    speaks_of_self: float = 1.1
    """Factor for a turn that says "I" more often than "you"."""
    speaks_of_other: float = 0.9
    """Factor for a turn that says "you" more often than "I": a reaction rather than a report."""
    timed: float = 1.1
    """Factor for a turn that says when ("yesterday", "last week"): it reports something that happened."""
    names: float = 1.1
    """Factor for a turn with a name or a title in it, other than that of a speaker."""
    opening: float = 1.1
    """Factor for the first two turns of a session: people begin with their news or with what they came for."""
    long_tokens: int = 80
    """Tokens up to which a turn counts as short. Self, other, time and names count in short turns only: a long one has all."""
    long_power: float = 0.4
    """A longer turn's score is divided by (its tokens / `long_tokens`) to this power, so that it does not eat the budget."""
    feedback_turns: int = 10
    """The best turns of a first round, whose words are asked for in a second round."""
    feedback_terms: int = 10
    """How many of their words are; 0 for one round only."""
    feedback: float = 0.2
    """Weight of the foremost of those words, the others in proportion."""


_DEFAULTS = LexicalWeights()
_MACHINES = frozenset(("assistant", "ai", "system", "bot", "agent", "tool", "model"))
"""Speakers whose "always" and "never" is advice or output, not a rule of the person's."""
_ROLES = _MACHINES | {"user", "human"}
"""Speakers whose names are common words: a question that has such a word names nobody."""
_ALIKE = 4
"""Letters that two words have to share at their beginning to count as alike."""


def _rarity(having: int, among: int) -> float:
    """BM25's weight of a term that so many have among so many."""
    return math.log(1 + (among - having + 0.5) / (having + 0.5))


class LexicalIndex:
    """Turns in the order in which they were appended, ready to be ranked against a question.

    A turn's position is its number in that order, from 0. Appending one by one gives the same index as appending all at once,
    and the same turns and question give the same order on every machine.
    """

    def __init__(self, turns: Iterable[LexicalTurn] = (), *, weights: LexicalWeights = _DEFAULTS) -> None:
        self._weights = weights
        self._steps = [weights.step**steps for steps in range(1, weights.reach + 1)]
        self._asked_steps = [weights.asked_step**steps for steps in range(1, weights.reach + 1)]
        # Per position.
        self._terms: list[tuple[str, ...]] = []
        self._lengths: list[int] = []
        self._near: list[list[tuple[int, float]]] = []
        self._factors: list[float] = []
        self._asks: list[bool] = []
        self._session_of: list[int] = []
        # Per term: the positions that have it and how often, its count in each session, and the terms that begin alike.
        self._postings: dict[str, list[tuple[int, int]]] = {}
        self._in_sessions: dict[str, dict[int, int]] = {}
        self._alike: dict[str, list[str]] = {}
        # Per session, numbered by its first turn.
        self._numbers: dict[str, int] = {}
        self._members: list[list[int]] = []
        self._session_lengths: list[int] = []
        # Positions by what they are.
        self._standing: list[int] = []
        self._on: dict[DateParts, list[int]] = {}
        self._said_by: dict[str, list[int]] = {}
        self._speakers_by_name: dict[str, list[str]] = {}
        self._last_date: tuple[str, DateParts] = "", frozenset()
        self._length = 0
        for turn in turns:
            self.append(turn)

    def __len__(self) -> int:
        return len(self._terms)

    def append(self, turn: LexicalTurn) -> int:
        """Add the newest turn; its position. The work grows with the turn's length, not with that of the history."""
        position, words = len(self._terms), words_of(turn.text.casefold())
        self._note_speaker(turn.speaker, position)
        self._note_date(turn.date, position)
        marks = marks_of(turn.text, words, self._speakers_by_name)
        if marks.stands and (turn.speaker or "").casefold() not in _MACHINES:
            self._standing.append(position)
        number = self._join_session(turn.session, position)
        self._note_terms(words, position, number)
        self._asks.append(marks.asks)
        self._factors.append(self._factor(turn, marks, opens=len(self._members[number]) <= 2))
        return position

    def rank(self, question: str) -> list[int]:
        """All positions, each once, the most useful to the question first; of equals the newest first.

        A question of which no turn has a word gives standing statements first, then the newest.
        """
        scores = self.scores(question)
        # Sorting keeps the order of equals, in reverse too, so the newest of them stays first.
        return sorted(range(len(scores) - 1, -1, -1), key=scores.__getitem__, reverse=True)

    def scores(self, question: str) -> list[float]:
        """What `rank` sorts by, per position; only comparable with one another."""
        if not self._terms:
            return []
        words = words_of(question)
        asked, named = self._asked_terms(words), self._named_speakers(words)
        norms = self._norms()
        matched = [0.0] * len(self._terms)
        for term in asked:
            for position, score in self._spread(self._matches(term, norms)).items():
                matched[position] += score
        extra = self._extra(asked, date_parts(question))
        scores = self._weigh(matched, extra, named)
        if self._weights.feedback_terms:
            self._feed_back(matched, scores, asked, norms)
            scores = self._weigh(matched, extra, named)
        return scores

    # ---- a turn, once, when it is appended

    def _note_speaker(self, speaker: str | None, position: int) -> None:
        if not speaker:
            return
        folded = speaker.casefold()
        if folded not in self._said_by:
            self._said_by[folded] = []
            for name in words_of(folded):
                if name not in _ROLES:
                    self._speakers_by_name.setdefault(name, []).append(folded)
        self._said_by[folded].append(position)

    def _note_date(self, date: str | None, position: int) -> None:
        if not date:
            return
        if date != self._last_date[0]:  # the turns of a session often carry the same text
            self._last_date = date, date_parts(date)
        if parts := self._last_date[1]:
            self._on.setdefault(parts, []).append(position)

    def _join_session(self, session: str, position: int) -> int:
        """Make the turn a neighbour of those before it in its session; the session's number."""
        number = self._numbers.setdefault(session, len(self._members))
        if number == len(self._members):
            self._members.append([])
            self._session_lengths.append(0)
        weights, members = self._weights, self._members[number]
        near: list[tuple[int, float]] = []
        for steps, other in enumerate(members[: -weights.reach - 1 : -1]):
            near.append((other, self._steps[steps]))
            onward = self._asked_steps if self._asks[other] else self._steps
            self._near[other].append((position, onward[steps]))
        members.append(position)
        self._near.append(near)
        self._session_of.append(number)
        return number

    def _note_terms(self, words: Iterable[str], position: int, number: int) -> None:
        counts: dict[str, int] = {}
        for word in words:
            for term in terms_of(word):
                counts[term] = counts.get(term, 0) + 1
        for term, count in counts.items():
            if (found := self._postings.get(term)) is None:
                found = self._postings[term] = []
                self._in_sessions[term] = {}
                self._alike.setdefault(term[:_ALIKE], []).append(term)
            found.append((position, count))
            sessions = self._in_sessions[term]
            sessions[number] = sessions.get(number, 0) + count
        length = sum(counts.values())
        self._terms.append(tuple(counts))
        self._lengths.append(length)
        self._length += length
        self._session_lengths[number] += length

    def _factor(self, turn: LexicalTurn, marks: Marks, *, opens: bool) -> float:
        """What the turn's score is multiplied by, whatever is asked."""
        weights = self._weights
        tokens = -(-len(turn.text) // 4) if turn.tokens is None else turn.tokens
        factor: float = (weights.opening if opens else 1.0) * (weights.asking if marks.asks else 1.0)
        if tokens > weights.long_tokens:
            return factor * math.pow(weights.long_tokens / tokens, weights.long_power)
        if marks.of_self:
            factor *= weights.speaks_of_self if marks.of_self > 0 else weights.speaks_of_other
        return factor * (weights.timed if marks.timed else 1.0) * (weights.names if marks.names else 1.0)

    # ---- a question

    def _asked_terms(self, words: Iterable[str]) -> list[str]:
        """The terms of the question, each once; names of speakers and words of form only if nothing else is left."""
        terms = dict.fromkeys(term for word in words for term in terms_of(word.casefold()))
        names = {term for name in self._speakers_by_name for term in terms_of(name)}
        asked = [term for term in terms if term not in names and term not in FRAME_TERMS] or list(terms)
        if len(asked) > self._weights.asked_terms:
            known = (term for term in asked if term in self._postings)
            asked = sorted(known, key=lambda term: len(self._postings[term]))[: self._weights.asked_terms]
        return asked

    def _named_speakers(self, words: Collection[str]) -> list[str]:
        """The speakers whom the question names, by a name of theirs or by its beginning ("Mel" for "Melanie")."""
        named: dict[str, None] = {}
        for place, word in enumerate(words):
            folded, proper = word.casefold(), place > 0 and word[0].isupper()
            for name, speakers in self._speakers_by_name.items():
                # "Will you" names no Will, and "the car" no Caroline.
                if (name == folded and (proper or terms_of(name))) or (proper and len(folded) > 2 and name.startswith(folded)):
                    named.update(dict.fromkeys(speakers))
        return list(named)

    def _alternatives(self, term: str) -> list[tuple[str, float]]:
        """The terms of the index that answer to a term of the question, and how far: 1 for itself."""
        found = dict.fromkeys((other for other in KIN.get(term, ()) if other in self._postings), self._weights.kin)
        if len(term) >= _ALIKE:
            for other in self._alike.get(term[:_ALIKE], ()):
                found[other] = max(found.get(other, 0.0), self._weights.prefix)
        if term in self._postings:
            found[term] = 1.0
        return list(found.items())

    def _norms(self) -> list[float]:
        """BM25's share of a turn's length in the weight of its terms, per position."""
        weights = self._weights
        constant, slope = weights.k1 * (1 - weights.b), weights.k1 * weights.b * len(self._lengths) / max(1, self._length)
        return [constant + slope * length for length in self._lengths]

    def _matches(self, term: str, norms: list[float]) -> dict[int, float]:
        """How well each turn that has the term, or one that answers to it, matches: the best of them counts."""
        matches: dict[int, float] = {}
        for other, weight in self._alternatives(term):
            postings = self._postings[other]
            top = weight * _rarity(len(postings), len(norms)) * (self._weights.k1 + 1)
            for position, count in postings:
                score = top * count / (count + norms[position])
                if score > matches.get(position, 0.0):
                    matches[position] = score
        return matches

    def _spread(self, matches: dict[int, float]) -> dict[int, float]:
        """The same with what each match hands on to the turn's neighbours; the best that reaches a turn counts."""
        spread = matches.copy()
        for position, score in matches.items():
            for other, part in self._near[position]:
                handed = score * part
                if handed > spread.get(other, 0.0):
                    spread[other] = handed
        return spread

    def _extra(self, asked: Iterable[str], date: DateParts) -> list[float]:
        """Shares of the best score that a turn gets for its session, its date and for standing."""
        weights = self._weights
        sessions = self._session_matches(asked)
        best = max(sessions) or 1.0
        shares = [weights.session * score / best for score in sessions]
        extra = [shares[number] for number in self._session_of]
        if date:
            for parts, positions in self._on.items():
                if common := len(date & parts):
                    for position in positions:
                        extra[position] += weights.dated * common / len(date)
        for position in self._standing:
            extra[position] += weights.standing
        return extra

    def _session_matches(self, asked: Iterable[str]) -> list[float]:
        """BM25 of whole sessions, per session."""
        k1, b, lengths = self._weights.k1, self._weights.b, self._session_lengths
        slope = b * len(lengths) / max(1, self._length)
        norms = [k1 * (1 - b + slope * length) for length in lengths]
        scores = [0.0] * len(lengths)
        for term in asked:
            for other, weight in self._alternatives(term):
                sessions = self._in_sessions[other]
                top = weight * _rarity(len(sessions), len(lengths)) * (k1 + 1)
                for number, count in sessions.items():
                    scores[number] += top * count / (count + norms[number])
        return scores

    def _weigh(self, matched: list[float], extra: list[float], named: Iterable[str]) -> list[float]:
        """The score: matches and shares, times what the turn is and who said it."""
        best = max(matched) or 1.0
        scores = [(match + best * share) * factor for match, share, factor in zip(matched, extra, self._factors, strict=True)]
        for speaker in named:
            for position in self._said_by[speaker]:
                scores[position] *= self._weights.named
        return scores

    def _feed_back(self, matched: list[float], scores: list[float], asked: Collection[str], norms: list[float]) -> None:
        """Add to `matched` what the words of the best turns match: the way from one piece of evidence to the next."""
        weights, count = self._weights, len(matched)
        if not any(matched):
            return  # the best are then best for what they are, which says nothing of the question
        strength: dict[str, float] = {}
        for position in nsmallest(weights.feedback_turns, range(count), key=lambda each: (-scores[each], -each)):
            for term in self._terms[position] if scores[position] else ():
                if (having := len(self._postings[term])) > 1 and term not in asked and term not in self._speakers_by_name:
                    strength[term] = strength.get(term, 0.0) + scores[position] * _rarity(having, count)
        chosen = nsmallest(weights.feedback_terms, strength.items(), key=lambda item: (-item[1], item[0]))
        for term, share in chosen:
            postings = self._postings[term]
            top = weights.feedback * share / chosen[0][1] * _rarity(len(postings), count) * (weights.k1 + 1)
            for position, times in postings:
                matched[position] += top * times / (times + norms[position])
