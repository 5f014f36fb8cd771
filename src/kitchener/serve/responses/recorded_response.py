"""Reads responses from the ledger: every recorded turn is a response, whichever interface began it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Final, NamedTuple

from starlette.requests import Request

from kitchener.actors.sources import SourcesSealed, read_client_tools
from kitchener.errors import UnknownSession
from kitchener.ledger import ReadableLedger, StoredEntry
from kitchener.records import events
from kitchener.records.entries import ApprovalRequestedPayload, TurnAbortedPayload, TurnStartedPayload
from kitchener.records.index_keys import turn_index_key
from kitchener.records.prompt import ANY_TOOL_CHOICE, NO_TOOL_CHOICE
from kitchener.records.turn import TurnCompleted, TurnResult, TurnUpdate
from kitchener.serve.answer_models.response_answers import ResponseStatus
from kitchener.serve.chat_completions.chat_chunks import turn_fields
from kitchener.serve.native.session_access import FoundSession, SessionAccess
from kitchener.serve.responses.response_objects import (
    CompletedFields,
    ResponseHead,
    approval_item,
    call_item,
    function_tool,
    message_item,
    output_of,
    reply_status,
    response_id_of,
    turn_of_response,
    unknown_response,
)
from kitchener.serve.token_usage import TokenUsage

_STATUSES: Final[Mapping[str, ResponseStatus]] = {"cancelled": "cancelled", "shutdown": "cancelled"}
"""The status of a response by why its turn was aborted; any other reason: `failed`."""
STOPPED: Final = "the turn was stopped before it had a reply; it is recorded as aborted"


class RecordedResponse(NamedTuple):
    """A turn as its session has it on record."""

    head: ResponseHead
    result: TurnResult | None
    """None: it has not completed."""
    requests: list[dict[str, object]]
    """Items for the tool calls that it ended with: first the calls that wait for a person, then the client's."""
    aborted: str | None
    """Why it was aborted; None: it was not."""
    completed_at: int | None = None
    """When it was complete, seconds since 1970; None: it is not."""

    @property
    def status(self) -> ResponseStatus:
        """How far it is."""
        if self.result is not None:
            return reply_status(truncated=self.result.truncated)
        return "in_progress" if self.aborted is None else _STATUSES.get(self.aborted, "failed")

    def response(self) -> dict[str, object]:
        if self.result is None:
            error = self.aborted and (STOPPED if self.status == "cancelled" else f"the turn was aborted: {self.aborted}")
            return self.head.response(self.status, error=error)
        reply, told = self.result.response, self.completed_fields
        message = message_item(self.head.message_id, reply, told["status"])
        return self.head.response(output=output_of(message, reply, self.requests), **told)

    @property
    def completed_fields(self) -> CompletedFields:
        """The fields of a response with a reply besides its items."""
        assert self.result is not None
        return {
            "status": reply_status(truncated=self.result.truncated),
            "completed_at": self.completed_at,
            "used": TokenUsage.of_turn(self.result),
            "told": turn_fields(self.result),
        }


async def named_response(access: SessionAccess, request: Request, response_id: str) -> tuple[FoundSession, str]:
    """The session and the turn of a response. Raises RequestRefused if the caller has no such session."""
    session_id, turn_id = turn_of_response(response_id)
    try:
        return await access.named(request, session_id), turn_id
    except UnknownSession:
        raise unknown_response(response_id) from None


async def read_response(found: FoundSession, turn_id: str, servers: Mapping[str, object]) -> RecordedResponse:
    """The response that a turn is.

    Args:
        found: its session
        turn_id: the turn
        servers: the configured MCP servers by their label

    Raises:
        RequestRefused: the session has no such turn
    """
    ho2m = found.ledgers.ho2m
    head, start = await read_response_head(ho2m, turn_id, found.supervisor.agent_class)
    end = await _end_of(ho2m, start, turn_id)
    if end is None:
        return RecordedResponse(head, None, [], None)
    if end.entry_type == events.TURN_ABORTED:
        return RecordedResponse(head, None, [], events.read_as(TurnAbortedPayload, end)["reason"])
    result = TurnResult.from_payload(events.read_payload(end.entry_type, end.payload))
    requests = await read_pending_items(ho2m, result, servers)
    return RecordedResponse(head, result, requests, None, _seconds(end.timestamp))


