"""Turns one message into a reply and its commit record, from `TURN_STARTED` to `TURN_COMPLETED`.

Each step is one method, in the order that `docs/turn.md` describes. Pure modules (`plan.py`, `quality.py`) decide the next
step, and `chain.py` executes work orders. The supervisor starts a turn, runs it, and aborts it after a cancellation.
"""

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import structlog

from kitchener.actors.attention.retriever import AttentionContext
from kitchener.actors.authority.authority import ContextAuthority
from kitchener.actors.sessions.directory import SessionManager, close_open_turn
from kitchener.actors.turn.authority_in_turn import OwnAnswer, TurnAuthority
from kitchener.actors.turn.chain import APOLOGIES, APOLOGY, CutShort, WorkOrderChain
from kitchener.actors.turn.parts import TurnParts
from kitchener.actors.turn_memory import Crossed, Learned, TurnMemory, bias_fragments
from kitchener.actors.work.plan import (
    UNCLASSIFIED,
    ChainPlan,
    ToolRequest,
    labels_of,
    plan_chain,
    signals_of,
    summarize,
    tighter,
    total_cost,
)
from kitchener.actors.work.quality import QualityGateResult
from kitchener.cancellation import is_own_failure
from kitchener.context import Item
from kitchener.errors import origin_of
from kitchener.ids import SessionId, TurnId
from kitchener.ledger import compute_trace_hash
from kitchener.memory.overlays import Overlay
from kitchener.records import events
from kitchener.records.turn import TextRetracted, TurnCall, TurnError, TurnResult, UpdateListener
from kitchener.records.work_order import WorkOrder, WorkOrderError

logger = structlog.get_logger(__name__)
T = TypeVar("T")


