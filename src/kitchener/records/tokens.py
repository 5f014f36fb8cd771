"""Estimates the tokens of a text without a tokenizer, from its length. Pure."""

from collections.abc import Callable, Mapping
from typing import Final

Estimator = Callable[[str], int]
"""A text to its tokens. Two texts joined must count at most two tokens fewer than the two apart."""


BYTES_PER_TOKEN: Final = 3
"""Bytes of UTF-8 text that `tokens_of_bytes` takes for one token."""


def tokens_of_bytes(size: int) -> int:
    """Estimates the tokens of UTF-8 text of this many bytes: a third, rounded up."""
    return -(-size // BYTES_PER_TOKEN)


def _third_of_bytes(text: str) -> int:
    return -(-(len(text) if text.isascii() else len(text.encode())) // 3)


def _quarter_of_characters(text: str) -> int:
    return -(-len(text) // 4)


ESTIMATORS: Final[Mapping[str, Estimator]] = {"utf8/3": _third_of_bytes, "chars/4": _quarter_of_characters}
"""The built-in estimators by name: a third of the UTF-8 bytes, or a quarter of the characters, rounded up."""


def estimate_tokens(text: str, estimator: str) -> int:
    """Estimates the tokens of a text with a built-in estimator."""
    return ESTIMATORS[estimator](text)
