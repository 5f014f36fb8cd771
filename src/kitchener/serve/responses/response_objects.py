"""Writes turns in the form of the Responses API: the response, its items, its ids. Knows no connection and no ledger."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple, Required, TypedDict

import orjson

from kitchener.ids import session_of_turn
from kitchener.plain_names import quoted
from kitchener.records.entries import ApprovalRequestedPayload, ApprovalResolvedPayload, opened, text_of
from kitchener.records.tools.client_tools import ClientCall, ClientTool
from kitchener.serve.answer_models.response_answers import MessageStatus, ResponseStatus
from kitchener.serve.problems import RequestRefused
from kitchener.serve.sendable import as_json
from kitchener.serve.token_usage import TokenUsage

_RESPONSE = re.compile(r"resp_([0-9a-f]{8,32})_(\d{6,9})")
_OWN_TOOLS: Final = "kitchener"
"""The label of tools that are no MCP server's."""


ReplyStatus = Literal["completed", "incomplete"]


class CompletedFields(TypedDict, total=False):
    """The fields of a response with a reply besides its items: arguments of `ResponseHead.response`."""

    status: Required[ReplyStatus]
    completed_at: int | None
    used: TokenUsage | None
    told: Mapping[str, object] | None


class ResponseHead(NamedTuple):
    """The fields that a response has from its beginning."""

    response_id: str
    created_at: int
    """Seconds since 1970."""
    model: str
    session_id: str | None
    """None: a plain model call, which has no session."""
    previous_id: str | None = None
    is_background: bool = False
    tools: tuple[Mapping[str, object], ...] = ()
    """The functions that the client runs."""
    tool_choice: str | Mapping[str, object] = "auto"

    @property
    def message_id(self) -> str:
        """The reply's id, which follows from the response's."""
        return f"msg_{self.response_id.removeprefix('resp_')}"

    def response(
        self,
        status: ResponseStatus,
        output: Sequence[Mapping[str, object]] = (),
        *,
        completed_at: int | None = None,
        used: TokenUsage | None = None,
        error: str | None = None,
        told: Mapping[str, object] | None = None,
    ) -> dict[str, object]:
        """The response as a JSON object.

        Args:
            status: how far it is; `incomplete`: its message is only the beginning of a reply
            output: its items
            completed_at: when its turn ended, seconds since 1970; None: not known, or not yet
            used: the tokens that it took; None: not known
            error: why there is no reply; None: there is one, or may be
            told: what this server adds; None: nothing
        """
        found: dict[str, object] = {
            **_FIXED,
            "id": self.response_id,
            "created_at": self.created_at,
            "completed_at": completed_at if status == "completed" else None,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "background": self.is_background,
            "error": {"code": "server_error", "message": error} if error is not None else None,
            "model": self.model,
            "output": list(output),
            "previous_response_id": self.previous_id,
            "tool_choice": self.tool_choice,
            "tools": list(self.tools),
            "usage": _usage(used) if used is not None else None,
            "conversation": {"id": self.session_id} if self.session_id is not None else None,
        }
        if told is not None:
            found["kitchener"] = dict(told)
        return found


_FIXED: Final[Mapping[str, object]] = {
    "object": "response",
    "frequency_penalty": 0,
    "instructions": None,
    "max_output_tokens": None,
    "max_tool_calls": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "presence_penalty": 0,
    "prompt_cache_key": None,
    "reasoning": None,
    "safety_identifier": None,
    "service_tier": "default",
    "store": True,
    "temperature": 1,
    "text": {"format": {"type": "text"}},
    "top_logprobs": 0,
    "top_p": 1,
    "truncation": "disabled",
    "user": None,
}
"""Fields that clients require and that a request to this server cannot set: the defaults of the API."""


def response_id_of(turn_id: str) -> str:
    """The id of the response that a turn is."""
    return f"resp_{turn_id.removeprefix('T-').replace('-', '_')}"


