"""Folds the memory's two ledgers into the gate checks that `gates.py` simulates.

`memory/subject_memory.py` folds the entries and gives the recorded verdicts. As in the turn, a turn's gates are checked at its
last signal entry, so that they count all of its signals.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kitchener.config import HO3MemoryConfig
from kitchener.errors import NotOnRecord
from kitchener.ids import memory_namespace, split_namespace
from kitchener.ledger import StoredEntry
from kitchener.ledger.format.lines import NO_END
from kitchener.memory import MemoryReader
from kitchener.memory.bias import weight_of
from kitchener.memory.recorded_signals import seen_in
from kitchener.memory.signals import Cut
from kitchener.memory.subject_memory import SubjectMemory
from kitchener.memory.timestamps import us_of
from kitchener.records import events
from kitchener.records.entries import (
    MemoryPayload,
    OverlayDeactivatedPayload,
    OverlayPayload,
    OverlayWeightPayload,
    QuarantinePayload,
    SignalPayload,
    payload_as,
)
from kitchener.sealed_values import is_sealed
from kitchener.tuning.gates import GateCheck, LineFate, SubjectRecord

_WHATEVER_THE_THRESHOLDS: Final = ("excluded", "blocked", "quarantined")
"""Verdicts that do not depend on thresholds."""


@dataclass(frozen=True, slots=True)
class GateRecord:
    """The recorded signals of an agent class."""

    subjects: tuple[SubjectRecord, ...]
    """In alphabetical order."""
    sealed: int
    """Number of subjects that are left out because they were erased: their signals are sealed, and the key is destroyed."""

    @property
    def crossings(self) -> int:
        """Number of recorded checks that found a gate open. A gate stays open until its signal is learned from."""
        return sum(check.recorded == "crossed" for subject in self.subjects for check in subject.checks)


async def read_gate_record(
    reader: MemoryReader, agent_class: str, subject_id: str | None = None, *, seen: Callable[[], object] = lambda: None
) -> GateRecord:
    """Reads the gates that the turns of an agent class checked.

    Args:
        reader: the memory
        agent_class: the agent class
        subject_id: only this subject; None: all subjects
        seen: called for each entry of the signals ledger that is read; each is read twice

    Raises:
        NotOnRecord: there is no signal of the agent class or of the subject
        LedgerDamaged: a line does not verify
    """
    key = None if subject_id is None else f"in:{memory_namespace(agent_class, subject_id)}"
    last_of: dict[_TurnKey, int] = {}
    mine: dict[str, bool] = {}
    sealed: dict[str, None] = {}
    async for entry in reader.signals.read(key=key, entry_type=(events.HO3_SIGNAL, events.SUBJECT_ERASED)):
        seen()
        payload = seen_in(entry)
        namespace = payload["namespace"]
        if namespace not in mine:
            mine[namespace] = split_namespace(namespace)[0] == agent_class
        if mine[namespace]:
            if entry.entry_type == events.HO3_SIGNAL:
                last_of[_turn_key(entry, payload)] = entry.seq
            is_erased = entry.entry_type == events.SUBJECT_ERASED
            if is_erased or is_sealed(payload.get("metadata")) or is_sealed(payload.get("words")):
                sealed[namespace] = None
    if not last_of:
        whose = f"subject {subject_id!r} gave no signal" if subject_id is not None else "nobody gave a signal"
        raise NotOnRecord(f"{whose} to agent class {agent_class!r}; `kitchener memory signals` shows whose there are")
    folds = {namespace: _Fold(namespace) for namespace in sorted({turn.namespace for turn in last_of} - sealed.keys())}
    async for entry in reader.overlays.read(key=key):
        if (fold := folds.get(payload_as(MemoryPayload, entry.payload).get("namespace", ""))) is not None:
            fold.expect(entry)
    async for entry in reader.signals.read(key=key, entry_type=events.HO3_SIGNAL, up_to_seq=max(last_of.values())):
        seen()
        payload = seen_in(entry)
        if (fold := folds.get(payload["namespace"])) is not None:
            turn = _turn_key(entry, payload)
            fold.take(entry, payload, turn)
            if last_of[turn] == entry.seq:
                fold.look(entry, turn, reader.config)
    return GateRecord(
        tuple(fold.record() for fold in folds.values()), len(sealed.keys() & {turn.namespace for turn in last_of})
    )


class _TurnKey(NamedTuple):
    """Identifies the signals of one turn. A signal without a turn has a key of its own."""

    namespace: str
    session_id: str
    turn_id: str | None
    alone: int = 0
    """The entry's number, if it names no turn."""


def _turn_key(entry: StoredEntry, payload: SignalPayload) -> _TurnKey:
    if (turn_id := payload.get("turn_id")) is not None:
        return _TurnKey(payload["namespace"], payload["session_id"], turn_id)
    return _TurnKey(payload["namespace"], payload["session_id"], None, entry.seq)


