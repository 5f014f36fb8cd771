"""Decides whether content may stand in spans and events, and turns messages into the form of the GenAI conventions.

Content is off unless the standard environment variable asks for it. What leaves the process in a span is sealed no longer, and
an erasure does not reach it. Explained in `docs/telemetry.md`.
"""

import json
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final

from kitchener.logs import get_logger
from kitchener.records.prompt import Message, PromptRequest, PromptResponse, ToolUse
from kitchener.telemetry import names

_log = get_logger(__name__)

JsonPart = dict[str, Any]  # JSON types, as the conventions define them
FINISH_REASONS: Final = {"tool_use": "tool_call", "other": "unknown"}
"""Ours, where the conventions call it something else."""


class CapturedContent(Enum):
    """Where content may stand; the values of the environment variable."""

    NO_CONTENT = (False, False)
    SPAN_ONLY = (True, False)
    EVENT_ONLY = (False, True)
    SPAN_AND_EVENT = (True, True)

    @property
    def in_spans(self) -> bool:
        """Whether spans may have content."""
        return self.value[0]

    @property
    def in_events(self) -> bool:
        """Whether events are written, with content."""
        return self.value[1]

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> "CapturedContent":
        """What the environment says. A value that is none of these means no content, and a warning says so."""
        found = environment.get(names.CAPTURE_CONTENT, "").strip().upper()
        if found and found not in cls.__members__:
            known = ", ".join(cls.__members__)
            _log.warning("content stays out of spans: the variable is wrong", variable=names.CAPTURE_CONTENT, expected=known)
        return cls.__members__.get(found, cls.NO_CONTENT)


def finish_reason_of(response: PromptResponse) -> str:
    """Why the answer ended, in the words of the conventions."""
    return FINISH_REASONS.get(response.finish_reason, response.finish_reason)


def content_of(request: PromptRequest, response: PromptResponse | None) -> dict[str, list[JsonPart]]:
    """The messages of a model call, by the attribute that holds them. Bytes of images and files are left out.

    Args:
        request: what was asked
        response: the answer; None: there is none
    """
    system = [_text(each.content) for each in request.messages if each.role == "system"]
    found = {names.INPUT_MESSAGES: [_message(each) for each in request.messages if each.role != "system"]}
    if system:
        found[names.SYSTEM_INSTRUCTIONS] = system
    if response is not None:
        parts = [*_texts(response.text), *_uses(response.tool_uses)]
        answer = {"role": "assistant", "parts": parts, "finish_reason": finish_reason_of(response)}
        found[names.OUTPUT_MESSAGES] = [answer]
    return found


def turn_content(message: str, reply: str | None) -> dict[str, list[JsonPart]]:
    """The message and the reply of a turn, by the attribute that holds them; without a reply, the message alone."""
    found = {names.INPUT_MESSAGES: [{"role": "user", "parts": [_text(message)]}]}
    if reply is not None:
        found[names.OUTPUT_MESSAGES] = [{"role": "assistant", "parts": [_text(reply)], "finish_reason": "stop"}]
    return found


def attribute_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _message(message: Message) -> JsonPart:
    if message.role == "tool":
        answer = {"type": "tool_call_response", "id": message.tool_use_id, "response": message.content}
        return {"role": "tool", "parts": [answer]}
    return {"role": message.role, "parts": [*_texts(message.content), *_uses(message.tool_uses)]}


def _texts(text: str) -> list[JsonPart]:
    return [_text(text)] if text else []


def _text(text: str) -> JsonPart:
    return {"type": "text", "content": text}


def _uses(uses: Iterable[ToolUse]) -> list[JsonPart]:
    return [{"type": "tool_call", "id": use.use_id, "name": use.tool_id, "arguments": dict(use.arguments)} for use in uses]
