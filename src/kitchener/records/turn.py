"""The call, the result and the updates of one turn. Plain immutable records; this module knows nothing of how a turn runs."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NamedTuple, Self

from pydantic import BaseModel
from typing_extensions import TypeVar

from kitchener.canonical import parse_json
from kitchener.errors import InvalidOutput
from kitchener.ids import memory_namespace
from kitchener.records.entries.approvals import ResumesMapping
from kitchener.records.entries.common import opened, payload_as, text_of
from kitchener.records.entries.turns import (
    CostSummary,
    TurnCallPayload,
    TurnErrorKind,
    TurnErrorMapping,
    TurnResultPayload,
    WorkOrderSummary,
)
from kitchener.records.entries.work_orders import WorkOrderState, WorkOrderType
from kitchener.records.output_schema import OutputSchema
from kitchener.records.parts import FilePart, ReadPart, StoredPart
from kitchener.records.ref import Ref
from kitchener.records.tools.client_tools import ClientCall, ClientToolset


class ConsolidationCandidate(str):
    """The stored id of a signal whose gate opened, with the namespace in which it counts."""

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


class ConsolidationCandidates(tuple[str, ...]):
    """The signals whose gates opened in a turn. Equal to a list or a tuple of the same signals."""

    __slots__ = ()
    __hash__ = tuple.__hash__

    def __eq__(self, other: object) -> bool:
        return tuple.__eq__(self, tuple(other) if isinstance(other, list) else other) is True

    @classmethod
    def of(cls, signal_ids: Iterable[str], namespace: str) -> Self:
        """Signals that all count in one namespace."""
        return cls(ConsolidationCandidate(each, namespace) for each in signal_ids)


NO_CANDIDATES: Final = ConsolidationCandidates()


class TurnCall(NamedTuple):
    """The options of one message."""

    session_id: str | None = None
    """The session to continue; None: start a new one."""
    subject_id: str | None = None
    """The subject that the message is from; None: the session's own."""
    idempotency_key: str | None = None
    """A second message with the same key gets the result of the first; None: every message gets a turn."""
    memory: bool = True
    """Whether the turn may read and write long-term memory."""
    deadline: float | None = None
    """On the event loop's clock, seconds; None: `turn_deadline_s` from when the turn starts to run."""
    acceptance: tuple[str, ...] = ()
    """Criteria that the reply must meet."""
    parts: tuple[FilePart | ReadPart | StoredPart, ...] = ()
    """Images and files of the message: as given, then as read; those of a replay as they are stored."""
    speaker: str | None = None
    """The name of the person who said the message; None: the subject."""
    output: OutputSchema | None = None
    """The object that the caller wants in place of a reply's text; None: text."""
    tool_choice: str | None = None
    """What the first answer of the reply must call: `none`, `required` or the id of a tool; None: the model chooses."""
    resumes: ResumesMapping | None = None
    """The deferred work order that the turn continues; None: the message begins a turn of its own."""
    client_tools: ClientToolset | None = None
    """The tools that the caller runs, checked; None: none."""

    def note_in(self, payload: TurnCallPayload) -> None:
        """Adds the options that were given to a `TURN_STARTED`. It names schemas and tools by their hashes."""
        if self.idempotency_key is not None:
            payload["idempotency_key"] = self.idempotency_key
            payload["idempotency_scope"] = "session" if self.session_id is not None else "subject"
        if self.speaker is not None:
            payload["speaker"] = self.speaker
        if self.acceptance:
            payload["acceptance"] = list(self.acceptance)
        if self.output is not None:
            payload["output_schema"] = self.output.hash
        if self.client_tools is not None:
            payload["client_tools"] = self.client_tools.hash
        if self.tool_choice is not None:
            payload["tool_choice"] = self.tool_choice
        if self.resumes is not None:
            payload["resumes"] = self.resumes


@dataclass(frozen=True, slots=True)
class TurnError:
    """Why a turn could not do what it was asked. Its reply is then an apology, a question, or that of the degraded call."""

    kind: TurnErrorKind
    """What went wrong, such as `BUDGET` or `PROVIDER`."""
    message: str
    """A description for people."""
    wo_id: str | None = None
    """The work order that failed; None: no single one did."""

    def as_mapping(self) -> TurnErrorMapping:
        return {"kind": self.kind, "message": self.message, "wo_id": self.wo_id}


