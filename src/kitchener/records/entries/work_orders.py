"""Payloads of HO2m about work orders."""

from typing import Literal, NotRequired, TypedDict

from kitchener.errors import ProviderReason
from kitchener.records.entries.common import CommonPayload, Sealed, SealedText
from kitchener.records.ref import RefMapping

WorkOrderType = Literal["classify", "tool_call", "synthesize", "verify", "consolidate"]
WorkOrderState = Literal["planned", "dispatched", "executing", "deferred", "completed", "failed", "superseded", "abandoned"]
FailureReason = Literal["QUALITY_GATE", "OUTPUT_SCHEMA", "PROVIDER", "TOOL", "TIMEOUT", "BUDGET", "EXECUTOR"]
CallFailure = Literal[ProviderReason, "overloaded"]
"""Why the gateway gave no answer: the reason of its provider, or too many calls waited."""
AbandonReason = Literal[
    "BUDGET", "turn_over", "cancelled", "timeout", "overloaded", "crash", "shutdown", "answered", "expired", "unknown"
]
SupersedeReason = Literal["retry succeeded"]
WaitReason = Literal["approval", "client_tool"]
"""What a deferred work order waits for: a person, or the client that runs its tools."""
LaneName = Literal["interactive", "background"]
IntentRelation = Literal["continue", "switch", "close", "unclear"]
"""What a message does to the active intent."""
GateDecision = Literal["accept", "reject"]
CutReason = Literal["tokens", "queries", "time", "error"]
"""The limit that ended the gathering of context."""


class NestedCost(TypedDict):
    """What turns used that tools ran in other sessions. The totals of those sessions count it too."""

    input_tokens: int
    output_tokens: int
    cached_tokens: NotRequired[int]
    """Absent: 0, or version 14 of the policy was not yet followed."""
    llm_calls: int
    tool_calls: int


class CostMapping(TypedDict):
    """How entries record what was used."""

    input_tokens: int
    output_tokens: int
    cached_tokens: NotRequired[int]
    """Absent: 0."""
    llm_calls: int
    tool_calls: int
    tool_ids_used: list[str]
    elapsed_ms: int
    nested: NotRequired[NestedCost]
    """Absent: its tools ran no turns."""


class WorkOrderErrorMapping(TypedDict):
    """How entries record why a work order failed."""

    reason: FailureReason
    detail: str
    provider_reason: NotRequired[CallFailure]


class ConstraintsMapping(TypedDict, total=False):
    """The `Constraints` that differ from their defaults."""

    prompt_contract_id: str
    token_budget: int
    reply_reserve: int
    results_budget: int
    turn_limit: int
    parallel_tools: int
    max_tool_calls: int
    max_equal_calls: int
    result_page_tokens: int
    tool_choice: str
    timeout_ms: int
    domain_tags: list[str]
    provider_id: str
    model_id: str
    allowed_tools: list[str]
    temperature: float
    max_tokens: int
    ask_tools: list[str]
    ask_after_untrusted: list[str]
    deny_after_untrusted: list[str]
    has_read_untrusted: bool
    most_requests: int
    grants: list[str]
    client_tools: list[str]
    most_client_calls: int


class GatheredContext(TypedDict):
    """What was gathered for the model: which entries, and the hash of their text."""

    template_id: str
    cut_by: CutReason | None
    context_hash: str
    fragment_refs: NotRequired[list[RefMapping]]
    """What was shown, where no projection lists it."""
    projection_ref: NotRequired[RefMapping]
    biases: NotRequired[list[str]]
    """Artifact ids of the learned lines that were shown."""


class ConsolidatedSignal(TypedDict):
    """What a consolidation learns from."""

    namespace: str
    signal_id: str
    gate_ts: str
    signals_position: int
    """Number of the last signal event that counts."""


class WorkOrderPlannedPayload(CommonPayload):
    """`WO_PLANNED`: what a work order's input consists of, never the input itself."""

    wo_id: NotRequired[str]
    wo_type: WorkOrderType
    intent_id: str | None
    targets: NotRequired[list[str] | Sealed]
    """Absent: none, as with `acceptance`. Before version 7 of the policy always there."""
    acceptance: NotRequired[list[str] | Sealed]
    constraints: ConstraintsMapping
    input_refs: NotRequired[list[RefMapping | None]]
    """What the input holds besides the turn's message; absent: nothing. Before version 8 of the policy always there, and the
    message first."""
    input_hash: str
    parent_wo_id: NotRequired[str]
    attention: NotRequired[GatheredContext]
    consolidates: NotRequired[ConsolidatedSignal]
    config_hash: NotRequired[str]
    """The configuration of a consolidation, which belongs to no turn that would name it."""


class WorkOrderDispatchedPayload(CommonPayload):
    """`WO_DISPATCHED`: a planned work order was sent to HO1."""

    wo_id: NotRequired[str]
    tier_target: Literal["HO1"]
    lane: LaneName


class WorkOrderCompletedPayload(CommonPayload):
    """`WO_COMPLETED` in HO2m: the output was accepted."""

    wo_id: NotRequired[str]
    cost: CostMapping
    output_ref: RefMapping | None
    """The entry in HO1m that holds the output; before version 7 of the policy its `WO_COMPLETED`, which refers to it."""
    output_hash: NotRequired[str]
    """Absent before version 7 of the policy, where `WO_COMPLETED` in HO1m has it."""


class WorkOrderFailedPayload(CommonPayload):
    """`WO_FAILED` in HO2m: a work order failed, for a reason and at a cost."""

    wo_id: NotRequired[str]
    reason: FailureReason
    error: WorkOrderErrorMapping | Sealed | None
    cost: CostMapping


class WorkOrderSupersededPayload(CommonPayload):
    """`WO_SUPERSEDED`: a retry took the place of a failed work order."""

    wo_id: str
    superseded_by_wo_id: str
    reason: SupersedeReason


class WorkOrderAbandonedPayload(CommonPayload):
    """`WO_ABANDONED`: a work order will not be executed, or not be continued."""

    wo_id: NotRequired[str]
    reason: AbandonReason


class WorkOrderRetiredPayload(CommonPayload):
    """`WO_RETIRED`: the work order is no longer of use. Kitchener reads it and does not write it."""

    wo_id: NotRequired[str]
    reason: str


class WorkOrderDeferredPayload(CommonPayload):
    """`WO_DEFERRED` in HO2m: the work order waits, and is shown as a stub at most."""

    wo_id: NotRequired[str]
    reason: WaitReason
    """Other programs may write others."""
    cost: NotRequired[CostMapping]
    """What it used before it stopped; absent: another program wrote it."""
    blocked_by: NotRequired[list[str]]
    """Ids of the work orders that it waits for."""


class WorkOrderReopenedPayload(CommonPayload):
    """`WO_REOPENED`: the work order is open again. Kitchener reads it and does not write it."""

    wo_id: NotRequired[str]
    reason: str


class QualityGatePayload(CommonPayload):
    """`WO_QUALITY_GATE`: a reply was accepted or rejected before the user gets it."""

    wo_id: str
    decision: GateDecision
    reason: SealedText | None
    """Why, or the model's words that judged it; None: all checks passed. Before version 7 of the policy never None."""
    trace_hash: str
