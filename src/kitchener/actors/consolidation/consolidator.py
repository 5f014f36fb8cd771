"""Turns signals with an open gate into overlays in the memory, with one work order for each signal, after the reply.

A consolidation belongs to no conversation. It runs in a pseudo-session of its own, in the background lane. Its failures are
recorded and logged, and never reach a reply. A model's answer is stored only if it is a valid learned line. Explained in
`docs/memory.md`.
"""

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import anyio
import structlog
from anyio.abc import TaskGroup

from kitchener.actors.consolidation.lesson import MESSAGE_CHARS, RECENT_EVENTS, Case, overlay_of
from kitchener.actors.consolidation.recovery import LessonRecovery
from kitchener.actors.tools.results import storable
from kitchener.actors.turn.parts import TurnParts
from kitchener.actors.turn_memory import LongTermMemory
from kitchener.actors.work.plan import cost_json
from kitchener.cancellation import is_own_failure
from kitchener.canonical import canonical_bytes
from kitchener.errors import CallerError, EntryRefused, OverlayRefused, origin_of, words_of
from kitchener.ids import SubjectId, consolidation_session, split_namespace
from kitchener.ledger import LedgerEntry, StoredEntry
from kitchener.memory.index import SIGNALS
from kitchener.memory.overlays import gate_window_key
from kitchener.memory.timestamps import us_of
from kitchener.plain_names import quoted
from kitchener.records import events
from kitchener.records.tokens import tokens_of_bytes
from kitchener.records.work_order import Constraints, WorkOrder, WorkOrderError

logger = structlog.get_logger(__name__)

DOMAIN_TAG: Final = "consolidation"
_MAX_FAILURES: Final = 10_000
_MAX_BACKOFF_FACTOR: Final = 60
"""How far the wait after failures grows beyond the first one: with the default, from a minute to an hour."""


