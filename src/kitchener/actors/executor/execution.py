"""Makes and records the model calls and tool calls of one work order, and adds up their cost.

`executor.py` decides which step comes next; this module does not. It uses the gateway's protocol, `registry.py` and the
ledger. `docs/work-orders.md` lists the recorded entries.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple, cast

import anyio
import anyio.to_thread
import orjson

from kitchener.actors.executor.answers import is_stored_by_text
from kitchener.actors.executor.prompts import CompiledContract
from kitchener.actors.executor.replies import ReplyStream
from kitchener.actors.tools.registry import ToolCall, ToolRegistry
from kitchener.actors.tools.results import ToolOutcome, cut_text, storable
from kitchener.actors.tools.side_by_side import ToolRequested, groups_of, run_all
from kitchener.actors.tools.toolsets import Toolset
from kitchener.actors.work.plan import cost_json, nested_mapping
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
from kitchener.records.ref import Ref
from kitchener.records.tokens import BYTES_PER_TOKEN, tokens_of_bytes
from kitchener.records.work_order import NO_COST, Cost, WorkOrder, WorkOrderError

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
        "_cached_tokens",
        "_deadline",
        "_fresh_tokens",
        "_input_tokens",
        "_ledger",
        "_limits",
        "_llm_calls",
        "_model_calls_begun",
        "_nested",
        "_output_ref",
        "_output_tokens",
        "_parts",
        "_reply",
        "_results_tokens",
        "_started_us",
        "_subject_id",
        "_surroundings",
        "_tool_calls_begun",
        "_tool_ids",
        "_window_tokens",
        "_wo",
        "_wo_id",
        "makes_reply",
    )

    makes_reply: bool
    """Whether the work order's output is the reply to the user."""

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
        self._started_us = surroundings.clock.time_us()
        if direct_after is not None:
            cast(AttemptStartedPayload, self._base)["governance_violation"] = True
        planned = work_order.planned_ref
        self._parts: list[orjson.Fragment] = [planned.as_json()] if planned else []
        self._output_ref: orjson.Fragment | None = None
        self._attempt: Attempt | None = None
        """The attempt that has begun and has no outcome on record yet."""
        self._model_calls_begun, self._llm_calls, self._tool_calls_begun = direct_after or 0, 0, 0
        self._input_tokens = self._output_tokens = self._cached_tokens = 0
        self._window_tokens = self._fresh_tokens = self._results_tokens = 0
        self._tool_ids: list[str] = []
        self._nested: Cost | None = None

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
                cost=cost_json(cost),
            ),
        )

    def cost(self, now_us: int) -> Cost:
        """The cost of the work order so far.

        Args:
            now_us: the time of day, microseconds
        """
        # No validation is needed: the counts come from this object, and each recorded call had integer tokens.
        return NO_COST.replaced(
            input_tokens=self._input_tokens,
            output_tokens=self._output_tokens,
            cached_tokens=self._cached_tokens,
            llm_calls=self._llm_calls,
            tool_calls=len(self._tool_ids),
            tool_ids_used=tuple(self._tool_ids),
            elapsed_ms=max(0, (now_us - self._started_us) // 1_000),
            nested=self._nested,
        )

    @property
    def has_room(self) -> bool:
        """Whether the budgets leave room for another round of tools: for the next call, and for a last one as large.

        A cache that served the call before is expected to serve the next one, but not the last one, which offers no tools.
        Without a `reply_reserve`, as under version 1 of the policy, the model may always go on.
        """
        reserve, most = self._limits.reply_reserve, self._limits.results_budget
        if most is not None and self._results_tokens >= most:
            return False
        return reserve is None or self._tokens_left >= self._fresh_tokens + self._window_tokens + 2 * reserve

    @property
    def _tokens_left(self) -> int:
        """What is left of the work order's budget, where input from a cache does not count."""
        return self._limits.token_budget - (self._input_tokens - self._cached_tokens + self._output_tokens)

    def shown(self, outcome: ToolOutcome) -> str:
        """Returns the outcome of a tool call as the model is shown it: cut to what is left of `results_budget`."""
        text, most = outcome.as_text(), self._limits.results_budget
        size = tokens_of_bytes(len(text.encode()))
        if most is not None and self._results_tokens + size > most:
            text = cut_text(text, max(0, most - self._results_tokens) * BYTES_PER_TOKEN)
            self._results_tokens = most
            size = tokens_of_bytes(len(text.encode()))
        else:
            self._results_tokens += size
        self._window_tokens += size
        self._fresh_tokens += size
        return text

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
                response = await self._streamed(request, reply)
            else:
                response = await self._surroundings.gateway.complete(request, on_attempt=self.on_attempt)
            self._llm_calls += 1
            usage = response.usage
            self._input_tokens += usage.input_tokens
            self._output_tokens += usage.output_tokens
            cached = 0
            if self._limits.reply_reserve is not None and usage.cached_tokens is not None:
                cached = min(usage.cached_tokens, usage.input_tokens)
                self._cached_tokens += cached
            self._window_tokens = usage.input_tokens + usage.output_tokens  # what the next call begins with
            self._fresh_tokens = self._window_tokens - cached
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
        self._tool_ids.append(tool_id)
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
            self._nested = outcome.nested_cost.plus(self._nested)
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
        left = self._tokens_left
        if limits.reply_reserve is not None:
            left = max(limits.reply_reserve, left - self._fresh_tokens)
        elif left < 1:
            raise WorkOrderFailed(
                "BUDGET", f"the token budget of {limits.token_budget} was used up by {self._llm_calls} model calls"
            )
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
        )

    async def _streamed(self, request: PromptRequest, reply: ReplyStream) -> PromptResponse:
        await reply.void()
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
            "usage": response.usage.as_json(),
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
        self._output_ref = output_ref = ref.as_json()
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
