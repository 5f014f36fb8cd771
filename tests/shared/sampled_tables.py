"""Tables of which `make test` runs some cases and `make soak` the rest.

A table is every value of one column with every value of the others. A sample has each value of each column at least once, so
that each kind is met; whether two kinds go together is what the soak finds out.
"""

from collections.abc import Collection
from itertools import product
from typing import Any

import pytest


def sampled(*columns: Collection[Any]) -> list[Any]:
    """The cases of a table for `pytest.mark.parametrize`: first the sample, then the others, which are marked `soak`.

    The sample takes as many cases as the longest column has values. In step with it go the other columns; one of an even
    number of values, at most half as long, goes at half the pace, because the cases of a table take turns at the event loops.
    """
    table = [[*column] for column in columns]
    longest = max(len(column) for column in table)

    def value_at(column: list[Any], at: int) -> Any:
        return column[(at // 2 if 2 * len(column) <= longest and len(column) % 2 == 0 else at) % len(column)]

    kept = [tuple(value_at(column, at) for column in table) for at in range(longest)]
    met = {_name_of(case) for case in kept}
    rest = [case for case in product(*table) if _name_of(case) not in met]
    return [
        *(pytest.param(*case, id=_name_of(case)) for case in kept),
        *(pytest.param(*case, id=_name_of(case), marks=pytest.mark.soak) for case in rest),
    ]


def _name_of(case: tuple[Any, ...]) -> str:
    return "-".join(map(_word_of, case))


def _word_of(value: Any) -> str:
    if isinstance(value, tuple) and all(isinstance(each, str) for each in value):
        return " ".join(value)
    return value if isinstance(value, str) else repr(value)
