"""Writes a request as the JSON body of OpenAI's chat-completions format. Pure."""

import hashlib
from base64 import b64encode
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Literal

import orjson

from kitchener.media.media_types import IMAGES
from kitchener.records.parts import MessagePart
from kitchener.records.prompt import ANY_TOOL_CHOICE, NO_TOOL_CHOICE, Message, PromptRequest, ToolSpec

OptionalField = Literal[
    "response_format",
    "temperature",
    "max_tokens",
    "stream_options",
    "prompt_cache_key",
    "tool_choice",
    "tool_call_id",
    "reasoning_content",
    "reasoning",
    "reasoning_details",
    "extra_content",
    "uncalled_tools",
    "undescribed_calls",
]
"""A field, or a form of a request, that some endpoints or models refuse. Without `tool_call_id`, tool requests get ids that
Mistral takes, too. Without `uncalled_tools`, a request describes no tools where none may be called; without
`undescribed_calls`, it does all the same if calls are in its messages."""
_SHORT_ID: Final = 9
"""Characters of an id, letters and digits, that Mistral takes. It refuses those of other providers, after a fallback."""
THOUGHTS: Final[tuple[OptionalField, ...]] = ("reasoning_content", "reasoning")
"""Fields of a message in which servers send a model's thoughts. Those before tool requests go back with the results, because
DeepSeek and Moonshot refuse the request otherwise, and models continue better with their thoughts than without."""
DETAILS: Final[OptionalField] = "reasoning_details"
"""Field of a message in which OpenRouter sends thoughts as a list, with the vendor's signatures and encrypted parts. It goes
back in place of `THOUGHTS`."""
SIGNED: Final[OptionalField] = "extra_content"
"""Field of a tool request in which Google sends a signature, without which it refuses the next request."""

_STRICT_KEYWORDS: Final = frozenset(
    ("type", "properties", "required", "additionalProperties", "items", "enum", "const", "description", "title")
)
"""Keywords of schemas that OpenAI's strict mode is known to take."""


def request_body(
    request: PromptRequest,
    provider_id: str,
    model: str,
    *,
    streams: bool,
    without: Collection[OptionalField] = (),
    marks_cache: bool = False,
) -> bytes:
    """Returns the body of a request.

    Args:
        request: what is asked
        provider_id: who is asked, and gets back what it sent with tool requests
        model: its model
        streams: whether the answer comes as a stream of events
        without: fields that this model refuses; in place of `max_tokens`, it gets the newer `max_completion_tokens`,
            in place of the ids of tool requests short ones, and in place of a choice of no tool no tools; see `shows_tools`
        marks_cache: whether the stable part of the prompt ends with marks for the cache of a vendor that needs them
    """
    messages = [_message(each, provider_id, without) for each in request.messages]
    if marks_cache:
        for place in _stable_ends(request.messages):
            _mark(messages[place])
    body: dict[str, object] = {"model": model, "stream": streams, "messages": messages}
    body["max_completion_tokens" if "max_tokens" in without else "max_tokens"] = request.max_tokens
    if "temperature" not in without:
        body["temperature"] = request.temperature
    if streams and "stream_options" not in without:
        body["stream_options"] = {"include_usage": True}
    if shows_tools(request, without):
        body["tools"] = [_tool(each) for each in request.tools]
        if "tool_choice" not in without:
            body["tool_choice"] = _tool_choice(request.tool_choice)
    if request.output_schema is not None and "response_format" not in without:
        body["response_format"] = _response_format(request.output_schema)
    if "prompt_cache_key" not in without:
        body["prompt_cache_key"] = request.session_id
    return orjson.dumps(body)


def shows_tools(request: PromptRequest, without: Collection[OptionalField]) -> bool:
    """Whether the body of a request describes its tools; the arguments are those of `request_body`."""
    if not request.tools or request.tool_choice != NO_TOOL_CHOICE:
        return bool(request.tools)
    if "undescribed_calls" in without and has_calls(request):
        return True
    return "tool_choice" not in without and "uncalled_tools" not in without


def has_calls(request: PromptRequest) -> bool:
    """Whether the messages of a request have calls of tools."""
    return any(each.tool_uses for each in request.messages)


