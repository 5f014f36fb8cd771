"""Payloads about turns, and the parts of them that a turn's result repeats."""

from collections.abc import Mapping
from typing import Literal, NotRequired, TypedDict

from kitchener.choices import OverlapPolicy
from kitchener.records.entries.approvals import ResumesMapping
from kitchener.records.entries.common import CommonPayload, Sealed, SealedText
from kitchener.records.entries.work_orders import CostMapping, NestedCost, WorkOrderState, WorkOrderType
from kitchener.records.ref import ListedRefMapping, RefMapping

AbortReason = Literal["cancelled", "timeout", "overloaded", "crash", "shutdown"]
"""Why a turn was aborted: by its caller, by its deadline, by an error, or by the runtime that closed."""
RejectReason = Literal["busy", "overloaded", "replaced", "unsupported"]
"""Why a message got no turn: its session was busy, its session's queue was full, a newer message took its place, or the model
takes no content of the type that it brought."""
TurnErrorKind = Literal[
    "BUDGET",
    "PROVIDER",
    "TOOL",
    "OUTPUT_SCHEMA",
    "QUALITY_GATE",
    "TIMEOUT",
    "EXECUTOR",
    "UNCLEAR_INTENT",
    "CONFLICT",
    "INVALID_LIFECYCLE",
]
"""Why a turn could not do what was asked. In the last three the turn asked, or could show nothing to a model."""
DegradedComponent = Literal["HO1", "HO3"]
IdempotencyScope = Literal["session", "subject"]
"""The owner of an idempotency key. Equal keys of different owners are different keys."""


class CostSummary(NestedCost):
    """What a turn or a session used, summed over its work orders and the turns that its tools ran in other sessions."""

    nested: NotRequired[NestedCost]
    """The part of the sums that turns in other sessions used; absent: its tools ran none."""


class WorkOrderSummary(TypedDict):
    """One work order of a turn's chain."""

    wo_id: str
    wo_type: WorkOrderType
    state: WorkOrderState
    cost: CostMapping


class TurnErrorMapping(TypedDict):
    """How entries record the error of a turn."""

    kind: TurnErrorKind
    message: str
    wo_id: str | None


class ClientCallMapping(TypedDict):
    """How entries record a call that the caller runs."""

    call_id: str
    name: str
    arguments: Mapping[str, object]


class TurnCallPayload(CommonPayload):
    """The options of a message, which `TURN_STARTED` repeats."""

    memory: bool
    """Whether long-term memory may be read and written."""
    idempotency_key: NotRequired[str]
    idempotency_scope: NotRequired[IdempotencyScope]
    speaker: NotRequired[SealedText]
    """The name of the person who said the message, where several talk; absent: the subject."""
    acceptance: NotRequired[list[str] | Sealed]
    """Criteria that the caller gave for the reply."""
    output_schema: NotRequired[str]
    """Hash of the JSON schema of the object that the caller wants in place of a reply's text, see `SOURCE_RECORDED`; absent:
    the caller wants text."""
    client_tools: NotRequired[str]
    """Hash of the definitions of the tools that the caller runs, see `SOURCE_RECORDED`; absent: the caller runs none."""
    tool_choice: NotRequired[str]
    """What the first answer of the reply had to call: `none`, `required` or the id of a tool; absent: the model chose."""
    resumes: NotRequired[ResumesMapping]
    """The deferred work order that the turn continues, once all its requests have an answer; absent: the turn is a message
    of its own."""


class TurnStartedPayload(TurnCallPayload):
    """`TURN_STARTED`: a message was admitted as a turn, with everything on which the turn depends."""

    turn_ts: str
    """ISO time of the turn, from which everything that depends on time is computed."""
    user_message: SealedText
    read_positions: Mapping[str, int]
    """Number of the last entry that the turn may read, by ledger id."""
    ruleset_hash: str
    """The identity of the policy."""
    config_hash: str
    """Hash of all settings."""
    policy_version: NotRequired[int]
    """The version of the rules that the turn followed, see `kitchener.records.events.POLICY_VERSION`; absent: 1."""
    overlap: OverlapPolicy
    parts: NotRequired[list[str]]
    """Hashes of the images and files of the message, in their order; absent: it has none."""
    media_types: NotRequired[list[str]]
    """The types of content that the model takes, such as `image/*`; absent: the session has no images and files."""
    after_untrusted: NotRequired[Literal[True]]
    """A tool runs the turn whose own turn had read text of an untrusted source; absent: none does."""


