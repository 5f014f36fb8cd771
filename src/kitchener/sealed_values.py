"""The form of a sealed value in a payload: an object whose only key is `$sealed`.

`sealing` makes and opens such values; `records` only tells them from others, without the library that encrypts.
"""

from collections.abc import Mapping
from typing import Final

MARK: Final = "$sealed"
"""The only key of a sealed value's JSON object."""


def is_sealed(value: object) -> bool:
    """Whether a field of a payload is still encrypted, because its key was destroyed or no keyring is configured."""
    return isinstance(value, Mapping) and len(value) == 1 and MARK in value
