"""Ranking by words: the order is total, repeatable and explainable, and finds what a question needs.

The claims of recall are measured by `benchmarks/evidence.py`; here stands what must hold for any history.
"""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.context.lexical.turn_index import LexicalIndex, LexicalTurn, LexicalWeights

FILLER = ("The weather was grey.", "We talked for long.", "Nothing else came up.", "That sounds fine.", "See the other list.")


def order(question: str, *texts: str) -> list[str]:
    """The texts in the order of the ranking, each said in a session of its own, so that none is another's neighbour."""
    return said(question, *(LexicalTurn(text, str(number)) for number, text in enumerate(texts)))


def said(question: str, *turns: LexicalTurn) -> list[str]:
    """The texts of the turns in the order of the ranking."""
    return [turns[position].text for position in ranking(LexicalIndex(turns), question)]


def ranking(index: LexicalIndex, question: str) -> list[int]:
    """All positions: what the question found, then the others, the newest first, as whoever has room left takes them."""
    found = index.rank(question).order
    return [*found, *[position for position in reversed(range(len(index))) if position not in found]]


def scores(index: LexicalIndex, question: str, *, among: int | None = None) -> list[float]:
    """The score of each turn, 0 where it was not found."""
    found = index.rank(question, among=among).scores
    return [found.get(position, 0.0) for position in range(len(index))]


# ---- for any history

PHRASE = "Ada dog dogs pets went go always never I you yesterday Paris long? 猫が好き 我养猫 नमस्ते May 8 2024 . ?"
WORDS = st.sampled_from(PHRASE.split())
TEXTS = st.lists(WORDS, max_size=12).map(" ".join)
TURNS = st.builds(
    LexicalTurn,
    text=TEXTS | st.text(max_size=20),
    session=st.sampled_from(("a", "b", "c")),
    speaker=st.sampled_from((None, "Ada", "Bob", "user", "")),
    date=st.sampled_from((None, "", "2024-05-08T10:00:00Z", "1:56 pm on 8 May, 2024", "no date")),
    tokens=st.none() | st.integers(0, 10_000),
)


@given(st.lists(TURNS, max_size=25), TEXTS | st.text(max_size=20))
def test_no_turn_is_found_twice(turns: list[LexicalTurn], question: str) -> None:
    found = LexicalIndex(turns).rank(question)
    assert len(set(found.order)) == len(found.order)
    assert set(found.matched) <= set(found.order) <= set(range(len(turns)))


@given(st.lists(TURNS, max_size=25), st.lists(TEXTS, min_size=1, max_size=3))
def test_appending_one_by_one_and_ranking_in_between_equals_building_at_once(
    turns: list[LexicalTurn], questions: list[str]
) -> None:
    grown = LexicalIndex()
    for position, turn in enumerate(turns):
        assert grown.append(turn) == position
        grown.rank(questions[0])
    built = LexicalIndex(turns)
    assert len(grown) == len(built) == len(turns)
    for question in questions:
        assert grown.rank(question) == built.rank(question)


@given(st.lists(TURNS, max_size=25), st.integers(0, 30), TEXTS, st.integers(1, 40))
def test_a_ranking_among_the_first_turns_is_that_of_an_index_that_has_no_others(
    turns: list[LexicalTurn], among: int, question: str, postings: int
) -> None:
    """A turn ranks what was there when it began, whatever other sessions of the subject have said since."""
    whole, then = LexicalIndex(turns, postings=postings), LexicalIndex(turns[:among], postings=postings)
    assert whole.rank(question, among=among) == then.rank(question)


def test_a_name_that_becomes_a_speakers_later_changes_no_ranking_of_what_was_there() -> None:
    """The second round searches words of the best turns, and no names of speakers; here it must search "Ada"."""
    turns = [LexicalTurn("Ada came for tea", "a"), *[LexicalTurn("rain", "a")] * 9, LexicalTurn("Ada has a dog", "a")]
    whole, then = LexicalIndex([*turns, LexicalTurn("hello", "b", "Ada")]), LexicalIndex(turns)
    assert 0 in then.rank("dog").order, "found by the name alone"
    assert whole.rank("dog", among=len(turns)) == then.rank("dog")
    assert 0 not in whole.rank("dog").order


def calls_of(index: LexicalIndex, question: str) -> int:
    """Calls of Python functions and of built-in ones that a ranking takes."""
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        index.rank(question, wanted=50)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.soak
@pytest.mark.parametrize("sessions", [1, 40])
def test_a_ranking_costs_the_same_among_many_turns_as_among_some(sessions: int) -> None:
    """Where all turns share their words, and are of one session or of many."""
    texts = ("Find me a hotel in that area.", "Yes, a hotel for two people.", "I always like a hotel on 8 May.", "Which area?")
    index, costs = LexicalIndex(postings=256), list[int]()
    for count in (500, 5_000):
        for n in range(len(index), count):
            index.append(LexicalTurn(texts[n % 4], f"{n % sessions}", ("user", "assistant")[n % 2], f"2026-05-{1 + n % 28:02}"))
        costs.append(calls_of(index, "Can you find me a hotel in that area on 8 May?"))
    assert costs[1] <= costs[0] * 1.1


