"""The work order: the unit of execution that HO2 passes to HO1, with the methods that change its state.

A work order is immutable and validated when it is created. Each change of state is a new value; the methods that make it check
the table of legal transitions. `docs/work-orders.md` explains the states.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final, Literal, NamedTuple, Protocol, Self, TypeVar

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass
from pydantic_core.core_schema import CoreSchema, any_schema

from kitchener.errors import InvalidTransition
from kitchener.ids import SubjectId, WorkOrderId, anonymous_subject, work_order_id
from kitchener.records.entries.work_orders import CallFailure, FailureReason, NestedCost, WorkOrderState, WorkOrderType
from kitchener.records.outputs import output_as
from kitchener.records.parts import StoredPart
from kitchener.records.ref import Ref
from kitchener.records.tools.deferred_loop import ApprovalRequest, Resumption

T = TypeVar("T")

TRANSITIONS: dict[WorkOrderState, frozenset[WorkOrderState]] = {
    "planned": frozenset(("dispatched", "abandoned")),
    "dispatched": frozenset(("executing", "failed", "abandoned")),
    "executing": frozenset(("completed", "failed", "deferred", "abandoned")),
    "deferred": frozenset(("executing", "failed", "abandoned")),
    "completed": frozenset(("failed",)),
    "failed": frozenset(("superseded", "abandoned")),
    "superseded": frozenset(),
    "abandoned": frozenset(),
}
"""State to the states that may follow it. Only HO2 uses `completed → failed`, when its quality gate rejects the output."""


_STRICT: Final = ConfigDict(extra="forbid")


class _Unchecked:
    """Marks a field that pydantic does not check: following the recursive type of a JSON value, it would never end."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: object, handler: object) -> CoreSchema:
        return any_schema()


class _Replaceable:
    """A record that can be copied with other values."""

    def replaced(self, **changes: object) -> Self:
        """This record with other values, which the caller has checked: they are not validated again."""
        copy = object.__new__(type(self))
        fields = copy.__dict__
        fields.update(self.__dict__)
        fields.update(changes)
        return copy


TYPE_TAGS: Mapping[WorkOrderType, str] = MappingProxyType(
    {
        "classify": "classification",
        "tool_call": "tool",
        "synthesize": "synthesis",
        "verify": "verification",
        "consolidate": "consolidation",
    }
)
"""The domain tag that each type of work order carries."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Constraints(_Replaceable):
    """The limits of a work order."""

    prompt_contract_id: str | None = None
    """The contract with prompt and schemas; None for `tool_call`, which needs no model."""
    token_budget: Annotated[int, Field(ge=1)] = 4_000
    """Most tokens of this work order, input and output together; see `reply_reserve`."""
    reply_reserve: Annotated[int, Field(ge=1)] | None = None
    """Tokens kept free for the answer. Input from a provider's cache then does not count, and a work order whose budget runs
    out makes one last call, which may call no tool. None: such input counts, and running out fails the work order."""
    results_budget: Annotated[int, Field(ge=1)] | None = None
    """Most tokens of tool results that the model is shown. A result beyond it is cut, and the next call is the last. None: no
    limit."""
    turn_limit: Annotated[int, Field(ge=0)] = 0
    """Most rounds of tool use."""
    parallel_tools: Annotated[int, Field(ge=1)] = 1
    """Most read-only tools that run side by side in one round."""
    max_tool_calls: Annotated[int, Field(ge=1)] | None = None
    """Most tool calls. None: as many as the rounds have."""
    max_equal_calls: Annotated[int, Field(ge=1)] | None = None
    """Most calls of one tool with the same arguments. None: no limit."""
    result_page_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens of one tool result that the model is shown at once; it reads the rest page by page. None: all of a result."""
    tool_choice: str | None = None
    """What the first answer must call: `required` (any tool), the id of one tool, or `none`: then no answer may call one. None:
    the model chooses."""
    timeout_ms: Annotated[int, Field(ge=1)] | None = None
    """Longest execution, milliseconds; None: only the turn's deadline applies."""
    domain_tags: tuple[str, ...] = ()
    """Tags that may choose the gateway's route."""
    provider_id: str | None = None
    """The provider to use, regardless of tags; None: the route decides."""
    model_id: str | None = None
    """The model to use, regardless of the route; None: the route decides."""
    allowed_tools: tuple[str, ...] = ()
    """Tools that this work order may use."""
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    """Sampling temperature; None: that of the contract."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Longest answer, tokens; None: that of the contract."""
    ask_tools: tuple[str, ...] = ()
    """Tools whose calls wait for a person."""
    ask_after_untrusted: tuple[str, ...] = ()
    """Tools whose calls wait for a person once the work order has read text of an untrusted source."""
    deny_after_untrusted: tuple[str, ...] = ()
    """Tools whose calls are refused once the work order has read text of an untrusted source."""
    has_read_untrusted: bool = False
    """Whether such text is among what the work order is given."""
    most_requests: Annotated[int, Field(ge=0)] = 16
    """Calls of the work order that may wait for a person; a further one is refused."""
    grants: tuple[str, ...] = ()
    """The approvals for the session by which further tools need not ask."""
    client_tools: tuple[str, ...] = ()
    """Tools that the caller of the turn runs. Their calls wait for its outputs."""
    most_client_calls: Annotated[int, Field(ge=0)] = 64
    """Calls of the work order that may wait for the caller; a further one is refused."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class Cost(_Replaceable):
    """The tokens, calls and time that an execution used."""

    input_tokens: int = 0
    """Tokens sent."""
    output_tokens: int = 0
    """Tokens received."""
    cached_tokens: int = 0
    """Sent tokens that a provider's cache served, so that `turn_budget` does not count them."""
    llm_calls: int = 0
    """Model calls with an answer."""
    tool_calls: int = 0
    tool_ids_used: tuple[str, ...] = ()
    """The tool id of each call, in order."""
    elapsed_ms: int = 0
    """Duration, milliseconds."""
    nested: "Cost | None" = None
    """What turns used that its tools ran in other sessions; not part of the fields above. None: its tools ran none."""

    @classmethod
    def of(cls, counts: NestedCost) -> Self:
        """A cost with the counts of a summary."""
        return cls(
            input_tokens=counts["input_tokens"],
            output_tokens=counts["output_tokens"],
            cached_tokens=counts.get("cached_tokens", 0),
            llm_calls=counts["llm_calls"],
            tool_calls=counts["tool_calls"],
        )

    def plus(self, other: "Cost | None") -> "Cost":
        """The tokens and calls of both."""
        if other is None:
            return self
        return self.replaced(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            llm_calls=self.llm_calls + other.llm_calls,
            tool_calls=self.tool_calls + other.tool_calls,
        )


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class WorkOrderError(_Replaceable):
    """Why a work order failed."""

    reason: FailureReason
    """The class of failure."""
    detail: str
    """A description for people."""
    provider_reason: CallFailure | None = None
    """The gateway's reason, if a provider failed; None: none did."""


