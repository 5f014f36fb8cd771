"""The outputs of work orders, one shape for each type, and how an output is read as its shape.

A contract's schema has checked an output, but a model wrote it, and a contract of a `prompt_dir` may allow more. So code that
decides by a field checks its value first.
"""

from collections.abc import Mapping
from typing import Literal, NotRequired, TypedDict, TypeVar, cast

from kitchener.records.entries.work_orders import GateDecision, IntentRelation


class ClassifiedLabels(TypedDict, total=False):
    """The labels that a classification gives, by kind; a classifier may give several of a kind."""

    domain: str | list[str] | None
    task: str | list[str] | None


class RequestedTool(TypedDict):
    """A tool that a classification asks for."""

    tool_id: str
    arguments: NotRequired[Mapping[str, object]]


class NamedIntent(TypedDict, total=False):
    """What a classification says of intents, in its nested spelling."""

    action: Literal["new", "continue", "supersede", "close"]
    scope: str | None
    """The objective, or the name of a scope, which says nothing."""
    prior_intent_id: str | None
    confidence: float | None


class Classification(TypedDict, total=False):
    """The output of `classify`: what a message is, and what it asks for."""

    speech_act: str
    """`greeting`, `farewell`, `thanks`, `question`, `command`, `tool_query`, `statement`, `feedback` or another word."""
    ambiguity: str | float | bool | None
    labels: ClassifiedLabels | None
    candidate_objective: str | None
    intent_relation: IntentRelation | None
    confidence: float | None
    intent: NamedIntent | None
    prior_intent_id: str | None
    tool_request: RequestedTool | None


class ReplyOutput(TypedDict, total=False):
    """The output of `synthesize`: a reply to the user."""

    response_text: str
    """What the user is to read."""
    output: Mapping[str, object]
    """The object that the caller asked for."""
    error: object
    """Anything true says that this is no reply."""


class ToolOutput(TypedDict):
    """The output of `tool_call`."""

    tool_id: str
    result: object
    """What the tool gave, as JSON types."""


class VerifierOutput(TypedDict, total=False):
    """The output of `verify`: a model's verdict on a reply."""

    decision: GateDecision
    reason: str


class LearnedOutput(TypedDict, total=False):
    """The output of `consolidate`: what is learned from a signal."""

    bias: str
    category: str
    context_line: str
    """The line that later turns show to the model."""
    labels: Mapping[str, object]
    salience_weight: float
    decay_modifier: float


T = TypeVar("T")


def output_as(shape: type[T], output: Mapping[str, object]) -> T:
    """An output, typed as the shape of its work order's type. Nothing is converted and nothing is checked."""
    return cast("T", output)
