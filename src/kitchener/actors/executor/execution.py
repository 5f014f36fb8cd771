"""Makes and records the model calls of one work order.

`executor.py` decides which step comes next; this module does not. `tally.py` adds up what the steps cost.
`docs/work-orders.md` lists the recorded entries.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, cast

import anyio
import anyio.to_thread

from kitchener.actors.executor.answers import is_stored_by_text
from kitchener.actors.executor.contracts import CompiledContract
from kitchener.actors.executor.reply_stream import ReplyStream
from kitchener.actors.executor.tally import CostTally
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.results import storable
from kitchener.actors.tools.toolsets import Toolset, chosen_digest
from kitchener.actors.work.plan import cost_mapping
from kitchener.clock import Clock, loop_clock
from kitchener.errors import EntryRefused, EntryTooLarge, ExecutorError, LedgerError, Overloaded, ProviderError
from kitchener.ledger import Ledger, LedgerEntry, LedgerGroup
from kitchener.media.content_store import ContentStore
from kitchener.records import events
from kitchener.records.attempt_record import failed_fields, started_fields
from kitchener.records.entries import (
    AttemptStartedPayload,
    CommonPayload,
    ExecutionCompletedPayload,
    FailureReason,
    ModelAnswer,
    ModelCallPayload,
)
from kitchener.records.entries.work_orders import CallFailure
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
from kitchener.records.work_order import Constraints, Cost, WorkOrder, WorkOrderError


class WorkOrderFailed(Exception):
    """Ends the work order as failed. The executor catches it and returns the failure as a result."""

    def __init__(self, reason: FailureReason, detail: str, provider_reason: CallFailure | None = None) -> None:
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
    """How long a cut-off call may take to record its end, seconds."""
    content: ContentStore | None = None
    """Stores images and files; None: no model is called, as in a replay."""
    now: Callable[[], float] = field(default_factory=loop_clock)
    """The event loop's clock, seconds."""
    reply_reserve_s: float = 0.0
    """Seconds before the turn's deadline at which its tools are stopped."""