async def completed_response(
    ho2m: ReadableLedger, head: ResponseHead, result: TurnResult, servers: Mapping[str, object]
) -> RecordedResponse:
    """The response of a turn that has just completed."""
    (start,) = await ho2m.last(key=turn_index_key(result.turn_id))
    end = await _end_of(ho2m, start, result.turn_id)
    assert end is not None
    return RecordedResponse(head, result, await read_pending_items(ho2m, result, servers), None, _seconds(end.timestamp))


async def _end_of(ho2m: ReadableLedger, start: StoredEntry, turn_id: str) -> StoredEntry | None:
    """The entry that ended a turn; None: it runs."""
    ends = ho2m.read(session_id=start.session_id, entity_id=turn_id, entry_type=_ENDS, after_seq=start.seq)
    return next(iter([each async for each in ends]), None)


def _seconds(timestamp: str) -> int:
    return int(datetime.fromisoformat(timestamp).timestamp())


_ENDS: Final = (events.TURN_COMPLETED, events.TURN_ABORTED)


async def read_response_head(ho2m: ReadableLedger, turn_id: str, agent_class: str) -> tuple[ResponseHead, StoredEntry]:
    """What the response of a turn begins with, and the entry that began the turn; raises as `read_response`."""
    starts = await ho2m.last(key=turn_index_key(turn_id))
    if not starts:
        raise unknown_response(response_id_of(turn_id))
    (start,) = starts
    began = events.read_as(TurnStartedPayload, start)
    head = ResponseHead(response_id_of(turn_id), _seconds(began["turn_ts"]), agent_class, began["session_id"])
    return head._replace(tools=await _read_tools(ho2m, began), tool_choice=_choice(began.get("tool_choice"))), start


async def _read_tools(ho2m: ReadableLedger, started: TurnStartedPayload) -> tuple[Mapping[str, object], ...]:
    """The functions of a turn that its client runs; (): there are none, or they can no longer be read."""
    tools_hash = started.get("client_tools")
    try:
        found = await read_client_tools(ho2m, tools_hash) if tools_hash is not None else None
    except SourcesSealed:
        found = None
    return tuple([function_tool(each) for each in found.tools]) if found is not None else ()


def _choice(choice: str | None) -> str | Mapping[str, object]:
    """The required tool call, in the form of the API."""
    if choice is None:
        return "auto"
    return choice if choice in (NO_TOOL_CHOICE, ANY_TOOL_CHOICE) else {"type": "function", "name": choice}


async def read_pending_items(
    ho2m: ReadableLedger, result: TurnResult, servers: Mapping[str, object]
) -> list[dict[str, object]]:
    """Items for the tool calls that a turn ended with, in the order of the result."""
    calls = list(map(call_item, result.client_calls))
    if not result.pending_approval:
        return calls
    found = dict[str, dict[str, object]]()
    async for entry in ho2m.read(session_id=result.session_id, entry_type=events.APPROVAL_REQUESTED):
        request = events.read_as(ApprovalRequestedPayload, entry)
        if request["approval_id"] in result.pending_approval:
            found[request["approval_id"]] = approval_item(request, servers)
    return [*(found[each] for each in result.pending_approval if each in found), *calls]


async def turn_of_update(ho2m: ReadableLedger, session_id: str, update: TurnUpdate, after_seq: int) -> str:
    """The turn that an update is of.

    Args:
        ho2m: the ledger of its supervisor
        session_id: its session
        update: its first update
        after_seq: the position of the ledger before the turn began
    """
    if isinstance(update, TurnCompleted):
        return update.result.turn_id
    planned = ho2m.read(
        session_id=session_id, entity_id=update.wo_id, entry_type=events.WO_PLANNED, after_seq=after_seq, limit=1
    )
    (found,) = [events.read_common(each)["turn_id"] async for each in planned]
    return found
