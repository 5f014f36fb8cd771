"""A tool call that waits for a person, its answer, and the tool loop that continues after it. Plain immutable records.

Explained in `docs/approval.md`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from kitchener.records.entries.approvals import ApprovalDecision, ApprovalReason
from kitchener.records.entries.common import Json
from kitchener.records.prompt import ToolUse
from kitchener.records.tools.tool_question import ToolAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A tool call that waits for a person, as the executor found it."""

    call: int
    """Number of the tool call within the work order, from 1."""
    tool_id: str
    arguments: Mapping[str, object]
    """As the model gave them."""
    reason: ApprovalReason = "tool_call"
    message: str = ""
    """What the tool asks, in its own words; "": a policy asks."""
    response_schema: Mapping[str, object] | None = None
    """JSON schema of the answer that the tool wants; None: yes or no."""
    is_after_untrusted: bool = False
    """Whether the call waits only because its turn has read text of an untrusted source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalAnswer:
    """The answer to a request."""

    approval_id: str
    decision: ApprovalDecision
    arguments: Mapping[str, object] | None = None
    """The arguments to use in place of the model's; None: those of the model."""
    given: ToolAnswer | None = None
    """What the person answered to the tool's question, or the output of the client's tool; None: neither."""
    message: str = ""
    """What the person says about the decision."""

    @property
    def problem(self) -> str | None:
        """Why the call must not run, as the model is told; None: it may run."""
        if self.decision in ("approved", "returned"):
            return None
        told = {
            "failed": "the client ran this tool, and it failed",
            "denied": "a person was asked and did not allow this call",
            "cancelled": "this call was not made: the tool has changed since; ask for it again if it is needed",
            "expired": "this call was not made: nobody answered the request for approval in time",
        }[self.decision]
        return f"{told}: {self.message}" if self.message else told


@dataclass(frozen=True, slots=True, kw_only=True)
class HeardOutcome:
    """The recorded outcome of a tool call."""

    wo_id: str
    """The work order that made the call."""
    call: int
    """Number of the call within that work order, from 1."""

    result: Json = None
    error: str | None = None
    """What went wrong; None: there is a result."""
    untrusted_source: str | None = None
    """Where it comes from, such as `mcp:web`, if that is not trusted; None: it is trusted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRound:
    """An answer of the model that requests tools, and the outcomes of the calls."""

    text: str
    uses: tuple[ToolUse, ...]
    outcomes: tuple[HeardOutcome | None, ...]
    """The outcome of each use; None: the call has not run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingCall:
    """A use of the last round without an outcome."""

    place: int
    """Its place in the round, from 0."""
    answer: ApprovalAnswer | None = None
    """The answer to its request; None: it did not need one, and only waited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """The tool loop of a deferred work order, as it is on record, with the answers to its requests."""

    wo_id: str
    rounds: tuple[ToolRound, ...] = ()
    pending: tuple[PendingCall, ...] = ()
    tokens: int = 0
    """Estimated tokens of the loop, as a model reads it."""

    @property
    def has_read_untrusted(self) -> bool:
        """Whether the loop has read text of an untrusted source."""
        return any(each is not None and each.untrusted_source is not None for one in self.rounds for each in one.outcomes)