class Execution:
    """Runs the steps of one work order in the order of the calls.

    Args:
        services: the components that all executions share
        work_order: the work order
        reply: receives the streamed reply; None: the turn is not streamed
        direct_after: for a call without HO1, recorded as a governance violation: the number of calls that HO1 began in this
            work order; None: HO1 makes the call
    """

    __slots__ = (
        "_attempt",
        "_base",
        "_model_calls_begun",
        "_output_ref",
        "_parts",
        "_services",
        "_subject_id",
        "_wo_id",
        "deadline",
        "ledger",
        "limits",
        "makes_reply",
        "reply",
        "tally",
        "tools",
        "work_order",
    )

    work_order: WorkOrder
    reply: ReplyStream | None
    """Receives the streamed reply; None: the turn is not streamed."""
    ledger: Ledger
    deadline: float
    """On the event loop's clock, seconds."""
    makes_reply: bool
    """Whether the work order's output is the reply to the user."""
    tally: CostTally
    """The cost of the work order so far."""
    limits: Constraints
    """The limits of the work order."""
    tools: ToolRegistry
    """The tools of the work order's turn."""

    def __init__(
        self,
        services: ExecutionServices,
        work_order: WorkOrder,
        reply: ReplyStream | None,
        *,
        direct_after: int | None = None,
    ) -> None:
        self._services, self.work_order, self.reply = services, work_order, reply
        self._wo_id, self._subject_id, self.limits = work_order.wo_id, work_order.subject_id, work_order.constraints
        self.ledger = services.ledgers.ho1m
        self.tools = services.tools.in_turn(work_order.turn_id)
        self.tally = CostTally(work_order.constraints, services.clock.time_us())
        self.makes_reply = work_order.wo_type == "synthesize"
        self._base: Final[CommonPayload] = {
            "v": events.VERSION,
            "session_id": work_order.session_id,
            "subject_id": self._subject_id,
        }
        if work_order.turn_id:  # a consolidation has no turn
            self._base["turn_id"] = work_order.turn_id
        limit_ms = self.limits.timeout_ms
        if limit_ms is not None:
            self.deadline = services.now() + limit_ms / 1_000
        else:  # never later than the deadline of the scope around this task
            self.deadline = min(anyio.current_time() + services.turn_deadline_s, anyio.current_effective_deadline())
        if direct_after is not None:
            cast(AttemptStartedPayload, self._base)["governance_violation"] = True
        planned = work_order.planned_ref
        self._parts: list[RefMapping] = [planned.as_mapping()] if planned else []
        self._output_ref: RefMapping | None = None
        self._attempt: Attempt | None = None
        """The attempt that has begun and has no recorded outcome yet."""
        self._model_calls_begun = direct_after or 0

    def record(self, entry_type: str, fields: CommonPayload) -> Awaitable[Ref]:
        """Writes one entry about this work order and returns its reference when awaited.

        Adds the fields that all payloads carry to `fields` in place.
        """
        fields |= self._base
        return self.ledger.write(LedgerEntry(entry_type, self._wo_id, fields))

    def tool_deadline(self) -> float:
        """The deadline of a tool that starts now, on the event loop's clock, seconds. Leaves time for the reply."""
        left_s = self.deadline - self._services.now()
        return self.deadline - min(self._services.reply_reserve_s, left_s / 4)

    async def commit(self) -> None:
        """Returns when all that was recorded is durable."""
        await self._services.ledgers.commit()

    def output_hash(self, output_bytes: bytes) -> str:
        """The hash of an output's canonical bytes; keyed if content is sealed."""
        return self.ledger.content_digest(self._subject_id, output_bytes)

    def record_completed(self, output_hash: str, cost: Cost) -> Awaitable[Ref]:
        """Writes `WO_COMPLETED` with the reference and the hash of the output, and the cost."""
        if self._output_ref is None:
            raise ExecutorError(f"work order {self._wo_id} has an output but no entry that holds it")
        fields = ExecutionCompletedPayload(output_ref=self._output_ref, output_hash=output_hash, cost=cost_mapping(cost))
        return self.record(events.WO_COMPLETED, fields)

    async def with_parts(self, message: Message) -> Message:
        """Returns a message with the images and files of the work order.

        Raises:
            PartDamaged: stored content is missing or was changed
        """
        content, parts = self._services.content, list[MessagePart]()
        for each in self.work_order.parts:
            data = b""
            if content is not None:
                data = await anyio.to_thread.run_sync(content.get, self._subject_id, each.content_hash)
            parts.append(MessagePart(each, data))
        return message._replace(parts=tuple(parts))

    async def call_model(
        self,
        contract: CompiledContract,
        variables: Mapping[str, object],
        messages: Sequence[Message],
        tools: Toolset,
        tool_choice: str | None = None,
    ) -> PromptResponse:
        """Makes one model call, and records the call and each of its attempts: with its outcome, or as cut off.

        Args:
            contract: the contract that the answer must fit
            variables: the values in the messages, for local providers
            messages: the conversation
            tools: the tools that the model may call
            tool_choice: the tool that it must call: `required` (any) or a tool's id; None: the model chooses

        Raises:
            WorkOrderFailed: no tokens are left and there is no `reply_reserve`, the provider failed or was overloaded, or its
                answer cannot be stored
        """
        self._model_calls_begun += 1
        request = self._request(contract, variables, tuple(messages), tools)
        if tool_choice is not None:
            request = request._replace(tool_choice=tool_choice)
        opening, rest = contract.request_parts(
            request.messages,
            tools_digest=tools.digest if tool_choice is None else chosen_digest(tools.digest, tool_choice),
            model_id=request.model_id,
            temperature=request.temperature,
            max_tokens=request.max_tokens,
        )
        request_hash = self.ledger.content_digest(self._subject_id, rest, opening)
        reply = self.reply
        try:
            if reply is not None and self.makes_reply:
                response = await self._streamed(request, reply, contract)
            else:
                response = await self._services.gateway.complete(request, on_attempt=self.on_attempt)
            self.tally.add_answer(response)
            try:
                ref = await self.record(events.LLM_CALL, self._call_fields(request, request_hash, response))
            except (EntryRefused, EntryTooLarge) as error:
                detail = f"the answer of {response.provider_id!r} cannot be stored: {error}"
                raise WorkOrderFailed("PROVIDER", storable(detail), "malformed") from error
        except BaseException as error:
            await self._record_cut_off()
            if isinstance(error, ProviderError):
                late = error.reason == "timeout" and anyio.current_time() >= self.deadline
                raise WorkOrderFailed("TIMEOUT" if late else "PROVIDER", storable(str(error)), error.reason) from error
            if isinstance(error, Overloaded):  # a turn is cut off first, so this call had a shorter deadline than its turn
                raise WorkOrderFailed("PROVIDER", str(error), "overloaded") from error
            raise
        self._attempt = None
        self.keep(ref)
        return response

    async def on_attempt(self, attempt: Attempt) -> None:
        """Keeps an attempt that begins, for the entry of its outcome. Records an attempt that failed."""
        if attempt.state == "started":
            self._attempt = attempt
            return
        self._attempt = None
        if attempt.usage is not None:
            self.tally.add_unusable(attempt.usage)
        failed = failed_fields(attempt)
        if attempt.detail is not None:
            failed["detail"] = storable(attempt.detail)
        await self.record(events.ATTEMPT_FAILED, failed)

    async def _record_cut_off(self) -> None:
        """Records the attempt without an outcome as cut off. A cancellation waits for this at most `abort_grace_s`."""
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        with anyio.move_on_after(self._services.abort_grace_s, shield=True), suppress(LedgerError):
            await self.record(events.ATTEMPT_STARTED, started_fields(attempt))

    def _request(
        self,
        contract: CompiledContract,
        variables: Mapping[str, object],
        messages: tuple[Message, ...],
        tools: Toolset,
    ) -> PromptRequest:
        wo, limits, boundary = self.work_order, self.limits, contract.boundary
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
            deadline=self.deadline,
            max_tokens=min(limits.max_tokens or boundary.max_tokens, left),
            temperature=boundary.temperature if limits.temperature is None else limits.temperature,
            provider_id=limits.provider_id,
            model_id=limits.model_id,
            domain_tags=limits.domain_tags,
            tools=tools.specs,
            output_schema=contract.output_schema,
            restart_streams=self.makes_reply and self.reply is not None,
            turn_id=wo.turn_id,
            tokens_left=left,
        )

    async def _streamed(self, request: PromptRequest, reply: ReplyStream, contract: CompiledContract) -> PromptResponse:
        is_wrapped = contract.output_schema is not None and not contract.is_asked
        await reply.begin(is_object=is_wrapped, is_asked=contract.is_asked)
        response: PromptResponse | None = None
        stream = self._services.gateway.stream(request, on_attempt=self.on_attempt)
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
        if response.thinking_tokens:
            fields["thinking_tokens"] = response.thinking_tokens
        return fields

    def keep(self, ref: Ref) -> None:
        """Notes an entry that may hold the output, and that later requests contain."""
        self._output_ref = output_ref = ref.as_mapping()
        self._parts.append(output_ref)
