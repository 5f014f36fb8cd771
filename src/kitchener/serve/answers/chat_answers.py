"""Describes models and chat completions."""

from typing import Literal

from kitchener.serve.answers.answer import Answer
from kitchener.serve.answers.turn_answers import TurnErrorAnswer


class ModelAnswer(Answer):
    """An agent as a model."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelListAnswer(Answer):
    """The agents that a key reaches."""

    object: Literal["list"]
    data: list[ModelAnswer]


class ServedTurnAnswer(Answer):
    """What this server adds to a reply."""

    session_id: str
    turn_id: str
    pending_approval: list[str]
    error: TurnErrorAnswer | None


class ChatMessageAnswer(Answer):
    """The reply."""

    role: Literal["assistant"]
    content: str
    refusal: None


class ChatChoiceAnswer(Answer):
    """The one choice."""

    index: Literal[0]
    message: ChatMessageAnswer
    logprobs: None
    finish_reason: Literal["stop"]


class PromptTokensAnswer(Answer):
    """Tokens that were read."""

    cached_tokens: int


class ChatUsageAnswer(Answer):
    """Tokens of all model calls of the turn."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensAnswer


class ChatAnswer(Answer):
    """A whole chat completion."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoiceAnswer]
    usage: ChatUsageAnswer
    kitchener: ServedTurnAnswer | None = None
    """Absent: there is no turn."""
