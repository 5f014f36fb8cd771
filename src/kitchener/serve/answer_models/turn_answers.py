"""Describes answers about turns: results, requests for approval, and explanations of their context."""

from typing import Literal

from kitchener.choices import ContextMode
from kitchener.context.projection.explanation import Place, Verdict
from kitchener.context.projection.packer import Form
from kitchener.records.entries.approvals import ApprovalReason
from kitchener.records.entries.context import SuppressReason
from kitchener.records.entries.turns import TurnErrorKind
from kitchener.records.entries.work_orders import WorkOrderState, WorkOrderType
from kitchener.serve.answer_models.answer import DescribedAnswer, JsonObject


class NestedCostAnswer(DescribedAnswer):
    """The cost of turns that tools ran in other sessions."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    llm_calls: int
    tool_calls: int


class CostAnswer(NestedCostAnswer):
    """The cost of a turn or a session."""

    tool_ids_used: list[str] | None = None
    elapsed_ms: int = 0
    nested: NestedCostAnswer | None = None


class WorkOrderAnswer(DescribedAnswer):
    """One work order of a turn."""

    wo_id: str
    wo_type: WorkOrderType
    state: WorkOrderState
    cost: CostAnswer


class TurnErrorAnswer(DescribedAnswer):
    """The error of a turn that could not do what was asked."""

    kind: TurnErrorKind
    message: str
    wo_id: str | None


class RefAnswer(DescribedAnswer):
    """An entry of a ledger."""

    ledger_id: str
    entry_id: str
    entry_hash: str


class TurnAnswer(DescribedAnswer):
    """The result of a turn."""

    response: str
    """The reply; never empty."""
    output: JsonObject | None
    """The object that `output_schema` asked for; null: none was asked for, or the turn has an `error`."""
    has_output: Literal[True] | None = None
    truncated: Literal[True] | None = None
    """The reply is a beginning: it reached the limit of output tokens, or a content filter stopped it; absent: it is whole."""
    session_id: str
    turn_id: str
    intent_id: str | None
    """The intent that the turn served."""
    quality_gate_passed: bool
    """Always the opposite of `degraded`."""
    consolidation_candidates: list[str]
    """Signals that crossed the memory gate in this turn."""
    degraded: bool
    """Whether the turn has an `error`."""
    pending_approval: list[str]
    """Requests for approval that the turn ended with."""
    error: TurnErrorAnswer | None
    cost_summary: CostAnswer
    wo_chain_summary: list[WorkOrderAnswer]
    """Every work order of the turn, in order of planning."""
    trace_hash: str | None
    projection_ref: RefAnswer | None


class ResumedTurnAnswer(DescribedAnswer):
    """The outcome of an answer about a tool call."""

    result: TurnAnswer | None
    """The result of the continued turn; null: other calls still wait."""


class WaitingCallAnswer(DescribedAnswer):
    """A tool call that waits for a person."""

    agent: str
    """The agent class whose call it is: the one that was meant, or one that it asked."""
    approval_id: str
    session_id: str
    """The session in which it is answered."""
    turn_id: str
    wo_id: str
    tool_id: str
    arguments: JsonObject | None
    """The arguments as the model gave them; null: they were erased."""
    reason: ApprovalReason
    rule: str
    """The rule that asks."""
    message: str | None
    """The tool's own question."""
    response_schema: JsonObject | None
    """JSON schema of the answer that the tool wants; null: none."""
    requested_at: str
    expires_at: str


class ApprovalListAnswer(DescribedAnswer):
    """Tool calls that wait, oldest first."""

    approvals: list[WaitingCallAnswer]


class ExplanationAnswer(DescribedAnswer):
    """Why one item was shown or not."""

    entity_id: str
    verdict: Verdict
    text: str
    form: Form
    place: Place
    """Where it is in the prompt."""
    reasons: list[str]
    tokens: int
    suppressed_by: SuppressReason | None
    short_by: int
    """Tokens that were missing to show it in full."""
    since: RefAnswer | None
    evidence_refs: list[RefAnswer]


class TurnFlagAnswer(DescribedAnswer):
    """A note about a turn."""

    kind: str | None
    detail: object


class TurnReasonsAnswer(DescribedAnswer):
    """What a turn was shown, and why, as in `kitchener context explain --json`."""

    turn_id: str
    session_id: str
    mode: ContextMode
    intent_id: str | None
    token_budget: int | None
    tokens_used: int | None
    ruleset_hash: str | None
    is_exact: bool
    """Whether the projection could be made again as it was."""
    unreadable: object
    outcome: str
    error: str | JsonObject | None
    approvals: object
    waited_for: object
    why_nothing: str | None
    gathered: list[object]
    calls: list[object]
    usage: JsonObject
    nested_turns: object
    prefix_break: list[object] | None
    flags: list[TurnFlagAnswer]
    explanations: list[ExplanationAnswer]


class ShownChangeAnswer(DescribedAnswer):
    """An item that only one of two turns was shown."""

    entity_id: str
    kind: str
    why: str


class TurnDiffAnswer(DescribedAnswer):
    """What a turn was shown that an earlier one was not, and the other way round."""

    before: str
    after: str
    came_in: list[ShownChangeAnswer]
    went_out: list[ShownChangeAnswer]
    notes: list[str]
