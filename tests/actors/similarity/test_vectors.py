"""Scores of similarity, against a plain computation."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.actors.similarity.vectors import MAX_DIMENSIONS, Vector, VectorList, scores_of, unit_vector

NUMBERS = st.lists(st.floats(-1, 1, width=32).filter(lambda each: each == 0 or abs(each) > 1e-3), min_size=8, max_size=8)


def cosine(one: Vector, other: Vector) -> float:
    return math.fsum(a * b for a, b in zip(one.numbers, other.numbers, strict=True))


@given(NUMBERS, st.lists(st.none() | NUMBERS, max_size=30), st.integers(1, 10))
def test_the_most_similar_get_scores_in_the_order_of_their_cosines(
    message: list[float], others: list[list[float] | None], scored: int
) -> None:
    asked, vectors = unit_vector(message), [unit_vector(each) if each is not None else None for each in others]
    scores = scores_of(asked, VectorList(vectors), scored)
    assert len(scores) <= scored
    assert all(0 < each <= 1_000 for each in scores.values())
    cosines = {n: cosine(asked, each) for n, each in enumerate(vectors) if each is not None}
    if scores:
        assert max(scores.values()) == 1_000
        least = min(cosines[n] for n in scores)
        assert sum(each > least + 1e-6 for each in cosines.values()) < scored + 1
        mean = math.fsum(cosines.values()) / len(cosines)
        assert len(cosines) == 1 or all(cosines[n] > mean - 1e-6 for n in scores)


@given(NUMBERS, st.floats(0.01, 100))
def test_the_length_of_a_vector_does_not_count(numbers: list[float], factor: float) -> None:
    one, other = unit_vector(numbers), unit_vector([factor * each for each in numbers])
    assert one.sketch == other.sketch
    assert one.numbers == pytest.approx(other.numbers, abs=1e-5)


def test_among_many_texts_the_ones_that_mean_the_same_are_found() -> None:
    """More texts than are compared by their numbers: their sketches lead to the right ones."""
    spread = [[math.sin(1 + 0.37 * n * (1 + k)) for k in range(64)] for n in range(3_000)]
    asked = unit_vector([each + 0.1 * math.cos(k) for k, each in enumerate(spread[1_234])])
    scores = scores_of(asked, VectorList([unit_vector(each) for each in spread]), 8)
    assert scores[1_234] == 1_000
    assert len(scores) <= 8


def test_a_vector_is_checked() -> None:
    for wrong in ([], [math.nan], [math.inf, 1.0], [1e39], [1.0] * (MAX_DIMENSIONS + 1)):
        with pytest.raises((ValueError, OverflowError)):
            unit_vector(wrong)
    assert [*unit_vector([0.0, 0.0]).numbers] == [0.0, 0.0]
