"""The wrapping of text that comes in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from kitchener.cli.terminal.word_wrap import WordWrap

PIECES = st.lists(st.text(alphabet="ab \n\t界é`", max_size=12), max_size=20)


def wrapped(pieces: list[str], width: int, column: int = 0) -> str:
    lines = WordWrap(width, column)
    return "".join([lines.add(each) for each in pieces]) + lines.end()


@given(PIECES, st.integers(4, 20))
def test_how_the_text_is_cut_into_pieces_changes_nothing_that_is_shown(pieces: list[str], width: int) -> None:
    text = "".join(pieces)
    if all(len(word) <= width for word in text.split()):
        assert wrapped(pieces, width) == wrapped([text], width)


@given(PIECES, st.integers(4, 20))
def test_every_word_is_shown_once_and_in_order(pieces: list[str], width: int) -> None:
    assert wrapped(pieces, width).split() == "".join(pieces).split()


@given(st.lists(st.text(alphabet="ab 界", max_size=12), max_size=20), st.integers(4, 20), st.integers(0, 8))
def test_no_line_is_longer_than_the_width_but_for_a_word_that_is(pieces: list[str], width: int, column: int) -> None:
    first, *rest = wrapped(pieces, width, column).split("\n")
    assert len(first.split()) <= 1 or column + cell_len(first) <= width
    for line in rest:
        assert len(line.split()) == 1 or cell_len(line) <= width


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("one two three four", "one two\nthree four"),
        ("one\n\n    two", "one\n\n    two"),
        ("```\none two three four five\n```\none two three four", "```\none two three four five\n```\none two\nthree four"),
        ("see https://example.org/a/long/one now", "see\nhttps://example.org/a/long/one\nnow"),
    ],
)
def test_lines_break_at_blanks_and_code_and_addresses_stay_whole(text: str, expected: str) -> None:
    assert wrapped([text], 10) == expected
    assert wrapped([*text], 10).split() == expected.split()
