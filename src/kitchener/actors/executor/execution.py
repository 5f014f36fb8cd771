"""Makes and records the model calls and tool calls of one work order.

`executor.py` decides which step comes next; this module does not. `tally.py` adds up what the steps cost.
`docs/work-orders.md` lists the recorded entries.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple, cast

import anyio
import anyio.to_thread

from kitchener.actors.executor.answers import is_stored_by_text
from kitchener.actors.executor.prompts import CompiledContract
from kitchener.actors.executor.replies import ReplyStream
from kitchener.actors.executor.tally import CostTally
from kitchener.actors.tools.registry import ToolCall, ToolRegistry
from kitchener.actors.tools.results import ToolOutcome, storable
from kitchener.actors.tools.side_by_side import ToolRequested, groups_of, run_all
from kitchener.actors.tools.toolsets import Toolset
from kitchener.actors.work.plan import cost_mapping, nested_mapping
from kitchener.canonical import canonical_bytes
from kitchener.clock import Clock, loop_clock
from kitchener.content_store import ContentStore
from kitchener.errors import EntryRefused, EntryTooLarge, ExecutorError, LedgerError, Overloaded, ProviderError
from kitchener.ids import tool_idempotency_key
from kitchener.ledger import LedgerEntry, LedgerGroup
from kitchener.records import events
from kitchener.records.attempt_record import failed_fields, started_fields
from kitchener.records.entries import (
    AttemptStartedPayload,
    CommonPayload,
    ExecutionCompletedPayload,
    FailureReason,
    ModelAnswer,
    ModelCallPayload,
    ToolCallPayload,
    ToolStartedPayload,
)
from kitchener.records.parts import MessagePart
from kitchener.records.prompt import (
    Attempt,
    Message,
    PromptGateway,
    PromptRequest,
    PromptResponse,
    StreamRestart,
    TextPiece,
)
from kitchener.records.ref import Ref, RefMapping
from kitchener.records.work_order import Cost, WorkOrder, WorkOrderError

NO_TOOL: Final = "(none)"
"""Recorded in place of a tool name that is not among the allowed tools."""


class WorkOrderFailed(Exception):
    """Ends the work order as failed. The executor catches it and returns the failure as a result."""

    def __init__(self, reason: FailureReason, detail: str, provider_reason: str | None = None) -> None:
        self.error = WorkOrderError(reason=reason, detail=detail, provider_reason=provider_reason)
        super().__init__(detail)


@dataclass(frozen=True, slots=True)
class ExecutionServices:
    """The components that all executions of one executor share."""

    ledgers: LedgerGroup
    gateway: PromptGateway
    tools: ToolRegistry
    clock: Clock
    turn_deadline_s: float
    abort_grace_s: float
    """How long a call that is cut off may take to record that, seconds."""
    content: ContentStore | None = None
    """Has the bytes of images and files; None: no model is called, as in a replay."""
    now: Callable[[], float] = field(default_factory=loop_clock)
    """The event loop's clock, seconds."""


