"""Plans, dispatches and records the work orders of one turn, within the turn's token budget.

`turn.py` decides which work order comes next; this module does not. If the tokens left do not cover a step, it may still run as
the last call, which may call no tool. The turn always gets a finished work order back, or the `Reply` that ends the turn, even
if the executor fails. Explained in `docs/turn.md`.
"""

from collections.abc import Awaitable, Iterable
from functools import partial

from kitchener.actors.admission.argument_checks import fits_entry
from kitchener.actors.approval.approval_in_turn import ApprovalInTurn
from kitchener.actors.attention.attention_context import AttentionContext
from kitchener.actors.sessions.active_session import MadeEntry, SessionManager
from kitchener.actors.tools.results import storable
from kitchener.actors.turn.reply import APOLOGY, Reply
from kitchener.actors.turn.services import TurnServices
from kitchener.actors.turn.step import StepBudget, TurnStep
from kitchener.actors.turn.updates import ListenerFailed
from kitchener.actors.turn.without_executor import reply_without_executor
from kitchener.actors.work.budget import BudgetScope
from kitchener.actors.work.plan import cost_mapping, error_mapping
from kitchener.cancellation import failed_alone
from kitchener.errors import EntryRefused, ExecutorError, LedgerError, Overloaded, ProviderError
from kitchener.ids import TurnId, work_order_id
from kitchener.lanes.calling_chain import calling_tool
from kitchener.ledger import StoredEntry, compute_trace_hash
from kitchener.logs import get_logger
from kitchener.plain_names import error_text, origin_of
from kitchener.records import events
from kitchener.records.entries import (
    AbandonReason,
    CommonPayload,
    ConstraintsMapping,
    CostSummary,
    DegradationPayload,
    DegradedComponent,
    DirectCost,
    GatheredContext,
    NestedTurn,
    ToolCallPayload,
    WorkOrderAbandonedPayload,
    WorkOrderCompletedPayload,
    WorkOrderDispatchedPayload,
    WorkOrderFailedPayload,
    WorkOrderPlannedPayload,
    WorkOrderSupersededPayload,
    payload_as,
)
from kitchener.records.ref import Ref, RefMapping
from kitchener.records.spoken import said_by
from kitchener.records.turn import TextRetracted, TurnError, TurnUpdate, UpdateListener, WorkOrderFinished, WorkOrderPlanned
from kitchener.records.work_order import Cost, WorkOrder, WorkOrderError

logger = get_logger(__name__)


