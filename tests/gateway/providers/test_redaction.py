"""Keys are taken out of what an endpoint says, also where one stands across the pieces of a stream."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.gateway.providers.redaction import MAX_SECRETS, RedactedPieces, Redaction

KEY = "abababab-c"


def redaction_of(*secrets: str) -> Redaction:
    redaction = Redaction()
    for secret in secrets:
        redaction.note(secret)
    return redaction


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"<{KEY}{KEY}>", "<******>"),
        ({KEY: [KEY, 1, None, {"a": f"x{KEY}"}]}, {"***": ["***", 1, None, {"a": "x***"}]}),
        (True, True),
        ("abababab-d", "abababab-d"),
    ],
)
def test_a_key_is_left_out_of_texts_and_values(value: Any, expected: Any) -> None:
    assert Redaction(KEY).value(value) == expected


def test_a_short_key_is_taken_for_a_placeholder() -> None:
    assert Redaction("EMPTY").text("EMPTY words") == "EMPTY words"
    assert Redaction(None).text(KEY) == KEY
    assert not Redaction(None).is_in(KEY)


def test_the_configured_key_is_remembered_whatever_comes_after_it() -> None:
    redaction = Redaction(KEY)
    others = [f"another-key-{number}" for number in range(10)]
    for other in others:
        redaction.note(other)
    shown = redaction.text(" ".join([KEY, *others]))
    assert shown.count("***") == MAX_SECRETS
    assert (KEY in shown, others[-1] in shown) == (False, False)


@given(
    st.lists(st.text("ab-c", min_size=8, max_size=12), max_size=3),
    st.lists(st.text("ab-c", max_size=5) | st.sampled_from([KEY, KEY[:4], KEY[4:]]), max_size=12),
)
def test_the_pieces_together_are_what_the_whole_would_be(more: list[str], pieces: list[str]) -> None:
    redaction = redaction_of(KEY, *more)
    in_pieces = RedactedPieces(redaction)
    shown = [in_pieces.take(piece) for piece in pieces] + [in_pieces.rest()]
    assert "".join(shown) == redaction.text("".join(pieces))
    assert not redaction.is_in("".join(shown)) or "*" in KEY


def test_a_piece_that_begins_no_key_is_shown_at_once() -> None:
    pieces = RedactedPieces(Redaction(KEY))
    assert [pieces.take(each) for each in ("hello", " ab", "x", "ab")] == ["hello", " ", "abx", ""]
    assert pieces.rest() == "ab"
