"""What a turn is asked, what it returns, and what it tells while it runs."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self, cast

from kitchener.ids import memory_namespace
from kitchener.records.entries.common import opened, payload_as, text_of
from kitchener.records.entries.turns import (
    CostSummary,
    TurnErrorKind,
    TurnErrorMapping,
    TurnResultPayload,
    WorkOrderSummary,
)
from kitchener.records.entries.work_orders import WorkOrderState, WorkOrderType
from kitchener.records.ref import Ref


class Candidate(str):
    """A signal whose gate opened, as ledgers store its id, which also knows in whose memory it counts."""

    __slots__ = ("namespace",)

    namespace: str
    """The memory namespace: `agent_class/subject_id`, both percent-encoded."""

    def __new__(cls, signal_id: str, namespace: str) -> Self:
        """The stored signal id with its namespace."""
        made = super().__new__(cls, signal_id)
        made.namespace = namespace
        return made

    def __reduce__(self) -> tuple[type[Self], tuple[str, str]]:
        return type(self), (str(self), self.namespace)


class Candidates(tuple[str, ...]):
    """The signals whose gates opened in a turn. Equal to a list or a tuple of the same signals."""

    __slots__ = ()
    __hash__ = tuple.__hash__

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, tuple(other) if isinstance(other, list) else other) is True

    @classmethod
    def of(cls, signal_ids: Iterable[str], namespace: str) -> Self:
        """Signals that all count in one namespace."""
        return cls(Candidate(each, namespace) for each in signal_ids)


NO_CANDIDATES: Final = Candidates()


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


@dataclass(frozen=True, slots=True)
class TurnError:
    """Why a turn could not do what was asked. The reply still says something."""

    kind: TurnErrorKind
    """What went wrong, such as `BUDGET` or `PROVIDER`."""
    message: str
    """What happened, for a reader."""
    wo_id: str | None = None
    """The work order that failed."""

    def as_mapping(self) -> TurnErrorMapping:
        """This error as a JSON object."""
        return {"kind": self.kind, "message": self.message, "wo_id": self.wo_id}


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
    consolidation_candidates: Candidates = NO_CANDIDATES
    """Signals that crossed the memory gate in this turn, for `run_consolidation`."""
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

    def as_payload(self) -> TurnResultPayload:
        """Every field as JSON types, as it stands in `TURN_COMPLETED`."""
        return {
            "response": self.response,
            "wo_chain_summary": list(self.wo_chain_summary),
            "cost_summary": self.cost_summary,
            "session_id": self.session_id,
            "turn_id": self.turn_id,
            "intent_id": self.intent_id,
            "quality_gate_passed": self.quality_gate_passed,
            "consolidation_candidates": [str(each) for each in self.consolidation_candidates],
            "degraded": self.degraded,
            "pending_approval": list(self.pending_approval),
            "error": self.error.as_mapping() if self.error else None,
            "trace_hash": self.trace_hash,
            "projection_ref": self.projection_ref.as_mapping() if self.projection_ref else None,
        }

    @classmethod
    def from_payload(cls, payload: Mapping[str, object], agent_class: str | None = None) -> "TurnResult":
        """The result read back from its `TURN_COMPLETED` entry.

        Args:
            payload: of the entry
            agent_class: whose turn it was; None: its consolidation candidates do not know their namespace
        """
        read = payload_as(TurnResultPayload, payload)
        error, projection = opened(read["error"]), read["projection_ref"]
        return cls(
            response=text_of(read["response"]),
            wo_chain_summary=tuple(cast(list[WorkOrderSummary], read["wo_chain_summary"])),
            cost_summary=read["cost_summary"],
            session_id=read["session_id"],
            turn_id=read["turn_id"],
            intent_id=read["intent_id"],
            quality_gate_passed=read["quality_gate_passed"],
            consolidation_candidates=_candidates(read, agent_class),
            degraded=read["degraded"],
            pending_approval=tuple(read["pending_approval"]),
            error=TurnError(error["kind"], error["message"], error["wo_id"]) if error else None,
            trace_hash=read["trace_hash"],
            projection_ref=Ref.from_mapping(projection) if projection else None,
        )


def _candidates(read: TurnResultPayload, agent_class: str | None) -> Candidates:
    signal_ids, subject_id = read["consolidation_candidates"], read.get("subject_id")
    if not signal_ids or agent_class is None or subject_id is None:
        return Candidates(signal_ids)
    return Candidates.of(signal_ids, memory_namespace(agent_class, subject_id))


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