class ExtendedBody:
    """Writes bodies like `request_body`, with further fields at their end, which are encoded once.

    Args:
        fields: at least one field, none of which `request_body` writes with the same `without`
    """

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._end = b"," + orjson.dumps(fields)[1:]

    def __call__(
        self,
        request: PromptRequest,
        provider_id: str,
        model: str,
        *,
        streams: bool,
        without: Collection[OptionalField] = (),
        marks_cache: bool = False,
    ) -> bytes:
        """See `request_body`."""
        body = request_body(request, provider_id, model, streams=streams, without=without, marks_cache=marks_cache)
        return body[:-1] + self._end


def _stable_ends(messages: Sequence[Message]) -> set[int]:
    """The places of the messages after which a prompt is the same in later calls: the system message, the last one of the
    history, and the newest result of a tool, with which the turn's next call goes on."""
    newest = max((place for place, each in enumerate(messages) if each.role == "user"), default=0)
    ends = {place for place in (0, newest - 1) if place >= 0 and messages[place].role in ("system", "assistant")}
    return ends | ({len(messages) - 1} if messages[-1].role == "tool" else set())


def _mark(message: dict[str, object]) -> None:
    if isinstance(text := message["content"], str) and text.strip():  # Anthropic refuses a mark on an empty text
        message["content"] = [{**_text(text), "cache_control": {"type": "ephemeral"}}]


def _message(message: Message, provider_id: str, without: Collection[OptionalField]) -> dict[str, object]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": _call_id(message.tool_use_id or "", without), "content": message.content}
    if message.parts:
        return {"role": message.role, "content": _content(message)}
    if not message.tool_uses:
        return {"role": message.role, "content": message.content}
    calls: list[dict[str, object]] = []
    asked: dict[str, object] = {"role": message.role, "content": message.content or None, "tool_calls": calls}
    for use in message.tool_uses:
        function = {"name": use.tool_id, "arguments": orjson.dumps(use.arguments).decode()}
        call: dict[str, object] = {"id": _call_id(use.use_id, without), "type": "function", "function": function}
        if use.echo is not None and use.echo.provider_id == provider_id:
            for name, value in orjson.loads(use.echo.fields).items():
                if name not in without:
                    (call if name == SIGNED else asked)[name] = value
        calls.append(call)
    return asked


def _call_id(use_id: str, without: Collection[OptionalField]) -> str:
    return hashlib.sha256(use_id.encode()).hexdigest()[:_SHORT_ID] if "tool_call_id" in without else use_id


def _content(message: Message) -> list[dict[str, object]]:
    """Returns the text, and after it each image or file behind a line with its name."""
    content = [_text(message.content)]
    for each in message.parts:
        content += [_text(f"[{each.stored.described}]"), _part(each)]
    return content


def _text(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def _part(part: MessagePart) -> dict[str, object]:
    name, media_type = part.stored.name, part.stored.media_type
    if media_type.startswith("text/"):  # every endpoint takes a text, few take files
        return _text(f"-----BEGIN FILE-----\n{part.data.decode(errors='replace')}\n-----END FILE-----")
    url = f"data:{media_type};base64,{b64encode(part.data).decode()}"
    if media_type in IMAGES:
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "file", "file": {"filename": name, "file_data": url}}


def _tool(tool: ToolSpec) -> dict[str, object]:
    function = {"name": tool.tool_id, "description": tool.description, "parameters": tool.parameters}
    return {"type": "function", "function": function}


def _tool_choice(choice: str | None) -> str | dict[str, object]:
    if choice in (None, ANY_TOOL_CHOICE, NO_TOOL_CHOICE):
        return choice or "auto"
    return {"type": "function", "function": {"name": choice}}


def _response_format(schema: Mapping[str, object]) -> dict[str, object]:
    answer: dict[str, object] = {"name": "answer", "schema": schema}
    if _is_strict(schema):
        answer["strict"] = True
    return {"type": "json_schema", "json_schema": answer}


def _is_strict(schema: Mapping[str, object]) -> bool:
    """Whether OpenAI's strict mode takes a schema: every object requires all of its properties and allows no others."""
    waiting: list[object] = [schema]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, Mapping) or not _STRICT_KEYWORDS.issuperset(each):
            return False
        properties = each.get("properties", {})
        if each.get("type") == "object" or properties:
            required = each.get("required", ())
            if not isinstance(properties, Mapping) or not isinstance(required, list | tuple):
                return False
            if each.get("additionalProperties") is not False or set(required) != set(properties):
                return False
            waiting += properties.values()
        if "items" in each:
            waiting.append(each["items"])
    return True