class PartAttachedPayload(CommonPayload):
    """`PART_ATTACHED`: an image or a file of the turn's message. Its bytes are stored beside the ledgers."""

    number: int
    """Its number within the message, from 1."""
    name: SealedText
    media_type: str
    size: int
    """Bytes of the content."""
    tokens: int
    """Estimated tokens that a model reads for it."""
    content_hash: str
    """Hash of the content; keyed with the subject's key where content is sealed."""
    stored_hash: str
    """Hash of the stored file, which is sealed where content is."""


class TurnRejectedPayload(CommonPayload):
    """`TURN_REJECTED`: a message that got no turn. It takes no number."""

    user_message: SealedText
    reason: RejectReason
    idempotency_key: NotRequired[str]


class TurnResultPayload(CommonPayload):
    """What `TURN_COMPLETED` records of the result that the caller got."""

    response: SealedText
    wo_chain_summary: list[WorkOrderSummary]
    cost_summary: CostSummary
    intent_id: str | None
    quality_gate_passed: bool
    consolidation_candidates: list[str]
    degraded: bool
    pending_approval: list[str]
    error: TurnErrorMapping | Sealed | None
    trace_hash: str | None
    projection_ref: RefMapping | None
    client_calls: NotRequired[list[ClientCallMapping] | Sealed]
    """The calls that the caller has to make; absent: none."""
    has_output: NotRequired[Literal[True]]
    """The response is the text of the object that the caller asked for; absent: it is no such object."""
    truncated: NotRequired[Literal[True]]
    """The response is only the beginning of what the model would have said; absent: it is whole."""


class DirectCost(TypedDict, total=False):
    """The cost of a turn that no entry of a work order counts."""

    direct_cost: CostMapping
    """What a call of the gateway used that was made because HO1 was broken; absent: there was none."""


class KeptResults(TypedDict, total=False):
    """The results of tools that later turns may be shown."""

    tool_results: list[ListedRefMapping]
    """The `TOOL_CALL` entries of the turn that are kept; absent: the agent class recalls none."""


class CheckedGates(TypedDict):
    """When the gates of memory were looked at after a turn, and what was known then."""

    gate_ts: NotRequired[str | None]
    """ISO time at which the memory's gates were looked at; absent, or None before version 7 of the policy: they were not."""
    read_positions: NotRequired[Mapping[str, int]]
    """Absent: those of `TURN_STARTED`, since the turn looked at no gates. Before version 7 of the policy always there."""


class TurnCompletedPayload(TurnResultPayload, DirectCost, KeptResults, CheckedGates):
    """`TURN_COMPLETED`: the turn's result, and what it rests on."""

    user_message_ref: RefMapping | None


class TurnAbortedPayload(CommonPayload):
    """`TURN_ABORTED`: a turn ended without a result."""

    reason: AbortReason


class ChainCompletePayload(CommonPayload):
    """`WO_CHAIN_COMPLETE`: all work orders of a turn have ended; their sum and the hash of HO1's entries."""

    wo_ids: list[str]
    wo_count: int
    total_cost: CostSummary
    trace_hash: str


class EscalationPayload(CommonPayload):
    """`ESCALATION`: no attempt passed the quality gate."""

    reason: SealedText
    attempts: int
    wo_id: str


class DegradationPayload(CommonPayload):
    """`DEGRADATION`: a component failed and the turn continued without it."""

    component: DegradedComponent
    governance_violation: bool
    error: SealedText
    wo_id: NotRequired[str]
