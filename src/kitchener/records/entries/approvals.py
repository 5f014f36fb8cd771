"""Payloads about tool calls that wait for a person, and about the answers."""

from collections.abc import Mapping
from typing import Final, Literal, NotRequired, TypedDict, get_args

from kitchener.records.entries.common import CommonPayload, Json, Sealed, SealedText
from kitchener.records.entries.work_orders import CostMapping

ApprovalReason = Literal["tool_call", "input_required", "confirmation", "client_tool"]
"""Why a call waits: a policy asks before it runs; a server asks for input; the tool asks for a confirmation; the caller of the
turn runs the tool."""
PersonDecision = Literal["approved", "denied"]
ClientDecision = Literal["returned", "failed"]
"""The client ran its tool, with an output or with an error."""
CLIENT_DECISIONS: Final[tuple[ClientDecision, ...]] = get_args(ClientDecision)
ApprovalDecision = Literal[PersonDecision, ClientDecision, "cancelled", "expired"]
"""How a request ended. `cancelled`: the tool's definition had changed, so an approval would be for something else."""
ApprovalScope = Literal["once", "session"]
"""What an approval is for: this call, or further calls of the tool in this session."""


class ApprovalRequestedPayload(CommonPayload):
    """`APPROVAL_REQUESTED`: a tool call waits for a person."""

    approval_id: str
    """`{wo_id}.{call}`"""
    wo_id: str
    """The work order that was deferred."""
    call: int
    """Number of the tool call within the work order, from 1."""
    reason: ApprovalReason
    rule: str
    """The rule of the policy that asks, as it is written; `tool`: the tool itself asks; `client`: its client runs it."""
    tool: str
    tool_hash: str
    """Hash of the tool's definition. An answer is void if it has changed."""
    arguments: Mapping[str, object] | Sealed
    args_hash: str
    """Digest of the arguments; keyed with the subject's key where content is sealed."""
    message: NotRequired[SealedText]
    """What the tool asks, in its own words; absent: it says nothing."""
    response_schema: NotRequired[Mapping[str, object] | Sealed]
    """JSON schema of the answer that the tool wants; absent: it wants none."""
    after_untrusted: NotRequired[Literal[True]]
    """The call waits only because its turn had read text of an untrusted source; absent: it always waits."""
    expires_at: str
    """ISO time after which no answer is taken."""


class ApprovalResolvedPayload(CommonPayload):
    """`APPROVAL_RESOLVED`: the one answer to a request."""

    approval_id: str
    wo_id: str
    decision: ApprovalDecision
    scope: ApprovalScope
    override_args: NotRequired[Mapping[str, object] | Sealed]
    """The arguments to use in place of the model's; absent: the model's."""
    answer: NotRequired[Json | Sealed]
    """What the person answered to the tool's question, or the output of the client's tool; absent: nothing, or null."""
    message: NotRequired[SealedText]
    """What the person says about the decision, or how the client's tool failed, for the model; absent: nothing."""
    answered_by: NotRequired[SealedText]
    """Who answered, as the program names the person; absent: it did not say."""


class ExecutionDeferredPayload(CommonPayload):
    """`WO_DEFERRED` in HO1m: the work order stopped before calls that wait for a person."""

    waiting: list[int]
    """Numbers of the tool calls that wait for an answer."""
    cost: CostMapping


class ResumesMapping(TypedDict):
    """The deferred work order that a turn continues."""

    wo_id: str
    turn_id: str
    """The turn that deferred it."""
    approval_ids: list[str]
    """All requests of the work order, each of which has an answer."""
    loop: list[str]
    """The work orders whose tool loop it is, oldest first: those that the deferred one continued, the deferred one, and
    those of turns that continued it before and were cut off."""
    void: NotRequired[list[str]]
    """Approvals of tools whose definition has changed since the answer; absent: none."""
    after_untrusted: NotRequired[Literal[True]]
    """A tool ran the turn that deferred it, after its own turn had read text of an untrusted source; absent: none did."""
