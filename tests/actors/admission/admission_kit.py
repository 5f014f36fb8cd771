"""A session's admission as the supervisor uses it, with an in-memory stand-in for the ledgers."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio

from kitchener.actors.admission.admission import Admission, TurnLimiter
from kitchener.actors.admission.content import ContentIntake
from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.sessions.active_text import ActiveText
from kitchener.actors.sessions.queue import SessionQueue
from kitchener.actors.sessions.session_state import SessionState
from kitchener.clock import SystemClock
from kitchener.config import HO2Config, LimitsConfig
from kitchener.ids import SessionId, SubjectId
from kitchener.ledger import LedgerEntry, Ledgers
from kitchener.records.ref import Ref
from kitchener.records.turn import TurnCall

FAR = 1e9
"""A deadline on the event loop's clock that does not come."""


class Written:
    """The part of an agent class's ledgers that admission needs, in memory: virtual time and file threads do not mix."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Mapping[str, Any]]] = []
        self.commits_asked = 0
        self.ho2m = self

    async def write(self, entry: LedgerEntry, *, expected_head: str | None = None) -> Ref:
        self.entries.append((entry.entry_type, entry.payload))
        return Ref("HO2M:ADMIN", f"E-2026-01-01-{len(self.entries):012d}", "sha256:0")

    def request_commit(self) -> None:
        self.commits_asked += 1

    def rejections(self) -> list[tuple[str, str]]:
        return [(p["user_message"], p["reason"]) for kind, p in self.entries if kind == "TURN_REJECTED"]


class Place:
    """A session with its admission, and messages that go through it."""

    def __init__(self, *, max_running: int = 100, limiter: TurnLimiter | None = None, **config: Any) -> None:
        settings = HO2Config(**{"admission_deadline_s": 30.0, **config})
        self.written = Written()
        self.limiter = limiter or TurnLimiter(max_running, 100)
        self.admission = Admission(settings, self.limiter, ActiveText(1_000_000), ContentIntake(settings, LimitsConfig()))
        self.session = SessionManager(
            SessionState(SessionId("SES-00000001"), SubjectId("ada")),
            agent_class="ADMIN",
            ledgers=cast(Ledgers, self.written),
            config=settings,
            clock=SystemClock(),
        )
        self.running: list[str] = []
        self.order: list[str] = []
        self.most_running = 0

    def is_free(self) -> bool:
        return self.session.queue is None and (self.limiter.running, self.limiter.waiting) == (0, 0)

    @asynccontextmanager
    async def turn(self, message: str, call: TurnCall, *, nested: bool) -> AsyncIterator[SessionQueue]:
        """What the supervisor does around a turn."""
        queue = await self.admission.enter(self.session, message, call, nested=nested)
        try:
            yield queue
        finally:
            self.admission.leave(self.session, nested=nested)


class Message:
    """A message on its way through a session's admission, as the supervisor sends it."""

    def __init__(self, text: str, *, nested: bool = False, key: str | None = None, deadline: float | None = None) -> None:
        self.text, self.nested = text, nested
        self.call = TurnCall(idempotency_key=key, deadline=deadline)
        self.caller = anyio.CancelScope()
        self.go = anyio.Event()
        self.outcome: object = "waiting"

    async def send(self, place: Place) -> None:
        with self.caller:
            try:
                async with place.turn(self.text, self.call, nested=self.nested) as queue:
                    self.outcome = "running"
                    place.running.append(self.text)
                    place.order.append(self.text)
                    place.most_running = max(place.most_running, len(place.running))
                    queue.scope = turn = anyio.CancelScope()
                    try:
                        with turn:
                            await self.go.wait()
                            self.outcome = "done"
                        if turn.cancelled_caught:
                            self.outcome = "replaced while running" if queue.is_replaced else "cut off"
                    finally:
                        place.running.remove(self.text)
            except Exception as error:  # noqa: BLE001  the outcome is looked at by the test
                self.outcome = error
        if self.caller.cancelled_caught:
            self.outcome = f"cancelled while {self.outcome}"
