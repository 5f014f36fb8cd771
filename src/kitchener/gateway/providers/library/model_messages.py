"""Our messages and tools as the multi-provider library's, and its answers as ours. Nothing is sent from here."""

from collections.abc import Sequence

import orjson
from pydantic_ai.messages import (
    BinaryContent,
    CachePoint,
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
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.tools import ToolDefinition

from kitchener.gateway.providers.bodies import UnusableAnswer
from kitchener.gateway.providers.checked_answers import (
    MAX_PARTS,
    ReadAnswer,
    answer_text,
    checked_response,
    checked_tool_use,
    completed_usage,
    value_without_halves,
)
from kitchener.gateway.providers.redaction import Redaction
from kitchener.model_usage import MOST_TOKENS, Usage
from kitchener.records.entries import FinishReason
from kitchener.records.prompt import NO_TOOL_CHOICE, Message, PromptRequest, PromptResponse, ToolUse

_FINISH_REASONS: dict[str | None, FinishReason] = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content_filter",
    "tool_call": "tool_use",
}


def vendor_messages(messages: Sequence[Message], *, marks_history: bool = False) -> list[ModelMessage]:
    """The conversation in the library's types: neighbouring messages that we send form one request.

    Args:
        messages: the conversation
        marks_history: whether what comes before the newest user message ends with a mark for the provider's cache
    """
    conversation: list[ModelMessage] = []
    parts: list[ModelRequestPart] = []
    newest = max((place for place, each in enumerate(messages) if each.role == "user"), default=-1)
    for place, message in enumerate(messages):
        if message.role == "assistant":
            if parts:
                conversation.append(ModelRequest(parts=parts))
                parts = []
            conversation.append(ModelResponse(parts=_spoken(message)))
        elif message.role == "system":
            parts.append(SystemPromptPart(message.content))
        elif message.role == "user":
            content = _user_content(message)
            if marks_history and place == newest and conversation:
                content = [CachePoint(), content] if isinstance(content, str) else [CachePoint(), *content]
            parts.append(UserPromptPart(content))
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
    may_call, asks_object = request.tool_choice != NO_TOOL_CHOICE, request.output_schema is not None
    # Tools that may not be called are not worth the schema.
    is_held = asks_object and _takes_schema(model, has_tools=bool(request.tools) and may_call)
    tools = [
        ToolDefinition(name=tool.tool_id, description=tool.description, parameters_json_schema=dict(tool.parameters))
        for tool in request.tools
        if may_call or not is_held or _takes_schema(model, has_tools=True)
    ]
    if request.output_schema is None or not is_held:
        return ModelRequestParameters(function_tools=tools)
    answer = OutputObjectDefinition(json_schema=dict(request.output_schema), name="answer")
    return ModelRequestParameters(function_tools=tools, output_mode="native", output_object=answer)


def _takes_schema(model: Model, *, has_tools: bool) -> bool:
    profile: dict[str, object] = dict(model.profile)
    if not profile.get("supports_json_schema_output", False):
        return False
    # Older Gemini models take a schema or tools, not both; the tools matter more, since the schema is checked anyway.
    return not (has_tools and model.system.startswith("google") and not profile.get("google_supports_tool_combination", False))


def event_text(event: object) -> str:
    """The text that a stream event brings; "" for any other event."""
    if isinstance(event, PartDeltaEvent):
        return event.delta.content_delta if isinstance(event.delta, TextPartDelta) else ""
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        return event.part.content
    return ""


def check_stream_part(event: object) -> None:
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
        UnusableAnswer: too many parts, or names that are none
    """
    if len(answer.parts) > MAX_PARTS:
        raise UnusableAnswer("malformed", f"the answer has more than {MAX_PARTS} parts")
    text = answer_text((part.content for part in answer.parts if isinstance(part, TextPart)), redaction)
    read = ReadAnswer(
        text=text,
        tool_uses=tuple(_tool_use(part, redaction) for part in answer.parts if isinstance(part, ToolCallPart)),
        usage=_usage(answer, request, text),
        finish_reason=_FINISH_REASONS.get(answer.finish_reason, "other"),
        served_model=answer.model_name,
    )
    return checked_response(read, request, provider_id, asked, redaction)


def _tool_use(part: ToolCallPart, redaction: Redaction) -> ToolUse:
    return checked_tool_use(part.tool_call_id, part.tool_name, part.args, redaction)


def _argument_text(part: ToolCallPart) -> str:
    """The arguments of a tool request as a text. The library's own way to it fails for half a character."""
    return part.args if isinstance(part.args, str) else orjson.dumps(value_without_halves(part.args or {})).decode()


def told_usage(answer: ModelResponse) -> Usage | None:
    """The tokens of an answer, or of its beginning, as far as the provider has told them; None: it has not."""
    usage = _counted(answer)
    return usage if usage.input_tokens or usage.output_tokens else None


def _counted(answer: ModelResponse) -> Usage:
    counted = answer.usage
    read, written = counted.cache_read_tokens or None, counted.cache_write_tokens or None
    sent = min(counted.input_tokens, MOST_TOKENS)  # with the counts of the cache, which some vendors count apart
    return Usage(sent, counted.output_tokens, read, written)


def _usage(answer: ModelResponse, request: PromptRequest, text: str) -> Usage:
    usage = _counted(answer)
    if usage.input_tokens and usage.output_tokens:
        return usage
    calls = [f"{part.tool_name}{_argument_text(part)}" for part in answer.parts if isinstance(part, ToolCallPart)]
    thoughts = [part.content for part in answer.parts if isinstance(part, ThinkingPart)]
    received = "".join((text, *thoughts, *calls))
    return completed_usage(usage, request, received)
