"""Token estimates from the length of a text."""

import pytest

from kitchener.records.tokens import estimate_tokens, tokens_of_bytes


@pytest.mark.parametrize(
    ("text", "by_bytes", "by_characters"),
    [
        ("", 0, 0),
        ("a", 1, 1),
        ("abc", 1, 1),
        ("abcd", 2, 1),
        ("abcde", 2, 2),
        ("ä", 1, 1),
        ("äöü", 2, 1),
        ("漢字", 2, 1),
        ("🍲🍲", 3, 1),
    ],
)
def test_an_estimate_is_rounded_up(text: str, by_bytes: int, by_characters: int) -> None:
    assert estimate_tokens(text, "utf8/3") == by_bytes
    assert estimate_tokens(text, "chars/4") == by_characters
    assert tokens_of_bytes(len(text.encode())) == by_bytes
