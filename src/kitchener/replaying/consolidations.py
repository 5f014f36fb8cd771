"""Runs recorded consolidations again, and compares the learned artifact, its events and its id with the record.

A consolidation belongs to no conversation, so it is replayed separately. The original consolidator and memory code runs
with the same doubles as a turn. The start of a consolidation is not compared. Explained in `docs/replay.md`.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kitchener.ledger import StoredEntry
from kitchener.memory.subject_cache import OVERLAYS, SIGNALS
from kitchener.records import events
from kitchener.records.entries import (
    ConsolidatedSignal,
    ModelCallPayload,
    OverlayDeactivatedPayload,
    OverlayPayload,
    WorkOrderPlannedPayload,
    payload_as,
)
from kitchener.replaying.on_record.turn_tape import TurnTape
from kitchener.replaying.tape import Tape

PREFIX: Final = "CONS-"
"""How the ids of pseudo-sessions begin."""
_ENDS: Final = (events.WO_COMPLETED, events.WO_FAILED)


@dataclass(slots=True)
class Consolidation(TurnTape):
    """The entries of one consolidation; `turn_id` is its work order, `started` its `WO_PLANNED`."""

    ho1m_ends: list[StoredEntry] = field(default_factory=list)
    """HO1's entries that end the work order."""

    @property
    def about(self) -> ConsolidatedSignal:
        """The signal that it learned from."""
        return payload_as(WorkOrderPlannedPayload, self.started.payload)["consolidates"]

    @property
    def is_erased(self) -> bool:
        """Whether the model's answer can no longer be read."""
        calls = (payload_as(ModelCallPayload, entry.payload) for entry in self.of_type(events.LLM_CALL))
        return any("text" not in call["response"] for call in calls)

    @property
    def is_replayable(self) -> bool:
        """Whether HO1 and HO2 both finished it and its text can be read."""
        return self.end is not None and self.end.entry_type in _ENDS and bool(self.ho1m_ends) and not self.is_erased


class ConsolidationTape(Tape):
    """The consolidations of one signal in one window, in order of their attempts.

    Args:
        session_id: the pseudo-session
        entries: its entries by ledger id; for the overlays ledger, all entries of the subject
        ho1m, ho2m: ledger ids
    """

    def __init__(self, session_id: str, entries: Mapping[str, Sequence[StoredEntry]], *, ho1m: str, ho2m: str) -> None:
        self._ho1m = ho1m
        self.consolidations: list[Consolidation] = []
        super().__init__(session_id, entries, ho2m=ho2m)

    def begin(self, turn: TurnTape | None) -> None:
        """Moves to the start of a consolidation."""
        assert isinstance(turn, Consolidation)
        self.turn, self.is_sealed = turn, turn.is_sealed
        self._left = {ledger_id: deque(entries) for ledger_id, entries in turn.entries.items()}
        self.positions = {SIGNALS: turn.about["signals_position"]}
        self.seen = {SIGNALS: self.positions[SIGNALS], self.ho2m: turn.started.seq - 1}
        for ledger_id in (self._ho1m, OVERLAYS):
            own = turn.entries.get(ledger_id)
            earlier = (entry.seq for entry in self.entries.get(ledger_id, ()) if entry.timestamp <= turn.started.timestamp)
            self.seen[ledger_id] = own[0].seq - 1 if own else max(earlier, default=0)

    def cut(self) -> list[TurnTape]:
        for entry in self.entries.get(self.ho2m, ()):
            if entry.entry_type == events.WO_PLANNED and "consolidates" in payload_as(WorkOrderPlannedPayload, entry.payload):
                self.consolidations.append(Consolidation(entry.entity_id, entry))
        for turn in self.consolidations:
            for ledger_id in (self.ho2m, self._ho1m):
                own = [entry for entry in self.entries.get(ledger_id, ()) if entry.entity_id == turn.turn_id]
                turn.entries[ledger_id] = own
                ends = [entry for entry in own if entry.entry_type in (*_ENDS, events.WO_ABANDONED)]
                if ledger_id == self.ho2m:
                    turn.end = ends[-1] if ends else None
                else:
                    turn.ho1m_ends = ends
            if learned := self._learned(turn):
                turn.entries[OVERLAYS] = learned
        return list(self.consolidations)

    def _learned(self, turn: Consolidation) -> list[StoredEntry]:
        """The entries of the artifact that it logged and of the earlier ones that it superseded."""
        if turn.end is None or turn.end.entry_type != events.WO_COMPLETED:
            return []
        about, found, artifact_id = turn.about, list[StoredEntry](), None
        for entry in self.entries.get(OVERLAYS, ()):
            if entry.entry_type == events.HO3_OVERLAY:
                overlay = payload_as(OverlayPayload, entry.payload)
                made_by = overlay.get("signal_id"), overlay.get("consolidation_event_ts")
                if artifact_id is None and made_by == (about["signal_id"], about["gate_ts"]):
                    artifact_id = overlay.get("artifact_id")
                    found.append(entry)
            elif artifact_id is not None and _superseded_by(entry) == artifact_id:
                found.append(entry)
        return found


def _superseded_by(entry: StoredEntry) -> str | None:
    """The artifact that took the place of the one that an entry deactivates; None: none did."""
    return events.read_as(OverlayDeactivatedPayload, entry).get("superseded_by")
