"""Lists the sessions of an agent class from its ledger: whose they are, when they began, and whether they have ended."""

from collections import deque
from dataclasses import dataclass

from kitchener.ledger import ReadableLedger
from kitchener.records import events
from kitchener.records.entries import SessionStartPayload, payload_as


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session on record. `HO2Supervisor.session` has its turns."""

    session_id: str
    """`SES-` and hexadecimal digits."""
    subject_id: str
    """The subject of the conversation."""
    external_id: str | None
    """The caller's own name for the session; None: it has none."""
    started_at: str
    """When it began, ISO time."""
    last_at: str
    """When its newest entry was written, ISO time."""
    is_ended: bool
    """Whether it takes no more turns."""


async def list_sessions(ledger: ReadableLedger, *, subject_id: str | None, limit: int) -> list[SessionInfo]:
    """Returns the sessions that began last, newest first.

    Args:
        ledger: the supervisor's ledger
        subject_id: only this subject's sessions; None: everyone's
        limit: most sessions
    """
    starts = deque[tuple[str, str, SessionStartPayload]](maxlen=limit)
    async for entry in ledger.read(key="sessions", entry_type=events.SESSION_START):
        payload = payload_as(SessionStartPayload, events.read_payload(entry.entry_type, entry.payload))
        if subject_id is None or payload["subject_id"] == subject_id:
            starts.append((entry.entity_id, entry.timestamp, payload))
    ended = {entry.entity_id async for entry in ledger.read(key="ended")} if starts else set()
    found = list[SessionInfo]()
    for session_id, started_at, payload in reversed(starts):
        (newest,) = await ledger.last(session_id=session_id)
        external_id = payload.get("external_id")
        found.append(
            SessionInfo(session_id, payload["subject_id"], external_id, started_at, newest.timestamp, session_id in ended)
        )
    return found
