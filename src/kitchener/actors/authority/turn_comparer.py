"""Defines what compares a message with earlier turns by meaning. `actors/similarity` and a replay implement it."""

from typing import Protocol

from kitchener.actors.authority.ranking import TurnWords
from kitchener.records.embedding import Similarity


class TurnComparer(Protocol):
    """Compares a message with earlier turns: with vectors, or in a replay from the record."""

    async def compare(self, subject_id: str, message: str, words: TurnWords, among: int) -> Similarity | None:
        """Returns how similar the first `among` items of `words` are; None: there is nothing to compare."""
        ...
