"""Turns signals with an open gate into overlays in the memory, with one work order for each signal, after the reply.

A consolidation belongs to no conversation. It runs in a pseudo-session of its own, in the background lane. Its failures are
recorded and logged, and never reach a reply. A model's answer is stored only if it is a valid learned line. Explained in
`docs/memory.md`.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

import anyio

from kitchener.actors.consolidation.lesson import MESSAGE_CHARS, RECENT_EVENTS, Case, overlay_of
from kitchener.actors.consolidation.lost_consolidations import ConsolidationRecovery
from kitchener.actors.tools.results import storable
from kitchener.actors.turn.services import TurnServices
from kitchener.actors.turn_memory import LongTermMemory
from kitchener.actors.work.plan import constraints_for, constraints_mapping, cost_mapping, error_mapping
from kitchener.cancellation import ended_by, failed_alone
from kitchener.canonical import canonical_bytes
from kitchener.errors import CallerError, EntryRefused, InvalidTimestamp, OverlayRefused
from kitchener.ids import SubjectId, consolidation_session, split_namespace
from kitchener.ledger import LedgerEntry, StoredEntry
from kitchener.logs import get_logger
from kitchener.memory.overlays import gate_window_key
from kitchener.memory.subject_cache import SIGNALS
from kitchener.memory.timestamps import us_of
from kitchener.plain_names import error_text, quoted
from kitchener.records import events
from kitchener.records.entries import (
    AbandonReason,
    CommonPayload,
    TurnStartedPayload,
    WorkOrderAbandonedPayload,
    WorkOrderCompletedPayload,
    WorkOrderDispatchedPayload,
    WorkOrderFailedPayload,
    WorkOrderPlannedPayload,
    payload_as,
)
from kitchener.records.index_keys import erased_index_key, turn_index_key
from kitchener.records.outputs import LearnedOutput
from kitchener.records.ref import Ref
from kitchener.records.tokens import tokens_of_bytes
from kitchener.records.work_order import WorkOrder, WorkOrderError

logger = get_logger(__name__)

_MAX_FAILURES: Final = 10_000
_MAX_BACKOFF_FACTOR: Final = 60
"""Largest factor by which the wait after failures grows: with the default, from a minute to an hour."""


class Consolidator:
    """Runs the consolidations of one agent class.

    Args:
        agent_class: the agent class
        services: the components that all turns of the agent class share
        memory: holds the signals and stores the overlays
        abort_grace_s: how long a cancelled consolidation may take to record its end, seconds
    """

    def __init__(self, agent_class: str, services: TurnServices, memory: LongTermMemory, abort_grace_s: float) -> None:
        self._agent_class, self._services, self._memory = agent_class, services, memory
        self._abort_grace_s = abort_grace_s
        config = services.config
        limits = constraints_for(
            config,
            "consolidate",
            contract_id=config.consolidation_contract_id,
            token_budget=config.consolidation_budget,
        )
        self._constraints = limits.replaced(timeout_ms=int(config.consolidation_deadline_s * 1_000))
        self._running: dict[tuple[str, str], anyio.CancelScope] = {}
        self._barred: set[str] = set()
        self._left: anyio.Event | None = None
        self._recovery = ConsolidationRecovery(services, memory)
        self._failures: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()

    async def run(
        self, signal_ids: Sequence[str], *, namespace: str, gate_ts: str | None = None, is_asked_for: bool = True
    ) -> list[WorkOrder]:
        """Consolidates the signals whose gates are open now, and returns their finished work orders.

        Args:
            signal_ids: candidates
            namespace: the memory namespace; must belong to this agent class
            gate_ts: when the gates opened, ISO time; None: now
            is_asked_for: True: a signal that failed recently is tried again, too; False: it waits for its back-off

        Raises:
            CallerError: the namespace belongs to another agent class, or the time is invalid or has no zone
        """
        agent_class, subject_id = split_namespace(namespace)
        if agent_class != self._agent_class:
            raise CallerError(
                f"namespace {quoted(namespace)}: expected one of agent class {self._agent_class!r}, `class/subject`"
            )
        if gate_ts is not None and not isinstance(gate_ts, str):
            raise InvalidTimestamp("gate_ts", gate_ts)
        if gate_ts is not None:
            us_of(gate_ts, "gate_ts")
        await self.recover()
        done = []
        for each in dict.fromkeys(signal_ids):
            gate = await self._memory.check_gate(each, namespace=namespace)
            signal_id = gate.signal_id  # in normal form: a caller may spell it in several ways
            key = (namespace, signal_id)
            is_due = gate.crossed and namespace not in self._barred
            if not is_due or key in self._running or (not is_asked_for and self._must_wait(key)):
                continue
            wo, scope = None, anyio.CancelScope()
            self._running[key] = scope
            try:
                with ended_by(scope):
                    wo = await self._consolidate(namespace, SubjectId(subject_id), signal_id, gate_ts)
            except BaseException as error:
                if await failed_alone(error):
                    self._note(key, failed=True)  # backs off, so that a write error is not repeated with every turn
                raise
            finally:
                del self._running[key]
                if self._left is not None:
                    self._left.set()
                    self._left = None
            if wo is not None:
                self._note(key, failed=wo.state != "completed")
                done.append(wo)
        return done

    async def bar(self, namespace: str) -> None:
        """Stops consolidation in a namespace until `unbar`. Cancels what runs there, and returns when it has ended."""
        self._barred.add(namespace)
        while running := [scope for key, scope in self._running.items() if key[0] == namespace]:
            for scope in running:
                scope.cancel()
            self._left = self._left or anyio.Event()
            await self._left.wait()

    def unbar(self, namespace: str) -> None:
        """Allows consolidation in a namespace again."""
        self._barred.discard(namespace)

    async def recover(self) -> None:
        """Ends the consolidations that a crash left open. Later calls do nothing. A runtime calls it before its first turn."""
        await self._recovery.close_all()

    async def _consolidate(
        self, namespace: str, subject_id: SubjectId, signal_id: str, gate_ts: str | None
    ) -> WorkOrder | None:
        """Consolidates one signal whose gate is open.

        Returns None if the signal was already consolidated in this gate window, even before a crash, or if it has no events.
        """
        opened = gate_ts if gate_ts is not None else self._services.now()
        window_key = gate_window_key(opened, self._memory.config.gate_window_hours)
        stored_id = self._memory.stored_id(signal_id, namespace=namespace)
        session_id = consolidation_session(namespace, stored_id, window_key)
        earlier = await self._services.ledgers.ho2m.last(session_id=session_id)
        is_known = bool(earlier) and not await self._was_erased(subject_id, earlier[-1])
        if is_known and (earlier[-1].entry_type == events.WO_COMPLETED or await self._recovery.close(earlier[-1])):
            return None
        number = await self._next_number(session_id)
        position = self._services.ledgers.positions().get(SIGNALS, 0)
        found = await self._memory.read_signals(signal_id, up_to={SIGNALS: position}, namespace=namespace)
        if not found:
            return None
        case = Case(namespace, subject_id, signal_id, stored_id, opened, session_id, position, found[0])
        return await self.learn(case, number)

    async def _was_erased(self, subject_id: str, entry: StoredEntry) -> bool:
        """Whether the subject was erased after this entry. If so, the consolidation no longer counts."""
        erased = await self._services.ledgers.ho2m.last(key=erased_index_key(subject_id))
        return bool(erased) and erased[-1].seq > entry.seq

    async def learn(self, case: Case, number: int) -> WorkOrder:
        """Plans and executes the work order, debits its budget, and logs the overlay."""
        ledgers, budgeter = self._services.ledgers, self._services.budgeter
        scope = (case.session_id,)
        wo = WorkOrder.create(
            session_id=case.session_id,
            number=number,
            turn_id="",
            wo_type="consolidate",
            created_at=self._services.now(),
            subject_id=case.subject_id,
            input_context=await self._input_of(case),
            constraints=self._constraints,
        )
        try:
            budgeter.allocate(scope, self._services.config.consolidation_budget)
            wo, needed = await self._plan(case, wo)
            if not budgeter.check(scope).covers(needed):
                return await self._abandon(case, wo, "BUDGET")
            dispatched: WorkOrderDispatchedPayload = {"tier_target": "HO1", "lane": "background"}
            await self._write(case, events.WO_DISPATCHED, wo, dispatched)
            ledgers.request_commit()
            with ledgers.ho1m.watch(case.session_id) as trace:
                wo = await self._execute(case, wo)
                budgeter.debit(scope, wo.cost)
                wo = await self._settle(case, wo, trace)
            await ledgers.commit()
            return wo
        except BaseException:
            if wo.state in ("planned", "dispatched"):
                with anyio.move_on_after(self._abort_grace_s, shield=True):
                    await self._abandon(case, wo, "cancelled")
            raise
        finally:
            budgeter.release(scope)

    async def _input_of(self, case: Case) -> dict[str, object]:
        """The input of the model: the counts, and the newest events with the subject's messages."""
        evidence = case.evidence
        newest = evidence.event_ids[-RECENT_EVENTS:]
        # Read at the recorded position, so that a later reader finds the same events, whatever other turns log in the meantime.
        shown = await self._memory.read_events(newest, up_to={SIGNALS: case.signals_position}, namespace=case.namespace)
        messages = await self._messages_of(event.turn_id for event in shown if event.turn_id is not None)
        recent = [
            {
                "event_id": event.event_id,
                "session_id": event.session_id,
                "timestamp": event.timestamp,
                "turn_id": event.turn_id,
                "co_signals": list(event.co_signals),
                "user_message": messages.get(event.turn_id or ""),
            }
            for event in shown
        ]
        return {
            "signal_id": case.signal_id,
            "count": evidence.count,
            "session_count": len(evidence.session_ids),
            "session_ids": list(evidence.session_ids[-len(newest) :]),
            "event_ids": list(newest),
            "recent_events": recent,
        }

    async def _messages_of(self, turns: Iterable[str]) -> dict[str, str]:
        """The subject's messages by turn, each cut to `MESSAGE_CHARS`."""
        keys = {turn_index_key(turn): turn for turn in turns}
        messages = dict[str, str]()
        for key, entry in (await self._services.ledgers.ho2m.last_of(keys)).items() if keys else ():
            message = payload_as(TurnStartedPayload, entry.payload).get("user_message")
            if isinstance(message, str):
                messages[keys[key]] = message[:MESSAGE_CHARS]
        return messages

    async def _plan(self, case: Case, wo: WorkOrder) -> tuple[WorkOrder, int]:
        """Writes `WO_PLANNED` with the facts that a recovery needs.

        Returns:
            The planned work order, and the estimated tokens of its input and reply.
        """
        data = canonical_bytes([wo.input_context, wo.prior_results], at="input_context")
        fields: WorkOrderPlannedPayload = {
            "wo_type": wo.wo_type,
            "intent_id": None,
            "targets": [],
            "acceptance": [],
            "constraints": constraints_mapping(self._constraints),
            "input_refs": [],
            "input_hash": self._services.ledgers.ho2m.content_digest(case.subject_id, data),
            "consolidates": {
                "namespace": case.namespace,
                "signal_id": case.stored_id,
                "gate_ts": case.gate_ts,
                "signals_position": case.signals_position,
            },
            "config_hash": self._services.constants.config_hash,
        }
        ref = await self._write(case, events.WO_PLANNED, wo, fields)
        return wo.replaced(planned_ref=ref), tokens_of_bytes(len(data)) + self._services.config.reply_reserve

    async def _execute(self, case: Case, wo: WorkOrder) -> WorkOrder:
        """Executes the work order. It returns completed or failed, even if HO1 raises or times out."""
        dispatched, done = wo.dispatched(wo.planned_ref), None
        deadline = self._services.loop_time() + self._services.config.consolidation_deadline_s
        try:
            with ended_by(anyio.CancelScope(deadline=deadline)):
                done = await self._services.executor.execute(dispatched)
        except BaseException as error:  # an error of HO1 ends only this work order
            if not await failed_alone(error):
                raise
            return dispatched.failed(WorkOrderError(reason="EXECUTOR", detail=storable(error_text(error))))
        if done is None:
            return dispatched.failed(WorkOrderError(reason="TIMEOUT", detail="consolidation_deadline_s has passed"))
        if done.state == "failed" or done.output_as(LearnedOutput) is not None:
            return done
        return dispatched.failed(WorkOrderError(reason="EXECUTOR", detail=f"the executor left it {done.state}"))

    async def _settle(self, case: Case, wo: WorkOrder, trace: Sequence[StoredEntry]) -> WorkOrder:
        """Logs the overlay and records the end of the work order. An invalid learned line fails the work order."""
        learned = wo.output_as(LearnedOutput)
        if learned is not None:
            # Commits the plan and the answer first, so that a crash cannot leave an overlay without a recorded work order.
            await self._services.ledgers.commit()
            try:
                await self._memory.log_overlay(overlay_of(case, learned, trace), namespace=case.namespace)
            except (CallerError, EntryRefused) as error:
                field = f"{error.field}: " if isinstance(error, OverlayRefused) else ""
                wo = wo.failed(WorkOrderError(reason="QUALITY_GATE", detail=storable(f"{field}{error}")))
        if wo.state == "completed":
            output = next((entry.ref for entry in reversed(trace) if entry.entity_id == wo.wo_id), None)
            completed: WorkOrderCompletedPayload = {
                "cost": cost_mapping(wo.cost),
                "output_ref": output.as_mapping() if output else None,
            }
            await self._write(case, events.WO_COMPLETED, wo, completed)
            return wo
        failed: WorkOrderFailedPayload = {
            "reason": wo.error.reason if wo.error else "EXECUTOR",
            "error": error_mapping(wo.error) if wo.error else None,
            "cost": cost_mapping(wo.cost),
        }
        await self._write(case, events.WO_FAILED, wo, failed)
        logger.warning("consolidation failed", signal_id=case.stored_id, wo_id=wo.wo_id, reason=failed["reason"])
        return wo

    async def _abandon(self, case: Case, wo: WorkOrder, reason: AbandonReason) -> WorkOrder:
        logger.warning("consolidation abandoned", signal_id=case.stored_id, wo_id=wo.wo_id, reason=reason)
        abandoned: WorkOrderAbandonedPayload = {"reason": reason}
        await self._write(case, events.WO_ABANDONED, wo, abandoned)
        return wo.abandoned()

    async def _next_number(self, session_id: str) -> int:
        """One more than the highest number in HO2m and HO1m. After a crash, HO1m may be ahead of HO2m."""
        newest = [
            *await self._services.ledgers.ho2m.last(session_id=session_id),
            *await self._services.ledgers.ho1m.last(session_id=session_id),
        ]
        return 1 + max((int(entry.entity_id.rpartition("-")[2]) for entry in newest), default=0)

    async def _write(self, case: Case, entry_type: str, wo: WorkOrder, fields: CommonPayload) -> Ref:
        base = {"v": events.VERSION, "session_id": case.session_id, "subject_id": case.subject_id, "wo_id": wo.wo_id}
        return await self._services.ledgers.ho2m.write(LedgerEntry(entry_type, wo.wo_id, {**base, **fields}))

    def _must_wait(self, key: tuple[str, str]) -> bool:
        return key in self._failures and self._services.loop_time() < self._failures[key][1]

    def _note(self, key: tuple[str, str], *, failed: bool) -> None:
        """Doubles the back-off with each failure in a row; a success resets it."""
        times, _ = self._failures.pop(key, (0, 0.0))
        if failed:
            wait = self._services.config.consolidation_backoff_s * min(_MAX_BACKOFF_FACTOR, 2 ** min(times, 30))
            self._failures[key] = (times + 1, self._services.loop_time() + wait)
            if len(self._failures) > _MAX_FAILURES:
                self._failures.popitem(last=False)
