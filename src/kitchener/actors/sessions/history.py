"""Reads all turns of a session from its ledger, from the first to the newest.

The session in memory keeps only its newest turns (`directory.py`). Explained in `docs/sessions.md`.
"""

from collections.abc import AsyncIterator
from typing import NamedTuple

from kitchener.ledger import ReadableLedger
from kitchener.records import events
from kitchener.records.entries import TurnCompletedPayload, TurnStartedPayload, payload_as
from kitchener.records.entries.common import text_of


class Exchange(NamedTuple):
    """A completed turn: what the user said, and the reply."""

    turn_id: str
    """`T-{session hex}-{n:06d}`"""
    started_at: str
    """When the turn began, ISO time."""
    user_message: str
    """The message, or a placeholder if its text was erased."""
    response: str
    """The reply, or a placeholder if its text was erased."""
    speaker: str | None = None
    """The name of the person who said the message; None: the subject."""


async def read_exchanges(ledger: ReadableLedger, session_id: str) -> AsyncIterator[Exchange]:
    """Yields the completed turns of a session, oldest first, and keeps one of them in memory at a time.

    Args:
        ledger: the supervisor's ledger
        session_id: the session
    """
    started: TurnStartedPayload | None = None
    async for entry in ledger.read(session_id=session_id, entry_type=(events.TURN_STARTED, events.TURN_COMPLETED)):
        payload = events.read_payload(entry.entry_type, entry.payload)
        if entry.entry_type == events.TURN_STARTED:
            started = payload_as(TurnStartedPayload, payload)
            continue
        completed = payload_as(TurnCompletedPayload, payload)
        if started is not None and started["turn_id"] == completed["turn_id"]:
            said, at = text_of(started["user_message"]), started["turn_ts"]
            speaker = started.get("speaker")
            named = None if speaker is None else text_of(speaker)
            yield Exchange(completed["turn_id"], at, said, text_of(completed["response"]), named)
