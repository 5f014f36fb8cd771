"""A tool's question to a person, which it returns in place of a result, and the answer. Plain values."""

from collections.abc import Mapping
from dataclasses import dataclass

from kitchener.records.entries.common import Json
from kitchener.records.entries.execution import QuestionMapping, QuestionReason


@dataclass(frozen=True, slots=True)
class ToolQuestion:
    """What a tool returns in place of a result when it needs a person's answer first."""

    message: str
    """The question, for a person."""
    response_schema: Mapping[str, object] | None = None
    """JSON schema of the answer; None: yes or no."""
    state: Json = None
    """What the tool gets back with the answer, to continue. It never reaches a model."""
    reason: QuestionReason = "confirmation"

    @classmethod
    def of(cls, recorded: QuestionMapping) -> "ToolQuestion":
        """The question that a mapping describes."""
        return cls(recorded["message"], recorded.get("response_schema"), recorded.get("state"), recorded["reason"])


class ConfirmationRequired(Exception):
    """A tool raises it to ask a person before it continues. Its call is made again with the answer as `ToolContext.answer`.

    Args:
        message: the question, for a person
        response_schema: JSON schema of the answer; None: yes or no
        state: what the tool gets back with the answer; a JSON value
    """

    def __init__(self, message: str, response_schema: Mapping[str, object] | None = None, state: Json = None) -> None:
        self.question: ToolQuestion = ToolQuestion(message, response_schema, state)
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """A person's answer to a question of a tool. The call that asked is made again with it."""

    state: Json
    """The state of the question."""
    answer: Json
    """The answer, which fits the question's `response_schema`."""
