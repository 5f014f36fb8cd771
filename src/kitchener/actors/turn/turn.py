"""Turns one message into a reply and its commit record, from `TURN_STARTED` to `TURN_COMPLETED`.

Each step is one method, in the order that `docs/turn.md` describes. Pure modules (`plan.py`, `quality.py`) decide the next
step, `chain.py` executes work orders, and `reply_check.py` judges replies. The supervisor starts a turn, runs it,
and aborts it after a cancellation.
"""

from collections.abc import Awaitable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from kitchener.actors.admission.content import record_parts
from kitchener.actors.approval.approval_in_turn import ApprovalInTurn
from kitchener.actors.attention.attention_context import AttentionContext, ContextFragment
from kitchener.actors.authority.authority import ContextAuthority
from kitchener.actors.executor.answers import OUTPUT_KEY
from kitchener.actors.sessions.active_session import SessionManager, close_open_turn
from kitchener.actors.sources import source_of_client_tools, source_of_output
from kitchener.actors.turn.authority_in_turn import TurnAuthority
from kitchener.actors.turn.chain import WorkOrderChain
from kitchener.actors.turn.reply import Reply, TurnOutcome
from kitchener.actors.turn.reply_check import (
    Rejection,
    apology_after,
    as_rejected,
    closing_tool,
    judge_reply,
    results_of,
    said_beside_calls,
    told_of_reply,
)
from kitchener.actors.turn.services import TurnServices
from kitchener.actors.turn.step import TurnStep
from kitchener.actors.turn_memory import OpenGates, TurnMemory, bias_fragments
from kitchener.actors.work.plan import (
    CONTINUES,
    UNCLASSIFIED,
    ChainPlan,
    ToolRequest,
    given_results,
    plan_acceptance,
    plan_chain,
    summarize,
    tighter,
    total_cost,
)
from kitchener.actors.work.turn_signals import labels_of, signals_of
from kitchener.cancellation import failed_alone
from kitchener.errors import StaleHead
from kitchener.ids import TurnId
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of
from kitchener.records import events
from kitchener.records.entries import (
    AbortReason,
    ChainCompletePayload,
    CheckedGates,
    CostSummary,
    TurnCompletedPayload,
    TurnStartedPayload,
)
from kitchener.records.outputs import Classification, ReplyOutput, ToolOutput
from kitchener.records.parts import StoredPart
from kitchener.records.ref import Ref
from kitchener.records.spoken import message_text
from kitchener.records.turn import NO_CANDIDATES, ClientCallRequested, TurnCall, TurnResult, UpdateListener
from kitchener.records.work_order import WorkOrder

logger = get_logger(__name__)
T = TypeVar("T")
_NO_CALL: Final = TurnCall()


