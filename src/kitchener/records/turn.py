"""What a turn is asked, what it returns, and what it tells while it runs."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple, TypedDict

from kitchener.records.ref import Ref, RefMapping
from kitchener.records.work_order import WorkOrderState, WorkOrderType

AbortReason = Literal["cancelled", "timeout", "shutdown", "crash"]
"""Why a turn was aborted."""
RejectReason = Literal["busy", "overloaded", "replaced"]
"""Why a message was not admitted."""


class TurnCall(NamedTuple):
    """The options of one message."""

    session_id: str | None = None
    """The session it names; None starts one."""
    subject_id: str | None = None
    """The subject it names."""
    idempotency_key: str | None = None
    """The same key with the same message has one turn."""
    memory: bool = True
    """Whether long-term memory may be read and written."""
    deadline: float | None = None
    """On the event loop's clock, seconds; None: the configured limit once the turn runs."""


class CostSummary(TypedDict):
    """What a turn used, summed over its work orders."""

    input_tokens: int
    output_tokens: int
    llm_calls: int
    tool_calls: int


class WorkOrderSummary(TypedDict):
    """One work order of a turn's chain."""

    wo_id: str
    wo_type: WorkOrderType
    state: WorkOrderState
    cost: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TurnError:
    """Why a turn could not do what was asked. The reply still says something."""

    kind: str
    """`BUDGET`, `PROVIDER`, `TOOL`, `OUTPUT_SCHEMA`, `QUALITY_GATE`, `TIMEOUT` or `EXECUTOR`."""
    message: str
    """What happened, for a reader."""
    wo_id: str | None = None
    """The work order that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """The outcome of one turn. Every field stands in the turn's `TURN_COMPLETED` entry."""

    response: str
    """What to show the user; never empty."""
    wo_chain_summary: tuple[WorkOrderSummary, ...]
    """Every work order of the turn, retries included, in the order of planning."""
    cost_summary: CostSummary
    """Tokens and calls of the whole turn."""
    session_id: str
    """The session, also where the call started it."""
    turn_id: str
    """`T-{session hex}-{n:06d}`"""
    intent_id: str | None = None
    """The goal the turn served; None where intents are not used."""
    quality_gate_passed: bool = True
    """Whether the reply passed the quality gate."""
    consolidation_candidates: tuple[str, ...] = ()
    """Signals that crossed the memory gate in this turn."""
    degraded: bool = False
    """The reply did not come about in the ordinary way; `error` says why."""
    pending_approval: tuple[str, ...] = ()
    """Work orders that wait for a person."""
    error: TurnError | None = None
    """Why the turn could not do what was asked; None when it could."""
    trace_hash: str | None = None
    """`sha256:` over the executor's records of this turn; None where nothing was executed."""
    projection_ref: Ref | None = None
    """The turn's projection, where the Context Authority made one."""

    def as_payload(self) -> dict[str, Any]:
        """Every field as JSON types, as it stands in `TURN_COMPLETED`."""
        return {
            "response": self.response,
            "wo_chain_summary": list(self.wo_chain_summary),
            "cost_summary": self.cost_summary,
            "session_id": self.session_id,
            "turn_id": self.turn_id,
            "intent_id": self.intent_id,
            "quality_gate_passed": self.quality_gate_passed,
            "consolidation_candidates": list(self.consolidation_candidates),
            "degraded": self.degraded,
            "pending_approval": list(self.pending_approval),
            "error": asdict(self.error) if self.error else None,
            "trace_hash": self.trace_hash,
            "projection_ref": self.projection_ref.as_mapping() if self.projection_ref else None,
        }

    @classmethod
    def from_payload(cls, payload: Mapping[str, Any]) -> "TurnResult":
        """The result read back from its `TURN_COMPLETED` entry."""
        error: Mapping[str, Any] | None = payload["error"]
        projection: RefMapping | None = payload["projection_ref"]
        return cls(
            response=payload["response"],
            wo_chain_summary=tuple(payload["wo_chain_summary"]),
            cost_summary=payload["cost_summary"],
            session_id=payload["session_id"],
            turn_id=payload["turn_id"],
            intent_id=payload["intent_id"],
            quality_gate_passed=payload["quality_gate_passed"],
            consolidation_candidates=tuple(payload["consolidation_candidates"]),
            degraded=payload["degraded"],
            pending_approval=tuple(payload["pending_approval"]),
            error=TurnError(error["kind"], error["message"], error["wo_id"]) if error else None,
            trace_hash=payload["trace_hash"],
            projection_ref=Ref.from_mapping(projection) if projection else None,
        )


@dataclass(frozen=True, slots=True)
class WorkOrderPlanned:
    """A work order stands in the ledger and is about to run."""

    wo_id: str
    wo_type: WorkOrderType


@dataclass(frozen=True, slots=True)
class WorkOrderFinished:
    """A work order came back."""

    wo_id: str
    wo_type: WorkOrderType
    state: WorkOrderState


@dataclass(frozen=True, slots=True)
class ToolRan:
    """A tool was called and answered, or failed."""

    wo_id: str
    tool_id: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Some text of the reply. Provisional until the turn completes."""

    wo_id: str
    attempt: int
    text: str


@dataclass(frozen=True, slots=True)
class TextRetracted:
    """All text deltas of this work order so far are void: a new attempt begins, or the reply was rejected."""

    wo_id: str


@dataclass(frozen=True, slots=True)
class TurnCompleted:
    """The last update: the turn is on record and durable."""

    result: TurnResult


TurnUpdate = WorkOrderPlanned | WorkOrderFinished | ToolRan | TextDelta | TextRetracted | TurnCompleted
"""What `stream_turn` yields."""

UpdateListener = Callable[[TurnUpdate], Awaitable[None]]
"""Who is told what happens in a turn, while it happens. A slow listener holds the turn back."""
