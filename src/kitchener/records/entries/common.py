"""What the payloads of all entries have in common, and how a stored payload is read as the shape of its type."""

from collections.abc import Mapping
from typing import Final, TypedDict, TypeVar, cast

from kitchener.sealed_values import is_sealed

Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]
"""Any JSON value."""

Payload = dict[str, object]
"""A payload as a ledger gives it back, whatever the type of its entry; `payload_as` gives it the shape of its type."""

Sealed = TypedDict("Sealed", {"$sealed": object})
"""Replaces a sealed value whose key is destroyed or missing."""

SealedText = str | Sealed
"""Text that is stored encrypted where a keyring is configured; `text_of` reads it."""

ERASED: Final = "[erased]"
"""Stands for text whose key is gone."""


class CommonPayload(TypedDict, total=False):
    """Fields that entries of all types may carry. The writer of a ledger adds them to what is special to a type."""

    v: int
    """Version of the payload's shape; absent reads as 1."""
    session_id: str
    subject_id: str
    turn_id: str
    """The turn that wrote it; a consolidation or an operator belongs to none."""


P = TypeVar("P", bound=CommonPayload)
T = TypeVar("T")


def payload_as(shape: type[P], payload: Mapping[str, object]) -> P:
    """A stored payload, typed as the shape of its entry type. Nothing is converted and nothing is checked.

    Args:
        shape: the `TypedDict` of the entry's type, such as `TurnStartedPayload`
        payload: as `read_payload` or an entry of a ledger gives it. What another program wrote may lack fields.
    """
    return cast("P", payload)


def text_of(value: object) -> str:
    """The text of a field; `[erased]` where its key is gone, "" where it holds no text."""
    if isinstance(value, str):
        return value
    return ERASED if is_sealed(value) else ""


def opened(value: T | Sealed) -> T | None:
    """A value that may be sealed; None where its key is gone."""
    return None if is_sealed(value) else cast("T", value)