class Turn:
    """Runs one turn of one session.

    Args:
        services: the components that all turns of the agent class share
        session: the session, held by this turn
        message: the user's message
        deadline: on the event loop's clock, seconds
        update: receives the updates of a streamed turn; None: the turn is not streamed
    """

    __slots__ = (
        "_acceptance",
        "_approval",
        "_authority",
        "_call",
        "_chain",
        "_classification",
        "_constants",
        "_earlier_failures",
        "_memory",
        "_message",
        "_output",
        "_parts",
        "_positions",
        "_said",
        "_services",
        "_session",
        "_turn_ts",
        "_update",
        "turn_id",
    )

    def __init__(
        self, services: TurnServices, session: SessionManager, message: str, deadline: float, update: UpdateListener | None
    ) -> None:
        self._services, self._constants = services, services.constants
        self._session = session
        self._message = self._said = message
        self._update = update
        self._earlier_failures = tuple(session.state.failed_work_orders)
        self._memory = services.memory
        self._positions: Mapping[str, int] = {}
        self._turn_ts = ""
        self._classification: Classification = UNCLASSIFIED
        self.turn_id: TurnId = session.next_turn_id()
        self._chain = WorkOrderChain(services, session, self.turn_id, deadline, update)
        self._authority: TurnAuthority | None = None
        self._output: ReplyOutput = {}
        self._parts: tuple[StoredPart, ...] = ()
        self._acceptance = self._constants.acceptance
        self._call = _NO_CALL
        self._approval = ApprovalInTurn(services.ledgers, session, self._constants.approval, services.config.approval)

    async def start(self, call: TurnCall) -> None:
        """Writes `TURN_STARTED` with the message and the ledger positions that the turn may read.

        The write is refused unless the session's last entry is still the one that this process knows.
        """
        self._call, services, constants = call, self._services, self._constants
        if call.output is not None:
            await services.record_source(source_of_output(call.output))
        self._positions = services.ledgers.positions()
        self._turn_ts = services.now()
        if not call.memory:
            self._memory = None
        fields: TurnStartedPayload = {
            "turn_ts": self._turn_ts,
            "user_message": self._message,
            "memory": call.memory,
            "read_positions": self._positions,
            "ruleset_hash": constants.ruleset_hash,
            "config_hash": constants.config_hash,
            "overlap": services.config.overlap_policy,
        }
        call.note_in(fields)
        if constants.policy_version > 1:
            fields["policy_version"] = constants.policy_version
        if call.client_tools is not None:
            constants.hold_client_tools(self.turn_id, call.client_tools)
            await services.record_source(source_of_client_tools(call.client_tools))
        if call.speaker is not None:
            self._said = message_text(self._message, call.speaker)
        if call.acceptance:
            self._acceptance = plan_acceptance(self._acceptance, call.acceptance)
        self._approval.note_caller(fields)
        if call.resumes is not None:
            await self._approval.resume(call.resumes)
        if call.parts or self._session.state.has_parts:
            self._parts = await services.content.begin(self._session, call, fields)
        start = await _write_start(self._session, self.turn_id, fields, services.config.session_queue)
        self._chain.message_ref = start.as_mapping()
        self._chain.open()
        if self._parts:
            await record_parts(self._session, self.turn_id, self._parts)
        services.ledgers.request_commit()

    async def run(self) -> TurnOutcome:
        """Runs all work orders and completes the turn. A failed model or tool gives a result, never an exception."""
        with self._services.ledgers.ho1m.watch(self._session.session_id) as self._chain.trace:
            return await self._complete(await self._answer())

    async def _answer(self) -> Reply:
        """The steps from classification to the quality gate. A `Reply` in place of a step's own result ends the chain."""
        if self._services.authority is not None:
            own = await self._open_authority(self._services.authority)
            if own is not None:
                return own
        classification = await self._classify()
        if isinstance(classification, Reply):
            return classification
        self._classification = classification
        if self._authority is not None:
            own = await self._follow(self._authority.decide(classification))
            if own is not None:
                return own
        context = await self._assemble(classification)
        if self._parts or self._approval.parts:
            resumed = self._approval.parts_beside(context.parts, self._services.content.media_types())
            context = context._replace(parts=(*context.parts, *self._parts, *resumed))
        constants = self._constants
        plan = plan_chain(
            classification,
            allowed=constants.allowed_tools,
            read_only=constants.read_only_tools,
            room=self._chain.work_orders_left,
            held_back=self._approval.held_back,
            client_tools=self._call.client_tools,
            policy_version=constants.policy_version,
        ).choosing(self._call.tool_choice, constants.policy_version)
        results = await self._use_tool(plan.tool_request) if plan.tool_request is not None else []
        if isinstance(results, Reply):
            return results
        return await self._synthesize(self._reply_step(classification, context, results, plan))

    def ids(self) -> dict[str, str]:
        """The ids of the session, the turn and the running work order, for events of the log."""
        running = [("wo_id", wo.wo_id) for wo in self._chain.work_orders.values() if wo.state == "planned"]
        return {"session_id": self._session.session_id, "turn_id": self.turn_id, **dict(running)}

    async def abort(self, reason: AbortReason) -> None:
        """Writes `TURN_ABORTED`, and `WO_ABANDONED` for each open work order. The session stays usable.

        Does nothing if the turn has not started or is already over.
        """
        open_turn = self._session.state.open_turn
        if open_turn is None or open_turn.turn_id != self.turn_id:
            return
        self._chain.close(total_cost(self._chain.work_orders.values(), self._constants.policy_version), self._approval)
        await close_open_turn(self._session, reason)
        await self._services.ledgers.commit()

    async def _classify(self) -> Classification | Reply:
        """Classifies the message. If the work order fails, the turn continues with `UNCLASSIFIED`."""
        if self._services.config.classify == "off" or self._approval.resumed is not None:
            return CONTINUES
        constants, newest = self._constants, self._session.state.newest(self._services.config.classify_recent_turns)
        inputs = {
            "user_message": self._message,
            "recent_turns": [past.exchange for past in newest],
            "labels_vocabulary": constants.vocabulary,
            "tools": constants.classify_tools,
            **(self._authority.classify_inputs() if self._authority is not None else {}),
        }
        refs = [ref.as_mapping() for past in newest if (ref := past.fragment.ref) is not None]
        wo = await self._chain.dispatch(TurnStep("classify", inputs, constants.steps.classify, input_refs=refs))
        if isinstance(wo, Reply):
            return wo
        found = wo.output_as(Classification)
        if found is None:
            return UNCLASSIFIED
        await self._chain.accept(wo)
        return found

    async def _open_authority(self, authority: ContextAuthority) -> Reply | None:
        """Lets the Context Authority resolve the active intent. Returns its own reply if intents compete."""
        if self._session.thread is None:
            return None
        position = self._positions[self._services.ledgers.ho2m.ledger_id]
        self._session.thread.resumed_id = self._approval.resumed_id
        self._authority = TurnAuthority(
            authority, self._session, self.turn_id, self._message, turn_ts=self._turn_ts, position=position
        )
        return await self._follow(self._authority.open())

    async def _follow(self, step: Awaitable[Reply | None]) -> Reply | None:
        """Runs a step of the Authority. Returns the Authority's own reply, which it has only in `enforce`."""
        own = await self._in_shadow(step)
        if self._authority is None:
            return None
        self._chain.intent_id = self._authority.intent_id
        return None if self._authority.is_shadow else own

    async def _in_shadow(self, step: Awaitable[T]) -> T | None:
        """Returns the step's result. In `shadow`, a failed step disables the shadow for this turn and returns None."""
        if self._authority is None or not self._authority.is_shadow:
            return await step
        try:
            return await step
        except BaseException as error:  # a shadow must not affect the turn
            if not await failed_alone(error):
                raise
            self._authority = None
            logger.error("context shadow failed", turn_id=self.turn_id, error=origin_of(error))
            return None

    async def _assemble(self, classification: Classification) -> AttentionContext:
        """Builds the context that the model sees, including the learned lines for this message."""
        authority, attention, memory = self._authority, self._services.attention, self._memory
        priority = await attention.priority_probe(partial(self._anchors, memory, classification) if memory else None)
        if authority is not None and not authority.is_shadow:
            nothing = AttentionContext(template_id=attention.template_id)
            return await authority.show(nothing, priority.biases, self._chain.tokens_left)
        session = self._session
        results = await session.results.items(self._message) if session.state.tool_results else ()
        horizontal = await attention.horizontal_scan(session.session_id, self._message, results)
        context = attention.assemble_wo_context(horizontal, priority, self._message, classification)
        if authority is not None:
            await self._in_shadow(authority.compare(context, self._memory, self._chain.tokens_left))
        return context

    async def _anchors(self, memory: TurnMemory, classification: Classification) -> Sequence[ContextFragment]:
        """Step 1: selects the learned lines for this message; in `enforce` with their entries, for the projection."""
        labels = labels_of(classification, self._constants.labels)
        try:
            overlays = await memory.recall(self._session.subject_id, labels, self._turn_ts, self._positions)
            anchors = bias_fragments(overlays, self._services.config.token_estimator) if overlays else ()
            if not anchors or self._authority is None or self._authority.is_shadow:
                return anchors
            return await self._authority.with_refs(anchors, memory)
        except BaseException as error:  # without its memory, the turn loses the learned lines but not its reply
            if not await failed_alone(error):
                raise
            await self._chain.record_degradation("HO3", error)
            return ()

    async def _learn(self, memory: TurnMemory) -> OpenGates | None:
        """Step 5: logs the turn's signals and checks their gates. Returns None if the memory fails."""
        constants, chain = self._constants, self._chain.work_orders.values()
        signal_ids = signals_of(self._classification, chain, constants.labels, policy_version=constants.policy_version)
        session = self._session
        try:
            return await memory.learn(session.session_id, session.subject_id, self.turn_id, signal_ids)
        except BaseException as error:  # a failure to learn must not cost the turn its reply
            if not await failed_alone(error):
                raise
            await self._chain.record_degradation("HO3", error)
            return None

    async def _use_tool(self, request: ToolRequest) -> list[Mapping[str, object]] | Reply:
        """Step 3: runs the tool that a command asks for, before the reply. A failure of the tool is a result for the model."""
        arguments = {"tool_id": request.tool_id, "arguments": dict(request.arguments)}
        wo = await self._chain.dispatch(TurnStep("tool_call", arguments, self._constants.steps.tool_call))
        if isinstance(wo, Reply):
            return wo
        if wo.output_as(ToolOutput) is not None:
            await self._chain.accept(wo)
        return results_of(self._chain.trace, wo, self._constants.policy_version)

    async def _synthesize(self, step: TurnStep) -> Reply:
        """Steps 3 and 4: returns the first reply that the quality gate accepts.

        Each rejected reply is retried with tighter constraints. Returns an apology if no retry is left, or if a retry would not
        help.
        """
        chain, rejected = self._chain, list[WorkOrder]()
        while True:
            wo = await chain.dispatch(step)
            if isinstance(wo, Reply):
                return wo
            if wo.state == "deferred":
                return await self._defer(wo)
            acceptance = self._constants.with_criteria_of(wo.cost.tool_ids_used, step.acceptance)
            verdict = await judge_reply(self._services, chain, self._message, wo, acceptance, self._call.output)
            if isinstance(verdict, Reply):
                return verdict
            output = wo.output_as(ReplyOutput)
            if verdict.is_accepted and output is not None:
                await chain.accept(wo)
                for failed in rejected:
                    await chain.supersede(failed, wo)
                self._output = output
                is_cut = self._call.output is None and wo.is_cut
                return Reply(str(output["response_text"]), None, truncated=is_cut)
            rejected.append(wo := await as_rejected(wo, verdict, chain, self._update))
            apology = await apology_after(self._services, chain, rejected, verdict)
            if apology is not None:
                return apology
            prior = step.prior_results
            if self._constants.policy_version > 2:
                had = results_of(chain.trace, wo, self._constants.policy_version)
                prior = [*prior, *self._approval.earlier_results(wo), *had]
            told = told_of_reply(self._constants, self._call.output, acceptance, Rejection(verdict, wo.error, self.turn_id))
            limits = tighter(step.constraints, len(rejected), self._constants.policy_version)
            step = step.retried(wo, limits, prior, told)._replace(acceptance=acceptance)

    def _reply_step(
        self,
        classification: Classification,
        context: AttentionContext,
        results: list[Mapping[str, object]],
        plan: ChainPlan,
    ) -> TurnStep:
        """The first attempt at a reply: the model's input and its tools."""
        constants, call = self._constants, self._call
        has_stubs = self._authority is not None and self._authority.shows_stubs
        constraints = constants.steps.synthesis(plan, offers_items=plan.offers_items and has_stubs)
        acceptance = self._acceptance
        if plan.tool_request is not None:
            acceptance = plan_acceptance(acceptance, constants.tool_acceptance.get(plan.tool_request.tool_id, ()))
        inputs: dict[str, object] = {
            "user_message": self._said,
            "assembled_context": context.as_assembled(),
            **told_of_reply(constants, call.output, acceptance),
            **constants.told_of_tools,
        }
        if call.client_tools is not None and plan.offers_tools:
            constraints = constants.steps.with_client_tools(constraints, call.client_tools.names)
            inputs |= constants.told_of_client_tools
        is_chat = context.history is not None and context.projection_ref is not None
        return TurnStep(
            "synthesize",
            inputs,
            self._approval.limits(constraints, results),
            prior_results=given_results(classification, results, inputs, is_chat=is_chat),
            parent=self._approval.resumed_id,
            input_refs=self._approval.refs,
            context=context,
            acceptance=acceptance,
            output_schema=call.output.schema if call.output is not None else None,
            resumption=self._approval.resumed,
        )

    async def _defer(self, wo: WorkOrder) -> Reply:
        """Records the calls that wait for a person or for the client, and returns the reply that says so."""
        deferral = self._approval.defer(wo, self._turn_ts, self._call.client_tools)
        await self._chain.defer(wo, deferral.entries)
        response = deferral.response if deferral.response is not None else said_beside_calls(self._chain, wo.wo_id)
        if self._update is not None:
            for each in deferral.client_calls:
                await self._update(ClientCallRequested(wo.wo_id, each))
        return Reply(response, None, deferral.approval_ids, deferral.client_calls)

    async def _complete(self, reply: Reply) -> TurnOutcome:
        """Completes the chain, learns from the turn, and writes `TURN_COMPLETED`. After that nothing aborts the turn."""
        response, error, pending, client_calls, truncated = reply
        chain, authority, work_orders = self._chain, self._authority, self._chain.work_orders.values()
        cost, trace_hash = total_cost(work_orders, self._constants.policy_version), chain.trace_hash()
        await self._complete_chain(cost, trace_hash)
        if authority is not None:
            is_waiting = pending or client_calls
            closing = closing_tool(chain.trace, self._constants.closing_tools) if not is_waiting else None
            await self._in_shadow(authority.finish(self._output, is_failed=error is not None, closing_tool=closing))
        gates = await self._learn(self._memory) if self._memory is not None else None
        result = TurnResult(
            response=response,
            wo_chain_summary=summarize(work_orders),
            cost_summary=cost,
            session_id=self._session.session_id,
            turn_id=self.turn_id,
            intent_id=chain.intent_id,
            quality_gate_passed=error is None,
            consolidation_candidates=gates.candidates if gates is not None else NO_CANDIDATES,
            degraded=error is not None,
            pending_approval=pending,
            client_calls=client_calls,
            error=error,
            trace_hash=trace_hash,
            projection_ref=authority.projection_ref if authority is not None else None,
            output=self._output.get(OUTPUT_KEY) if self._call.output is not None else None,
            truncated=truncated,
        )
        checked: CheckedGates = {}
        if gates is not None:
            checked = {"gate_ts": gates.gate_ts, "read_positions": gates.positions}
        elif self._constants.policy_version < 7:
            checked = {"gate_ts": None, "read_positions": self._positions}
        payload: TurnCompletedPayload = {
            **result.as_payload(),
            **chain.direct_cost,
            **self._session.results.keep(chain.trace if cost["tool_calls"] else (), response),
            "user_message_ref": chain.message_ref,
            **checked,
        }
        await chain.write(events.TURN_COMPLETED, self.turn_id, payload)
        chain.close(cost, self._approval)
        return TurnOutcome(result, gates)

    async def _complete_chain(self, cost: CostSummary, trace_hash: str) -> None:
        """Ends the work orders that the turn is done with, and writes the totals of the chain."""
        chain = self._chain
        done_with: Sequence[str] = self._earlier_failures
        if self._authority is not None:
            done_with = self._authority.done_with(done_with, chain.work_orders)
        for wo_id in done_with:  # otherwise the context would show an old outage forever
            await chain.abandon(wo_id, "turn_over")
        if (resumed_id := self._approval.resumed_id) is not None:
            await chain.abandon(resumed_id, "answered")
        wo_ids = list(chain.work_orders)
        totals: ChainCompletePayload = {
            "wo_ids": wo_ids,
            "wo_count": len(wo_ids),
            "total_cost": cost,
            "trace_hash": trace_hash,
        }
        await chain.write(events.WO_CHAIN_COMPLETE, self.turn_id, totals)


async def _write_start(session: SessionManager, turn_id: TurnId, fields: TurnStartedPayload, retries: int) -> Ref:
    """Writes `TURN_STARTED` as the session's next entry. Retries up to `retries` times.

    While a write waits for the subject's key, this process may record rejections of other messages, so the write is retried. If
    this process did not write the new head, there is another writer, and the write fails.
    """
    while True:
        head = session.state.head
        try:
            return await session.write(events.TURN_STARTED, turn_id, fields, turn=turn_id, expected_head=head)
        except StaleHead:
            if session.state.head == head or not retries:
                raise
            retries -= 1
