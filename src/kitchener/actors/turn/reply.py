"""The text that a turn ends with, and the replies for turns that could not do what was asked."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from kitchener.records.turn import TurnError


class Reply(NamedTuple):
    """The reply of a turn. A step that returns one instead of its own result ends the turn's chain of work orders."""

    response: str
    """What the user is told."""
    error: TurnError | None
    """Why the turn could not do what was asked; None if it could."""


APOLOGY: Final = "I could not produce a reply to this message. Nothing was lost; please try again."
APOLOGIES: Final[Mapping[str, str]] = {
    "PROVIDER": "I could not reach the model just now. Your message is recorded; please try again in a moment.",
    "TIMEOUT": "The model took too long to answer. Your message is recorded; please try again.",
    "BUDGET": "The token budget for this conversation does not cover another reply, so the model was not asked.",
}
"""Replies by the reason of a failure; `APOLOGY` for other reasons."""
