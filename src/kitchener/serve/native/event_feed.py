"""Streams what happens in a session as events. A client resumes the stream by the number of its last event.

The numbers are the positions of the entries in the supervisor's ledger. An event is sent once its entry is durable. Explained
in `docs/server.md`.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Final

import anyio
from starlette.requests import Request
from starlette.types import ASGIApp

from kitchener.config import ServeConfig
from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.records.entries import opened
from kitchener.serve.access.allowances import RequestPlace
from kitchener.serve.access.counted_work import READ_EVENTS
from kitchener.serve.access.guard import Draining, place_of
from kitchener.serve.event_stream import EventStream, event
from kitchener.serve.native.session_access import FoundSession, SessionAccess
from kitchener.serve.native.session_calls import flag, number

STREAMED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    events.SESSION_START: ("session_started", ("agent_class", "external_id")),
    events.SESSION_END: ("session_ended", ("reason",)),
    events.MESSAGE_IMPORTED: ("message_imported", ("turn_id", "role", "text", "speaker", "said_at")),
    events.TURN_STARTED: ("turn_started", ("turn_id", "user_message", "speaker", "turn_ts", "resumes")),
    events.TURN_COMPLETED: (
        "turn_completed",
        ("turn_id", "response", "degraded", "error", "pending_approval", "quality_gate_passed", "cost_summary", "intent_id"),
    ),
    events.TURN_ABORTED: ("turn_aborted", ("turn_id", "reason")),
    events.WO_PLANNED: ("work_order_planned", ("turn_id", "wo_id", "wo_type")),
    events.WO_COMPLETED: ("work_order_completed", ("turn_id", "wo_id")),
    events.WO_FAILED: ("work_order_failed", ("turn_id", "wo_id")),
    events.WO_DEFERRED: ("work_order_deferred", ("turn_id", "wo_id")),
    events.WO_ABANDONED: ("work_order_abandoned", ("turn_id", "wo_id", "reason")),
    events.APPROVAL_REQUESTED: (
        "approval_requested",
        ("turn_id", "approval_id", "wo_id", "tool", "arguments", "reason", "message", "response_schema", "expires_at"),
    ),
    events.APPROVAL_RESOLVED: ("approval_resolved", ("approval_id", "wo_id", "decision", "scope", "message", "answered_by")),
    events.INTENT_DECLARED: ("intent_declared", ("intent_id", "objective", "scope", "parent_intent_id")),
    events.INTENT_CLOSED: ("intent_closed", ("intent_id", "outcome")),
    events.INTENT_ABANDONED: ("intent_abandoned", ("intent_id", "reason")),
    events.INTENT_REOPENED: ("intent_reopened", ("intent_id", "reason")),
    events.INTENT_SUPERSEDED: ("intent_superseded", ("intent_id", "superseded_by")),
    events.INTENT_DEFERRED: ("intent_deferred", ("intent_id", "reason")),
    events.SUBJECT_ERASED: ("subject_erased", ()),
}
"""The name and the fields of an event by the type of its entry. Entries of other types are for operators."""
LAST_NUMBER: Final = 2**53
"""Highest number of an event."""
_MOST_JOINED: Final = 64
"""Events that are sent as one piece."""


class _Written(list[StoredEntry]):
    """The entries that were written, and whether there is something to do."""

    def __init__(self) -> None:
        super().__init__()
        self.news = anyio.Event()

    def append(self, entry: StoredEntry) -> None:
        super().append(entry)
        self.news.set()


class EventFeed:
    """Answers with the events of sessions.

    Args:
        access: finds sessions
        config: the settings of the server
        draining: whether the server shuts down, which ends every stream
    """

    def __init__(self, access: SessionAccess, config: ServeConfig, draining: Draining) -> None:
        self._access, self._config, self._draining = access, config, draining

    async def follow(self, request: Request) -> ASGIApp:
        """The events of a session after a number, and later ones as they are written."""
        found = await self._access.of(request)
        last = request.headers.get("last-event-id", "")
        default = int(last) if last.isascii() and last.isdecimal() and len(last) <= len(str(LAST_NUMBER)) else 0
        after = number(request, "after", default, most=LAST_NUMBER)
        follows = flag(request, "follow", default=True)
        return EventStream(self._events(place_of(request), found, after, follows=follows), self._config, lambda: None)

    async def _events(
        self, place: RequestPlace, found: FoundSession, after: int, *, follows: bool
    ) -> AsyncGenerator[bytes, None]:
        ho2m, session_id = self._access.runtime.ledgers(found.supervisor.agent_class).ho2m, found.session.session_id
        written, count = _Written(), 0
        with ho2m.watch(session_id, written), self._draining.telling(lambda: written.news.set()):
            while True:
                written.clear()
                written.news = anyio.Event()
                position = ho2m.position
                await found.ledgers.commit()  # a crash must not take back what a client was told
                told = list[bytes]()
                async for entry in ho2m.read(session_id=session_id, after_seq=after, up_to_seq=position):
                    after = entry.seq
                    if entry.entry_type in STREAMED:
                        told.append(event_of(entry))
                        count += 1
                    if count == READ_EVENTS:
                        place.book_more(1)
                        count = 0
                    if len(told) >= _MOST_JOINED:
                        yield b"".join(told)
                        told.clear()
                if told:
                    yield b"".join(told)
                if not follows or self._draining.has_begun:
                    return
                await written.news.wait()
                # What a turn writes comes in bursts, and each commit is a write to the disk.
                await anyio.sleep(self._config.text_interval_s)


def event_of(entry: StoredEntry) -> bytes:
    """The event that tells of an entry."""
    name, fields = STREAMED[entry.entry_type]
    payload = events.read_payload(entry.entry_type, entry.payload)
    told: dict[str, object] = {field: opened(payload[field]) for field in fields if field in payload}
    return event({"at": entry.timestamp, **told}, name=name, number=entry.seq)