def test_of_a_word_that_is_everywhere_the_newest_places_are_looked_at() -> None:
    turns = [LexicalTurn(f"The hotel {n}.", str(n)) for n in range(100)]
    turns.insert(3, LexicalTurn("The hotel has a tapir.", "t"))
    few = LexicalWeights(feedback_terms=0, prefix=0, kin=0)
    found = LexicalIndex(turns, weights=few, postings=10).rank("Which hotel has a tapir?").order
    assert found[0] == 3, "a rare word is looked up whole, however old it is"
    assert set(found[1:]) <= set(range(90, 101))


@given(st.lists(TURNS, max_size=25), TEXTS)
def test_equal_scores_stand_newest_first(turns: list[LexicalTurn], question: str) -> None:
    found = LexicalIndex(turns).rank(question)
    assert found.order == sorted(found.scores, key=lambda each: (-found.scores[each], -each))


@given(st.lists(TURNS, min_size=1, max_size=15), TEXTS)
def test_a_weight_of_nothing_takes_its_idea_away_and_breaks_nothing(turns: list[LexicalTurn], question: str) -> None:
    bare = LexicalWeights(prefix=0, kin=0, reach=0, session=0, dated=0, standing=0, long_power=0, feedback_terms=0)
    found = LexicalIndex(turns, weights=bare).rank(question).order
    words = set(LexicalIndex(turns, weights=bare).rank(question).matched)
    assert words <= set(found)