class WorkOrderChain:
    """The work orders of one turn, in order of planning.

    Args:
        services: the components that all turns of the agent class share
        session: the session, held by the turn
        turn_id: the turn
        deadline: on the event loop's clock, seconds
        update: receives the updates of a streamed turn; None: the turn is not streamed
    """

    __slots__ = (
        "_base",
        "_deadline",
        "_hashed",
        "_scope",
        "_services",
        "_session",
        "_update",
        "_wo_scope",
        "direct_cost",
        "intent_id",
        "message_ref",
        "trace",
        "turn_id",
        "work_orders",
    )

    def __init__(
        self, services: TurnServices, session: SessionManager, turn_id: TurnId, deadline: float, update: UpdateListener | None
    ) -> None:
        self._services = services
        self._session = session
        self.turn_id = turn_id
        self._deadline = deadline
        self._update = update
        self._base = session.fields_of(turn_id)
        self._scope: BudgetScope = (session.session_id, turn_id)
        self._wo_scope: BudgetScope = self._scope
        self.direct_cost: DirectCost = {}
        """The cost of a call of the gateway without HO1, for `TURN_COMPLETED`; empty: there was none."""
        self.message_ref: RefMapping | None = None
        """The reference of the turn's `TURN_STARTED`, which holds the message; None before it is written."""
        self.intent_id: str | None = None
        """The intent that the work orders serve; None without an active intent."""
        self.work_orders: dict[str, WorkOrder] = {}
        """All work orders by id, including retries, each in its latest state."""
        self.trace: list[StoredEntry] = []
        """The executor's entries of this turn so far."""
        self._hashed = (-1, "")

    @property
    def tokens_left(self) -> int | None:
        """Tokens left in the turn's budget; None: without limit."""
        return self._services.budgeter.check(self._scope).remaining

    @property
    def work_orders_left(self) -> int:
        """Number of further work orders that `max_wo_chain_length` allows."""
        return self._services.config.max_wo_chain_length - len(self.work_orders)

    def open(self) -> None:
        """Allocates the budgets of the session and the turn. The session's budget starts at what earlier turns used."""
        budgeter, config = self._services.budgeter, self._services.config
        budgeter.allocate(self._scope[:1], config.budget_ceiling, used=self._session.state.tokens_used)
        budgeter.allocate(self._scope, config.turn_budget)

    def close(self, spent: CostSummary, approval: ApprovalInTurn) -> None:
        """Charges the tool call that runs the turn, if there is one that still waits. Releases the budgets of the turn and of
        an interrupted work order, and drops the chain's data.

        Args:
            spent: the turn's cost
            approval: knows whether the turn's session shows text of an untrusted source
        """
        if (tool := calling_tool()) is not None:
            agent_class, session_id = self._services.config.agent_class, self._session.session_id
            turn: NestedTurn = {"agent_class": agent_class, "session_id": session_id, "turn_id": self.turn_id}
            untrusted = approval.shows_untrusted or any(map(_is_untrusted, self.trace))
            tool.add(turn, Cost.of(spent), has_read_untrusted=untrusted)
        for scope in (self._wo_scope, self._scope, self._scope[:1]):
            self._services.budgeter.release(scope)
        # Many turns may wait for a commit at the same time. Dropping the data now bounds the memory of these turns.
        self.work_orders, self.trace = {}, []

    def write(self, entry_type: str, entity_id: str, payload: CommonPayload) -> Awaitable[Ref]:
        """Writes an entry of this turn to HO2m and returns its reference when awaited.

        Adds the fields that all payloads carry to `payload` in place.
        """
        payload |= self._base
        return self._session.append(entry_type, entity_id, payload)

    async def dispatch(self, step: TurnStep) -> WorkOrder | Reply:
        """Executes one work order and returns it, completed, failed or deferred. A failure is already recorded.

        Returns a reply if the chain cannot continue: the budget does not cover the work order, its input cannot be recorded, or
        HO1 is broken.
        """
        number = self._session.next_wo_number()
        try:
            data = step.input_bytes()
        except EntryRefused as error:
            said = f"the input of the {step.wo_type} step cannot be recorded: {error}"
            return Reply(APOLOGY, TurnError("OUTPUT_SCHEMA", said))
        services, budgeter = self._services, self._services.budgeter
        reserve = 0 if step.wo_type == "tool_call" else services.config.reply_reserve
        budget = StepBudget(
            step,
            step.input_tokens(data) + reserve,
            self.tokens_left,
            partial(budgeter.check, self._scope[:1]),
            services.config.turn_budget,
            tuple(self.work_orders.values()),
            services.constants.policy_version,
        )
        wo, limits = self._work_order(step, number, budget)
        self._wo_scope = scope = (*self._scope, wo.wo_id)
        budgeter.allocate(scope, wo.constraints.token_budget)
        of_work_order = budgeter.check(scope)
        is_covered = of_work_order.covers(budget.needed) or budget.is_last_call
        planned = await self._plan(wo, step, limits, data, is_covered=is_covered)
        if not is_covered:
            self.work_orders[wo.wo_id] = wo.abandoned()
            await self.abandon(wo.wo_id, "BUDGET")
            await self._tell(WorkOrderFinished(wo.wo_id, wo.wo_type, "abandoned"))
            return budget.refusal(wo, of_work_order.remaining, services.constants.policy_version)
        done = await self._execute(wo.dispatched(planned))
        if isinstance(done, Reply):
            return done
        budgeter.debit(scope, done.cost)
        budgeter.release(scope)
        self.work_orders[done.wo_id] = done
        if done.state == "failed":
            await self.record_failure(done)
        if self._update is not None:
            await self._tell(WorkOrderFinished(done.wo_id, done.wo_type, done.state))
        return done

    def _work_order(self, step: TurnStep, number: int, budget: StepBudget) -> tuple[WorkOrder, ConstraintsMapping]:
        """The work order of a step, and its limits as `WO_PLANNED` names them."""
        services, session = self._services, self._session
        # Rounded up; otherwise chance decides whether the last work order times out (an apology) or its turn (TurnTimeout).
        left_ms = max(0, int((self._deadline - services.loop_time()) * 1_000)) + 1
        limits: ConstraintsMapping = {**services.constants.steps.mapping_of(step.constraints), "timeout_ms": left_ms}
        changes, limits = budget.limited(limits)
        wo = services.constants.blank(step.wo_type).replaced(
            wo_id=work_order_id(session.session_id, number),
            session_id=session.session_id,
            turn_id=self.turn_id,
            created_at=services.now(),
            subject_id=session.subject_id,
            intent_id=self.intent_id,
            input_context=dict(step.input_context),
            parts=step.parts,
            output_schema=step.output_schema,
            prior_results=tuple(step.prior_results),
            constraints=step.constraints.replaced(timeout_ms=left_ms, **changes),
            parent_wo_id=step.parent,
            acceptance=step.acceptance,
            resumption=step.resumption,
        )
        return wo, limits

    def trace_hash(self) -> str:
        """The hash over `trace`. Cached until an entry is added."""
        if len(self.trace) != self._hashed[0]:
            self._hashed = (len(self.trace), compute_trace_hash(self.trace))
        return self._hashed[1]

    def can_record(self, response: str) -> bool:
        """Whether a reply fits into `TURN_COMPLETED` beside the entry's other fields."""
        try:
            return fits_entry(response, self._services.ledgers.ho2m.config)
        except EntryRefused:  # a lone surrogate
            return False

    async def accept(self, wo: WorkOrder) -> None:
        """Writes `WO_COMPLETED`: HO2 accepts the output unchanged."""
        wo_id = wo.wo_id
        output: RefMapping | None = None
        for entry in reversed(self.trace):  # nearly always the last one
            if entry.entity_id == wo_id:
                output = entry.ref.as_mapping()
                break
        completed: WorkOrderCompletedPayload = {"wo_id": wo_id, "cost": cost_mapping(wo.cost), "output_ref": output}
        if wo.output_hash is not None and self._services.constants.policy_version > 6:
            completed["output_hash"] = wo.output_hash
        await self.write(events.WO_COMPLETED, wo_id, completed)

    async def supersede(self, failed: WorkOrder, by: WorkOrder) -> None:
        """Writes `WO_SUPERSEDED`: a retry replaced a failed work order."""
        self.work_orders[failed.wo_id] = failed.superseded()
        superseded: WorkOrderSupersededPayload = {
            "wo_id": failed.wo_id,
            "superseded_by_wo_id": by.wo_id,
            "reason": "retry succeeded",
        }
        await self.write(events.WO_SUPERSEDED, failed.wo_id, superseded)

    async def defer(self, wo: WorkOrder, made: Iterable[MadeEntry]) -> None:
        """Writes the entries of a deferred work order and of its requests in one commit."""
        self.work_orders[wo.wo_id] = wo
        await self._session.write_all(made, turn=self.turn_id)

    async def record_failure(self, wo: WorkOrder) -> None:
        """Writes `WO_FAILED` with the work order's error, or with reason `EXECUTOR` if it has none."""
        wo_id, error = wo.wo_id, wo.error
        self.work_orders[wo_id] = wo
        cost = cost_mapping(wo.cost)
        fields: WorkOrderFailedPayload = {
            "wo_id": wo_id,
            "reason": error.reason if error else "EXECUTOR",
            "error": error_mapping(error) if error else None,
            "cost": cost,
        }
        await self.write(events.WO_FAILED, wo_id, fields)

    async def abandon(self, wo_id: str, reason: AbandonReason) -> None:
        """Writes `WO_ABANDONED`."""
        abandoned: WorkOrderAbandonedPayload = {"wo_id": wo_id, "reason": reason}
        await self.write(events.WO_ABANDONED, wo_id, abandoned)

    async def record_degradation(
        self, component: DegradedComponent, error: BaseException, *, violation_by: str | None = None
    ) -> None:
        """Writes `DEGRADATION`: a component failed and the turn continues without it.

        Args:
            component: what failed
            error: how it failed
            violation_by: the work order during which HO1 failed, a governance violation; None: no violation
        """
        detail = error_text(error)
        if component != "HO1":
            logger.error("turn continues without a part", component=component, turn_id=self.turn_id, error=origin_of(error))
        fields: DegradationPayload = {
            "component": component,
            "governance_violation": violation_by is not None,
            "error": storable(detail),
        }
        if violation_by is not None:
            fields["wo_id"] = violation_by
        await self.write(events.DEGRADATION, self.turn_id, fields)

    async def _plan(self, wo: WorkOrder, step: TurnStep, limits: ConstraintsMapping, data: bytes, *, is_covered: bool) -> Ref:
        """Records the plan of a work order, and that it is dispatched if the budget covers it.

        The plan has references to the input and the hash of its bytes `data`, but never the input itself.
        """
        wo_id, wo_type = wo.wo_id, wo.wo_type
        ho2m, policy_version = self._services.ledgers.ho2m, self._services.constants.policy_version
        fields: WorkOrderPlannedPayload = {
            "wo_id": wo_id,
            "wo_type": wo_type,
            "intent_id": self.intent_id,
            "constraints": limits,
            "input_hash": ho2m.content_digest(wo.subject_id, data),
        }
        if policy_version < 8:
            fields["input_refs"] = [self.message_ref, *step.input_refs]
        elif step.input_refs:
            fields["input_refs"] = list(step.input_refs)
        if policy_version < 7:
            fields["targets"] = []
        if wo.acceptance or policy_version < 7:
            fields["acceptance"] = list(wo.acceptance)
        if wo.parent_wo_id is not None:
            fields["parent_wo_id"] = wo.parent_wo_id
        if step.context is not None:
            fields["attention"] = _gathered(
                step.context, ho2m.content_digest(wo.subject_id, step.context.context_text.encode())
            )
        planned = await self.write(events.WO_PLANNED, wo_id, fields)
        self.work_orders[wo_id] = wo
        if self._update is not None:
            await self._tell(WorkOrderPlanned(wo_id, wo_type))
        if is_covered:
            dispatched: WorkOrderDispatchedPayload = {"wo_id": wo_id, "tier_target": wo.tier_target, "lane": "interactive"}
            await self.write(events.WO_DISPATCHED, wo_id, dispatched)
        return planned

    async def _execute(self, wo: WorkOrder) -> WorkOrder | Reply:
        listener = self._update if wo.wo_type in ("synthesize", "tool_call") else None
        if listener is not None:
            self._services.listeners[wo.wo_id] = listener
        try:
            return _as_ended(await self._services.executor.execute(wo), wo)
        except (LedgerError, ListenerFailed):
            raise
        except BaseException as error:  # any other error means that HO1 is broken; it is recorded, not hidden
            if not await failed_alone(error):
                raise
            return await self._degrade(wo, error)
        finally:
            if listener is not None:
                del self._services.listeners[wo.wo_id]

    async def _degrade(self, wo: WorkOrder, error: BaseException) -> Reply:
        """Records a broken HO1 as a governance violation. Returns a reply that was made without HO1, or an apology."""
        detail = storable(error_text(error))
        logger.error("executor failed", wo_id=wo.wo_id, turn_id=self.turn_id, error=origin_of(error))
        failed = wo.failed(WorkOrderError(reason="EXECUTOR", detail=detail), at=self._services.now())
        await self.record_failure(failed)
        await self.record_degradation("HO1", error, violation_by=wo.wo_id)
        await self._tell(TextRetracted(wo.wo_id), WorkOrderFinished(wo.wo_id, wo.wo_type, "failed"))
        open_turn = self._session.state.open_turn
        # HO1 is not broken if it only had no time, no room or no provider.
        if open_turn is None or isinstance(error, Overloaded | TimeoutError | ProviderError):
            return Reply(APOLOGY, TurnError("EXECUTOR", detail, wo.wo_id))
        reply = await reply_without_executor(
            self._services,
            wo,
            open_turn.user_message if open_turn.speaker is None else said_by(open_turn.speaker, open_turn.user_message),
            deadline=self._deadline,
            tokens_left=self.tokens_left,
            trace=self.trace,
        )
        if reply.cost is not None:
            self.work_orders[wo.wo_id] = self.work_orders[wo.wo_id].replaced(cost=reply.cost)
            cost = cost_mapping(reply.cost)
            self.direct_cost = {"direct_cost": cost}
        text = reply.text if reply.text and self.can_record(reply.text) else APOLOGY
        return Reply(text, TurnError("EXECUTOR", detail, wo.wo_id))

    async def _tell(self, *updates: TurnUpdate) -> None:
        if self._update is not None:
            for update in updates:
                await self._update(update)


