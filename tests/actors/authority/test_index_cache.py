"""Lexical indexes hold so much together, however many sessions there are, and a released one ranks as before."""

import gc

from hypothesis import given
from hypothesis import strategies as st

from kitchener.actors.authority.index_cache import IndexCache
from kitchener.actors.authority.ranking import TurnWords
from kitchener.context.fold.items import evidence_item
from kitchener.records.ref import Ref


def words_of(session: int, turns: int) -> TurnWords:
    """The words of a session in which each turn says something else."""
    words = TurnWords(1_024)
    for number in range(turns):
        ref = Ref("HO2M:ADMIN", f"E-2026-01-01-{number:012d}", f"sha256:{number:064x}")
        text = f"user: planet{session} comet{number} and orbit{number}\nassistant: noted star{number}"
        words.note(
            evidence_item(f"T-{session}-{number}", ref, "2026-01-01T00:00:00+00:00", text, len, session_id=f"SES-{session}")
        )
    return words


def ranked(words: TurnWords) -> list[int]:
    """The turns that answer to a question, best first."""
    return list(words.rank("what about comet3 and the planet?", 5, len(words.turns)).numbers)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.integers(10, 120))
def test_indexes_hold_so_many_terms_together_and_rank_as_if_none_were_released(uses: list[int], most: int) -> None:
    alone = [ranked(words_of(session, 8)) for session in range(6)]
    sessions = [words_of(session, 8) for session in range(6)]
    cache = IndexCache(most)
    for session in uses:
        assert ranked(sessions[session]) == alone[session]
        cache.used(sessions[session])
        held = sum(words.held_terms for words in sessions)
        assert cache.terms == held
        assert held <= max(most, sessions[session].held_terms)
        assert sessions[session].held_terms > 0


def test_what_was_used_last_stays() -> None:
    first, second, third = (words_of(session, 8) for session in range(3))
    for words in (first, second, third):
        ranked(words)
    cache = IndexCache(2 * first.held_terms)
    for words in (first, second, first, third):
        cache.used(words)
    assert (first.held_terms > 0, second.held_terms, third.held_terms > 0) == (True, 0, True)


def test_a_session_that_is_gone_is_not_counted() -> None:
    cache = IndexCache()
    words = words_of(1, 8)
    ranked(words)
    cache.used(words)
    assert cache.terms > 0
    del words
    gc.collect()
    assert cache.terms == 0
