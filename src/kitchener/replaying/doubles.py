"""Replaces models, tools and clock during a replay by doubles that return the recorded values."""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Final

from kitchener.actors.authority.ranking import TurnWords
from kitchener.actors.executor.execution import WorkOrderFailed
from kitchener.actors.sessions.item_tool import ContextItems
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.results import ToolOutcome
from kitchener.actors.turn.reply_check import REFUSED
from kitchener.gateway.providers.recorded import NotRecorded, RecordedProvider, RequestChanged
from kitchener.ledger import LedgerEntry
from kitchener.memory.timestamps import us_of
from kitchener.records import events
from kitchener.records.embedding import Similarity
from kitchener.records.entries import (
    AttemptStartedPayload,
    DegradationPayload,
    ModelCallPayload,
    ProjectionPayload,
    QualityGatePayload,
    ToolCallPayload,
    ToolStartedPayload,
    TurnCompletedPayload,
    WorkOrderFailedPayload,
    WorkOrderPlannedPayload,
    opened,
    payload_as,
    text_of,
)
from kitchener.records.output_schema import OutputSchema
from kitchener.records.prompt import OnAttempt, PromptRequest, PromptResponse, StreamItem
from kitchener.records.tools.client_tools import ClientToolset
from kitchener.records.tools.server_tools import ServerTool
from kitchener.records.tools.tool_context import ToolContext
from kitchener.records.tools.tool_question import ToolQuestion
from kitchener.records.work_order import Cost, DirectCall, DirectReply, HO1ExecutorProtocol, WorkOrder
from kitchener.replaying.on_record.route_differences import Routes
from kitchener.replaying.on_record.turn_tape import TurnTape
from kitchener.replaying.replay_ledgers import ReplayLedger
from kitchener.replaying.tape import Diverged, Tape

_FIRST_WITH_PAGES: Final = 6
"""The version of the policy from which the built-in tool reads pages of results."""
_FROM_OUTSIDE: Final = ("PROVIDER", "TIMEOUT")
"""Failure reasons that come from outside the executor. A replay copies these from the record and recomputes all others."""


class RecordedClock:
    """A clock that shows a recorded time until it is set again."""

    def __init__(self) -> None:
        self._time_us = 0

    def put_to(self, timestamp: str) -> None:
        """Sets the clock to an ISO time of a ledger."""
        self._time_us = us_of(timestamp, "turn_ts")

    def time_us(self) -> int:
        """The recorded time, microseconds since the Unix epoch."""
        return self._time_us


def taped_output(tape: Tape, turn: TurnTape) -> OutputSchema | None:
    """The object that the caller of a turn wanted, with the recorded verdict of the caller's model; None: it wanted text.

    Also None if the schema cannot be read. The replay then diverges at the entry that names it.
    """
    text = tape.outputs.get(turn.start.get("output_schema", ""))
    if text is None:
        return None

    def read(output: Mapping[str, object]) -> object:
        verdict = tape.next_of(tape.ho2m)
        is_verdict = verdict is not None and verdict.entry_type == events.WO_QUALITY_GATE
        reason = payload_as(QualityGatePayload, verdict.payload).get("reason") if verdict is not None and is_verdict else None
        if isinstance(reason, str) and reason.startswith(REFUSED):
            raise ValueError(reason.removeprefix(REFUSED))
        return output

    return OutputSchema.from_text(text, read)


def recorded_client_tools(tape: Tape, turn: TurnTape) -> ClientToolset | None:
    """The tools that the caller of a turn ran; None: it ran none, or their definitions cannot be read."""
    text = tape.outputs.get(turn.start.get("client_tools", ""))
    return ClientToolset.from_text(text) if text is not None else None


