"""Runs one turn for all messages with one idempotency key, and returns its result to each.

A duplicate of a running turn waits for that turn; a duplicate of a finished turn gets the result from the ledger. A key belongs
to its session, or to its subject if the call names no session. After an abort the turn runs again, unless a tool with effects
was running and its outcome is unknown. Explained in `docs/sessions.md`.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import anyio

from kitchener.actors.admission.content import same_parts
from kitchener.clock import loop_clock
from kitchener.errors import CallerError, IdempotencyConflict, OutcomeUnknown, ReentrantTurn, SubjectErased, WaitedTooLong
from kitchener.lanes.calling_chain import calling_chain
from kitchener.ledger import LedgerGroup, StoredEntry
from kitchener.records import events
from kitchener.records.entries import (
    IdempotencyScope,
    ToolCallPayload,
    ToolStartedPayload,
    TurnStartedPayload,
    opened,
    payload_as,
)
from kitchener.records.index_keys import idempotency_index_key
from kitchener.records.turn import TurnCall, TurnResult

APPROVAL_KEY: Final = "approval:"
"""Prefix of the idempotency key of a turn that continues after an approval. No caller may use such a key."""
_MAX_STARTS: Final = 16
"""Most turns of one key that are checked, the newest first. All but the newest were aborted."""


class KeyOwner(NamedTuple):
    """The owner of an idempotency key. Equal keys of different owners are different keys."""

    kind: IdempotencyScope
    """Recorded as `idempotency_scope`."""
    owner_id: str
    """The session id or the subject id."""


class KeyedMessage(NamedTuple):
    """The fields that must be equal in all calls of one key."""

    text: str
    speaker: str | None
    parts: Sequence[object]
    """The message's images and files, as they were read."""
    output: str | None
    """Hash of the schema of the object that the message asks for; None: it asks for text."""
    client_tools: str | None
    """Hash of the definitions of the caller's tools; None: there are none."""
    options: tuple[str | None, tuple[str, ...], bool]
    """What the model must call first, the criteria that the reply must meet, and whether the turn uses long-term memory."""


class KeyUse:
    """The use of a key by one message, while its turn runs."""

    __slots__ = ("done", "message", "result", "session_id")

    def __init__(self, message: KeyedMessage) -> None:
        self.message = message
        self.session_id: str | None = None
        """The session that runs the key's turn; None before it is known."""
        self.result: TurnResult | None = None
        """The key's one result; None: the turn has not completed."""
        self.done = anyio.Event()


