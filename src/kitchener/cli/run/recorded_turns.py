"""Finds the turns that earlier runs recorded for the messages of a conversation, by their idempotency keys.

A message has one turn. It has more if a turn ended with an error and `--retry-failed` sent the message again. This module
reads the sessions' ledger and runs nothing.
"""

from typing import NamedTuple

from kitchener.ledger import LedgerReader
from kitchener.records import events
from kitchener.records.entries import SealedText, TurnCompletedPayload, TurnStartedPayload, payload_as


class FinishedTurn(NamedTuple):
    """A turn that an earlier run finished."""

    message: SealedText
    output_schema: str | None
    """Hash of the schema of the object that the turn asked for; None: text."""
    completed: TurnCompletedPayload


class LastTurn(NamedTuple):
    """The last finished turn of a message."""

    number: int
    """How many turns the message had, this one included; 0: none."""
    turn: FinishedTurn | None
    """None: an earlier run finished none."""


class FinishedTurns:
    """The finished turns of one session.

    Args:
        by_key: the turns by their idempotency keys
    """

    def __init__(self, by_key: dict[str, FinishedTurn]) -> None:
        self._by_key = by_key

    def last(self, conversation: str, ordinal: int) -> LastTurn:
        """Returns the last turn of a message."""
        last = LastTurn(0, None)
        while (turn := self._by_key.get(turn_key(conversation, ordinal, last.number + 1))) is not None:
            last = LastTurn(last.number + 1, turn)
        return last


def turn_key(conversation: str, ordinal: int, number: int) -> str:
    """Returns the idempotency key of a message's turn.

    It depends on nothing else, so a run that was killed continues with the keys that it began with.

    Args:
        conversation: the name of the conversation
        ordinal: the message's number in it, from 1
        number: which turn of the message, from 1
    """
    return f"run:{conversation}:{ordinal}" if number == 1 else f"run:{conversation}:{ordinal}/{number}"


async def read_finished(ledger: LedgerReader | None, session_id: str) -> FinishedTurns:
    """Reads the finished turns of a session in one pass over its entries.

    Args:
        ledger: the sessions' ledger; None: there was none
        session_id: the session
    """
    started: dict[str, tuple[str, TurnStartedPayload]] = {}
    finished: dict[str, FinishedTurn] = {}
    if ledger is None:
        return FinishedTurns(finished)
    async for entry in ledger.read(session_id=session_id, entry_type=(events.TURN_STARTED, events.TURN_COMPLETED)):
        payload = events.read_payload(entry.entry_type, entry.payload)
        if entry.entry_type == events.TURN_STARTED:
            begun = payload_as(TurnStartedPayload, payload)
            if (key := begun.get("idempotency_key")) is not None:
                started[entry.entity_id] = key, begun
        elif entry.entity_id in started:
            key, begun = started.pop(entry.entity_id)
            completed = payload_as(TurnCompletedPayload, payload)
            finished[key] = FinishedTurn(begun["user_message"], begun.get("output_schema"), completed)
    return FinishedTurns(finished)
