"""How many random examples a property test draws: few in `make test`, many in `make soak`, which runs each property test again.

Where a test says nothing, the profiles of `tests/conftest.py` hold. Where one example costs more or less than usual, the test
says `@settings(max_examples=examples(few=10, many=200))`. A test with a `@given` inside of it, and one that draws its examples
itself, is marked `hypothesis`, as the others are without a word, so that `make soak` runs it.
"""

from typing import Final

from hypothesis import settings

FEW: Final = "ci"
"""The profile of `make test`: the same examples each time, so that a failure repeats."""
MANY: Final = "soak"
"""The profile of `make soak` and of `HYPOTHESIS_PROFILE=soak`: other examples each time."""


def examples(*, few: int, many: int) -> int:
    """Return `many` where `make soak` asks for it, and else `few`."""
    return many if settings.get_current_profile_name() == MANY else few
