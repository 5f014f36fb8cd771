"""Indexes the words of turns for ranking: the facts of each turn, the positions of each word, and the speakers.

The index is append-only, one turn at a time, so it can also be read as of an earlier turn. `index.py` ranks turns with it,
`words.py` defines words, and `marks.py` finds other features of a turn.
"""

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from kitchener.context.lexical.marks import DateParts, Marks, date_parts, marks_of
from kitchener.context.lexical.words import KIN, terms_of, words_of


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
    second: float = 0.5
    """Of what the second best neighbour hands on, added to what the best one does."""
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


DEFAULT_WEIGHTS: Final = LexicalWeights()
_MACHINES = frozenset(("assistant", "ai", "system", "bot", "agent", "tool", "model"))
"""Speakers whose "always" and "never" is advice or output, not a rule of the person's."""
_ROLES = _MACHINES | {"user", "human"}
"""Speakers whose names are common words: a question that has such a word names nobody."""
ALIKE: Final = 4
"""Letters that two words have to share at their beginning to count as alike."""
_MAX_ALIKE: Final = 32
"""Terms kept of those that begin alike, the first to be said: a log may be full of numbers that begin alike."""


MAX_TERMS_PER_TURN: Final = 1_024
"""Different terms of one turn that are noted, the first ones: a long page is found by its beginning."""
MAX_TERMS: Final = 262_144
"""Different terms of one index, the first to be said; what comes later is found by the words that were said before."""


class Postings(NamedTuple):
    """Where one term is, oldest first."""

    term: str
    positions: list[int]
    impacts: "array[float]"
    """BM25's part that the turn there decides: how often it has the term, for its length among the turns until then."""


class _Once(NamedTuple):
    """Where a term is that one turn has and no other: most terms, in a third of the room."""

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
        # Per position. A sum counts the terms up to and with a turn; near are its neighbours, each with the
        # part of a match that it gets.
        self._terms: list[tuple[str, ...]] = []
        self._sum = 0
        self._factors: list[float] = []
        self._asks: list[bool] = []
        self._session_of: list[int] = []
        self._near: list[list[tuple[int, float]]] = []
        self._speaker_of: list[str] = []
        self._date_of: list[DateParts] = []
        # Per term: where it is, in one place or in several; and per beginning, the terms that have it.
        self._once: dict[str, _Once] = {}
        self._often: dict[str, Postings] = {}
        self._alike: dict[str, list[str]] = {}
        self._akin: dict[str, list[str]] = {}
        # Per session, numbered by its first turn: its positions, and its own sums.
        self._numbers: dict[str, int] = {}
        self._members: list[list[int]] = []
        self._first_turns: list[int] = []
        # Positions by what they are, and of each speaker the first.
        self._standing: list[int] = []
        self._on: dict[tuple[str, int], list[int]] = {}
        self._speakers: dict[str, int] = {}
        self._speakers_by_name: dict[str, list[str]] = {}
        self._last_date: tuple[str, DateParts] = "", frozenset()
        for turn in turns:
            self.append(turn)

    def __len__(self) -> int:
        return len(self._terms)

    @property
    def terms(self) -> int:
        """Different terms that are held."""
        return len(self._once) + len(self._often)

    def append(self, turn: LexicalTurn) -> int:
        """Add the newest turn; its position. The work grows with the turn's length, not with that of the history."""
        position, words = len(self._terms), words_of(turn.text.casefold())
        self._note_speaker((turn.speaker or "").casefold(), position)
        self._note_date(turn.date, position)
        marks = marks_of(turn.text, words, self._speakers_by_name)
        if marks.stands and (turn.speaker or "").casefold() not in _MACHINES:
            self._standing.append(position)
        number = self._join_session(turn.session, position)
        self._note_terms(words, position)
        self._asks.append(marks.asks)
        self._factors.append(self._factor(turn, marks, opens=len(self._members[number]) <= 2))
        return position

    def _note_speaker(self, speaker: str, position: int) -> None:
        self._speaker_of.append(speaker)
        if not speaker or speaker in self._speakers:
            return
        self._speakers[speaker] = position
        for name in words_of(speaker):
            if name not in _ROLES:
                self._speakers_by_name.setdefault(name, []).append(speaker)

    def _note_date(self, date: str | None, position: int) -> None:
        if date and date != self._last_date[0]:  # the turns of a session often carry the same text
            self._last_date = date, date_parts(date)
        parts = self._last_date[1] if date else _NO_DATE
        self._date_of.append(parts)
        for part in parts:
            self._on.setdefault(part, []).append(position)

    def _join_session(self, session: str, position: int) -> int:
        """Put the turn at the end of its session, next to those before it; the session's number."""
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
        """Notes a term of the newest turn; the text by which the index knows it, None where there is no room for another.

        Each text names its terms by strings of its own, which would take most of the room.
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
        self._once[term] = _Once(term, position, impact)
        if len(term) >= ALIKE:
            alike = self._alike.setdefault(term[:ALIKE], [])
            if len(alike) < _MAX_ALIKE:
                alike.append(term)
        for other in KIN.get(term, ()):
            self._akin.setdefault(other, []).append(term)
        return term

    def _places_of(self, term: str) -> Postings | None:
        """Where a term is; None where no turn has it."""
        found = self._often.get(term)
        if found is None and (once := self._once.get(term)) is not None:
            return Postings(once.term, [once.position], array("d", (once.impact,)))
        return found

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


_NO_DATE: Final[DateParts] = frozenset()
