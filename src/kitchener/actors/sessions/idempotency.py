"""Gives a message that is sent again with its idempotency key the result of its one turn.

A duplicate of a running turn waits for that turn; a duplicate of a finished turn gets the result from the ledger. A key belongs
to its session, or to its subject if the call names no session. After an abort the turn runs again, unless a tool with effects
was running and its outcome is unknown. Explained in `docs/sessions.md`.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import anyio

from kitchener.actors.mailbox.calling_chain import calling_chain
from kitchener.errors import IdempotencyConflict, OutcomeUnknown, Overloaded, ReentrantTurn, SubjectErased
from kitchener.ledger import LedgerGroup, StoredEntry
from kitchener.records import events
from kitchener.records.turn import TurnResult

Scope = tuple[str, str]
"""`("session", id)` or `("subject", id)`."""
OnSession = Callable[[str], None]
"""Called with the id of the session that runs the key's turn."""


class _Running:
    __slots__ = ("done", "message", "result", "session_id")

    def __init__(self, message: str) -> None:
        self.message = message
        self.session_id: str | None = None
        self.done = anyio.Event()
        self.result: TurnResult | None = None

    def note_session(self, session_id: str) -> None:
        """Stores the id of the session that runs the turn."""
        self.session_id = session_id


class IdempotencyKeys:
    """Looks up the idempotency keys of one agent class, among the running turns of this process and in the ledger.

    Args:
        ledgers: the ledgers with the finished turns
    """

    def __init__(self, ledgers: LedgerGroup) -> None:
        self._ledgers = ledgers
        self._running: dict[tuple[Scope, str], _Running] = {}

    async def answer(
        self,
        key: str,
        message: str,
        *,
        scope: Scope,
        deadline: float,
        run: Callable[[OnSession], Awaitable[TurnResult]],
    ) -> TurnResult:
        """Returns the key's one result: from its running turn, from the ledger, or from a new turn.

        Args:
            key: the idempotency key
            message: the user's message
            scope: the session or the subject that the key belongs to
            deadline: on the event loop's clock, seconds; limits the wait for a running turn
            run: runs a new turn

        Raises:
            IdempotencyConflict: the key was used with another message
            ReentrantTurn: the key's running turn waits for the caller
            OutcomeUnknown: the key's turn was aborted while a tool with effects ran
            SubjectErased: the key's turn was erased with its subject
            Overloaded: the running turn did not finish before the deadline
        """
        place = (scope, key)
        while (running := self._running.get(place)) is not None:
            if running.message != message:
                raise IdempotencyConflict(key, "in progress")
            if running.session_id in calling_chain():
                raise ReentrantTurn(f"the turn of idempotency key {key!r} waits for the tool that sends its message again")
            with anyio.CancelScope(deadline=deadline):
                await running.done.wait()
            if running.result is not None:
                return running.result
            if not running.done.is_set():
                raise Overloaded(f"idempotency key {key!r}: its running turn", 1)
        mine = self._running[place] = _Running(message)
        try:
            mine.result = await self._finished(key, message, scope) or await run(mine.note_session)
            return mine.result
        finally:
            del self._running[place]
            mine.done.set()

    async def _finished(self, key: str, message: str, scope: Scope) -> TurnResult | None:
        """Returns the recorded result, or None if the key may run a new turn."""
        for start in reversed(await self._starts(key, scope)):
            turn_id = start.payload["turn_id"]
            said = start.payload["user_message"]
            if not isinstance(said, str):  # a new turn would restore the erased message
                raise SubjectErased(str(start.payload["subject_id"]), str(start.payload["session_id"]))
            if said != message:
                raise IdempotencyConflict(key, turn_id)
            end = await self._end(start)
            if end is not None and end.entry_type == events.TURN_COMPLETED:
                return TurnResult.from_payload(events.read_payload(end.entry_type, end.payload))
            await self._check_effects(key, start.payload)
        return None

    async def _starts(self, key: str, scope: Scope) -> list[StoredEntry]:
        return await self._ledgers.ho2m.last(key=events.idempotency_index_key(*scope, key), limit=_MAX_STARTS)

    async def _end(self, start: StoredEntry) -> StoredEntry | None:
        ends = self._ledgers.ho2m.read(
            session_id=start.payload["session_id"],
            entity_id=start.payload["turn_id"],
            entry_type=(events.TURN_COMPLETED, events.TURN_ABORTED),
            after_seq=start.seq,
            limit=1,
        )
        async for entry in ends:
            return entry
        return None

    async def _check_effects(self, key: str, start: Mapping[str, Any]) -> None:
        """Raises OutcomeUnknown if a tool with effects was started in the aborted turn and has no recorded result."""
        open_tools: dict[tuple[str, int], str] = {}
        async for entry in self._ledgers.ho1m.read(
            session_id=start["session_id"], entry_type=(events.TOOL_STARTED, events.TOOL_CALL)
        ):
            payload = entry.payload
            if payload["turn_id"] != start["turn_id"]:
                continue
            if entry.entry_type == events.TOOL_STARTED and not payload.get("read_only", False):
                open_tools[entry.entity_id, payload["call"]] = payload["tool_id"]
            elif entry.entry_type == events.TOOL_CALL:
                open_tools.pop((entry.entity_id, payload["call"]), None)
        for tool_id in open_tools.values():
            raise OutcomeUnknown(key, start["turn_id"], tool_id)


_MAX_STARTS = 16
"""Turns of one key that are checked, newest first. All but the newest were aborted."""
