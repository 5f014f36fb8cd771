"""Scores of similarity, against a plain computation, with numpy and without it."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.actors.similarity.matrix import VectorMatrix
from kitchener.actors.similarity.vectors import MAX_DIMENSIONS, FewVectors, Vector, Vectors, unit_vector

NUMBERS = st.lists(st.floats(-1, 1, width=32).filter(lambda each: each == 0 or abs(each) > 1e-3), min_size=8, max_size=8)
KINDS = pytest.mark.parametrize("kind", [VectorMatrix, FewVectors])
Kind = Callable[[int], Vectors]


def cosine(one: Vector, other: Vector) -> float:
    return math.fsum(a * b for a, b in zip(one, other, strict=True))


def filled(kind: Kind, vectors: list[Vector], capacity: int = 10_000) -> Vectors:
    """The vectors at positions 0, 1, 2 and so on."""
    found = kind(capacity)
    for position, each in enumerate(vectors):
        found.put(position, each)
    return found


def spread(count: int, size: int) -> list[list[float]]:
    """Vectors in many directions."""
    return [[math.sin(1 + 0.37 * n * (1 + k)) for k in range(size)] for n in range(count)]


@KINDS
@given(message=NUMBERS, others=st.lists(NUMBERS, max_size=30), scored=st.integers(1, 10))
def test_scores_tell_how_far_texts_are_from_the_average_to_an_equal_one(
    kind: Kind, message: list[float], others: list[list[float]], scored: int
) -> None:
    asked, vectors = unit_vector(message), [unit_vector(each) for each in others]
    scores = filled(kind, vectors).scores(asked, len(vectors), scored)
    assert len(scores) <= scored
    cosines = [cosine(asked, each) for each in vectors]
    average = max(0.0, math.fsum(cosines) / max(1, len(cosines)))
    if 1.0 - average > 1e-2:
        for n, score in scores.items():
            assert score == pytest.approx(
                min(1_000, 1_000 * (cosines[n] - average) / (1.0 - average) / 0.8), abs=2 + 2 / (1 - average)
            )
        least = min([cosines[n] for n in scores], default=average)
        if len(scores) < scored:
            assert all(each <= average + 2e-2 for n, each in enumerate(cosines) if n not in scores)
        else:
            assert all(each <= least + 2e-3 for n, each in enumerate(cosines) if n not in scores)


@KINDS
def test_an_unrelated_message_scores_low_and_an_equal_one_in_full(kind: Kind) -> None:
    """A score does not depend on what scores best: the nearest of unrelated texts is no match."""
    vectors = [unit_vector([float(k == n % 60) for k in range(64)]) for n in range(1_000)]
    found = filled(kind, vectors)
    assert max(found.scores(vectors[0], 1_000, 8).values()) == 1_000
    unrelated = unit_vector([float(k == 63) + 0.1 * float(k < 60) / 60 for k in range(64)])
    assert max(found.scores(unrelated, 1_000, 8).values(), default=0) < 100


@KINDS
def test_what_comes_later_does_not_count(kind: Kind) -> None:
    vectors = [unit_vector(each) for each in spread(600, 64)]
    assert 599 in filled(kind, vectors).scores(vectors[599], 600, 8)
    assert max(filled(kind, vectors).scores(vectors[599], 599, 8)) < 599


@KINDS
def test_a_newer_vector_takes_the_place_of_the_oldest(kind: Kind) -> None:
    vectors = [unit_vector(each) for each in spread(20, 8)]
    found = filled(kind, vectors, capacity=8)
    assert found.held == 8
    assert found.unknown(20) == []
    assert found.unknown(22) == [21, 20]
    assert min(found.scores(vectors[3], 20, 8), default=12) >= 12


@KINDS
def test_vectors_of_another_size_are_dropped_for_a_message_of_the_new_size(kind: Kind) -> None:
    found = filled(kind, [unit_vector(each) for each in spread(20, 8)])
    asked = unit_vector([1.0, *[0.0] * 8])
    assert found.scores(asked, 20, 8) == {}
    assert (found.held, len(found.unknown(20))) == (0, 20)
    found.put(19, asked)
    found.put(18, unit_vector([0.0, *[1.0] * 8]))
    assert found.scores(asked, 20, 8)[19] > 0


def test_among_many_texts_the_ones_that_mean_the_same_are_found() -> None:
    """More texts than are compared by their numbers: their sketches lead to the right ones."""
    others = spread(3_000, 64)
    asked = unit_vector([each + 0.1 * math.cos(k) for k, each in enumerate(others[1_234])])
    scores = filled(VectorMatrix, [unit_vector(each) for each in others]).scores(asked, 3_000, 8)
    assert max(scores, key=scores.__getitem__) == 1_234
    assert scores[1_234] > 900
    assert len(scores) <= 8


def test_what_all_texts_have_in_common_does_not_count() -> None:
    """A message with only the common part finds no text; one with a particular part finds the text that has it."""
    common = [[float(k == 0) * 4.0 for k in range(64)], [float(k == 1) * 4.0 for k in range(64)]]
    vectors = [unit_vector([a + b for a, b in zip(common[n % 2], own, strict=True)]) for n, own in enumerate(spread(1_000, 64))]
    found = filled(VectorMatrix, vectors)
    assert max(found.scores(unit_vector(common[0]), 1_000, 8).values(), default=0) < 500
    own = found.scores(unit_vector([a + b for a, b in zip(common[1], spread(501, 64)[500], strict=True)]), 1_000, 8)
    assert own[500] == 1_000  # although the common part of this text is another one


@given(NUMBERS, st.floats(0.01, 100))
def test_the_length_of_a_vector_does_not_count(numbers: list[float], factor: float) -> None:
    one, other = unit_vector(numbers), unit_vector([factor * each for each in numbers])
    assert one == pytest.approx(other, abs=1e-5)


def test_a_vector_is_checked() -> None:
    for wrong in ([], [math.nan], [math.inf, 1.0], [1e39], [1.0] * (MAX_DIMENSIONS + 1)):
        with pytest.raises((ValueError, OverflowError)):
            unit_vector(wrong)
    assert [*unit_vector([0.0, 0.0])] == [0.0, 0.0]
