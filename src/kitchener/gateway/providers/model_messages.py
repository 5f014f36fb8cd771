"""Our messages and tools as the multi-provider library's, and its answers as ours. Nothing is sent from here."""

from collections.abc import Sequence

import orjson
from pydantic_ai.messages import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    ModelResponsePart,
    PartDeltaEvent,
    PartStartEvent,
    SystemPromptPart,
    TextPart,
    TextPartDelta,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from kitchener.canonical import MAX_DEPTH
from kitchener.errors import ProviderError
from kitchener.gateway.providers.bodies import UnusableAnswer, is_deeper
from kitchener.gateway.providers.redaction import Redaction
from kitchener.records.entries import FinishReason
from kitchener.records.prompt import Message, PromptRequest, PromptResponse, ToolUse, Usage
from kitchener.records.tokens import tokens_of_bytes

MAX_PARTS = 1_000
"""Texts, thoughts and tool requests in one answer."""
MAX_NAME_CHARS = 256
"""Of a tool's name, of a request's id, and of what an answer calls its model."""

_FINISH_REASONS: dict[str | None, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_use",
}


def vendor_messages(messages: Sequence[Message]) -> list[ModelMessage]:
    """The conversation in the library's types: neighbouring messages that we send form one request."""
    conversation: list[ModelMessage] = []
    parts: list[ModelRequestPart] = []
    for message in messages:
        if message.role == "assistant":
            if parts:
                conversation.append(ModelRequest(parts=parts))
                parts = []
            conversation.append(ModelResponse(parts=_spoken(message)))
        elif message.role == "system":
            parts.append(SystemPromptPart(message.content))
        elif message.role == "user":
            parts.append(UserPromptPart(_user_content(message)))
        else:
            parts.append(ToolReturnPart(message.tool_id or "", message.content, tool_call_id=message.tool_use_id or ""))
    if parts:
        conversation.append(ModelRequest(parts=parts))
    return conversation


def _user_content(message: Message) -> str | list[UserContent]:
    """The text, and after it each image or file behind a line with its name."""
    if not message.parts:
        return message.content
    content: list[UserContent] = [message.content]
    for each in message.parts:
        content += [f"[{each.stored.described}]", BinaryContent(each.data, media_type=each.stored.media_type)]
    return content


def _spoken(message: Message) -> list[ModelResponsePart]:
    parts: list[ModelResponsePart] = [TextPart(message.content)] if message.content else []
    parts += [ToolCallPart(use.tool_id, dict(use.arguments), tool_call_id=use.use_id) for use in message.tool_uses]
    return parts


def parameters_for(request: PromptRequest, model: Model) -> ModelRequestParameters:
    """Tools, and the answer's schema where this model can be held to one. The prompt itself asks for JSON in any case."""
    tools = [
        ToolDefinition(name=tool.tool_id, description=tool.description, parameters_json_schema=dict(tool.parameters))
        for tool in request.tools
    ]
    if request.output_schema is None or not _takes_schema(model, bool(tools)):
        return ModelRequestParameters(function_tools=tools)
    answer = OutputObjectDefinition(json_schema=dict(request.output_schema), name="answer")
    return ModelRequestParameters(function_tools=tools, output_mode="native", output_object=answer)


def _takes_schema(model: Model, has_tools: bool) -> bool:
    profile: dict[str, object] = dict(model.profile)
    if not profile.get("supports_json_schema_output", False):
        return False
    # Older Gemini models take a schema or tools, not both; the tools matter more, since the schema is checked anyway.
    return not (has_tools and model.system.startswith("google") and not profile.get("google_supports_tool_combination", False))


def text_of(event: object) -> str:
    """The text that a stream event brings; "" for any other event."""
    if isinstance(event, PartDeltaEvent):
        return event.delta.content_delta if isinstance(event.delta, TextPartDelta) else ""
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    return ""


def check_part(event: object) -> None:
    """Refuses a stream that begins part after part: the library copies its list of parts with each event.

    Raises:
        UnusableAnswer: it has too many
    """
    if isinstance(event, PartStartEvent) and event.index >= MAX_PARTS:
        raise UnusableAnswer("malformed", f"the answer has more than {MAX_PARTS} parts")


def response_from(
    answer: ModelResponse, request: PromptRequest, provider_id: str, asked: str, redaction: Redaction
) -> PromptResponse:
    """The library's answer in our types, without the keys that it may repeat.

    Args:
        answer: the library's
        request: what was asked
        provider_id: who was asked
        asked: which model was asked for
        redaction: the keys

    Raises:
        ProviderError: it holds neither text nor a tool request (`empty`, `refused`)
        UnusableAnswer: too many parts, names that are none, or arguments that are no JSON object
    """
    if len(answer.parts) > MAX_PARTS:
        raise UnusableAnswer("malformed", f"the answer has more than {MAX_PARTS} parts")
    text = redaction.text("".join(part.content for part in answer.parts if isinstance(part, TextPart)))
    tool_uses = tuple(_tool_use(part, redaction) for part in answer.parts if isinstance(part, ToolCallPart))
    if not text and not tool_uses:
        if answer.finish_reason == "content_filter":
            raise ProviderError(provider_id, "refused", "the provider's content filter stopped the answer")
        raise ProviderError(provider_id, "empty", f"the answer is empty (finish reason {answer.finish_reason!r:.40})")
    return PromptResponse(
        provider_id=provider_id,
        model_id=asked,
        served_model=_served_model(answer.model_name, asked, redaction),
        text=text,
        structured=redaction.value(_object(text)) if request.output_schema is not None else None,
        tool_uses=tool_uses,
        usage=_usage(answer, request, text),
        finish_reason="tool_use" if tool_uses else _FINISH_REASONS.get(answer.finish_reason, "other"),
    )


def _served_model(name: str | None, asked: str, redaction: Redaction) -> str | None:
    if not name or name == asked or asked.endswith(f":{name}"):
        return None
    shown = redaction.text(name)
    return "".join(each if each.isprintable() else "\ufffd" for each in shown[:MAX_NAME_CHARS])


def _tool_use(part: ToolCallPart, redaction: Redaction) -> ToolUse:
    for what, name in (("name", part.tool_name), ("id", part.tool_call_id)):
        if len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise UnusableAnswer(
                "malformed", f"the {what} of a tool request is not a name of up to {MAX_NAME_CHARS} characters"
            )
    arguments = _object(part.args or "{}") if part.args is None or isinstance(part.args, str) else dict(part.args)
    if arguments is None or is_deeper(arguments, MAX_DEPTH):
        expected = f"a JSON object of up to {MAX_DEPTH} levels"
        raise UnusableAnswer("malformed", f"the arguments for tool {part.tool_name!r} are not {expected}")
    return ToolUse(redaction.text(part.tool_call_id), redaction.text(part.tool_name), redaction.value(arguments))


def _object(text: str) -> dict[str, object] | None:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) and not is_deeper(value, MAX_DEPTH) else None


def _usage(answer: ModelResponse, request: PromptRequest, text: str) -> Usage:
    counted = answer.usage
    if not counted.input_tokens and not counted.output_tokens:
        # Some servers do not count. An estimate keeps budgets working; none at all would make such a model look free.
        sent = sum(len(message.content.encode()) for message in request.messages)
        content = sum(each.stored.tokens for message in request.messages for each in message.parts)
        return Usage(tokens_of_bytes(sent) + content, tokens_of_bytes(len(text.encode())))
    return Usage(counted.input_tokens, counted.output_tokens, counted.cache_read_tokens or None)
