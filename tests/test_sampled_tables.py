"""What a sample of a table keeps for `make test`, and that `make soak` has the rest."""

from itertools import product

import pytest
from _pytest.mark import ParameterSet

from tests.shared.sampled_tables import sampled

KINDS, WAYS, LETTERS = tuple(range(7)), (False, True), ("a", "b", "c")


def kept_and_left(cases: list[ParameterSet]) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    kept, left = list[tuple[object, ...]](), list[tuple[object, ...]]()
    for each in cases:
        (left if [mark.name for mark in each.marks] == ["soak"] else kept).append(tuple(each.values))
    return kept, left


def test_a_sample_meets_each_value_and_the_soak_every_other_case() -> None:
    kept, left = kept_and_left(sampled(WAYS, KINDS, LETTERS))
    assert len(kept) == len(KINDS)
    for at, column in enumerate((WAYS, KINDS, LETTERS)):
        assert {case[at] for case in kept} == {*column}
    assert sorted([*kept, *left]) == sorted(product(WAYS, KINDS, LETTERS))


@pytest.mark.parametrize("width", range(1, 9))
def test_each_value_is_met_however_long_its_column_is(width: int) -> None:
    kept, _ = kept_and_left(sampled(range(8), range(width)))
    assert {case[1] for case in kept} == {*range(width)}


@pytest.mark.parametrize("width", [2, 4])
def test_a_column_of_an_even_number_does_not_go_in_step_with_the_event_loops(width: int) -> None:
    """Which take turns: of the cases of one loop, half have one value and half another."""
    kept, _ = kept_and_left(sampled(range(8), range(width)))
    for loop in (0, 1):
        assert {case[1] for case in kept[loop::2]} == {*range(width)}