class RecordedGateway:
    """Gives each model call its recorded attempts, and its recorded answer or failure.

    Args:
        tape: the session
        ho1m: HO1's ledger, in which an older version recorded each attempt when it began
        provider: returns the recorded answer to a recorded request
        routes: the present routes of requests
    """

    def __init__(self, tape: Tape, ho1m: ReplayLedger, provider: RecordedProvider, routes: Routes) -> None:
        self._tape, self._ho1m, self._provider, self._routes = tape, ho1m, provider, routes

    async def complete(self, request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
        """The recorded answer to the request.

        Raises:
            WorkOrderFailed: the recorded call failed
            Diverged: the call is not recorded, has another request, or would go to another provider
        """
        response: PromptResponse | None = None
        failure = self._failure(request)
        if failure is None:
            response = await self._answer(request)
        attempts = self._tape.attempts(request.wo_id, request.call)
        turn = self._tape.turn
        as_planned = request if turn is not None and turn.is_tagged(request.wo_id) else request._replace(domain_tags=())
        if (found := self._routes.difference(as_planned, [attempt for _, attempt in attempts])) is not None:
            self._tape.diverge("route", *found, self._about(request), payload=found[0], now=found[1])
        if response is not None and (fields := self._routes.changed_fields(self._tape.configuration, response.provider_id)):
            self._tape.diverge("request_fields", *fields, self._about(request), payload=fields[0], now=fields[1])
        failed = {attempt.attempt for _, attempt in attempts if attempt.state == "failed"}
        for entry, attempt in attempts:
            if entry.entry_type == events.ATTEMPT_STARTED and (response is not None or attempt.attempt in failed):
                # An older version recorded this entry besides the outcome. HO1 no longer writes it.
                await self._ho1m.write(LedgerEntry(entry.entry_type, entry.entity_id, entry.payload))
            else:
                await on_attempt(attempt)
        if response is not None:
            return response
        assert failure is not None
        raise failure

    async def stream(self, request: PromptRequest, *, on_attempt: OnAttempt) -> AsyncIterator[StreamItem]:
        """The recorded answer as a stream of one item, because no user watches a replay."""
        yield await self.complete(request, on_attempt=on_attempt)

    async def _answer(self, request: PromptRequest) -> PromptResponse:
        try:
            return await self._provider.complete(request)
        except (RequestChanged, NotRecorded) as error:
            problem = error
        if isinstance(problem, NotRecorded):
            call = f"call {request.call}: {request.wo_type}"
            self._tape.diverge("request", None, call, (events.LLM_CALL, request.wo_id, None), payload={}, now={})
        self._tape.diverge(
            "request_hash",
            problem.recording.request_hash,
            problem.found,
            self._about(request),
            payload={"prompt_pack_version": problem.recording.prompt_pack_version},
            now={"prompt_pack_version": request.prompt_pack_version},
        )

    def _about(self, request: PromptRequest) -> tuple[str, str, str | None]:
        turn = self._tape.turn
        for entry in turn.of_type(events.LLM_CALL) if turn is not None else ():
            if entry.entity_id == request.wo_id and payload_as(ModelCallPayload, entry.payload)["call"] == request.call:
                return entry.entry_type, entry.entity_id, entry.entry_id
        return events.LLM_CALL, request.wo_id, None

    def _failure(self, request: PromptRequest) -> WorkOrderFailed | None:
        """The recorded failure of a call; None: the call has an answer, or its work order failed for another reason."""
        if self._about(request)[2] is not None or self._tape.turn is None:
            return None
        if request.call in self._tape.turn.direct_calls(request.wo_id):
            return WorkOrderFailed("PROVIDER", "a direct call failed, as recorded")
        for entry in self._tape.turn.of_type(events.WO_FAILED):
            error = opened(payload_as(WorkOrderFailedPayload, entry.payload).get("error"))
            if entry.entity_id == request.wo_id and error is not None and error["reason"] in _FROM_OUTSIDE:
                return WorkOrderFailed(error["reason"], error["detail"], error.get("provider_reason"))
        return None


class RecordedTools(ToolRegistry):
    """The tools of an agent class, which are not run: each call returns its recorded result.

    Tools of servers are the recorded ones, because no server runs. If the turn's version of Kitchener had an older form of the
    built-in tool that reads stubs, that form is offered.
    """

    def __init__(self, registry: ToolRegistry, tape: Tape) -> None:
        builtin, items = registry.builtin, ContextItems().tool
        if tape.policy_version < _FIRST_WITH_PAGES and registry.toolset((items.tool_id,)).specs == (items.spec,):
            older = ContextItems(reads_pages=False).tool
            builtin = tuple([older if each.tool_id == older.tool_id else each for each in builtin])
        super().__init__(registry.functions, builtin=builtin, replaceable=registry.replaceable)
        self._tape = tape

    def begin(self, turn: TurnTape) -> None:
        """Registers the tools of servers that a recorded turn had."""
        recorded = self._tape.configurations.get(turn.start.get("config_hash", ""))
        for source in self.replaceable if recorded is not None else ():
            defined = recorded.tool_definitions() if recorded is not None else ()
            self.replace(source, [ServerTool(each) for each in defined if each.get("source") == source])

    async def run(
        self,
        tool_id: str,
        arguments: Mapping[str, object],
        call: ToolContext,
        *,
        bound: Mapping[str, object] | None = None,
    ) -> ToolOutcome:
        """The recorded outcome. The start of the call, with its arguments, was already compared with the record."""
        turn = self._tape.turn
        found = turn.of_type(events.TOOL_STARTED, events.TOOL_CALL) if turn is not None else []
        own = [entry for entry in found if entry.entity_id == call.wo_id]
        starts = (payload_as(ToolStartedPayload, each.payload) for each in own if each.entry_type == events.TOOL_STARTED)
        numbers = [each["call"] for each in starts if each.get("idempotency_key") == call.idempotency_key]
        for entry in own:
            payload = payload_as(ToolCallPayload, entry.payload)
            if entry.entry_type == events.TOOL_CALL and payload["call"] in numbers:
                error, nested = payload.get("error"), payload.get("nested_cost")
                cost = Cost.of(nested) if nested is not None else None
                asked = opened(payload.get("question"))
                return ToolOutcome(
                    result=payload.get("result"),
                    error=text_of(error) if error is not None else None,
                    question=ToolQuestion.of(asked) if asked is not None else None,
                    nested_cost=cost,
                    nested_turns=payload.get("nested_turns", ()),
                    untrusted_source=payload.get("source") if payload.get("untrusted") else None,
                )
        return ToolOutcome(error="the call has no recorded result")


class RecordedExecutor:
    """The real HO1, which fails wherever the recorded HO1 failed."""

    def __init__(self, executor: HO1ExecutorProtocol, ho1m: ReplayLedger, tape: Tape) -> None:
        self._executor, self._ho1m, self._tape = executor, ho1m, tape

    async def execute(self, work_order: WorkOrder) -> WorkOrder:
        """The finished work order; raises the recorded error where HO1 failed."""
        work_order = self._as_recorded(work_order)
        broken = self._breakdown(work_order.wo_id)
        if broken is None:
            return self._with_cost(await self._executor.execute(work_order))
        if not self._tape.compares:  # its requests from before the failure are needed
            with suppress(Diverged):
                await self._executor.execute(work_order)
        while (entry := self._tape.next_of(self._ho1m.ledger_id)) is not None and entry.entity_id == work_order.wo_id:
            if payload_as(AttemptStartedPayload, entry.payload).get("governance_violation"):
                break  # those of the direct call, which is made again
            self._ho1m.keep(self._tape.pass_over(self._ho1m.ledger_id))
        raise broken

    def _as_recorded(self, work_order: WorkOrder) -> WorkOrder:
        """The work order with as many tools side by side as were recorded; an older version ran them one by one."""
        for entry in self._tape.of_turn(events.WO_PLANNED):
            if entry.entity_id == work_order.wo_id:
                at_once = payload_as(WorkOrderPlannedPayload, entry.payload)["constraints"].get("parallel_tools", 1)
                return work_order.replaced(constraints=work_order.constraints.replaced(parallel_tools=at_once))
        return work_order

    def _with_cost(self, done: WorkOrder) -> WorkOrder:
        """Adds the recorded cost of an answer that was paid for but could not be stored."""
        if done.error is None or done.error.provider_reason != "malformed":
            return done
        for entry in self._tape.of_turn(events.WO_FAILED):
            cost = payload_as(WorkOrderFailedPayload, entry.payload).get("cost")
            if entry.entity_id == done.wo_id and isinstance(cost, dict):
                return done.replaced(cost=Cost.of(cost))
        return done

    def _breakdown(self, wo_id: str) -> Exception | None:
        degraded = (payload_as(DegradationPayload, each.payload) for each in self._tape.of_turn(events.DEGRADATION))
        if not any(each.get("component") == "HO1" and each.get("wo_id") == wo_id for each in degraded):
            return None
        failed = (each.payload for each in self._tape.of_turn(events.WO_FAILED) if each.entity_id == wo_id)
        errors = (opened(payload_as(WorkOrderFailedPayload, each).get("error")) for each in failed)
        return failing_again(next((error["detail"] for error in errors if error is not None), ""))


class RecordedDirectCall:
    """The direct call if the turn made one; otherwise the recorded reply of the program's own function."""

    def __init__(self, call: DirectCall, tape: Tape) -> None:
        self._call, self._tape = call, tape

    async def __call__(self, work_order: WorkOrder, *, calls_before: int) -> DirectReply:
        """See `DirectCall`."""
        turn = self._tape.turn
        if turn is not None and turn.direct_calls(work_order.wo_id):
            return await self._call(work_order, calls_before=calls_before)
        end = turn.end if turn is not None else None
        completed = payload_as(TurnCompletedPayload, end.payload if end is not None else {})
        return DirectReply(str(completed.get("response", "")), None)


class RecordedScores:
    """The scores of similarity that the turn used; a replay needs no model and no vectors."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    async def compare(self, subject_id: str, message: str, words: TurnWords, among: int) -> Similarity | None:
        """See `TurnComparer`."""
        for entry in self._tape.of_turn(events.PROJECTION_COMPUTED):
            fields = events.read_as(ProjectionPayload, entry).get("similarity")
            return Similarity.from_mapping(fields) if fields is not None else None
        return None


def failing_again(detail: str) -> Exception:
    """An error of the recorded type and text."""
    name, _, text = detail.partition(": ")
    kind = type(name, (Exception,), {}) if name.isidentifier() else RuntimeError
    error: Exception = kind(text)
    return error
