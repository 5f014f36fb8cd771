"""Describes models and chat completions."""

from typing import Literal

from kitchener.serve.answer_models.answer import DescribedAnswer
from kitchener.serve.answer_models.turn_answers import TurnErrorAnswer


class ListedModelAnswer(DescribedAnswer):
    """An agent as a model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelListAnswer(DescribedAnswer):
    """The agents that a key reaches."""

    object: Literal["list"]
    data: list[ListedModelAnswer]


class ServedTurnAnswer(DescribedAnswer):
    """What this server adds to a reply."""

    session_id: str
    turn_id: str
    pending_approval: list[str]
    error: TurnErrorAnswer | None
    truncated: Literal[True] | None = None
    """Absent: the reply is whole."""


class CalledFunctionAnswer(DescribedAnswer):
    """A function with the arguments of a call."""

    name: str
    arguments: str
    """The arguments that the model gave, as JSON text."""


class ToolCallAnswer(DescribedAnswer):
    """A call of a function that the client runs."""

    id: str
    """Names the call when the client gives its output."""
    type: Literal["function"]
    function: CalledFunctionAnswer


class ChatMessageAnswer(DescribedAnswer):
    """The agent's reply, or the functions that it calls."""

    role: Literal["assistant"]
    content: str | None
    """Null: it only calls functions."""
    refusal: None
    tool_calls: list[ToolCallAnswer] | None = None
    """Absent: it calls no function."""


class ChatChoiceAnswer(DescribedAnswer):
    """The reply. There is always one."""

    index: Literal[0]
    message: ChatMessageAnswer
    logprobs: None
    finish_reason: Literal["stop", "length", "tool_calls"]
    """`length`: the message is only a beginning: it reached the limit of output tokens, or a content filter stopped it."""


class PromptTokensAnswer(DescribedAnswer):
    """Tokens that were read."""

    cached_tokens: int


class ChatUsageAnswer(DescribedAnswer):
    """Tokens of all model calls of the turn."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensAnswer


class ChatAnswer(DescribedAnswer):
    """A whole chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoiceAnswer]
    usage: ChatUsageAnswer
    kitchener: ServedTurnAnswer | None = None
    """Absent: there is no turn."""
