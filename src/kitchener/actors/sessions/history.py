"""Reads all turns of a session from its ledger, from the first to the newest.

The session in memory keeps only its newest turns (`active_session.py`). Explained in `docs/sessions.md`.
"""

from collections.abc import AsyncIterator
from typing import Final, NamedTuple

from kitchener.ledger import ReadableLedger
from kitchener.records import events
from kitchener.records.entries import MessageImportedPayload, TurnCompletedPayload, TurnStartedPayload, payload_as
from kitchener.records.entries.common import text_of


class Exchange(NamedTuple):
    """A completed turn, or an imported message with the reply that follows it: what the user said, and the reply."""

    turn_id: str
    """`T-{session hex}-{n:06d}`"""
    started_at: str
    """When the turn began or the imported message was said, ISO time; "": not known."""
    user_message: str
    """The message, or a placeholder if its text was erased."""
    response: str
    """The reply, or a placeholder if its text was erased."""
    speaker: str | None = None
    """The name of the person who said the message; None: the subject."""
    replied_by: str | None = None
    """The name of the person or program that replied, in an imported conversation; None: the assistant."""
    is_imported: bool = False
    """Whether another program had the conversation. Then either text may be missing ("")."""
    is_resumed: bool = False
    """Whether the turn continued another one, after a person's answer about a tool or with outputs of the caller's tools. Its
    message then names the answer."""
    continues: str | None = None
    """The turn whose calls of the caller's tools this one continued; None: it continued none."""


async def read_exchanges(ledger: ReadableLedger, session_id: str) -> AsyncIterator[Exchange]:
    """Yields the completed turns of a session, oldest first. Keeps one of them in memory at a time.

    Args:
        ledger: the supervisor's ledger
        session_id: the session
    """
    started: TurnStartedPayload | None = None
    calling = set[str]()  # the turns that ended with calls of the caller's tools
    waiting: Exchange | None = None
    async for entry in ledger.read(session_id=session_id, entry_type=_SPOKEN):
        payload = events.read_payload(entry.entry_type, entry.payload)
        if entry.entry_type == events.MESSAGE_IMPORTED:
            told, waiting = _imported(payload_as(MessageImportedPayload, payload), waiting)
            for each in told:
                yield each
            continue
        if waiting is not None:
            yield waiting
            waiting = None
        if entry.entry_type == events.TURN_STARTED:
            started = payload_as(TurnStartedPayload, payload)
            continue
        completed = payload_as(TurnCompletedPayload, payload)
        if started is not None and started["turn_id"] == completed["turn_id"]:
            said, at = text_of(started["user_message"]), started["turn_ts"]
            speaker = started.get("speaker")
            named = None if speaker is None else text_of(speaker)
            replied, resumes = text_of(completed["response"]), started.get("resumes")
            before = resumes["turn_id"] if resumes is not None and resumes["turn_id"] in calling else None
            if "client_calls" in completed:
                calling.add(completed["turn_id"])
            is_resumed = resumes is not None
            yield Exchange(completed["turn_id"], at, said, replied, named, is_resumed=is_resumed, continues=before)
    if waiting is not None:
        yield waiting


def _imported(payload: MessageImportedPayload, waiting: Exchange | None) -> tuple[list[Exchange], Exchange | None]:
    """The exchanges that an imported message completes, and the one that waits for its reply."""
    said, speaker = text_of(payload["text"]), payload.get("speaker")
    named = None if speaker is None else text_of(speaker)
    if payload["role"] == "user":
        asked = Exchange(payload["turn_id"], payload.get("said_at", ""), said, "", named, is_imported=True)
        return ([] if waiting is None else [waiting]), asked
    if waiting is None:
        return [Exchange(payload["turn_id"], payload.get("said_at", ""), "", said, None, named, is_imported=True)], None
    return [waiting._replace(response=said, replied_by=named)], None


_SPOKEN: Final = (events.TURN_STARTED, events.TURN_COMPLETED, events.MESSAGE_IMPORTED)
