"""Lists the input of a response: the messages, replies and answers of its session up to its own message.

Explained in `docs/server.md`.
"""

from collections.abc import Mapping
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from kitchener.ledger import ReadableLedger, StoredEntry
from kitchener.records import events
from kitchener.records.entries import (
    CLIENT_DECISIONS,
    ApprovalRequestedPayload,
    ApprovalResolvedPayload,
    MessageImportedPayload,
    PartAttachedPayload,
    TurnCompletedPayload,
    TurnStartedPayload,
    opened,
    payload_as,
    text_of,
)
from kitchener.records.tools.client_tools import ClientCall
from kitchener.serve.access.counted_work import READ_TURNS, length_of
from kitchener.serve.access.guard import place_of
from kitchener.serve.native.session_access import SessionAccess
from kitchener.serve.native.session_calls import number
from kitchener.serve.problems import RequestRefused, json_response
from kitchener.serve.responses.recorded_response import named_response, read_response_head
from kitchener.serve.responses.response_objects import (
    answer_item,
    approval_item,
    call_item,
    input_file,
    input_message,
    message_item,
    output_item,
)

MAX_LISTED: Final = 100
"""Most items of a page."""
_DEFAULT: Final = 20
_READ: Final = (
    events.MESSAGE_IMPORTED,
    events.TURN_STARTED,
    events.PART_ATTACHED,
    events.TURN_COMPLETED,
    events.TURN_ABORTED,
    events.APPROVAL_REQUESTED,
    events.APPROVAL_RESOLVED,
)


class InputItems:
    """Answers requests for the items that a response was made from.

    Args:
        access: finds sessions
    """

    def __init__(self, access: SessionAccess) -> None:
        self._access, self._servers = access, access.runtime.config.mcp

    async def list_all(self, request: Request) -> Response:
        """A page of the items, newest first unless `order` says otherwise."""
        limit, order = number(request, "limit", _DEFAULT, most=MAX_LISTED, least=1), request.query_params.get("order", "desc")
        if order not in ("asc", "desc"):
            raise RequestRefused(400, "invalid_request", "order: expected asc or desc")
        found, turn_id = await named_response(self._access, request, request.path_params["response_id"])
        await read_response_head(found.ledgers.ho2m, turn_id, found.supervisor.agent_class)
        place_of(request).count_more(length_of(found.session) // READ_TURNS)
        items = await _read(found.ledgers.ho2m, found.session.session_id, turn_id, self._servers)
        if order == "desc":
            items.reverse()
        after = request.query_params.get("after")
        if after is not None:
            at = next((at for at, each in enumerate(items, 1) if each["id"] == after), None)
            if at is None:
                raise RequestRefused(400, "invalid_request", "after: the response has no item of this id")
            items = items[at:]
        page = items[:limit]
        first, last = (page[0]["id"], page[-1]["id"]) if page else (None, None)
        listed = {"object": "list", "data": page, "first_id": first, "last_id": last, "has_more": len(items) > len(page)}
        return json_response(listed)


async def _read(ho2m: ReadableLedger, session_id: str, turn_id: str, servers: Mapping[str, object]) -> list[dict[str, object]]:
    """The items of a session until the message of a turn with its files, oldest first, without turns that were aborted."""
    found, has_begun = _Items(servers), False
    async for entry in ho2m.read(session_id=session_id, entry_type=_READ):
        is_own = events.read_common(entry).get("turn_id") == turn_id
        if has_begun and not (is_own and entry.entry_type == events.PART_ATTACHED):
            continue
        has_begun = has_begun or (is_own and entry.entry_type == events.TURN_STARTED)
        found.add(entry)
    return [each for items in found.of_turns.values() for each in items]


class _Items:
    """The items of a session by their turn, oldest first.

    Args:
        servers: the configured MCP servers by their label
    """

    def __init__(self, servers: Mapping[str, object]) -> None:
        self._servers = servers
        self._calls = set[str]()
        """The calls of functions that the client runs."""
        self.of_turns: dict[str, list[dict[str, object]]] = {}

    def add(self, entry: StoredEntry) -> None:
        """Adds the item of an entry."""
        payload = events.read_payload(entry.entry_type, entry.payload)
        turn_id = events.read_common(entry).get("turn_id", "")
        if entry.entry_type == events.TURN_ABORTED:
            self.of_turns.pop(turn_id, None)
            return
        items = self.of_turns.setdefault(turn_id, [])
        if entry.entry_type == events.PART_ATTACHED:
            part = payload_as(PartAttachedPayload, payload)
            content = items[0]["content"]
            assert isinstance(content, list)
            content.append(input_file(part["media_type"], text_of(part["name"]), part["content_hash"]))
        elif (item := self._item(entry.entry_type, turn_id, payload)) is not None:
            items.append(item)

    def _item(self, entry_type: str, turn_id: str, payload: Mapping[str, object]) -> dict[str, object] | None:
        """Converts an entry to an item; None: the entry has no item of its own."""
        name = turn_id.removeprefix("T-").replace("-", "_")
        if entry_type == events.TURN_STARTED:
            started = payload_as(TurnStartedPayload, payload)
            # The message of a turn that continues after an answer is written by the server; the answer itself is an item.
            return None if "resumes" in started else input_message(f"msg_{name}_in", text_of(started["user_message"]))
        if entry_type == events.TURN_COMPLETED:
            reply = text_of(payload_as(TurnCompletedPayload, payload)["response"])
            return message_item(f"msg_{name}", reply) if reply else None
        if entry_type == events.MESSAGE_IMPORTED:
            imported = payload_as(MessageImportedPayload, payload)
            text = text_of(imported["text"])
            return input_message(f"msg_{name}", text) if imported["role"] == "user" else message_item(f"msg_{name}", text)
        if entry_type == events.APPROVAL_REQUESTED:
            return self._request(payload_as(ApprovalRequestedPayload, payload))
        resolved = payload_as(ApprovalResolvedPayload, payload)
        if resolved["approval_id"] not in self._calls:
            return answer_item(resolved)
        return output_item(resolved) if resolved["decision"] in CLIENT_DECISIONS else None

    def _request(self, request: ApprovalRequestedPayload) -> dict[str, object]:
        """A tool call that waits: for a person, or for the client."""
        if request["reason"] != "client_tool":
            return approval_item(request, self._servers)
        self._calls.add(request["approval_id"])
        return call_item(ClientCall(request["approval_id"], request["tool"], opened(request["arguments"]) or {}))