def _gathered(context: AttentionContext, context_hash: str) -> GatheredContext:
    """The fields of `WO_PLANNED` about the context of a reply."""
    shown: GatheredContext = {
        "template_id": context.template_id,
        "cut_by": context.budget_used.cut_by,
        "context_hash": context_hash,
    }
    if context.projection_ref is not None:  # the projection's entry lists all visible items
        shown["projection_ref"] = context.projection_ref.as_mapping()
    else:
        shown["fragment_refs"] = [each.ref.as_mapping() for each in context.fragments if each.ref is not None]
    if context.biases:
        shown["biases"] = [bias.source_id for bias in context.biases]
    return shown


def _as_ended(done: object, wo: WorkOrder) -> WorkOrder:
    """Returns `done` if it is this work order, completed with its output, failed, or deferred with what it asks.

    Raises:
        ExecutorError: the executor returned anything else
    """
    if isinstance(done, WorkOrder) and done.wo_id == wo.wo_id:
        has_output = done.output_as(dict) is not None
        is_asking = done.state == "deferred" and bool(done.requests)
        if has_output or is_asking or done.state == "failed":
            return done
    found = f"{done.wo_id} in state {done.state!r}" if isinstance(done, WorkOrder) else type(done).__name__
    raise ExecutorError(f"the executor returned {found}, expected {wo.wo_id} completed with its output, failed, or deferred")


def _is_untrusted(entry: StoredEntry) -> bool:
    """Whether an entry is a result of a tool whose source is not trusted."""
    return entry.entry_type == events.TOOL_CALL and "untrusted" in payload_as(ToolCallPayload, entry.payload)