@dataclass(frozen=True, kw_only=True, config=_STRICT)
class WorkOrder(_Replaceable):
    """One unit of execution. Create it with `WorkOrder.create`; change its state with its methods."""

    wo_id: WorkOrderId
    """`WO-{session_id}-{n:03d}`"""
    session_id: str
    """The session of its turn. A consolidation has one of its own, `CONS-…`."""
    turn_id: str
    """The turn that planned it; "": it is a consolidation."""
    subject_id: SubjectId
    """The subject of the session."""
    intent_id: str | None = None
    """The intent that it serves; None: there is no active intent."""
    wo_type: WorkOrderType
    tier_target: Literal["HO1"] = "HO1"
    """The tier that executes it."""
    state: WorkOrderState = "planned"
    """How far it is. Methods such as `completed` return the work order in its next state."""
    input_context: dict[str, Any] = Field(default_factory=dict)
    """The input. Its fields are those that the input schema of the prompt contract asks for, so they have no type here."""
    parts: tuple[StoredPart, ...] = ()
    """Images and files that the model is shown besides, in order."""
    output_schema: dict[str, Any] | None = None
    """The JSON schema of the object that the caller wants in place of a reply's text; None: text."""
    prior_results: tuple[dict[str, object], ...] = ()
    """Outputs of earlier work orders of the turn."""
    constraints: Constraints = Constraints()
    """The limits of the execution."""
    targets: tuple[str, ...] = ()
    """Names of the things that the work is about."""
    acceptance: tuple[str, ...] = ()
    """Criteria that the output must meet."""
    parent_wo_id: str | None = None
    """The work order that this one retries or verifies; None: there is none."""
    planned_ref: Ref | None = None
    """The `WO_PLANNED` entry, which has references to all input; None: it was not recorded yet."""
    requests: tuple[ApprovalRequest, ...] = ()
    """The calls that wait for a person, if the work order is deferred."""
    resumption: Annotated[Resumption | None, _Unchecked] = None
    """The deferred work order that this one continues; None: it continues none."""
    output_result: dict[str, object] | None = None
    """The output; validated by the contract's output schema; None: there is none."""
    output_hash: str | None = None
    """The hash of the output, as the executor took it; None: there is no output, or another executor gave none."""
    is_cut: bool = False
    """Whether the model's last answer is only a beginning: it reached its limit of output tokens, or a filter of its provider
    stopped it."""
    error: WorkOrderError | None = None
    """Why it failed; None: it did not fail."""
    cost: Cost = Cost()
    """The tokens, calls and time that it used."""
    created_at: str
    """When it was planned, ISO time."""
    completed_at: str | None = None
    """When it ended, ISO time; None: it did not end yet."""

    @classmethod
    def create(
        cls,
        *,
        session_id: str,
        number: int,
        turn_id: str,
        wo_type: WorkOrderType,
        created_at: str,
        subject_id: str | None = None,
        **fields: Any,
    ) -> Self:
        """Returns a planned work order.

        Args:
            session_id: the session
            number: its number within the session, from 1
            turn_id: the turn
            wo_type: the type of work
            created_at: ISO time, from the caller's clock
            subject_id: the subject of the session; None: the session's own anonymous subject
            **fields: any other field of the model

        Raises:
            pydantic.ValidationError: a field has the wrong type, or there is no such field
        """
        return cls(
            wo_id=work_order_id(session_id, number),
            session_id=session_id,
            turn_id=turn_id,
            wo_type=wo_type,
            created_at=created_at,
            subject_id=SubjectId(subject_id) if subject_id is not None else anonymous_subject(session_id),
            **fields,
        )

    def output_as(self, shape: type[T]) -> T | None:
        """The output as a shape of `kitchener.records.outputs`, unchecked; None: the work order is not completed."""
        return output_as(shape, self.output_result) if self.state == "completed" and self.output_result is not None else None

    def dispatched(self, planned_ref: Ref | None) -> Self:
        """Returns the work order as sent to HO1."""
        return self._moved("dispatched", planned_ref=planned_ref)

    def executing(self) -> Self:
        """Returns the work order as being executed by HO1."""
        return self._moved("executing")

    def completed(
        self, output_result: dict[str, object], cost: Cost, at: str, output_hash: str | None = None, *, is_cut: bool = False
    ) -> Self:
        """Returns the work order with its output, and the hash of the output where it is known."""
        found = {"output_result": output_result, "output_hash": output_hash, "is_cut": is_cut}
        return self._moved("completed", cost=cost, completed_at=at, **found)

    def failed(self, error: WorkOrderError, cost: Cost | None = None, at: str | None = None) -> Self:
        """Returns the work order as failed, with the error."""
        cost, at = cost or self.cost, at or self.completed_at
        return self._moved("failed", error=error, cost=cost, completed_at=at)

    def deferred(self, cost: Cost | None = None, requests: tuple[ApprovalRequest, ...] = ()) -> Self:
        """Returns the work order as waiting for a person, with the calls that wait."""
        return self._moved("deferred", cost=cost or self.cost, requests=requests)

    def superseded(self) -> Self:
        """Returns the failed work order as replaced by a successful retry."""
        return self._moved("superseded")

    def abandoned(self) -> Self:
        """Returns the work order in its last state: it will not be executed."""
        return self._moved("abandoned")

    def _moved(self, state: WorkOrderState, **changes: object) -> Self:
        # The one place where a state changes.
        if state not in TRANSITIONS[self.state]:
            raise InvalidTransition(self.wo_id, self.state, state)
        return self.replaced(state=state, **changes)


NO_COST = Cost()
"""The cost of a work order that used nothing."""


class DirectReply(NamedTuple):
    """What a direct call gave."""

    text: str
    """The reply; empty: the answer held none."""
    cost: Cost | None
    """What the call used; None: a replay made no call."""


class DirectCall(Protocol):
    """Asks the gateway for a reply where HO1 is broken. Each use is a governance violation, and is recorded as one."""

    async def __call__(self, work_order: WorkOrder, *, calls_before: int) -> DirectReply:
        """Returns the model's reply.

        Args:
            work_order: the broken work order, with what to ask as its `input_context` and the call's limits as `constraints`
            calls_before: model calls that HO1 began in it
        """
        ...


class HO1ExecutorProtocol(Protocol):
    """HO1, as HO2 sees it. `HO1Executor` implements it; a test may pass an object of its own."""

    async def execute(self, work_order: WorkOrder) -> WorkOrder:
        """Runs a dispatched work order and returns it completed, failed or deferred.

        A failure of a model or a tool is a result. An exception means that the executor itself is broken.
        """
        ...