class Consolidator:
    """Runs the consolidations of one agent class.

    Args:
        agent_class: the agent class
        parts: the components that all turns of the agent class share
        memory: holds the signals and stores the overlays
        abort_grace_s: how long a cancelled consolidation may take to record its end, seconds
    """

    def __init__(self, agent_class: str, parts: TurnParts, memory: LongTermMemory, abort_grace_s: float) -> None:
        self._agent_class, self._parts, self._memory = agent_class, parts, memory
        self._abort_grace_s = abort_grace_s
        config = parts.config
        self._constraints = Constraints(
            prompt_contract_id=config.consolidation_contract_id,
            token_budget=config.consolidation_budget,
            domain_tags=(DOMAIN_TAG,),
            timeout_ms=int(config.consolidation_deadline_s * 1_000),
        )
        self._running: dict[tuple[str, str], anyio.CancelScope] = {}
        self._barred: set[str] = set()
        self._left: anyio.Event | None = None
        self._recovery = LessonRecovery(parts, memory)
        self._failures: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()

    async def run(
        self, signal_ids: Sequence[str], *, namespace: str, gate_ts: str | None = None, is_asked_for: bool = True
    ) -> list[WorkOrder]:
        """Consolidates the signals whose gates are open now, and returns their finished work orders.

        Args:
            signal_ids: candidates
            namespace: the memory namespace; must belong to this agent class
            gate_ts: when the gates opened, ISO time; None: now
            is_asked_for: True: also a signal that failed lately; False: such a signal waits for its back-off

        Raises:
            CallerError: the namespace belongs to another agent class, or the time is none or has no zone
        """
        agent_class, subject_id = split_namespace(namespace)
        if agent_class != self._agent_class:
            raise CallerError(
                f"namespace {quoted(namespace)}: expected one of agent class {self._agent_class!r}, `class/subject`"
            )
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
                with scope:
                    wo = await self._consolidate(namespace, SubjectId(subject_id), signal_id, gate_ts)
            except Exception:
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

        Returns None if the signal was already consolidated in this gate window, also before a crash, or if it has no events.
        """
        opened = gate_ts if gate_ts is not None else self._parts.now()
        window_key = gate_window_key(opened, self._memory.config.gate_window_hours)
        stored_id = self._memory.stored_id(signal_id, namespace=namespace)
        session_id = consolidation_session(namespace, stored_id, window_key)
        earlier = await self._parts.ledgers.ho2m.last(session_id=session_id)
        is_known = bool(earlier) and not await self._was_erased(subject_id, earlier[-1])
        if is_known and (earlier[-1].entry_type == events.WO_COMPLETED or await self._recovery.take_up(earlier[-1])):
            return None
        number = await self._next_number(session_id)
        position = self._parts.ledgers.positions().get(SIGNALS, 0)
        found = await self._memory.read_signals(signal_id, up_to={SIGNALS: position}, namespace=namespace)
        if not found:
            return None
        case = Case(namespace, subject_id, signal_id, stored_id, opened, session_id, position, found[0])
        return await self._dispatch(case, number)

    async def _was_erased(self, subject_id: str, entry: StoredEntry) -> bool:
        """Whether the subject was erased after this entry. If so, the consolidation no longer counts."""
        erased = await self._parts.ledgers.ho2m.last(key=events.erased_index_key(subject_id))
        return bool(erased) and erased[-1].seq > entry.seq

    async def _dispatch(self, case: Case, number: int) -> WorkOrder:
        """Plans and executes the work order, debits its budget, and logs the overlay."""
        ledgers, budgeter = self._parts.ledgers, self._parts.budgeter
        scope = (case.session_id,)
        wo = WorkOrder.create(
            session_id=case.session_id,
            number=number,
            turn_id="",
            wo_type="consolidate",
            created_at=self._parts.now(),
            subject_id=case.subject_id,
            input_context=await self._input_of(case),
            constraints=self._constraints,
        )
        try:
            budgeter.allocate(scope, self._parts.config.consolidation_budget)
            wo, needed = await self._plan(case, wo)
            if not budgeter.check(scope).covers(needed):
                return await self._abandon(case, wo, "BUDGET")
            await self._write(case, events.WO_DISPATCHED, wo, {"tier_target": "HO1", "lane": "background"})
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

    async def _input_of(self, case: Case) -> dict[str, Any]:
        """The input of the model: the counts, and the newest events with the subject's messages."""
        evidence = case.evidence
        newest = evidence.event_ids[-RECENT_EVENTS:]
        # Read at the recorded position, so that a later reader finds the same events whatever other turns log meanwhile.
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
        keys = {events.turn_index_key(turn): turn for turn in turns}
        messages = dict[str, str]()
        for key, entry in (await self._parts.ledgers.ho2m.last_of(keys)).items() if keys else ():
            message = entry.payload.get("user_message")
            if isinstance(message, str):
                messages[keys[key]] = message[:MESSAGE_CHARS]
        return messages

    async def _plan(self, case: Case, wo: WorkOrder) -> tuple[WorkOrder, int]:
        """Writes `WO_PLANNED` with the facts that a recovery needs.

        Returns:
            The planned work order, and the estimated tokens of its input and reply.
        """
        data = canonical_bytes([wo.input_context, wo.prior_results], at="input_context")
        ref = await self._write(
            case,
            events.WO_PLANNED,
            wo,
            {
                "wo_type": wo.wo_type,
                "intent_id": None,
                "targets": [],
                "acceptance": [],
                "constraints": self._constraints.model_dump(mode="json", exclude_defaults=True),
                "input_refs": [],
                "input_hash": self._parts.ledgers.ho2m.content_digest(case.subject_id, data),
                "consolidates": {
                    "namespace": case.namespace,
                    "signal_id": case.stored_id,
                    "gate_ts": case.gate_ts,
                    "signals_position": case.signals_position,
                },
            },
        )
        return wo.replaced({"planned_ref": ref}), tokens_of_bytes(len(data)) + self._parts.config.reply_reserve

    async def _execute(self, case: Case, wo: WorkOrder) -> WorkOrder:
        """Executes the work order. It returns completed or failed, even if HO1 raises or times out."""
        dispatched = wo.dispatched(wo.planned_ref)
        try:
            with anyio.fail_after(self._parts.config.consolidation_deadline_s):
                done = await self._parts.executor.execute(dispatched)
        except TimeoutError:
            return dispatched.failed(WorkOrderError(reason="TIMEOUT", detail="consolidation_deadline_s has passed"))
        except BaseException as error:  # an error of HO1 ends only this work order
            if not is_own_failure(error):
                raise
            return dispatched.failed(WorkOrderError(reason="EXECUTOR", detail=storable(words_of(error))))
        if done.state == "failed" or (done.state == "completed" and done.output_result is not None):
            return done
        return dispatched.failed(WorkOrderError(reason="EXECUTOR", detail=f"the executor left it {done.state}"))

    async def _settle(self, case: Case, wo: WorkOrder, trace: Sequence[StoredEntry]) -> WorkOrder:
        """Logs the overlay and records the end of the work order. An invalid learned line fails the work order."""
        if wo.state == "completed" and wo.output_result is not None:
            # Commits the plan and the answer first, so that a crash cannot leave an overlay without a recorded work order.
            await self._parts.ledgers.commit()
            try:
                await self._memory.log_overlay(overlay_of(case, wo.output_result, trace), namespace=case.namespace)
            except (CallerError, EntryRefused) as error:
                field = f"{error.field}: " if isinstance(error, OverlayRefused) else ""
                wo = wo.failed(WorkOrderError(reason="QUALITY_GATE", detail=storable(f"{field}{error}")))
        if wo.state == "completed":
            output = next((entry.ref for entry in reversed(trace) if entry.entity_id == wo.wo_id), None)
            fields = {"cost": cost_json(wo.cost), "output_ref": output.as_json() if output else None}
            await self._write(case, events.WO_COMPLETED, wo, fields)
            return wo
        error_json = wo.error.model_dump(mode="json", exclude_none=True) if wo.error else None
        reason = wo.error.reason if wo.error else "EXECUTOR"
        await self._write(case, events.WO_FAILED, wo, {"reason": reason, "error": error_json, "cost": cost_json(wo.cost)})
        logger.warning("consolidation failed", signal_id=case.stored_id, wo_id=wo.wo_id, reason=reason)
        return wo

    async def _abandon(self, case: Case, wo: WorkOrder, reason: str) -> WorkOrder:
        logger.warning("consolidation abandoned", signal_id=case.stored_id, wo_id=wo.wo_id, reason=reason)
        await self._write(case, events.WO_ABANDONED, wo, {"reason": reason})
        return wo.abandoned()

    async def _next_number(self, session_id: str) -> int:
        """One more than the highest number in HO2m and HO1m. After a crash, HO1m may be ahead of HO2m."""
        newest = [
            *await self._parts.ledgers.ho2m.last(session_id=session_id),
            *await self._parts.ledgers.ho1m.last(session_id=session_id),
        ]
        return 1 + max((int(entry.entity_id.rpartition("-")[2]) for entry in newest), default=0)

    async def _write(self, case: Case, entry_type: str, wo: WorkOrder, fields: Mapping[str, Any]) -> Any:
        base = {"v": events.VERSION, "session_id": case.session_id, "subject_id": case.subject_id, "wo_id": wo.wo_id}
        return await self._parts.ledgers.ho2m.write(LedgerEntry(entry_type, wo.wo_id, {**base, **fields}))

    def _must_wait(self, key: tuple[str, str]) -> bool:
        return key in self._failures and self._parts.loop_time() < self._failures[key][1]

    def _note(self, key: tuple[str, str], *, failed: bool) -> None:
        """Doubles the back-off with each failure in a row; a success resets it."""
        times, _ = self._failures.pop(key, (0, 0.0))
        if failed:
            wait = self._parts.config.consolidation_backoff_s * min(_MAX_BACKOFF_FACTOR, 2 ** min(times, 30))
            self._failures[key] = (times + 1, self._parts.loop_time() + wait)
            if len(self._failures) > _MAX_FAILURES:
                self._failures.popitem(last=False)


