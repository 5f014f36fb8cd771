"""What hints count in a ranking: a day in the question, bare numbers, and how much more where many turns can be shown."""

import math

import pytest

from kitchener.actors.authority.ranking import words_under
from kitchener.context import Ruleset, estimator, evidence_item
from kitchener.context.lexical.postings import DEFAULT_WEIGHTS, WEIGHTS_BEFORE_5, LexicalWeights
from kitchener.context.lexical.turn_index import LexicalIndex, LexicalTurn, Ranked
from kitchener.records.ref import Ref

FEW, MANY = 20, 100
"""Wanted turns of a small budget and of a large one."""
SAID = (
    ("2024-03-05", "We planted tulips"),
    ("2024-05-08", "My sister came along"),
    ("2024-05-09", "The train was late"),
    ("2024-06-01", "It rained all afternoon"),
)


def rank(question: str, turns: list[LexicalTurn], weights: LexicalWeights = DEFAULT_WEIGHTS, *, wanted: int = FEW) -> Ranked:
    """The ranking of some turns."""
    return LexicalIndex(turns, weights=weights).rank(question, wanted=wanted)


def apart(*texts: str, speaker: str | None = None) -> list[LexicalTurn]:
    """Turns of sessions of their own, so that none is another's neighbour."""
    return [LexicalTurn(text, text, speaker) for text in texts]


# ---- a day in the question


@pytest.mark.parametrize(
    ("question", "by_words", "matched"),
    [
        ("What happened on 8 May 2024?", set(), {1, 2}),  # of the ninth, year and month are right
        ("What happened on 5 March 2024?", set(), {0}),
        ("What happened in May 2024?", set(), {0, 1, 2, 3}),
        ("What happened on 1 June?", set(), {3}),
        ("What happened in April 2023?", set(), set()),
        ("Who came along?", {1}, {1}),
    ],
)
def test_what_was_said_on_a_day_in_the_question_matches_without_a_common_word(
    question: str, by_words: set[int], matched: set[int]
) -> None:
    turns = [LexicalTurn(text, day, None, day) for day, text in SAID]
    found = rank(question, turns)
    assert {*found.matched} == matched
    assert len(found.matched) == len(matched), "each stands there once"
    assert {*rank(question, turns, WEIGHTS_BEFORE_5).matched} == by_words


def test_the_day_itself_stands_before_days_near_it() -> None:
    turns = [LexicalTurn(text, day, None, day) for day, text in SAID]
    assert rank("What happened on 8 May 2024?", turns).order[0] == 1


# ---- bare numbers

LONG = "At that time the 17 barges met 23 tugs; wind tore sails, flags, ropes, nets, crates, masts, lamps, hatches, oars, hulls"

TALK = [
    f"{name} {what} {when}"
    for name in ("Hilda", "Oskar", "Petra")
    for what in ("had rain", "ran")
    for when in ("this time", "at 9")
]


@pytest.mark.parametrize(
    ("question", "said", "is_about"),
    [
        ("What is 17 times 23?", "She is 23", False),
        (
            "What is 17 times 23?",
            LONG,
            False,
        ),
        ("What is 17 times 23?", "17 times 23", True),
        ("How much is 48 plus 77?", "Bus 48 left", False),
        ("Who ran at 9?", "Ursula ran at 9", True),
        ("Which oboe has 23 keys?", "My oboe has 23 keys", True),
        ("What was at 12:25?", "The boat leaves at 12:25", True),
        ("How much is 2.5 more?", "It costs 2.5 more", True),
        ("Where is parcel 4711?", "4711 arrived", True),
    ],
)
def test_a_question_is_about_more_than_bare_numbers(question: str, said: str, *, is_about: bool) -> None:
    """A number of one or two digits may be about anything; a longer one, and a time, are about one thing."""
    turns = apart(*TALK, *[f"{each} again" for each in TALK], said)
    found = rank(question, turns)
    assert math.isfinite(found.related) is is_about
    assert found.order, "turns of the own session are ranked all the same"


# ---- a large budget


def grown(count: int) -> list[str]:
    return [f"Lamp {number} and chair {number}" for number in range(count)]


@pytest.mark.parametrize(
    ("weak", "strong", "question", "weights"),
    [
        ("My dog sleeps by the stove", "A pet", "Which pet?", LexicalWeights(session=0, wide_again=1, wide_kin=0.9)),
        (
            "Ghent, by Noor",
            "The marathon in Ghent",
            "How was the marathon?",
            LexicalWeights(session=0, wide_again=1, wide_feedback=0.9),
        ),
    ],
)
def test_a_hint_counts_for_more_the_more_turns_are_wanted(
    weak: str, strong: str, question: str, weights: LexicalWeights
) -> None:
    turns = apart(strong, weak, *grown(30))
    parts = []
    for wanted in (FEW, 50, 75, MANY, 1_000):
        found = rank(question, turns, weights, wanted=wanted).scores
        parts.append(found[1] / found[0])
    assert parts[0] == parts[1] < parts[2] < parts[3] == parts[4]


def test_a_named_speaker_counts_for_more_if_many_turns_are_wanted() -> None:
    turns = [LexicalTurn("The flute broke", "1", "Ada"), LexicalTurn("The flute broke", "2", "Bob")]
    few, many = [rank("What of Ada and the flute?", turns, wanted=wanted).scores for wanted in (FEW, MANY)]
    assert few[0] / few[1] == pytest.approx(1.4)
    assert many[0] / many[1] == pytest.approx(1.4**2)


def test_pieces_of_an_answer_in_other_sessions_come_before_the_rest_of_a_long_one() -> None:
    """What only repeats the best turn's session gives way to what was said elsewhere, if much can be shown."""
    talk = [LexicalTurn("The regatta was rough", "long") for _ in range(40)]
    elsewhere = LexicalTurn("Weeks later, the regatta came up with my aunt and her old neighbour", "other")
    turns = [elsewhere, *talk]
    before, few, many = [
        rank("How was the regatta?", turns, weights, wanted=wanted).order.index(0)
        for weights, wanted in ((WEIGHTS_BEFORE_5, MANY), (DEFAULT_WEIGHTS, FEW), (DEFAULT_WEIGHTS, MANY))
    ]
    assert few == before == 40
    assert many < 40


@pytest.mark.parametrize(("version", "is_matched"), [(3, False), (4, False), (5, True)])
def test_a_turn_of_an_earlier_policy_ranks_as_it_did(version: int, *, is_matched: bool) -> None:
    words = words_under(Ruleset(policy_version=version, excerpt_tokens=150))
    for number, (day, text) in enumerate(SAID):
        ref = Ref("HO2M", f"E-{number}", "")
        words.note(evidence_item(text, ref, f"{day}T09:00:00+00:00", f"user: {text}", estimator("chars/4"), session_id=day))
    found = words.matched(words.rank("What happened on 8 May 2024?", 10, len(SAID)))
    assert ("My sister came along" in [words.turns[number].entity_id for number, _ in found]) is is_matched
