"""Payloads of HO1m: what the executor did for a work order."""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

from kitchener.errors import ProviderReason
from kitchener.model_usage import UsageMapping
from kitchener.records.entries.common import CommonPayload, Json, Sealed, SealedText
from kitchener.records.entries.work_orders import CostMapping, NestedCost, WorkOrderErrorMapping, WorkOrderType
from kitchener.records.ref import RefMapping

QuestionReason = Literal["input_required", "confirmation"]
"""Whether a tool that asks lacks a value, or only permission."""
FinishReason = Literal["stop", "length", "tool_use", "content_filter", "other"]


class EchoMapping(TypedDict):
    """What goes back to a provider with a tool request of its own."""

    provider_id: str
    fields: str


class ToolUseMapping(TypedDict):
    """A tool that a model asked for."""

    use_id: str
    tool_id: str
    arguments: Mapping[str, object]
    problem: NotRequired[str]
    """Why the arguments, which are empty, could not be read; absent: they were read."""
    echo: NotRequired[EchoMapping]
    """Fields that the provider wants back with the request; absent: there are none."""


class ModelAnswer(TypedDict):
    """What a model answered."""

    text: str
    tool_uses: list[ToolUseMapping]
    structured: NotRequired[dict[str, Json] | None]
    """Left out where it is what the text says."""
    served_model: NotRequired[str]
    """The model that the provider says it used, where that is another name than was asked for."""


class ExecutingPayload(CommonPayload):
    """`WO_EXECUTING`: HO1 has begun a consolidation. Older versions wrote it for every work order."""

    wo_type: WorkOrderType


class AttemptStartedPayload(CommonPayload):
    """`ATTEMPT_STARTED`: an attempt that was cut off, or whose answer could not be stored. An older version wrote one for every
    attempt, before it went out."""

    call: int
    """Number of the model call within the work order, from 1."""
    attempt: int
    """From 1, over all providers of the call."""
    provider_id: str
    model_id: str
    route_reason: str
    governance_violation: NotRequired[Literal[True]]
    """The call was made without HO1, which was broken; absent: HO1 made it."""


class AttemptFailedPayload(AttemptStartedPayload):
    """`ATTEMPT_FAILED`: a provider gave no usable answer to one attempt of a model call."""

    reason: ProviderReason | None
    output_begun: bool
    """Whether text had been streamed before it failed."""
    detail: NotRequired[SealedText]
    usage: NotRequired[UsageMapping]
    """The tokens of an answer that could not be used; absent: no answer came, or its tokens are not known."""


class ModelCallPayload(CommonPayload):
    """`LLM_CALL`: a model answered."""

    call: int
    request_hash: str
    prompt_pack_version: str
    part_refs: Sequence[RefMapping]
    """The plan, and the earlier calls that are part of the request."""
    response: ModelAnswer | Sealed
    provider_id: str
    model_id: str
    route_reason: str
    usage: UsageMapping
    latency_ms: int
    finish_reason: FinishReason
    attempt: NotRequired[int]
    """The attempt that answered, from 1, over all providers of the call; absent: an `ATTEMPT_STARTED` tells it."""
    requested_model_id: NotRequired[str]
    """The model that was asked for, if the provider answered under another name."""
    thinking_tokens: NotRequired[int]
    """The output tokens that a model which thinks got beside the `max_tokens` of the request; absent: none."""
    governance_violation: NotRequired[Literal[True]]
    """The call was made without HO1, which was broken; absent: HO1 made it."""


class ToolStartedPayload(CommonPayload):
    """`TOOL_STARTED`: durable before a tool with effects runs."""

    call: int
    """Number of the tool call within the work order, from 1."""
    tool_id: str
    arguments: Mapping[str, object] | Sealed
    idempotency_key: str
    read_only: bool
    approval_id: NotRequired[str]
    """The approval that allowed this call; absent: it needed none."""


class QuestionMapping(TypedDict):
    """What a tool asks a person before it gives its result."""

    message: str
    reason: QuestionReason
    response_schema: NotRequired[Mapping[str, object]]
    """JSON schema of the answer; absent: yes or no."""
    state: NotRequired[Json]
    """What the tool wants back with the answer; absent: nothing."""


class NestedTurn(TypedDict):
    """A turn that a tool ran in another session."""

    agent_class: str
    session_id: str
    turn_id: str


class ToolCallPayload(CommonPayload):
    """`TOOL_CALL`: a result or an error."""

    call: int
    tool_id: str
    result: NotRequired[Json | Sealed]
    error: NotRequired[SealedText]
    question: NotRequired[QuestionMapping | Sealed]
    """What the tool asks in place of a result; absent: it asks nothing."""
    source: NotRequired[str]
    """Where the result comes from, such as `mcp:fs`; absent: a function of the program."""
    untrusted: NotRequired[Literal[True]]
    """The source is not trusted: its text is data and no instruction; absent: it is trusted."""
    nested_cost: NotRequired[NestedCost]
    """What the turns used that the tool ran in other sessions; absent: it ran none."""
    nested_turns: NotRequired[list[NestedTurn]]
    """These turns, at most 100; absent: it ran none, or an earlier version recorded it."""


class ExecutionCompletedPayload(CommonPayload):
    """`WO_COMPLETED` in HO1m"""

    output_ref: RefMapping
    """The entry that holds the output."""
    output_hash: str
    cost: CostMapping


class ExecutionFailedPayload(CommonPayload):
    """`WO_FAILED` in HO1m"""

    error: WorkOrderErrorMapping | Sealed