class Turn:
    """Runs one turn of one session.

    Args:
        parts: the components that all turns of the agent class share
        session: the session, held by this turn
        message: the user's message
        deadline: on the event loop's clock, seconds
        update: receives the updates of a streamed turn; None: the turn is not streamed
    """

    __slots__ = (
        "_authority",
        "_chain",
        "_classification",
        "_earlier_failures",
        "_hashed",
        "_is_over",
        "_memory",
        "_message",
        "_output",
        "_parts",
        "_positions",
        "_session",
        "_turn_ts",
        "_update",
        "turn_id",
    )

    def __init__(
        self, parts: TurnParts, session: SessionManager, message: str, deadline: float, update: UpdateListener | None
    ) -> None:
        self._parts = parts
        self._session = session
        self._message = message
        self._update = update
        self._earlier_failures = tuple(session.state.failed_work_orders)
        self._memory = parts.memory
        self._positions: Mapping[str, int] = {}
        self._turn_ts = ""
        self._classification: Mapping[str, Any] = UNCLASSIFIED
        self.turn_id: TurnId = session.next_turn_id()
        self._chain = WorkOrderChain(parts, session, self.turn_id, deadline, update)
        self._authority: TurnAuthority | None = None
        self._output: Mapping[str, Any] = {}
        self._is_over = False
        self._hashed = (-1, "")

    async def start(self, call: TurnCall) -> None:
        """Writes `TURN_STARTED` with the message and the ledger positions that the turn may read.

        The write is refused unless the session's last entry is still the one that this process knows.
        """
        prepared = self._parts.prepared
        self._positions = self._parts.ledgers.positions()
        self._turn_ts = self._parts.now()
        if not call.memory:
            self._memory = None
        fields: dict[str, Any] = {
            "turn_ts": self._turn_ts,
            "user_message": self._message,
            "memory": call.memory,
            "read_positions": self._positions,
            "ruleset_hash": prepared.ruleset_hash,
            "config_hash": prepared.config_hash,
            "overlap": self._parts.config.overlap_policy,
        }
        if call.idempotency_key is not None:
            fields["idempotency_key"] = call.idempotency_key
            fields["idempotency_scope"] = "session" if call.session_id is not None else "subject"
        started = await self._session.write(
            events.TURN_STARTED, self.turn_id, fields, turn=self.turn_id, expected_head=self._session.state.head
        )
        self._chain.message_ref = started.as_json()
        self._chain.open()
        self._parts.ledgers.request_commit()

    async def run(self) -> TurnResult:
        """Runs all work orders and completes the turn. A failed model or tool gives a result, never an exception."""
        error: TurnError | None = None
        with self._parts.ledgers.ho1m.watch(self._session.session_id) as self._chain.trace:
            try:
                if self._parts.authority is not None:
                    await self._open_authority(self._parts.authority)
                classification = self._classification = await self._classify()
                if self._authority is not None:
                    await self._follow(self._authority.decide(classification))
                context = await self._assemble(classification)
                plan = self._plan_rest(classification)
                results = await self._use_tool(plan.tool_request) if plan.tool_request is not None else []
                self._output = await self._synthesize(classification, context, results, plan)
                response = str(self._output["response_text"])
            except CutShort as cut:
                response, error = cut.response, cut.error
            return await self._complete(response, error)

    async def abort(self, reason: str) -> None:
        """Writes `TURN_ABORTED`, and `WO_ABANDONED` for each open work order. The session stays usable.

        Does nothing if the turn has not started or is already over.
        """
        if self._chain.message_ref is None or self._is_over:
            return
        self._is_over = True
        self._chain.close()
        await close_open_turn(self._session, reason)
        await self._parts.ledgers.commit()

    async def _classify(self) -> Mapping[str, Any]:
        """Step 2a: classifies the message. If the work order fails, the turn continues with `UNCLASSIFIED`."""
        prepared, newest = self._parts.prepared, self._session.state.newest(self._parts.config.classify_recent_turns)
        wo = await self._chain.dispatch(
            "classify",
            {
                "user_message": self._message,
                "recent_turns": [past.exchange for past in newest],
                "labels_vocabulary": prepared.vocabulary,
                "tools": prepared.tool_views,
                **(self._authority.classify_inputs() if self._authority is not None else {}),
            },
            prepared.classify,
            input_refs=[past.fragment.ref_json for past in newest],
        )
        if wo.state != "completed" or wo.output_result is None:
            return UNCLASSIFIED
        await self._chain.accept(wo)
        return wo.output_result

    async def _open_authority(self, authority: ContextAuthority) -> None:
        """Lets the Context Authority resolve the active intent. If intents compete, its answer ends the turn."""
        if self._session.thread is None:
            return
        position = self._positions[self._parts.ledgers.ho2m.ledger_id]
        self._authority = TurnAuthority(
            authority, self._session, self.turn_id, self._message, turn_ts=self._turn_ts, position=position
        )
        await self._follow(self._authority.open())

    async def _follow(self, step: Coroutine[Any, Any, OwnAnswer | None]) -> None:
        """Runs a step of the Authority. In `enforce`, an answer of the Authority ends the chain with `CutShort`."""
        answer = await self._in_shadow(step)
        if self._authority is None:
            return
        self._chain.intent_id = self._authority.intent_id
        if answer is not None and not self._authority.is_shadow:
            raise CutShort(answer.error, answer.response)

    async def _in_shadow(self, step: Coroutine[Any, Any, T]) -> T | None:
        """Returns the step's result. In `shadow`, a failed step disables the shadow for this turn and returns None."""
        if self._authority is None or not self._authority.is_shadow:
            return await step
        try:
            return await step
        except BaseException as error:  # a shadow must not affect the turn
            if not is_own_failure(error):
                raise
            self._authority = None
            logger.error("context shadow failed", turn_id=self.turn_id, error=origin_of(error))
            return None

    async def _assemble(self, classification: Mapping[str, Any]) -> AttentionContext:
        """Steps 2b and 2c: builds the context that the model sees, including the learned lines for this message."""
        overlays, biases = await self._recall(self._memory, classification) if self._memory is not None else ((), ())
        authority, attention = self._authority, self._parts.attention
        if authority is not None and not authority.is_shadow:
            nothing = AttentionContext(template_id=attention.template_id)
            return await authority.show(nothing, overlays, biases, self._chain.tokens_left)
        horizontal = await attention.horizontal_scan(self._session.session_id, self._message)
        priority = await attention.priority_probe()
        context = attention.assemble_wo_context(horizontal, priority, self._message, classification)
        if overlays:
            context = context._replace(biases=bias_fragments(overlays, self._parts.config.token_estimator))
        if authority is not None:
            await self._in_shadow(self._shadow(authority, context, overlays))
        return context

    async def _shadow(self, authority: TurnAuthority, context: AttentionContext, overlays: Sequence[Overlay]) -> None:
        """Records the projection that the Authority would have shown instead of `context`."""
        biases = await authority.bias_items(overlays, self._memory) if self._memory is not None else ()
        await authority.show(context, overlays, biases, self._chain.tokens_left)

    async def _recall(self, memory: TurnMemory, classification: Mapping[str, Any]) -> tuple[Sequence[Overlay], Sequence[Item]]:
        """Step 1: selects the learned lines for this message; in `enforce` also as items for the projection."""
        labels = labels_of(classification, self._parts.prepared.labels)
        try:
            overlays = await memory.recall(self._session.subject_id, labels, self._turn_ts, self._positions)
            if self._authority is None or self._authority.is_shadow:
                return overlays, ()
            return overlays, await self._authority.bias_items(overlays, memory)
        except BaseException as error:  # without its memory, the turn loses the learned lines but not its reply
            if not is_own_failure(error):
                raise
            await self._chain.record_degradation("HO3", error)
            return (), ()

    async def _learn(self, memory: TurnMemory) -> Learned:
        """Step 5: logs the turn's signals and checks their gates."""
        signal_ids = signals_of(self._classification, self._chain.work_orders.values(), self._parts.prepared.labels)
        session = self._session
        try:
            learned = await memory.learn(session.session_id, session.subject_id, self.turn_id, signal_ids)
            if learned.candidates and learned.gate_ts is not None:
                namespace = memory.namespace_of(session.subject_id)
                self._parts.note_crossed(self.turn_id, Crossed(namespace, learned.gate_ts))
            return learned
        except BaseException as error:  # a failure to learn must not cost the turn its reply
            if not is_own_failure(error):
                raise
            await self._chain.record_degradation("HO3", error)
            return Learned((), None, self._positions)

    def _plan_rest(self, classification: Mapping[str, Any]) -> ChainPlan:
        prepared = self._parts.prepared
        return plan_chain(
            classification, allowed=prepared.allowed_tools, read_only=prepared.read_only_tools, room=self._chain.room
        )

    async def _use_tool(self, request: ToolRequest) -> list[dict[str, Any]]:
        """Step 3: runs the tool that a command asks for, before the reply. Its failure becomes a result for the model."""
        arguments = {"tool_id": request.tool_id, "arguments": dict(request.arguments)}
        wo = await self._chain.dispatch("tool_call", arguments, self._parts.prepared.tool_call)
        if wo.state == "completed" and wo.output_result is not None:
            await self._chain.accept(wo)
            return [wo.output_result]
        return [{"tool_id": request.tool_id, "error": wo.error.detail if wo.error else "the tool gave no result"}]

    async def _synthesize(
        self,
        classification: Mapping[str, Any],
        context: AttentionContext,
        results: list[dict[str, Any]],
        plan: ChainPlan,
    ) -> dict[str, Any]:
        """Steps 3 and 4: returns the first reply that the quality gate accepts.

        Each rejected reply is retried with tighter constraints.

        Raises:
            CutShort: no retry is left, or the work order failed for a reason that a retry does not mend
        """
        prepared = self._parts.prepared
        has_stubs = self._authority is not None and self._authority.shows_stubs
        constraints = prepared.synthesis(offers_tools=plan.offers_tools, offers_items=plan.offers_items and has_stubs)
        inputs = {
            "user_message": self._message,
            "assembled_context": context.as_assembled(),
            "instructions": prepared.instructions,
        }
        prior = [dict(classification), *results]
        rejected: list[WorkOrder] = []
        while True:
            parent = rejected[-1].wo_id if rejected else None
            wo = await self._chain.dispatch(
                "synthesize", inputs, constraints, prior_results=prior, parent=parent, context=context
            )
            verdict = await self._judge(wo)
            if verdict.is_accepted and wo.output_result is not None:
                await self._chain.accept(wo)
                for failed in rejected:
                    await self._chain.supersede(failed, wo)
                return wo.output_result
            rejected.append(await self._reject(wo, verdict))
            await self._check_retry(rejected, verdict)
            constraints = tighter(constraints, len(rejected))

    async def _judge(self, wo: WorkOrder) -> QualityGateResult:
        """Step 4: judges one attempt, and records the verdict with the hash of the trace so far."""
        wo_id, output = wo.wo_id, wo.output_result if wo.state == "completed" else None
        verdict = self._parts.quality.verify(output, wo.acceptance, wo_id)
        if verdict.is_accepted and output is not None:
            if not self._chain.can_record(str(output.get("response_text", ""))):
                verdict = QualityGateResult("reject", "the reply does not fit into one ledger entry (max_entry_bytes)", wo_id)
            elif self._parts.config.verify_with_model and self._chain.room:
                verdict = await self._ask_verifier(wo, verdict)
        fields = {
            "wo_id": wo_id,
            "decision": verdict.decision,
            "reason": verdict.reason,
            "trace_hash": self._trace_hash(),
        }
        await self._chain.write(events.WO_QUALITY_GATE, wo_id, fields)
        return verdict

    async def _ask_verifier(self, wo: WorkOrder, verdict: QualityGateResult) -> QualityGateResult:
        """Asks a model to verify a reply that passed the fixed checks. If the verifier fails, `verdict` stands."""
        inputs = {
            "response_text": (wo.output_result or {}).get("response_text", ""),
            "acceptance": list(wo.acceptance),
            "user_message": self._message,
        }
        check = await self._chain.dispatch("verify", inputs, self._parts.prepared.verify, parent=wo.wo_id)
        if check.state != "completed" or check.output_result is None:
            return verdict
        await self._chain.accept(check)
        if check.output_result.get("decision") != "reject":
            return verdict
        return QualityGateResult("reject", str(check.output_result.get("reason", "rejected by the verifier")), wo.wo_id)

    async def _reject(self, wo: WorkOrder, verdict: QualityGateResult) -> WorkOrder:
        if wo.state == "completed":  # otherwise the failure is already recorded
            wo = wo.failed(WorkOrderError(reason="QUALITY_GATE", detail=verdict.reason))
            await self._chain.record_failure(wo)
        if self._update is not None:
            await self._update(TextRetracted(wo.wo_id))
        return wo

    async def _check_retry(self, rejected: list[WorkOrder], verdict: QualityGateResult) -> None:
        """Raises `CutShort` unless another attempt makes sense.

        The gateway has already retried provider failures. So only rejected or malformed replies are retried here.
        """
        last = rejected[-1]
        if last.error is not None and last.error.reason not in ("QUALITY_GATE", "OUTPUT_SCHEMA"):
            raise CutShort(
                TurnError(last.error.reason, last.error.detail, last.wo_id), APOLOGIES.get(last.error.reason, APOLOGY)
            )
        if len(rejected) > self._parts.config.max_retries or self._chain.room < 1:
            fields = {"reason": verdict.reason, "attempts": len(rejected), "wo_id": last.wo_id}
            await self._chain.write(events.ESCALATION, self.turn_id, fields)
            message = f"no acceptable reply after {len(rejected)} attempts: {verdict.reason}"
            raise CutShort(TurnError("QUALITY_GATE", message, last.wo_id), APOLOGY)

    async def _complete(self, response: str, error: TurnError | None) -> TurnResult:
        """Writes the totals of the chain, then `TURN_COMPLETED`. After that nothing aborts the turn."""
        chain = tuple(self._chain.work_orders.values())
        cost, trace_hash = total_cost(chain), self._trace_hash()
        for wo_id in self._done_with():  # otherwise the context would show an old outage forever
            await self._chain.write(events.WO_ABANDONED, wo_id, {"wo_id": wo_id, "reason": "turn_over"})
        fields = {
            "wo_ids": list(self._chain.work_orders),
            "wo_count": len(chain),
            "total_cost": cost,
            "trace_hash": trace_hash,
        }
        await self._chain.write(events.WO_CHAIN_COMPLETE, self.turn_id, fields)
        if self._authority is not None:
            await self._in_shadow(self._authority.finish(self._output, is_failed=error is not None))
        learned = await self._learn(self._memory) if self._memory is not None else Learned((), None, self._positions)
        result = TurnResult(
            response=response,
            wo_chain_summary=summarize(chain),
            cost_summary=cost,
            session_id=self._session.session_id,
            turn_id=self.turn_id,
            intent_id=self._chain.intent_id,
            quality_gate_passed=error is None,
            consolidation_candidates=learned.candidates,
            degraded=error is not None,
            error=error,
            trace_hash=trace_hash,
            projection_ref=self._authority.projection_ref if self._authority is not None else None,
        )
        payload = result.as_payload()
        payload["wo_chain_summary"] = self._chain.summary()
        payload["user_message_ref"] = self._chain.message_ref
        payload["gate_ts"] = learned.gate_ts
        payload["read_positions"] = learned.positions
        await self._chain.write(events.TURN_COMPLETED, self.turn_id, payload)
        self._is_over = True
        self._chain.close()
        return result

    def _done_with(self) -> Sequence[str]:
        """Failed work orders that this turn abandons."""
        earlier = self._earlier_failures
        return earlier if self._authority is None else self._authority.done_with(earlier, self._chain.work_orders)

    def _trace_hash(self) -> str:
        """The hash over the executor's entries so far. Cached until an entry is added."""
        if len(self._chain.trace) != self._hashed[0]:
            self._hashed = (len(self._chain.trace), compute_trace_hash(self._chain.trace))
        return self._hashed[1]

    @property
    def session_id(self) -> SessionId:
        """The id of the turn's session."""
        return self._session.session_id

    @property
    def is_over(self) -> bool:
        """Whether the turn was completed or aborted."""
        return self._is_over