class Execution:
    """Runs the steps of one work order in the order of the calls.

    Args:
        surroundings: the components that all executions share
        work_order: the work order
        reply: receives the streamed reply; None: the turn is not streamed
        direct_after: for a call without HO1, which is recorded as a governance violation, the number of calls that HO1 began
            in this work order; None: HO1 runs it
    """

    __slots__ = (
        "_attempt",
        "_base",
        "_deadline",
        "_ledger",
        "_limits",
        "_model_calls_begun",
        "_output_ref",
        "_parts",
        "_reply",
        "_subject_id",
        "_surroundings",
        "_tool_calls_begun",
        "_wo",
        "_wo_id",
        "makes_reply",
        "tally",
    )

    makes_reply: bool
    """Whether the work order's output is the reply to the user."""
    tally: CostTally
    """What the work order has used so far."""

    def __init__(
        self,
        surroundings: ExecutionServices,
        work_order: WorkOrder,
        reply: ReplyStream | None,
        *,
        direct_after: int | None = None,
    ) -> None:
        self._surroundings, self._wo, self._reply = surroundings, work_order, reply
        self._wo_id, self._subject_id, self._limits = work_order.wo_id, work_order.subject_id, work_order.constraints
        self._ledger = surroundings.ledgers.ho1m
        self.tally = CostTally(work_order.constraints, surroundings.clock.time_us())
        self.makes_reply = work_order.wo_type == "synthesize"
        self._base: Final[CommonPayload] = {
            "v": events.VERSION,
            "session_id": work_order.session_id,
            "subject_id": self._subject_id,
        }
        if work_order.turn_id:  # a consolidation belongs to no turn
            self._base["turn_id"] = work_order.turn_id
        limit_ms = self._limits.timeout_ms
        if limit_ms is not None:
            self._deadline = surroundings.now() + limit_ms / 1_000
        else:  # never later than the deadline of the scope around this task
            self._deadline = min(anyio.current_time() + surroundings.turn_deadline_s, anyio.current_effective_deadline())
        if direct_after is not None:
            cast(AttemptStartedPayload, self._base)["governance_violation"] = True
        planned = work_order.planned_ref
        self._parts: list[RefMapping] = [planned.as_mapping()] if planned else []
        self._output_ref: RefMapping | None = None
        self._attempt: Attempt | None = None
        """The attempt that has begun and has no outcome on record yet."""
        self._model_calls_begun, self._tool_calls_begun = direct_after or 0, 0

    def record(self, entry_type: str, fields: CommonPayload) -> Awaitable[Ref]:
        """Writes one entry about this work order and returns its reference when awaited.

        Adds the fields that all payloads carry to `fields` in place.
        """
        fields |= self._base
        return self._ledger.write(LedgerEntry(entry_type, self._wo_id, fields))

    def record_completed(self, output_bytes: bytes, cost: Cost) -> Awaitable[Ref]:
        """Writes `WO_COMPLETED` with the reference and the hash of the output, and the cost."""
        if self._output_ref is None:
            raise ExecutorError(f"work order {self._wo_id} has an output but no entry that holds it")
        return self.record(
            events.WO_COMPLETED,
            ExecutionCompletedPayload(
                output_ref=self._output_ref,
                output_hash=self._ledger.content_digest(self._subject_id, output_bytes),
                cost=cost_mapping(cost),
            ),
        )

    async def with_parts(self, message: Message) -> Message:
        """Returns a message with the images and files of the work order.

        Raises:
            PartDamaged: stored content is missing or was changed
        """
        content, parts = self._surroundings.content, list[MessagePart]()
        for each in self._wo.parts:
            data = b""
            if content is not None:
                data = await anyio.to_thread.run_sync(content.get, self._subject_id, each.content_hash)
            parts.append(MessagePart(each, data))
        return message._replace(parts=tuple(parts))

    async def call_model(
        self, contract: CompiledContract, variables: Mapping[str, object], messages: Sequence[Message], tools: Toolset
    ) -> PromptResponse:
        """Makes and records one model call, and each attempt of it with its outcome, or as cut off.

        Raises:
            WorkOrderFailed: no tokens are left and there is no `reply_reserve`, the provider failed or was overloaded, or its
                answer cannot be stored
        """
        self._model_calls_begun += 1
        request = self._request(contract, variables, tuple(messages), tools)
        opening, rest = contract.request_parts(
            request.messages,
            tools_digest=tools.digest,
            model_id=request.model_id,
            temperature=request.temperature,
            max_tokens=request.max_tokens,
        )
        request_hash = self._ledger.content_digest(self._subject_id, rest, opening)
        reply = self._reply
        try:
            if reply is not None and self.makes_reply:
                response = await self._streamed(
                    request, reply, is_wrapped=not (contract.output_schema is None or contract.is_asked)
                )
            else:
                response = await self._surroundings.gateway.complete(request, on_attempt=self.on_attempt)
            self.tally.add_answer(response)
            try:
                ref = await self.record(events.LLM_CALL, self._call_fields(request, request_hash, response))
            except (EntryRefused, EntryTooLarge) as error:
                detail = f"the answer of {response.provider_id!r} cannot be stored: {error}"
                raise WorkOrderFailed("PROVIDER", storable(detail), "malformed") from error
        except BaseException as error:
            await self._record_cut_off()
            if isinstance(error, ProviderError):
                late = error.reason == "timeout" and anyio.current_time() >= self._deadline
                raise WorkOrderFailed("TIMEOUT" if late else "PROVIDER", storable(str(error)), error.reason) from error
            if isinstance(error, Overloaded):  # a turn is cut off first; this is the end of a call with a shorter deadline
                raise WorkOrderFailed("PROVIDER", str(error), "overloaded") from error
            raise
        self._attempt = None
        self._keep(ref)
        return response

    async def run_tools(self, uses: Sequence[ToolRequested]) -> list[ToolOutcome]:
        """Makes and records tool calls, each given as tool id and arguments, and returns their outcomes in the same order.

        Read-only calls that follow each other run side by side, at most `parallel_tools` at a time. Their starts and then their
        outcomes are recorded in the order of the calls. Any failure of a tool is part of its outcome, never an exception.
        """
        outcomes = list[ToolOutcome]()
        for group in groups_of(uses, self._limits.parallel_tools, self._surroundings.tools.is_read_only):
            begun = [await self._begin_tool(tool_id, arguments) for tool_id, arguments in group]
            for call, outcome in zip(begun, await run_all([each.run for each in begun]), strict=True):
                outcomes.append(await self._end_tool(call, outcome))
        return outcomes

    async def _begin_tool(self, tool_id: str, arguments: Mapping[str, object]) -> "_BegunCall":
        """Records the start of a tool call, durably if the tool has effects. A call that is refused has no start."""
        self._tool_calls_begun += 1
        call, tools = self._tool_calls_begun, self._surroundings.tools
        problem = self._tool_problem(tool_id, arguments)
        if problem is None:
            plain = canonical_bytes(arguments, at="arguments")
            hashed = partial(self._ledger.content_digest, self._subject_id)
            key = tool_idempotency_key(self._wo.turn_id, self._wo.wo_id, call, tool_id, plain, hashed)
            read_only = tools.is_read_only(tool_id)
            started: ToolStartedPayload = {
                "call": call,
                "tool_id": tool_id,
                "arguments": dict(arguments),
                "idempotency_key": key,
                "read_only": read_only,
            }
            try:
                await self.record(events.TOOL_STARTED, started)
            except EntryTooLarge as error:
                problem = f"its arguments are too large to be recorded: {error}"
        if problem is not None:
            return _BegunCall(call, tool_id, arguments, partial(_refused, problem))
        if not read_only:
            # After a crash, only this entry shows that the tool may have had its effect.
            await self._surroundings.ledgers.commit()
        self.tally.add_tool(tool_id)
        if self._reply is not None:
            await self._reply.tool_started(tool_id, call, arguments)
        return _BegunCall(call, tool_id, arguments, partial(tools.run, tool_id, arguments, self._tool_call(key)))

    async def _end_tool(self, begun: "_BegunCall", outcome: ToolOutcome) -> ToolOutcome:
        """Records the outcome of a tool call and returns it, or an error if the outcome is too large to be recorded."""
        # A name that is not allowed is text by the model. It is recorded only in the error, which may be sealed.
        named = begun.tool_id if begun.tool_id in self._limits.allowed_tools else NO_TOOL
        try:
            ref = await self.record(events.TOOL_CALL, _tool_call_fields(begun.call, named, outcome))
        except EntryTooLarge as error:
            outcome = replace(outcome, error=f"the tool has run, but its result is too large to be stored: {error}")
            ref = await self.record(events.TOOL_CALL, _tool_call_fields(begun.call, named, outcome))
        self._keep(ref)
        if outcome.nested_cost is not None:
            self.tally.add_nested(outcome.nested_cost)
        if self._reply is not None:
            await self._reply.tool_ran(begun.tool_id, begun.call, begun.arguments, outcome)
        return outcome

    async def on_attempt(self, attempt: Attempt) -> None:
        """Keeps an attempt that begins, for the entry of its outcome; records one that failed."""
        if attempt.state == "started":
            self._attempt = attempt
            return
        self._attempt = None
        failed = failed_fields(attempt)
        if attempt.detail is not None:
            failed["detail"] = storable(attempt.detail)
        await self.record(events.ATTEMPT_FAILED, failed)

    async def _record_cut_off(self) -> None:
        """Records the attempt that has no outcome. A cancellation waits for this, for at most `abort_grace_s`."""
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        with anyio.move_on_after(self._surroundings.abort_grace_s, shield=True), suppress(LedgerError):
            await self.record(events.ATTEMPT_STARTED, started_fields(attempt))

    def _request(
        self,
        contract: CompiledContract,
        variables: Mapping[str, object],
        messages: tuple[Message, ...],
        tools: Toolset,
    ) -> PromptRequest:
        wo, limits, boundary = self._wo, self._limits, contract.boundary
        left = self.tally.tokens_for_next_call
        if left < 1:
            calls = self.tally.llm_calls
            raise WorkOrderFailed("BUDGET", f"the token budget of {limits.token_budget} was used up by {calls} model calls")
        return PromptRequest(
            contract_id=contract.contract_id,
            wo_type=wo.wo_type,
            prompt_pack_version=contract.prompt_pack_version,
            messages=messages,
            variables=variables,
            call=self._model_calls_begun,
            session_id=wo.session_id,
            wo_id=self._wo_id,
            subject_id=self._subject_id,
            deadline=self._deadline,
            max_tokens=min(limits.max_tokens or boundary.max_tokens, left),
            temperature=boundary.temperature if limits.temperature is None else limits.temperature,
            provider_id=limits.provider_id,
            model_id=limits.model_id,
            domain_tags=limits.domain_tags,
            tools=tools.specs,
            output_schema=contract.output_schema,
            restart_streams=self.makes_reply and self._reply is not None,
            turn_id=wo.turn_id,
        )

    async def _streamed(self, request: PromptRequest, reply: ReplyStream, *, is_wrapped: bool) -> PromptResponse:
        await reply.begin(is_object=is_wrapped)
        response: PromptResponse | None = None
        stream = self._surroundings.gateway.stream(request, on_attempt=self.on_attempt)
        try:
            async for item in stream:
                if isinstance(item, TextPiece):
                    await reply.piece(item.attempt, item.text)
                elif isinstance(item, StreamRestart):
                    await reply.void()
                else:
                    response = item
        finally:
            # If the listener fails or is cancelled, the stream is only partly read. Close it so that its connection ends.
            if (close := getattr(stream, "aclose", None)) is not None:
                await close()
        if response is None:
            raise ExecutorError(f"the stream of call {request.call} of {request.wo_id} ended without a response")
        return response

    def _call_fields(self, request: PromptRequest, request_hash: str, response: PromptResponse) -> ModelCallPayload:
        tool_uses = [use.as_mapping() for use in response.tool_uses] if response.tool_uses else []
        answer: ModelAnswer = {"text": response.text, "tool_uses": tool_uses}
        if not is_stored_by_text(response):
            answer["structured"] = response.structured
        if response.served_model is not None:
            answer["served_model"] = response.served_model
        fields: ModelCallPayload = {
            "call": request.call,
            "request_hash": request_hash,
            "prompt_pack_version": request.prompt_pack_version,
            "part_refs": self._parts,
            "response": answer,
            "provider_id": response.provider_id,
            "model_id": response.model_id,
            "route_reason": response.route_reason,
            "usage": response.usage.as_mapping(),
            "latency_ms": response.latency_ms,
            "finish_reason": response.finish_reason,
        }
        attempt = self._attempt
        if attempt is not None:
            fields["attempt"] = attempt.attempt
            if attempt.model_id != response.model_id:
                fields["requested_model_id"] = attempt.model_id
        return fields

    def _tool_problem(self, tool_id: str, arguments: Mapping[str, object]) -> str | None:
        """Returns why this call must not run, or None."""
        allowed = self._wo.constraints.allowed_tools
        if tool_id not in allowed:
            return f"tool {tool_id!r} is not allowed here; allowed are {sorted(allowed)}"
        try:
            canonical_bytes(arguments, at="arguments")  # before validation, because this limits their depth
        except EntryRefused as error:
            return str(error)
        bound = self._surroundings.tools.validate(tool_id, arguments)
        return bound if isinstance(bound, str) else None

    def _tool_call(self, key: str) -> ToolCall:
        wo = self._wo
        return ToolCall(
            idempotency_key=key,
            session_id=wo.session_id,
            subject_id=wo.subject_id,
            turn_id=wo.turn_id,
            wo_id=wo.wo_id,
            deadline=self._deadline,
        )

    def _keep(self, ref: Ref) -> None:
        self._output_ref = output_ref = ref.as_mapping()
        self._parts.append(output_ref)


class _BegunCall(NamedTuple):
    """A tool call of which the start is recorded, or that is refused."""

    call: int
    """Number of the tool call within the work order, from 1."""
    tool_id: str
    arguments: Mapping[str, object]
    run: Callable[[], Awaitable[ToolOutcome]]
    """Runs the tool, or returns why it is refused."""


async def _refused(problem: str) -> ToolOutcome:
    return ToolOutcome(error=storable(problem))


def _tool_call_fields(call: int, tool_id: str, outcome: ToolOutcome) -> ToolCallPayload:
    fields: ToolCallPayload = {"call": call, "tool_id": tool_id}
    if outcome.error is not None:
        fields["error"] = outcome.error
    else:
        fields["result"] = outcome.result
    if outcome.nested_cost is not None:
        fields["nested_cost"] = nested_mapping(outcome.nested_cost)
    return fields
