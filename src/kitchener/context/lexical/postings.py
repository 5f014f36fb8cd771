"""Indexes the words of turns for ranking: the facts of each turn, the positions of each word, and the speakers.

The index is append-only, one turn at a time, so it can also be read as of an earlier turn. `turn_index.py` ranks turns with it,
`words.py` defines words, and `features.py` detects other features of a turn.
"""

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, NamedTuple

from kitchener.context.lexical.features import DateParts, TextFeatures, date_parts, features_of
from kitchener.context.lexical.words import KIN, terms_of, words_of
from kitchener.records.tokens import estimate_tokens


@dataclass(frozen=True, slots=True)
class LexicalTurn:
    """One message of one speaker."""

    text: str
    """The text of the message."""
    session: str = ""
    """Id of the conversation. Only turns of one session are neighbours; sessions may be interleaved."""
    speaker: str | None = None
    """A name such as "Ada", or a role such as "user"; None: not known."""
    date: str | None = None
    """The time, in ISO form ("2024-05-08T13:56Z") or in English ("1:56 pm on 8 May, 2024"); None: not known."""
    tokens: int | None = None
    """Tokens of the shown message; None: a quarter of its characters."""


@dataclass(frozen=True, slots=True)
class LexicalWeights:
    """The constants of the ranking: round numbers set by hand. Shares are relative to the best score by words alone."""

    asked_terms: int = 24
    """Most terms of a question that are looked up, the rarest first, so that a pasted page costs no more than a question."""
    k1: float = 1.2
    """BM25: how fast repetitions of a word stop counting."""
    b: float = 0.75
    """BM25: how much the length of a turn reduces its matches, 0 to 1."""
    prefix: float = 0.5
    """Weight of a word that shares only its first four letters with a word of the question: a form the stemmer misses."""
    kin: float = 0.4
    """Weight of a word related to a word of the question, such as "dog" to "pet"."""
    reach: int = 3
    """Number of neighbours on either side. The answer is often next to the turn that has the words of the question."""
    step: float = 0.6
    """Share of a match that a neighbour one step away gets."""
    asked_step: float = 0.7
    """As `step`, for turns after a question, because they answer it."""
    second: float = 0.5
    """Share of the second best neighbour's match that is added to the best one's."""
    session: float = 0.2
    """Share added to turns of the best matching session; other sessions get it in proportion."""
    dated: float = 0.5
    """Share added if the turn's date has all date parts of the question; otherwise in proportion."""
    standing: float = 0.1
    """Share added to standing statements ("I never …"), which matter to questions that share no word with them."""
    directives: bool = True
    """Whether only what begins a clause is a standing statement; otherwise also "we have always …"."""
    named: float = 1.4
    """Factor for turns of a speaker that the question names."""
    asking: float = 0.9
    """Factor for turns that end in a question, because they seldom state facts."""
    speaks_of_self: float = 1.1
    """Factor for a turn that says "I" more often than "you"."""
    speaks_of_other: float = 0.9
    """Factor for a turn that says "you" more often than "I", because it is a reaction rather than a report."""
    timed: float = 1.1
    """Factor for a turn with a time ("yesterday", "last week"), because it reports an event."""
    names: float = 1.1
    """Factor for a turn with a name or a title, other than that of a speaker."""
    opening: float = 1.1
    """Factor for the first two turns of a session, in which people say what is new or what they want."""
    long_tokens: int = 80
    """Most tokens of a short turn. Self, other, time and names count only in short turns, because long ones have them all."""
    long_power: float = 0.4
    """A longer turn's score is divided by (its tokens / `long_tokens`) to this power, so that it does not fill the budget."""
    feedback_turns: int = 10
    """Number of the best turns of the first round whose words are searched in the second round."""
    feedback_terms: int = 10
    """Number of their words that are searched; 0: there is no second round."""
    feedback: float = 0.2
    """Weight of the strongest of those words; the others in proportion."""
    hints: bool = True
    """Whether turns of a day in the question match it, and a question needs words besides numbers of one or two digits for
    turns to be about it."""
    wide_turns: int = 50
    """Number of wanted turns above which hints count for more; at twice as many they count in full. Few turns must be the
    surest ones; many leave room for turns of which there are only hints. 0: they never do."""
    wide_kin: float = 0.5
    """`kin` if hints count in full."""
    wide_feedback: float = 0.3
    """`feedback` if hints count in full."""
    wide_named: float = 2.0
    """Power of `named` if hints count in full; otherwise 1."""
    wide_again: float = 0.98
    """Factor for each turn after a better one of its session if hints count in full, because pieces of an answer that stand far
    apart are seldom told in one session; otherwise 1."""


