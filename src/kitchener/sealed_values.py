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


def sealing_key_id(value: object) -> str | None:
    """The id of the key that seals a field of a payload; None: the field is not sealed, or names no key."""
    sealed = value[MARK] if isinstance(value, Mapping) and is_sealed(value) else None
    kid = sealed.get("kid") if isinstance(sealed, Mapping) else None
    return kid if isinstance(kid, str) else None
