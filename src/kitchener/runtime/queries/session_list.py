"""Lists the sessions of an agent class from its ledger: subject, times, number of turns, and whether each has ended."""

from collections import deque
from dataclasses import dataclass

from kitchener.ledger import ReadableLedger, StoredEntry
from kitchener.records import events
from kitchener.records.entries import MessageImportedPayload, SessionStartPayload, payload_as
from kitchener.records.index_keys import SESSIONS_KEY


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
    """When its record began, ISO time; of a conversation of another program, when it was imported."""
    last_at: str
    """When something last happened in it, ISO time: of an imported session or conversation, when it took place, if that is
    known. So it may be before `started_at`."""
    turns: int
    """Number of turns that it began, and of imported messages."""
    is_ended: bool
    """Whether it takes no more turns."""


async def list_sessions(ledger: ReadableLedger, *, subject_id: str | None, limit: int) -> list[SessionInfo]:
    """Returns the sessions that began most recently, newest first.

    Args:
        ledger: the supervisor's ledger
        subject_id: only this subject's sessions; None: all subjects'
        limit: most sessions
    """
    starts = deque[StoredEntry](maxlen=limit)
    async for entry in ledger.read(key=SESSIONS_KEY, entry_type=events.SESSION_START):
        if subject_id in (None, payload_as(SessionStartPayload, entry.payload)["subject_id"]):
            starts.append(entry)
    ended = {entry.entity_id async for entry in ledger.read(key="ended")} if starts else set()
    return [await session_info(ledger, start, is_ended=start.entity_id in ended) for start in reversed(starts)]


async def session_info(ledger: ReadableLedger, start: StoredEntry, *, is_ended: bool) -> SessionInfo:
    """The summary of the session that an entry started."""
    payload = events.read_as(SessionStartPayload, start)
    newest = await _newest(ledger, start)
    return SessionInfo(
        start.entity_id,
        payload["subject_id"],
        payload.get("external_id"),
        start.timestamp,
        happened_at(newest),
        await _count_turns(ledger, newest),
        is_ended,
    )


def happened_at(entry: StoredEntry) -> str:
    """When what an entry tells happened, ISO time: an imported message may be older than its entry."""
    if entry.entry_type != events.MESSAGE_IMPORTED:
        return entry.timestamp
    return events.read_as(MessageImportedPayload, entry).get("said_at", entry.timestamp)


async def _newest(ledger: ReadableLedger, start: StoredEntry) -> StoredEntry:
    """The newest entry of a session, without those that record its imports from other roots."""
    limit = 1
    while True:
        found = await ledger.last(session_id=start.entity_id, limit=limit)
        newest = next((each for each in reversed(found) if each.entry_type != events.SESSION_IMPORTED), None)
        if newest is not None or len(found) < limit:
            return newest or start
        limit *= 8


async def _count_turns(ledger: ReadableLedger, newest: StoredEntry) -> int:
    """The number of turns that a session has begun, from its newest entry if possible."""
    if newest.entry_type == events.SESSION_START:
        return 0
    payload = events.read_common(newest)
    if (turn_id := payload.get("turn_id")) is not None:
        return int(turn_id.rpartition("-")[2])
    started = ledger.read(session_id=payload["session_id"], entry_type=events.TURN_STARTED)
    return len([entry async for entry in started])
