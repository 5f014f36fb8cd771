"""A value in an error is shortened with a sign, and stays within its bound (`kitchener.plain_names`)."""

from pathlib import Path

import pytest

from kitchener import CallerError, open_runtime
from kitchener.errors import TurnTimeout, WaitedTooLong
from kitchener.plain_names import quoted, shown_seconds


@pytest.mark.parametrize("value", ["x" * 78, "x" * 79, "x" * 10_000, ["é\n" * 40] * 40, {"a": {"b": "c" * 200}}, 10**200])
@pytest.mark.parametrize("chars", [40, 80])
def test_a_quoted_value_keeps_its_bound_and_shows_where_it_was_cut(value: object, chars: int) -> None:
    shown = quoted(value, chars)
    assert len(shown) <= chars
    assert shown == repr(value) or (len(shown) == chars and shown.endswith("…"))


@pytest.mark.parametrize(
    ("seconds", "told"),
    [(1.99946, "2 s"), (0.29951, "0.3 s"), (7.254, "7.25 s"), (99.96, "100 s"), (120.4, "120 s"), (1234.6, "1,235 s")],
)
def test_a_measured_duration_is_told_with_three_digits(seconds: float, told: str) -> None:
    """Regression: a turn with `deadline=2` passed "its deadline of 1.99946 s", and a wait "took more than 1.23e+03 s"."""
    assert shown_seconds(seconds) == told
    assert f" passed its deadline of {told} and was aborted" in str(TurnTimeout("T-0a1b2c3d-000001", seconds))
    assert str(WaitedTooLong("the wait", seconds)) == f"the wait took more than {told}; nothing was started, send again later"


def test_a_value_without_a_short_text_is_named_by_its_type() -> None:
    assert quoted(10**5_000) == "a value of type 'int'"


async def test_an_error_of_a_call_shows_that_a_long_value_was_cut(tmp_path: Path) -> None:
    async with open_runtime(root=tmp_path) as runtime:
        with pytest.raises(CallerError, match=r"^'SES-f{74}… is not a session id"):
            await runtime.supervisor().start_session(session_id=f"SES-{'f' * 100}")
