"""What a crash left of consolidations: each work order that was begun and not ended gets its end, and none is done twice.

An answer that HO1m has on record becomes the overlay that it would have become; one that has become it already is only closed;
anything else is abandoned, and the signal's gate is still open for a new work order. Explained in `docs/survival.md`.
"""

from datetime import datetime
from typing import Final

import anyio
import structlog

from kitchener.actors.consolidation.lesson import Case, overlay_of, recorded_output
from kitchener.actors.turn.parts import TurnParts
from kitchener.actors.turn_memory import LongTermMemory
from kitchener.actors.work.plan import cost_json
from kitchener.clock import iso, to_us
from kitchener.errors import CallerError, EntryRefused, EntryTooLarge, origin_of
from kitchener.ids import SessionId, SubjectId
from kitchener.ledger import LedgerEntry, StoredEntry
from kitchener.memory.index import SIGNALS
from kitchener.memory.moments import us_of
from kitchener.records import events
from kitchener.records.work_order import Cost

logger = structlog.get_logger(__name__)

_OPEN: Final = (events.WO_PLANNED, events.WO_DISPATCHED)
_FACTS: Final = frozenset(("namespace", "signal_id", "gate_ts", "signals_position"))
_PAGE: Final = 64


class LessonRecovery:
    """Ends consolidations of an earlier process.

    Args:
        parts: what the agent class works with
        memory: where the signals are and the overlays go
    """

    def __init__(self, parts: TurnParts, memory: LongTermMemory) -> None:
        self._parts, self._memory = parts, memory
        self._is_done = False
        self._running: anyio.Lock | None = None

    async def close_all(self) -> None:
        """Ends every consolidation that a crash left open. The first call does it; later ones wait for that and do nothing."""
        if self._is_done or not self._parts.ledgers.is_sole_writer:  # else it may be under way elsewhere, or was once: a replay
            return
        self._running = self._running or anyio.Lock()
        async with self._running:
            if self._is_done:
                return
            ho2m = self._parts.ledgers.ho2m
            for planned in await self._planned_lately():
                newest = (await ho2m.last(session_id=planned.session_id))[-1]
                if newest.entity_id == planned.entity_id and newest.entry_type in _OPEN:
                    await self.take_up(newest)
            await self._parts.ledgers.commit()
            self._is_done = True

    async def _planned_lately(self) -> list[StoredEntry]:
        """The consolidations that may have been under way when the ledger's last entry was written.

        None lives longer than its deadline and the commit that ends it, so older ones need not be looked at.
        """
        ho2m = self._parts.ledgers.ho2m
        longest_us = int(2 * self._parts.config.consolidation_deadline_s * 1_000_000)
        since = iso(max(0, to_us(datetime.fromisoformat(ho2m.last_timestamp)) - longest_us))
        limit = _PAGE
        while True:
            found = await ho2m.last(key=events.CONSOLIDATIONS_KEY, limit=limit)
            if len(found) < limit or found[0].timestamp < since:
                return [each for each in found if each.timestamp >= since]
            limit *= 4

    async def take_up(self, newest: StoredEntry) -> bool:
        """Gives a consolidation its end if it has none, so that no model is asked twice for the same answer.

        Args:
            newest: the last entry in HO2m of its pseudo-session

        Returns:
            whether its lesson is learned: now, or before
        """
        if newest.entry_type not in _OPEN:
            return False
        ledgers, session_id, wo_id = self._parts.ledgers, str(newest.session_id), newest.entity_id
        planned = await anext(ledgers.ho2m.read(session_id=session_id, entity_id=wo_id))
        trace = [entry async for entry in ledgers.ho1m.read(session_id=session_id, entity_id=wo_id)]
        closed = {
            "v": events.VERSION,
            "session_id": session_id,
            "subject_id": planned.payload.get("subject_id"),
            "wo_id": wo_id,
        }
        try:
            is_learned = await self._is_learned(planned, trace)
        except (CallerError, EntryRefused, EntryTooLarge) as error:
            logger.warning("recorded consolidation refused", wo_id=wo_id, error=origin_of(error))
            is_learned = False
        if not is_learned:
            logger.warning("consolidation cut off by a crash", wo_id=wo_id)
            await ledgers.ho2m.write(LedgerEntry(events.WO_ABANDONED, wo_id, {**closed, "reason": "crash"}))
            return False
        done = trace[-1] if trace and trace[-1].entry_type == events.WO_COMPLETED else None
        fields = {
            "cost": done.payload.get("cost") if done is not None else cost_json(Cost()),
            "output_ref": done.ref.as_json() if done is not None else None,
        }
        await ledgers.ho2m.write(LedgerEntry(events.WO_COMPLETED, wo_id, {**closed, **fields}))
        await ledgers.commit()
        return True

    async def _is_learned(self, planned: StoredEntry, trace: list[StoredEntry]) -> bool:
        """Whether the overlay is in the memory, be it only now, out of the answer on record.

        Raises:
            CallerError, EntryRefused, EntryTooLarge: that answer cannot stand as a learned line
        """
        facts = planned.payload.get("consolidates")
        if not isinstance(facts, dict) or not facts.keys() >= _FACTS:  # another program's
            return False
        namespace, signal_id, gate_ts = facts["namespace"], facts["signal_id"], facts["gate_ts"]
        # Looked for first, also among those that somebody took out of use since: logging one again would bring it back.
        known = await self._memory.read_overlays(signal_id, active_only=False, namespace=namespace)
        opened = us_of(gate_ts, "gate_ts")
        if any(each.window_end is not None and us_of(each.window_end, "window_end") == opened for each in known):
            return True
        found = await self._memory.read_signals(signal_id, up_to={SIGNALS: facts["signals_position"]}, namespace=namespace)
        output = recorded_output(trace)
        if output is None or not found:
            return False
        subject_id = SubjectId(str(planned.payload.get("subject_id")))
        case = Case(
            namespace, subject_id, found[0].signal_id, signal_id, gate_ts, SessionId(str(planned.session_id)), 0, found[0]
        )
        await self._memory.log_overlay(overlay_of(case, output, trace), namespace=namespace)
        return True