class Afterwards:
    """Background work that starts after a reply was delivered. `Runtime.drain` waits for it; a shutdown cancels it.

    Args:
        tasks: the task group that runs it, each job in its own task
        limit: most pending jobs; further jobs are dropped with a warning in the log
    """

    def __init__(self, tasks: TaskGroup, limit: int) -> None:
        self._tasks, self._limit = tasks, limit
        self._scopes: set[anyio.CancelScope] = set()
        self._is_closed = False
        self._idle: anyio.Event | None = None
        self.pending = 0

    def start(self, work: Callable[[], Awaitable[object]]) -> None:
        """Starts a job in a new task, or drops it if the limit is reached or `cancel` was called."""
        if self.pending >= self._limit or self._is_closed:
            logger.warning("consolidation left out", pending=self.pending, limit=self._limit)
            return
        self.pending += 1
        scope = anyio.CancelScope()
        self._scopes.add(scope)  # now and not at the task's first step, because a shutdown may come first
        self._tasks.start_soon(self._run, work, scope)

    async def wait_idle(self) -> None:
        """Returns when no job is pending."""
        while self.pending:
            self._idle = self._idle or anyio.Event()
            await self._idle.wait()

    def cancel(self) -> None:
        """Cancels all pending jobs and accepts no more."""
        self._is_closed = True
        for scope in self._scopes:
            scope.cancel()

    async def _run(self, work: Callable[[], Awaitable[object]], scope: anyio.CancelScope) -> None:
        try:
            with scope:
                await work()
        except BaseException as error:  # a failed consolidation must not reach a reply
            if not is_own_failure(error):
                raise
            logger.error("consolidation failed", error=origin_of(error))
        finally:
            self.pending -= 1
            self._scopes.discard(scope)
            if self.pending == 0 and self._idle is not None:
                self._idle.set()
                self._idle = None
