"""Describes responses of the Responses API and their items."""

from typing import Annotated, Literal

from pydantic import Field

from kitchener.serve.answer_models.answer import DescribedAnswer, JsonObject
from kitchener.serve.answer_models.chat_answers import ServedTurnAnswer

ResponseStatus = Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]
MessageStatus = Literal["in_progress", "completed", "incomplete"]


class OutputTextAnswer(DescribedAnswer):
    """The text of a reply."""

    type: Literal["output_text"]
    text: str
    annotations: list[object]
    logprobs: list[object]


class InputTextAnswer(DescribedAnswer):
    """The text of a message."""

    type: Literal["input_text"]
    text: str


class InputImageAnswer(DescribedAnswer):
    """An image of a message."""

    type: Literal["input_image"]
    detail: Literal["auto"]
    file_id: str
    """Hash of its content."""
    image_url: None


class InputFileAnswer(DescribedAnswer):
    """A file of a message."""

    type: Literal["input_file"]
    file_id: str
    """Hash of its content."""
    filename: str


MessagePartAnswer = Annotated[
    OutputTextAnswer | InputTextAnswer | InputImageAnswer | InputFileAnswer, Field(discriminator="type")
]


class MessageItemAnswer(DescribedAnswer):
    """A message or a reply."""

    id: str
    type: Literal["message"]
    role: Literal["user", "assistant"]
    status: MessageStatus
    content: list[MessagePartAnswer]


class ApprovalRequestItemAnswer(DescribedAnswer):
    """A tool call that waits for a person."""

    id: str
    type: Literal["mcp_approval_request"]
    name: str
    """The tool that waits for approval."""
    server_label: str
    """The label of its MCP server; `kitchener` for any other tool."""
    arguments: str
    """The arguments that the model gave, as JSON text."""


class ApprovalResponseItemAnswer(DescribedAnswer):
    """The answer about a tool call."""

    id: str
    type: Literal["mcp_approval_response"]
    approval_request_id: str
    approve: bool
    reason: str | None


class FunctionCallItemAnswer(DescribedAnswer):
    """A call of a function that the client runs."""

    id: str
    type: Literal["function_call"]
    call_id: str
    """Names the call when the client gives its output."""
    name: str
    arguments: str
    """The arguments that the model gave, as JSON text."""
    status: Literal["completed"]


class FunctionOutputItemAnswer(DescribedAnswer):
    """The output of a function that the client ran, or its error."""

    id: str
    type: Literal["function_call_output"]
    call_id: str
    output: str
    status: Literal["completed"]


ItemAnswer = Annotated[
    MessageItemAnswer
    | ApprovalRequestItemAnswer
    | ApprovalResponseItemAnswer
    | FunctionCallItemAnswer
    | FunctionOutputItemAnswer,
    Field(discriminator="type"),
]


class ItemListAnswer(DescribedAnswer):
    """A page of items."""

    object: Literal["list"]
    data: list[ItemAnswer]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ResponseErrorAnswer(DescribedAnswer):
    """Why there is no reply."""

    code: Literal["server_error"]
    message: str


class CachedTokensAnswer(DescribedAnswer):
    """Tokens that the provider had cached."""

    cached_tokens: int
    cache_write_tokens: int
    """Always 0: not counted."""


class ReasoningTokensAnswer(DescribedAnswer):
    """Tokens that the model thought in; always 0."""

    reasoning_tokens: int


class ResponseUsageAnswer(DescribedAnswer):
    """Tokens of all model calls of the turn."""

    input_tokens: int
    input_tokens_details: CachedTokensAnswer
    output_tokens: int
    output_tokens_details: ReasoningTokensAnswer
    total_tokens: int


class ConversationAnswer(DescribedAnswer):
    """The session to which the response belongs."""

    id: str


class FunctionToolAnswer(DescribedAnswer):
    """A function that the client runs."""

    type: Literal["function"]
    name: str
    description: str
    parameters: JsonObject
    """JSON schema of its arguments."""
    strict: Literal[True]
    """Arguments are always checked."""


class IncompleteDetailsAnswer(DescribedAnswer):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class ResponseAnswer(DescribedAnswer):
    """A turn as a response."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    """Null: it is not complete."""
    status: ResponseStatus
    background: bool
    error: ResponseErrorAnswer | None
    model: str
    output: list[ItemAnswer]
    previous_response_id: str | None
    usage: ResponseUsageAnswer | None
    conversation: ConversationAnswer | None
    """The session; null: a plain model call."""
    kitchener: ServedTurnAnswer | None = None
    """Absent: the turn has not completed, or there is none."""
    frequency_penalty: float
    incomplete_details: IncompleteDetailsAnswer | None
    """Null unless `status` is `incomplete`."""
    instructions: None
    max_output_tokens: None
    max_tool_calls: None
    metadata: JsonObject
    parallel_tool_calls: bool
    presence_penalty: float
    prompt_cache_key: None
    reasoning: None
    safety_identifier: None
    service_tier: str
    store: bool
    temperature: float
    text: JsonObject
    tool_choice: str | JsonObject
    """An object names the function that the model had to call."""
    tools: list[FunctionToolAnswer]
    """The functions that the client runs."""
    top_logprobs: int
    top_p: float
    truncation: str
    user: None