def test_the_order_does_not_depend_on_how_python_hashes_text() -> None:
    """Set order differs from process to process; none may reach the ranking."""
    program = (
        "from kitchener.context.lexical.turn_index import *\n"
        "texts = ['My dog Rex barked in Paris', 'The cat and the puppy', 'I never eat', 'We went on 8 May 2024'] * 5\n"
        "turns = [LexicalTurn(t, str(i // 3), ('Ada', 'Bob')[i % 2], '8 May, 2024') for i, t in enumerate(texts)]\n"
        "print(LexicalIndex(turns).rank('Which pets and animals did Ada see in Rome on 8 May 2024?'))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1


# ---- edges


def test_an_empty_index_ranks_nothing() -> None:
    assert LexicalIndex().rank("Where does Ada live?").order == []
    assert LexicalIndex().rank("").order == []


@pytest.mark.parametrize("question", ["", "   ", "?!", "and what is it", "zebra"])
def test_a_question_without_a_known_word_gives_standing_statements_then_the_newest(question: str) -> None:
    texts = ("We met.", "From now on answer in French.", "It rained.", "Good night.")
    assert order(question, *texts) == [texts[1], texts[3], texts[2], texts[0]]


def test_turns_without_a_word_are_ranked_too() -> None:
    assert order("Where is the dog?", "", "...", "The dog is outside.", "👍") == ["The dog is outside.", "👍", "...", ""]


def test_the_same_turn_said_again_stands_before_the_older_one() -> None:
    turns = [LexicalTurn("The dog is outside.", session) for session in "abc"]
    assert ranking(LexicalIndex(turns), "Where is the dog?") == [2, 1, 0]


# ---- words


@pytest.mark.parametrize(
    ("question", "text"),
    [
        ("Who studies law?", "My sister studied law."),
        ("Where did we go running?", "She ran by the river."),
        ("What was bought?", "He will buy a lamp."),
        ("How is the negotiation?", "They negotiate all day."),
        ("Which pets are there?", "Our dog barks."),
        ("Is the puppy well?", "The pup eats."),
        ("What about the dogs?", "One animal ran away."),
        ("Wo ist die Wohnung?", "Die Wohnungen sind teuer."),
        ("Где моя собака?", "Вчера собаку видели в парке."),
        ("你的猫叫什么名字?", "我家的猫很可爱"),
        ("好きな食べ物は何ですか", "私は寿司を食べるのが好き"),
        ("แมวของฉันชื่ออะไร", "ฉันเลี้ยงแมวสองตัว"),
        ("고양이 이름이 뭐야", "우리 고양이는 검은색이다"),
        ("मेरा कुत्ता कहाँ", "कुत्ता बगीचे में सो रहा था"),
        ("\uff21\uff22\uff23\uff11\uff12\uff13\uff1f", "The code is abc123."),
        ("What about café?", "The cafe\u0301 is shut."),
    ],
)
def test_words_meet_in_any_form_and_script(question: str, text: str) -> None:
    others = (*FILLER, "昨日は雨でした", "今天下雨", "Сегодня дождь", "วันนี้ฝนตก", "오늘 비가 온다", "आज बारिश है")
    assert order(question, text, *others)[0] == text


def test_a_dog_is_a_pet_but_no_cat() -> None:
    asked = order("Where is the cat?", "The dog sleeps.", *FILLER)
    assert asked[-1] == "The dog sleeps."
    assert order("Where is the pet?", "The dog sleeps.", *FILLER)[0] == "The dog sleeps."


def test_the_word_itself_counts_more_than_one_akin_to_it() -> None:
    assert order("Which pet is it?", "A pet it is.", "A dog it is.", *FILLER)[:2] == ["A pet it is.", "A dog it is."]


def test_a_rare_word_counts_more_than_one_that_all_turns_have() -> None:
    common = [f"The garden, day {number}." for number in range(9)]
    assert order("Is there a tapir in the garden?", "A tapir came.", *common)[0] == "A tapir came."


def test_of_a_pasted_page_the_rarest_words_are_looked_for() -> None:
    common = [f"Lamp {number}." for number in range(100, 140)]
    page = " ".join(f"{number}" for number in range(100, 130)) + " lamp tapir"
    turns = [LexicalTurn(text, text) for text in ("A tapir came.", *common)]
    few, many = (LexicalWeights(asked_terms=most, feedback_terms=0) for most in (31, 99))
    assert scores(LexicalIndex(turns, weights=few), page)[-1] == 0, "the lamp is in nearly all turns"
    assert scores(LexicalIndex(turns, weights=few), page)[0] > 0
    assert scores(LexicalIndex(turns, weights=many), page)[-1] > 0


# ---- where, who, when


def dialogue(
    *texts: str, session: str = "s", speakers: tuple[str | None, ...] = (None,), date: str | None = None
) -> list[LexicalTurn]:
    return [LexicalTurn(text, session, speakers[number % len(speakers)], date) for number, text in enumerate(texts)]


def test_the_answer_beside_the_words_of_the_question_is_found() -> None:
    asked = "And which instrument do you play?"
    history = dialogue(*FILLER, asked, "The flute, badly.", session="a") + dialogue(*"PQRSTUVW", session="b")
    assert said("What instrument was it?", *history)[:2] == [asked, "The flute, badly."]


def test_a_neighbour_is_of_the_same_session_even_if_sessions_are_interleaved() -> None:
    one = dialogue("Good day.", "The flute broke.", "It was old.", session="a")
    two = dialogue("Hello there.", "My lamp fell.", "It is green.", session="b")
    mixed = [turn for pair in zip(one, two, strict=True) for turn in pair]
    assert set(said("Which flute?", *mixed)[:3]) == {turn.text for turn in one}


def test_neighbours_end_after_three_steps() -> None:
    history = dialogue("The flute broke.", "One.", "Two.", "Three.", "Four.", "Five.")
    spread = scores(LexicalIndex(history, weights=LexicalWeights(session=0, feedback_terms=0)), "Which flute?")
    assert [score > 0 for score in spread] == [True, True, True, True, False, False]
    assert spread[1] > spread[2] > spread[3]


def test_a_question_hands_more_on_to_its_answer_than_a_statement_does() -> None:
    weights = LexicalWeights(asking=1.0)
    told, asked = (
        scores(LexicalIndex(dialogue(f"The flute{mark}", "Silver."), weights=weights), "Which flute?") for mark in ".?"
    )
    assert asked[1] > told[1]


def test_a_session_about_the_matter_lifts_its_turns() -> None:
    about = dialogue("Our choir sang.", "The choir again.", "A choir!", *FILLER, "Rehearsal ended late.", session="a")
    other = dialogue(*FILLER, "Rehearsal began early.", session="b")
    ranked = said("How was the rehearsal of the choir?", *about, *other)
    assert ranked.index("Rehearsal ended late.") < ranked.index("Rehearsal began early.")


def test_the_speaker_whom_the_question_names_comes_first() -> None:
    history = [LexicalTurn("The flute is mine.", name, name) for name in ("Melanie", "Bob")]
    assert ranking(LexicalIndex(history), "Which flute does Melanie own?")[0] == 0
    assert ranking(LexicalIndex(history), "Which flute does Mel own?")[0] == 0
    assert ranking(LexicalIndex(history), "which flute does bob own?")[0] == 1


@pytest.mark.parametrize(
    ("speaker", "question"),
    [("Caroline", "Is the flute in the car?"), ("Will", "will the flute come?"), ("user", "Which user has a flute?")],
)
def test_a_common_word_names_nobody(speaker: str, question: str) -> None:
    history = [LexicalTurn("The flute is mine.", name, name) for name in (speaker, "Bob")]
    assert ranking(LexicalIndex(history), question)[0] == 1


def test_the_name_of_a_speaker_is_no_word_to_look_for() -> None:
    """Who is asked about seldom says the own name: it is said by the other one."""
    turns = (LexicalTurn("Thanks, Ada, dear Ada!", "1", "Bob"), LexicalTurn("My flute broke.", "2", "Ada"))
    assert said("What of Ada and the flute?", *turns)[0] == "My flute broke."


@pytest.mark.parametrize(
    "question", ["What was on 8 May 2024?", "What was on May 8th, 2024?", "What was on 2024-05-08?", "And 8 may?"]
)
@pytest.mark.parametrize("form", ["2024-{:02}-{:02}T10:30:00Z", "{1} {2}, 2024", "{2} {1}, 2024", "10:08 am on {1} {2}, 2024"])
def test_a_date_finds_what_was_said_on_that_day(question: str, form: str) -> None:
    days = ((4, 8, "April"), (5, 8, "May"), (5, 9, "May"), (6, 3, "June"))
    turns = [
        LexicalTurn(f"Said {month} {day}"[:4], f"{day} {name}", None, form.format(month, day, name))
        for month, day, name in days
    ]
    assert ranking(LexicalIndex(turns), question)[0] == 1


def test_a_month_alone_finds_its_days_and_may_is_not_always_a_month() -> None:
    turns = [LexicalTurn("Said.", month, None, f"3 {month}, 2024") for month in ("May", "June", "July")]
    assert ranking(LexicalIndex(turns), "What was in May?")[0] == 0
    assert ranking(LexicalIndex(turns), "What may that be?")[0] == 2


# ---- what a turn is


@pytest.mark.parametrize(
    "standing",
    [
        "I never eat meat.",
        "Always answer in French.",
        "Thanks. Please never call me sir.",
        "From now on be brief.",
        "I prefer trains.",
        "Remember to ask first.",
        "I can't stand coriander.",
    ],
)
def test_standing_statements_reach_questions_without_a_word_of_theirs(standing: str) -> None:
    assert order("Can you book a table?", standing, *FILLER, "The table broke.")[:2] == ["The table broke.", standing]


@pytest.mark.parametrize(
    "said",
    ["We've always lived by the sea.", "I'll never forget it.", "It was great. Always smiling.", "Have you ever only walked?"],
)
def test_what_only_tells_of_always_and_never_is_no_standing_statement(said: str) -> None:
    assert 0 not in LexicalIndex([LexicalTurn(each) for each in (said, *FILLER)]).rank("Can you book a table?").order
    index = LexicalIndex([LexicalTurn(each, str(n)) for n, each in enumerate((said, "The table broke."))])
    assert index.rank("Can you book a table?").order == [1]


@pytest.mark.parametrize(
    "text", ["She has never been there.", "It is always grey.", "Never mind that"[6:], "I am standing here."]
)
def test_not_every_always_is_a_rule(text: str) -> None:
    assert order("zebra", text, *FILLER)[-1] == text


def test_the_advice_of_an_assistant_is_no_rule() -> None:
    turns = [LexicalTurn("Always wear a helmet.", speaker, speaker) for speaker in ("user", "assistant")]
    assert ranking(LexicalIndex(turns), "zebra") == [0, 1]


def test_a_long_turn_does_not_eat_the_budget() -> None:
    short, long = "The flute is silver.", "The flute is silver. " + "And so on and on it went with much else. " * 60
    assert order("Which flute?", short, long, *FILLER)[:2] == [short, long]
    paid = [LexicalTurn("The flute is silver.", "1", tokens=900), LexicalTurn("The flute is silver.", "0", tokens=9)]
    assert ranking(LexicalIndex(paid), "Which flute?")[0] == 1


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("I tune the flute", "you tune the flute"),
        ("The flute came yesterday", "The flute came apart"),
        ("The flute is by Haynes", "The flute is by haynes"),
        ("That flute", "That flute?"),
    ],
)
def test_a_report_comes_before_a_reaction(better: str, worse: str) -> None:
    assert order("Which flute?", better, worse)[0] == better


def test_the_words_of_the_best_turns_lead_to_further_evidence() -> None:
    found = ("The marathon in Ghent: I trained with Noor.", "Noor and Ghent again!")
    apart = "Noor hurt a knee."
    turns = (*found, *(f"Lamp {number}, chair {number}." for number in range(6)), apart, *FILLER)
    assert order("How was the marathon?", *turns).index(apart) < order("How was the marathon?", *turns).index(FILLER[-1])
    alone = [LexicalTurn(text, str(number)) for number, text in enumerate(turns)]
    without = scores(LexicalIndex(alone, weights=LexicalWeights(feedback_terms=0)), "How was the marathon?")
    assert without[turns.index(apart)] == 0