OutputT = TypeVar("OutputT", bound=BaseModel | dict[str, Any], default=Any)
"""The pydantic model that a caller wants in place of a reply's text; a dict, where they gave a JSON schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult(Generic[OutputT]):
    """The outcome of one turn. The turn's `TURN_COMPLETED` entry contains every field."""

    response: str
    """The reply for the user. The text of `output`, if there is one. Empty only if the turn waits for `client_calls` and the
    model wrote nothing beside them."""
    wo_chain_summary: tuple[WorkOrderSummary, ...]
    """A summary of each work order of the turn, including retries, in order of planning."""
    cost_summary: CostSummary
    """Tokens, calls and time of the whole turn."""
    session_id: str
    """The session, even if the call started it."""
    turn_id: str
    """`T-{session hex}-{n:06d}`"""
    intent_id: str | None = None
    """The intent that the turn served; None: there is no active intent, or `context_mode` is not `enforce`."""
    quality_gate_passed: bool = True
    """Always `not degraded`: False if no attempt at the reply was accepted, or if the turn had no attempt."""
    consolidation_candidates: ConsolidationCandidates = NO_CANDIDATES
    """Signals that crossed the memory gate in this turn, for `run_consolidation`."""
    degraded: bool = False
    """Whether the turn has an `error`, so its reply is an apology, a question, or that of the degraded call."""
    pending_approval: tuple[str, ...] = ()
    """Ids of the requests for approval that the turn ended with; see `approve` and `deny` of a supervisor."""
    client_calls: tuple[ClientCall, ...] = ()
    """The calls that the caller of the turn has to make; see `answer_client_calls` of a supervisor."""
    error: TurnError | None = None
    """Why the turn could not do what it was asked; None: it could."""
    trace_hash: str | None = None
    """`sha256:` over the executor's entries of this turn; None: nothing was executed."""
    projection_ref: Ref | None = None
    """The entry of the turn's projection; None: `context_mode` is not `enforce`."""
    output: OutputT | None = None
    """The object that the caller asked for: an instance of the model, or a `dict` by a JSON schema. None: the caller asked for
    none, or the turn has an `error`."""
    truncated: bool = False
    """Whether the reply is only a beginning: the model reached its limit of output tokens, or a content filter stopped it."""

    def as_payload(self) -> TurnResultPayload:
        """Returns every field as JSON types, as `TURN_COMPLETED` contains it. `output` is read from the response."""
        found: TurnResultPayload = {
            "response": self.response,
            "wo_chain_summary": list(self.wo_chain_summary),
            "cost_summary": self.cost_summary,
            "session_id": self.session_id,
            "turn_id": self.turn_id,
            "intent_id": self.intent_id,
            "quality_gate_passed": self.quality_gate_passed,
            "consolidation_candidates": list(map(str, self.consolidation_candidates)),
            "degraded": self.degraded,
            "pending_approval": list(self.pending_approval),
            "error": self.error.as_mapping() if self.error else None,
            "trace_hash": self.trace_hash,
            "projection_ref": self.projection_ref.as_mapping() if self.projection_ref else None,
        }
        if self.client_calls:
            found["client_calls"] = [each.as_mapping() for each in self.client_calls]
        if self.output is not None:
            found["has_output"] = True
        if self.truncated:
            found["truncated"] = True
        return found

    @classmethod
    def from_payload(cls, payload: Mapping[str, object], agent_class: str | None = None) -> "TurnResult[dict[str, Any]]":
        """The result read back from its `TURN_COMPLETED` entry.

        Args:
            payload: of the entry
            agent_class: whose turn it was; None: its consolidation candidates do not know their namespace
        """
        read = payload_as(TurnResultPayload, payload)
        error, projection, response = opened(read["error"]), read["projection_ref"], read["response"]
        return TurnResult(
            response=text_of(response),
            output=parse_json(response) if "has_output" in read and isinstance(response, str) else None,
            wo_chain_summary=tuple(read["wo_chain_summary"]),
            cost_summary=read["cost_summary"],
            session_id=read["session_id"],
            turn_id=read["turn_id"],
            intent_id=read["intent_id"],
            quality_gate_passed=read["quality_gate_passed"],
            consolidation_candidates=_candidates(read, agent_class),
            degraded=read["degraded"],
            pending_approval=tuple(read["pending_approval"]),
            client_calls=tuple(
                [
                    ClientCall(each["call_id"], each["name"], each["arguments"])
                    for each in opened(read.get("client_calls")) or ()
                ]
            ),
            error=TurnError(error["kind"], error["message"], error["wo_id"]) if error else None,
            trace_hash=read["trace_hash"],
            projection_ref=Ref.from_mapping(projection) if projection else None,
            truncated=read.get("truncated", False),
        )