DEFAULT_WEIGHTS: Final = LexicalWeights()
WEIGHTS_BEFORE_5: Final = LexicalWeights(hints=False, wide_turns=0)
"""The constants before version 5 of the policy."""
WEIGHTS_BEFORE_3: Final = replace(WEIGHTS_BEFORE_5, standing=0.2, directives=False)
"""The constants before version 3 of the policy."""
_MACHINES = frozenset(("assistant", "ai", "system", "bot", "agent", "tool", "model"))
"""Speakers whose "always" and "never" is advice or output, not a user's rule."""
_ROLES = _MACHINES | {"user", "human"}
"""Speaker names that are common words, so a question with such a word names no speaker."""
ALIKE: Final = 4
"""Number of first letters that two words must share to count as alike."""
_MAX_ALIKE: Final = 32
"""Most terms with the same first letters, the oldest first; a log may be full of numbers that start alike."""


MAX_TERMS_PER_TURN: Final = 1_024
"""Most different terms indexed per turn, the first ones; a long page is found by its beginning."""
MAX_TERMS: Final = 262_144
"""Most different terms in one index, the oldest first; later turns are found by terms that earlier turns have too."""


class Postings(NamedTuple):
    """The positions of one term, oldest first."""

    term: str
    positions: list[int]
    impacts: "array[float]"
    """The turn's part of the BM25 score: the term's frequency, relative to the turn's length among the turns so far."""


class _SinglePosting(NamedTuple):
    """The position of a term that only one turn has. Most terms are such. With its term, it takes 183 bytes, and a `Postings`
    of one position 311 (`tracemalloc`, CPython 3.11)."""

    term: str
    position: int
    impact: float


