"""Ends the consolidations that a crash left open, without asking a model twice for the same answer.

If HO1m has the recorded answer, recovery logs its overlay, unless the overlay is already there, and completes the work order.
Otherwise it abandons the work order; the signal's gate stays open for a new one. Explained in `docs/survival.md`.
"""

from typing import Final

import anyio

from kitchener.actors.consolidation.lesson import Case, overlay_of, recorded_output
from kitchener.actors.turn.services import TurnServices
from kitchener.actors.turn_memory import LongTermMemory
from kitchener.actors.work.plan import cost_mapping
from kitchener.errors import CallerError, EntryRefused, EntryTooLarge
from kitchener.ids import SessionId, SubjectId
from kitchener.ledger import LedgerEntry, StoredEntry
from kitchener.logs import get_logger
from kitchener.memory.subject_cache import SIGNALS
from kitchener.memory.timestamps import us_of
from kitchener.plain_names import origin_of
from kitchener.records import events
from kitchener.records.entries import ExecutionCompletedPayload, WorkOrderPlannedPayload, payload_as
from kitchener.records.index_keys import CONSOLIDATIONS_KEY
from kitchener.records.outputs import LearnedOutput, output_as
from kitchener.records.work_order import Cost
from kitchener.times import iso_of

logger = get_logger(__name__)

_OPEN: Final = (events.WO_PLANNED, events.WO_DISPATCHED)
_FACTS: Final = frozenset(("namespace", "signal_id", "gate_ts", "signals_position"))
_PAGE: Final = 64


class ConsolidationRecovery:
    """Ends consolidations of an earlier process.

    Args:
        services: the components that all turns of the agent class share
        memory: holds the signals and stores the overlays
    """

    def __init__(self, services: TurnServices, memory: LongTermMemory) -> None:
        self._services, self._memory = services, memory
        self._is_done = False
        self._running: anyio.Lock | None = None

    async def close_all(self) -> None:
        """Ends every consolidation that a crash left open. The first call does the work; later calls only wait for it.

        Does nothing in a replay or if another process may write the ledgers, where a consolidation may still be running.
        """
        if self._is_done or not self._services.ledgers.is_sole_writer:
            return
        self._running = self._running or anyio.Lock()
        async with self._running:
            if self._is_done:
                return
            ho2m = self._services.ledgers.ho2m
            for planned in await self._planned_lately():
                newest = (await ho2m.last(session_id=planned.session_id))[-1]
                if newest.entity_id == planned.entity_id and newest.entry_type in _OPEN:
                    await self.close(newest)
            await self._services.ledgers.commit()
            self._is_done = True

    async def _planned_lately(self) -> list[StoredEntry]:
        """The plans of all consolidations that may have been running when a process stopped.

        No consolidation runs longer than its deadline and its final commit, and each process ends open consolidations before it
        plans new ones. So a plan that is much older than the newest one needs no check, however late this recovery comes, and
        even if an earlier recovery was cut off.
        """
        ho2m = self._services.ledgers.ho2m
        longest_us = int(2 * self._services.config.consolidation_deadline_s * 1_000_000)
        limit = _PAGE
        while True:
            found = await ho2m.last(key=CONSOLIDATIONS_KEY, limit=limit)
            newest_us = us_of(found[-1].timestamp, "timestamp") if found else 0
            since = iso_of(max(0, newest_us - longest_us))
            if len(found) < limit or found[0].timestamp < since:
                return [each for each in found if each.timestamp >= since]
            limit *= 4

    async def close(self, newest: StoredEntry) -> bool:
        """Ends a consolidation if it is still open, without asking a model again for the same answer.

        Args:
            newest: the last entry of the consolidation's pseudo-session in HO2m

        Returns:
            Whether an open consolidation was completed with its overlay in the memory; False if it was already closed
        """
        if newest.entry_type not in _OPEN:
            return False
        ledgers, session_id, wo_id = self._services.ledgers, str(newest.session_id), newest.entity_id
        planned = await anext(ledgers.ho2m.read(session_id=session_id, entity_id=wo_id))
        plan = payload_as(WorkOrderPlannedPayload, planned.payload)
        trace = [entry async for entry in ledgers.ho1m.read(session_id=session_id, entity_id=wo_id)]
        closed = {
            "v": events.VERSION,
            "session_id": session_id,
            "subject_id": plan.get("subject_id"),
            "wo_id": wo_id,
        }
        try:
            is_learned = await self._is_learned(session_id, plan, trace)
        except (CallerError, EntryRefused, EntryTooLarge) as error:
            logger.warning("recorded consolidation refused", wo_id=wo_id, error=origin_of(error))
            is_learned = False
        if not is_learned:
            logger.warning("consolidation cut off by a crash", wo_id=wo_id)
            await ledgers.ho2m.write(LedgerEntry(events.WO_ABANDONED, wo_id, {**closed, "reason": "crash"}))
            return False
        done = trace[-1] if trace and trace[-1].entry_type == events.WO_COMPLETED else None
        executed = payload_as(ExecutionCompletedPayload, done.payload) if done is not None else None
        fields = {
            "cost": executed.get("cost") if executed is not None else cost_mapping(Cost()),
            "output_ref": done.ref.as_mapping() if done is not None else None,
        }
        await ledgers.ho2m.write(LedgerEntry(events.WO_COMPLETED, wo_id, {**closed, **fields}))
        await ledgers.commit()
        return True

    async def _is_learned(self, session_id: str, plan: WorkOrderPlannedPayload, trace: list[StoredEntry]) -> bool:
        """Whether the overlay is in the memory. If it is missing, logs it from the recorded answer first.

        Raises:
            CallerError, EntryRefused, EntryTooLarge: the recorded answer is not a valid learned line
        """
        facts = plan.get("consolidates")
        if not isinstance(facts, dict) or not facts.keys() >= _FACTS:  # written by another program
            return False
        namespace, signal_id, gate_ts = facts["namespace"], facts["signal_id"], facts["gate_ts"]
        # Checked first, among inactive overlays, too: logging an overlay again would reactivate it.
        known = await self._memory.read_overlays(signal_id, active_only=False, namespace=namespace)
        opened = us_of(gate_ts, "gate_ts")
        if any(each.window_end is not None and us_of(each.window_end, "window_end") == opened for each in known):
            return True
        found = await self._memory.read_signals(signal_id, up_to={SIGNALS: facts["signals_position"]}, namespace=namespace)
        output = recorded_output(trace)
        if output is None or not found:
            return False
        subject_id = SubjectId(str(plan.get("subject_id")))
        case = Case(namespace, subject_id, found[0].signal_id, signal_id, gate_ts, SessionId(session_id), 0, found[0])
        await self._memory.log_overlay(overlay_of(case, output_as(LearnedOutput, output), trace), namespace=namespace)
        return True