def as_asked(result: TurnResult[Any], asked: OutputSchema | None) -> TurnResult[Any]:
    """Returns a result whose `output` is what the caller asked for: an instance of the model.

    Raises:
        InvalidOutput: the model's own checks refuse an object that an earlier turn recorded for this idempotency key
    """
    if asked is None or result.output is None:
        return result
    try:
        return replace(result, output=asked.read(result.output))
    except ValueError as error:
        problem = asked.problem(result.output)
        raise InvalidOutput(f"turn {result.turn_id} has an output that {asked.name} refuses now: {problem}") from error


def _candidates(read: TurnResultPayload, agent_class: str | None) -> ConsolidationCandidates:
    signal_ids, subject_id = read["consolidation_candidates"], read.get("subject_id")
    if not signal_ids or agent_class is None or subject_id is None:
        return ConsolidationCandidates(signal_ids)
    return ConsolidationCandidates.of(signal_ids, memory_namespace(agent_class, subject_id))


@dataclass(frozen=True, slots=True)
class WorkOrderPlanned:
    """A work order was recorded and is about to run."""

    wo_id: str
    wo_type: WorkOrderType


@dataclass(frozen=True, slots=True)
class WorkOrderFinished:
    """A work order ended."""

    wo_id: str
    wo_type: WorkOrderType
    state: WorkOrderState


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """A tool is about to run. Its `ToolRan` has the same `wo_id` and `call`. A call that is refused has no `ToolStarted`."""

    wo_id: str
    tool_id: str
    call: int
    """Number of the tool call within the work order, from 1."""
    arguments: Mapping[str, object]
    """The arguments as the model gave them; read only."""


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """A running tool says how far it is. Not recorded, and dropped where the reader of the stream is slow."""

    wo_id: str
    tool_id: str
    call: int
    """Number of the tool call within the work order, from 1."""
    value: float | None = None
    """How much is done; None: unknown."""
    total: float | None = None
    """How much there is to do, in the unit of `value`; None: unknown."""
    message: str | None = None
    """What is being done, for people, by the tool; None: it does not say."""


@dataclass(frozen=True, slots=True)
class ToolRan:
    """A tool call ended, with a result or an error. Those of calls that ran side by side come in the order of the calls."""

    wo_id: str
    tool_id: str
    call: int
    """Number of the tool call within the work order, from 1."""
    arguments: Mapping[str, object]
    """The arguments as the model gave them; read only."""
    result: Any = None  # any JSON value
    """The result as a JSON value of at most `tool_result_max_bytes` bytes; meaningless if there is an error. Read only."""
    error: str | None = None
    """What went wrong, as the model is told; None: no error."""

    @property
    def is_error(self) -> bool:
        """Whether the call was refused or failed."""
        return self.error is not None


@dataclass(frozen=True, slots=True)
class ClientCallRequested:
    """The model called a tool that the caller runs. It counts once the turn has completed, with the call among its
    `client_calls`."""

    wo_id: str
    call: ClientCall


@dataclass(frozen=True, slots=True)
class TextDelta:
    """A piece of the reply's text. It may still be retracted until the turn completes."""

    wo_id: str
    attempt: int
    text: str


@dataclass(frozen=True, slots=True)
class TextRetracted:
    """Withdraws all text deltas of this work order, because a new attempt begins or the reply was rejected."""

    wo_id: str


@dataclass(frozen=True, slots=True)
class TurnCompleted:
    """The last update of a stream: the turn is recorded and durable."""

    result: TurnResult


TurnUpdate = (
    WorkOrderPlanned
    | WorkOrderFinished
    | ToolStarted
    | ToolProgress
    | ToolRan
    | ClientCallRequested
    | TextDelta
    | TextRetracted
    | TurnCompleted
)
"""One update of `stream_turn`."""

UpdateListener = Callable[[TurnUpdate], Awaitable[None]]
"""Receives the updates of a turn as they happen. The turn waits for the listener."""