class IdempotencyKeys:
    """Looks up the idempotency keys of one agent class, among the running turns of this process and in the ledger.

    Args:
        agent_class: the agent class
        ledgers: the ledgers with the finished turns
    """

    def __init__(self, agent_class: str, ledgers: LedgerGroup) -> None:
        self._agent_class, self._ledgers = agent_class, ledgers
        self._now = loop_clock()
        self._running: dict[tuple[KeyOwner, str], KeyUse] = {}

    @asynccontextmanager
    async def use(self, key: str, text: str, *, deadline: float, call: TurnCall) -> AsyncIterator[KeyUse]:
        """Holds a key. If its `result` is None, the block runs the turn; it sets `session_id` and then `result`.

        Otherwise the result comes from the key's running turn or from the ledger, and the block only returns it.

        Args:
            key: the idempotency key
            text: the user's message
            deadline: on the event loop's clock, seconds; limits the wait for a running turn
            call: the message's options, with its images and files as they were read. All but the deadline must be equal

        Raises:
            CallerError: the message names neither a session nor a subject
            IdempotencyConflict: the key was used with another message, or with other options
            ReentrantTurn: the key's running turn waits for the caller
            OutcomeUnknown: the key's turn was aborted while a tool with effects ran
            SubjectErased: the key's turn was erased with its subject
            WaitedTooLong: the running turn did not finish before the deadline
        """
        owner, output = _owner_of(call), call.output.hash if call.output is not None else None
        client_tools = call.client_tools.hash if call.client_tools is not None else None
        options, began = (call.tool_choice, call.acceptance, call.memory), self._now()
        message = KeyedMessage(text, call.speaker, call.parts, output, client_tools, options)
        while (running := self._running.get((owner, key))) is not None:
            if running.message != message:
                raise IdempotencyConflict(key, "in progress")
            if running.session_id in calling_chain():
                raise ReentrantTurn(f"the turn of idempotency key {key!r} waits for the tool that sends its message again")
            with anyio.CancelScope(deadline=deadline):
                await running.done.wait()
            if running.result is not None:
                yield running
                return
            if not running.done.is_set():
                raise WaitedTooLong(f"the running turn of idempotency key {key!r}", deadline - began)
        mine = self._running[owner, key] = KeyUse(message)
        try:
            mine.result = await self._finished(key, message, owner)
            yield mine
        finally:
            del self._running[owner, key]
            mine.done.set()

    async def _finished(self, key: str, message: KeyedMessage, owner: KeyOwner) -> TurnResult | None:
        """Returns the recorded result, or None if the key may run a new turn."""
        for start in reversed(await self._starts(key, owner)):
            started, parts = payload_as(TurnStartedPayload, start.payload), message.parts
            said = started["user_message"]
            if not isinstance(said, str):  # a new turn would restore the erased message
                raise SubjectErased(started["subject_id"], started["session_id"])
            recorded = started.get("parts", [])
            brought = (started.get("output_schema"), started.get("client_tools"))
            options = (started.get("tool_choice"), tuple(opened(started.get("acceptance", ())) or ()), started["memory"])
            then = KeyedMessage(said, opened(started.get("speaker")), recorded, *brought, options)
            is_same = then._replace(parts=parts) == message and len(recorded) == len(parts)
            if is_same and parts:
                is_same = await same_parts(self._ledgers.ho2m, started["subject_id"], parts, recorded)
            if not is_same:
                raise IdempotencyConflict(key, started["turn_id"])
            end = await self._end(start)
            if end is not None and end.entry_type == events.TURN_COMPLETED:
                return TurnResult.from_payload(events.read_payload(end.entry_type, end.payload), self._agent_class)
            await self._check_effects(key, start)
        return None

    async def _starts(self, key: str, owner: KeyOwner) -> list[StoredEntry]:
        return await self._ledgers.ho2m.last(key=idempotency_index_key(*owner, key), limit=_MAX_STARTS)

    async def _end(self, start: StoredEntry) -> StoredEntry | None:
        ends = self._ledgers.ho2m.read(
            session_id=start.session_id,
            entity_id=start.entity_id,
            entry_type=(events.TURN_COMPLETED, events.TURN_ABORTED),
            after_seq=start.seq,
            limit=1,
        )
        async for entry in ends:
            return entry
        return None

    async def _check_effects(self, key: str, start: StoredEntry) -> None:
        """Raises OutcomeUnknown if a tool with effects was started in the aborted turn and has no recorded result."""
        turn_id = start.entity_id
        open_tools: dict[tuple[str, int], str] = {}
        async for entry in self._ledgers.ho1m.read(
            session_id=start.session_id, entry_type=(events.TOOL_STARTED, events.TOOL_CALL)
        ):
            if events.read_common(entry)["turn_id"] != turn_id:
                continue
            if entry.entry_type == events.TOOL_CALL:
                open_tools.pop((entry.entity_id, payload_as(ToolCallPayload, entry.payload)["call"]), None)
                continue
            started = payload_as(ToolStartedPayload, entry.payload)
            if not started.get("read_only", False):
                open_tools[entry.entity_id, started["call"]] = started["tool_id"]
        for tool_id in open_tools.values():
            raise OutcomeUnknown(key, turn_id, tool_id)


def _owner_of(call: TurnCall) -> KeyOwner:
    if call.session_id is not None:
        return KeyOwner("session", call.session_id)
    if call.subject_id is None:
        raise CallerError("an idempotency_key needs a session_id or a subject_id: it belongs to one of them")
    return KeyOwner("subject", call.subject_id)