def turn_of_response(response_id: str) -> tuple[str, str]:
    """The session and the turn of a response.

    Raises:
        RequestRefused: this is no id of a response
    """
    found = _RESPONSE.fullmatch(response_id)
    turn_id = f"T-{found[1]}-{found[2]}" if found is not None else ""
    session_id = session_of_turn(turn_id)
    if session_id is None:
        raise unknown_response(response_id)
    return session_id, turn_id


def reply_status(*, truncated: bool) -> ReplyStatus:
    """The status of a response with a reply, and of its message."""
    return "incomplete" if truncated else "completed"


def unknown_response(response_id: str) -> RequestRefused:
    """The error for a response that does not exist, or not for this key."""
    return RequestRefused(404, "response_not_found", f"there is no response {quoted(response_id)} for this key")


def input_message(item_id: str, text: str) -> dict[str, object]:
    """A message of the user. Its images and files are added to `content`."""
    content = [{"type": "input_text", "text": text}] if text else []
    return {"id": item_id, "type": "message", "role": "user", "status": "completed", "content": content}


def input_file(media_type: str, name: str, content_hash: str) -> dict[str, object]:
    """An image or a file of a message. Its content is named by its hash and stays with the server."""
    if media_type.startswith("image/"):
        return {"type": "input_image", "detail": "auto", "file_id": content_hash, "image_url": None}
    return {"type": "input_file", "file_id": content_hash, "filename": name}


def message_item(item_id: str, text: str | None, status: MessageStatus = "completed") -> dict[str, object]:
    """A message of the agent; None: without its text yet."""
    content = [] if text is None else [text_part(text)]
    return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": content}


def text_part(text: str) -> dict[str, object]:
    """The text of a message."""
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def approval_item(request: ApprovalRequestedPayload, servers: Mapping[str, object]) -> dict[str, object]:
    """A tool call that waits for a person.

    Args:
        request: its entry
        servers: the configured MCP servers by their label
    """
    label, _, name = request["tool"].partition("__")
    if label not in servers or not name:
        label, name = _OWN_TOOLS, request["tool"]
    arguments = orjson.dumps(opened(request["arguments"]) or {}).decode()
    return {
        "id": request["approval_id"],
        "type": "mcp_approval_request",
        "name": name,
        "server_label": label,
        "arguments": arguments,
    }


def function_tool(tool: ClientTool) -> dict[str, object]:
    """A function that the client runs. Arguments are always checked, so it counts as strict."""
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": True,
    }


def call_item(call: ClientCall) -> dict[str, object]:
    """A call of a function that the client runs."""
    return {
        "id": f"fc_{call.call_id}",
        "type": "function_call",
        "call_id": call.call_id,
        "name": call.name,
        "arguments": as_json(call.arguments).decode(),
        "status": "completed",
    }


def output_item(resolved: ApprovalResolvedPayload) -> dict[str, object]:
    """The output of a function that the client ran, or how it failed."""
    call_id, failed = resolved["approval_id"], resolved.get("message")
    output = text_of(failed) if failed is not None else opened(resolved.get("answer"))
    return {
        "id": f"fco_{call_id}",
        "type": "function_call_output",
        "call_id": call_id,
        "output": output if isinstance(output, str) else as_json(output).decode(),
        "status": "completed",
    }


def output_of(message: Mapping[str, object], reply: str, calls: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The items of a complete response: its message, if there is a word in it, and the calls that wait."""
    return [message, *calls] if reply or not calls else list(calls)


def answer_item(resolved: ApprovalResolvedPayload) -> dict[str, object]:
    """The answer about a tool call that waited."""
    approval_id, reason = resolved["approval_id"], resolved.get("message")
    return {
        "id": f"{approval_id}_answer",
        "type": "mcp_approval_response",
        "approval_request_id": approval_id,
        "approve": resolved["decision"] == "approved",
        "reason": None if reason is None else text_of(reason),
    }


def _usage(used: TokenUsage) -> dict[str, object]:
    """Tokens as clients expect them."""
    return {
        "input_tokens": used.read,
        "input_tokens_details": {"cached_tokens": used.cached, "cache_write_tokens": 0},
        "output_tokens": used.written,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": used.read + used.written,
    }