class LexicalTurns:
    """Turns in the order in which they were appended. A turn's position is its number in that order, from 0.

    Args:
        turns: the first ones
        weights: the constants of the ranking
    """

    def __init__(self, turns: Iterable[LexicalTurn] = (), *, weights: LexicalWeights = DEFAULT_WEIGHTS) -> None:
        self._weights = weights
        self._steps = tuple([weights.step**steps for steps in range(1, weights.reach + 1)])
        self._asked_steps = tuple([weights.asked_step**steps for steps in range(1, weights.reach + 1)])
        # Per position. `_sum` counts the terms of all turns so far; `_near` has the neighbours of a turn, with the share of a
        # match that each gets.
        self._terms: list[tuple[str, ...]] = []
        self._sum = 0
        self._factors: list[float] = []
        self._asks: list[bool] = []
        self._session_of: list[int] = []
        self._near: list[list[tuple[int, float]]] = []
        self._speaker_of: list[str] = []
        self._date_of: list[DateParts] = []
        # Per term: its positions, one or several; and per first letters, the terms that start with them.
        self._once: dict[str, _SinglePosting] = {}
        self._often: dict[str, Postings] = {}
        self._alike: dict[str, list[str]] = {}
        self._akin: dict[str, list[str]] = {}
        # Per session, numbered in the order of first turns: its positions.
        self._numbers: dict[str, int] = {}
        self._members: list[list[int]] = []
        self._first_turns: list[int] = []
        # Positions of standing statements and by date, and the first position of each speaker and of each part of a name.
        self._standing: list[int] = []
        self._on: dict[tuple[str, int], list[int]] = {}
        self._speakers: dict[str, int] = {}
        self._speakers_by_name: dict[str, list[str]] = {}
        self._first_named: dict[str, int] = {}
        self._last_date: tuple[str, DateParts] = "", frozenset()
        for turn in turns:
            self.append(turn)

    def __len__(self) -> int:
        return len(self._terms)

    @property
    def terms(self) -> int:
        """Number of different terms in the index."""
        return len(self._once) + len(self._often)

    def append(self, turn: LexicalTurn) -> int:
        """Adds the newest turn and returns its position. The cost does not grow with the number of turns."""
        position, words = len(self._terms), words_of(turn.text.casefold())
        self._note_speaker((turn.speaker or "").casefold(), position)
        self._note_date(turn.date, position)
        features = features_of(turn.text, words, self._speakers_by_name, directives=self._weights.directives)
        if features.stands and (turn.speaker or "").casefold() not in _MACHINES:
            self._standing.append(position)
        number = self._join_session(turn.session, position)
        self._note_terms(words, position)
        self._asks.append(features.asks)
        self._factors.append(self._factor(turn, features, opens=len(self._members[number]) <= 2))
        return position

    def _note_speaker(self, speaker: str, position: int) -> None:
        self._speaker_of.append(speaker)
        if not speaker or speaker in self._speakers:
            return
        self._speakers[speaker] = position
        for name in words_of(speaker):
            if name not in _ROLES:
                self._speakers_by_name.setdefault(name, []).append(speaker)
                self._first_named.setdefault(name, position)

    def _note_date(self, date: str | None, position: int) -> None:
        if date and date != self._last_date[0]:  # the turns of a session often have the same text
            self._last_date = date, date_parts(date)
        parts = self._last_date[1] if date else _NO_DATE
        self._date_of.append(parts)
        for part in parts:
            self._on.setdefault(part, []).append(position)

    def _join_session(self, session: str, position: int) -> int:
        """Appends the turn to its session, links it to its neighbours, and returns the session's number."""
        number = self._numbers.setdefault(session, len(self._members))
        if number == len(self._members):
            self._members.append([])
            self._first_turns.append(position)
        members, near = self._members[number], list[tuple[int, float]]()
        for steps, other in enumerate(reversed(members[-self._weights.reach :] if self._weights.reach else ())):
            near.append((other, self._steps[steps]))
            onward = self._asked_steps if self._asks[other] else self._steps
            self._near[other].append((position, onward[steps]))
        self._near.append(near)
        members.append(position)
        self._session_of.append(number)
        return number

    def _note_terms(self, words: Iterable[str], position: int) -> None:
        counts: dict[str, int] = {}
        for word in words:
            for term in terms_of(word):
                counts[term] = counts.get(term, 0) + 1
        length = sum(counts.values())
        self._sum += length
        k1, b = self._weights.k1, self._weights.b
        norm = k1 * (1 - b + b * length * (position + 1) / max(1, self._sum))
        noted: list[str] = []
        for term, count in islice(counts.items(), MAX_TERMS_PER_TURN):
            if (known := self._note(term, position, (k1 + 1) * count / (count + norm))) is not None:
                noted.append(known)
        self._terms.append(tuple(noted))

    def _note(self, term: str, position: int, impact: float) -> str | None:
        """Indexes a term of the newest turn and returns the index's own copy of it; None: the index is full.

        All turns share that copy, because separate strings would take most of the memory.
        """
        found = self._often.get(term)
        if found is not None:
            found.positions.append(position)
            found.impacts.append(impact)
            return found.term
        once = self._once.pop(term, None)
        if once is not None:
            self._often[once.term] = Postings(once.term, [once.position, position], array("d", (once.impact, impact)))
            return once.term
        if len(self._once) + len(self._often) >= MAX_TERMS:
            return None
        self._once[term] = _SinglePosting(term, position, impact)
        if len(term) >= ALIKE:
            alike = self._alike.setdefault(term[:ALIKE], [])
            if len(alike) < _MAX_ALIKE:
                alike.append(term)
        for other in KIN.get(term, ()):
            self._akin.setdefault(other, []).append(term)
        return term

    def _postings_of(self, term: str) -> Postings | None:
        """The positions of a term; None: no turn has it."""
        found = self._often.get(term)
        if found is None and (once := self._once.get(term)) is not None:
            return Postings(once.term, [once.position], array("d", (once.impact,)))
        return found

    def _factor(self, turn: LexicalTurn, features: TextFeatures, *, opens: bool) -> float:
        """The factor of the turn's score that does not depend on the question."""
        weights = self._weights
        tokens = estimate_tokens(turn.text, "chars/4") if turn.tokens is None else turn.tokens
        factor: float = (weights.opening if opens else 1.0) * (weights.asking if features.asks else 1.0)
        if tokens > weights.long_tokens:
            return factor * math.pow(weights.long_tokens / tokens, weights.long_power)
        if features.of_self:
            factor *= weights.speaks_of_self if features.of_self > 0 else weights.speaks_of_other
        return factor * (weights.timed if features.timed else 1.0) * (weights.names if features.names else 1.0)


_NO_DATE: Final[DateParts] = frozenset()