class _Fold:
    """Folds one subject's memory and collects the gates that were checked."""

    def __init__(self, namespace: str) -> None:
        self._subject_id = split_namespace(namespace)[1]
        self._memory = SubjectMemory(namespace)
        self._overlays: list[StoredEntry] = []
        self._applied = 0
        self._turns: dict[str, int] = {}
        self._first: dict[str, tuple[int, int]] = {}
        self._imported: dict[str, int] = {}
        self._asked: dict[_TurnKey, dict[str, None]] = {}
        self._checks: list[GateCheck] = []

    def expect(self, entry: StoredEntry) -> None:
        """Keeps an entry of the overlays ledger, to be applied at its time."""
        self._overlays.append(entry)

    def take(self, entry: StoredEntry, payload: SignalPayload, turn: _TurnKey) -> None:
        """Applies the next entry with signals."""
        logged_us = us_of(entry.timestamp, "timestamp")
        self._catch_up(logged_us)
        self._memory.apply_signals(entry.seq, entry.timestamp, payload)
        if turn.turn_id is not None:
            self._turns.setdefault(turn.turn_id, len(self._turns) + 1)
        for signal_id in payload["signals"].values():
            self._first.setdefault(signal_id, (logged_us, self._number_of(turn)))
            self._asked.setdefault(turn, {})[signal_id] = None

    def look(self, entry: StoredEntry, turn: _TurnKey, config: HO3MemoryConfig) -> None:
        """Checks the gates of all signals of a turn, after its last one."""
        as_of_us, number = us_of(entry.timestamp, "timestamp"), self._number_of(turn)
        cut = Cut(as_of_us, entry.seq, NO_END)
        for each in self._asked.pop(turn):
            gate = self._memory.gate(each, cut, config)
            if gate.reason not in _WHATEVER_THE_THRESHOLDS:
                tally, imported = (gate.count, gate.session_count), self._imported.get(each)
                self._checks.append(GateCheck(each, as_of_us, number, *self._first[each], tally, imported, gate.reason))

    def _number_of(self, turn: _TurnKey) -> int:
        """The turn's number; for a signal without a turn, the newest turn's number."""
        return self._turns[turn.turn_id] if turn.turn_id is not None else max(1, len(self._turns))

    def _catch_up(self, logged_us: int) -> None:
        """Applies the entries of the overlays ledger up to a time."""
        while self._applied < len(self._overlays):
            entry = self._overlays[self._applied]
            if us_of(entry.timestamp, "timestamp") > logged_us:
                return
            self._applied += 1
            payload = events.read_payload(entry.entry_type, entry.payload)
            self._memory.apply_overlay(entry.seq, entry.timestamp, entry.entry_type, payload)
            if entry.entry_type != events.HO3_OVERLAY:
                continue
            learned = payload_as(OverlayPayload, payload)
            if learned.get("artifact_id") is None and (window_end := learned.get("window_end")):
                end_us, signal_id = us_of(window_end, "window_end"), learned["signal_id"]
                self._imported[signal_id] = max(end_us, self._imported.get(signal_id, end_us))

    def record(self) -> SubjectRecord:
        """The subject's record, after the last signal."""
        self._catch_up(NO_END)
        learned = [events.read_as(OverlayPayload, each) for each in self._overlays if each.entry_type == events.HO3_OVERLAY]
        return SubjectRecord(
            self._subject_id,
            self._memory.event_count,
            len(self._turns),
            tuple(self._checks),
            {each["signal_id"]: LineFate(weight_of(each), False) for each in learned} | self._taken_back(),
            len({each.get("artifact_id") or each["overlay_id"] for each in learned}),
        )

    def _taken_back(self) -> dict[str, LineFate]:
        """The signals whose line a person withdrew and did not restore."""
        signal_of: dict[str, str] = {}
        weights: dict[str, float] = {}
        gone: dict[str, None] = {}
        for entry in self._overlays:
            payload = events.read_payload(entry.entry_type, entry.payload)
            if entry.entry_type == events.HO3_QUARANTINED:
                gone[payload_as(QuarantinePayload, payload)["target"]] = None
            elif entry.entry_type == events.HO3_OVERLAY:
                overlay = payload_as(OverlayPayload, payload)
                signal_of[overlay.get("artifact_id") or overlay["overlay_id"]] = overlay["signal_id"]
                weights[overlay["signal_id"]] = weight_of(overlay)
            elif entry.entry_type == events.HO3_OVERLAY_DEACTIVATED:
                ended = payload_as(OverlayDeactivatedPayload, payload)
                if "superseded_by" not in ended:
                    gone[ended.get("artifact_id") or ended.get("overlay_id", "")] = None
            elif entry.entry_type == events.HO3_OVERLAY_WEIGHT_UPDATED:
                change = payload_as(OverlayWeightPayload, payload)
                gone.pop(change.get("artifact_id") or change.get("overlay_id", ""), None)
        signals: Sequence[str] = [signal_of.get(each, each) for each in gone]
        return {each: LineFate(weights[each], True) for each in signals if each in weights}
