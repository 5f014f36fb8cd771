"""Turns are indexed in bounded steps before a ranking, and not at all while no ranking needs them."""

from hypothesis import given
from hypothesis import strategies as st

from kitchener.actors.authority.ranking import TurnWords
from tests.actors.authority.test_index_cache import ranked, words_of


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(1, 8))
def test_a_ranking_after_steps_is_that_of_an_index_made_at_once(noted: list[int], at_once: int) -> None:
    words = TurnWords(1_024)
    turns = iter(words_of(1, sum(noted)).turns)
    waiting = 0
    for count in noted:
        for _ in range(count):
            words.note(next(turns))
        waiting += count
        while waiting > at_once:
            assert words.index_ahead(at_once)
            waiting -= at_once
        assert not words.index_ahead(at_once), "a ranking indexes so few by itself"
    assert ranked(words) == ranked(words_of(1, sum(noted)))


def test_turns_that_are_never_ranked_are_not_indexed() -> None:
    words = words_of(1, 8)
    assert not words.index_ahead(8)
    assert words.held_terms == 0
    assert words.index_ahead(7)
    assert words.held_terms > 0
