"""Reads what gates had before them: the memory's two ledgers, folded along, into the checks of `gates.py`.

The fold and the recorded verdicts are `memory/subject.py`'s own. A turn's gates are looked at where the turn did: at its last
signal entry, so that they see all of its signals. No lock is taken; nothing is written.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from kitchener.config import HO3MemoryConfig
from kitchener.errors import NotOnRecord
from kitchener.ids import memory_namespace, split_namespace
from kitchener.ledger import StoredEntry
from kitchener.ledger.format.lines import NO_END
from kitchener.memory import MemoryReader
from kitchener.memory.bias import weight_of
from kitchener.memory.signals import Cut
from kitchener.memory.subject import SubjectMemory
from kitchener.memory.timestamps import us_of
from kitchener.records import events
from kitchener.records.entries import SignalPayload, payload_as
from kitchener.sealing import MARK
from kitchener.tuning.gates import Check, Fate, SubjectRecord

_WHATEVER_THE_THRESHOLDS: Final = ("excluded", "blocked", "quarantined")
"""Verdicts that no other threshold would change."""


@dataclass(frozen=True, slots=True)
class GateRecord:
    """What is on record of an agent class's signals."""

    subjects: tuple[SubjectRecord, ...]
    """In alphabetical order."""
    sealed: int
    """Subjects that are left out, because what they said is sealed and there is no key to it: they were erased."""

    @property
    def crossings(self) -> int:
        """Gates that are open on record, under the configured settings; one stays so until its signal was learned from."""
        return sum(check.recorded == "crossed" for subject in self.subjects for check in subject.checks)


async def read_gate_record(
    reader: MemoryReader, agent_class: str, subject_id: str | None = None, *, seen: Callable[[], object] = lambda: None
) -> GateRecord:
    """The gates that the turns of an agent class looked at.

    Args:
        reader: the memory
        agent_class: whose
        subject_id: of this subject only; None: of all
        seen: called for each entry of the signals ledger, each is read twice

    Raises:
        NotOnRecord: nobody of the class gave a signal, or not this subject
        LedgerDamaged: a line is not what was written
    """
    key = None if subject_id is None else f"in:{memory_namespace(agent_class, subject_id)}"
    last_of: dict[_Place, int] = {}
    mine: dict[str, bool] = {}
    sealed: dict[str, None] = {}
    async for entry in reader.signals.read(key=key, entry_type=events.HO3_SIGNAL):
        seen()
        payload = events.read_payload(entry.entry_type, entry.payload)
        namespace = payload["namespace"]
        if namespace not in mine:
            mine[namespace] = split_namespace(namespace)[0] == agent_class
        if mine[namespace]:
            last_of[_place(entry, payload)] = entry.seq
            if MARK in (payload.get("metadata") or ()):
                sealed[namespace] = None
    if not last_of:
        whose = f"subject {subject_id!r} gave no signal" if subject_id is not None else "there is no signal on record"
        raise NotOnRecord(f"{whose} to agent class {agent_class!r}; `kitchener memory signals` shows whose there are")
    folds = {namespace: _Fold(namespace) for namespace in sorted({place.namespace for place in last_of} - sealed.keys())}
    async for entry in reader.overlays.read(key=key):
        if (fold := folds.get(str(entry.payload.get("namespace")))) is not None:
            fold.expect(entry)
    async for entry in reader.signals.read(key=key, entry_type=events.HO3_SIGNAL, up_to_seq=max(last_of.values())):
        seen()
        payload = events.read_payload(entry.entry_type, entry.payload)
        if (fold := folds.get(payload["namespace"])) is not None:
            place = _place(entry, payload)
            fold.take(entry, payload, place)
            if last_of[place] == entry.seq:
                fold.look(entry, place, reader.config)
    return GateRecord(tuple(fold.record() for fold in folds.values()), len(sealed))


class _Place(NamedTuple):
    """What the signals of one turn have in common; one that names no turn stands alone."""

    namespace: str
    session_id: str
    turn_id: str | None
    alone: int = 0
    """Its number where it names no turn."""


def _place(entry: StoredEntry, payload: dict[str, Any]) -> _Place:
    metadata = payload.get("metadata")
    turn_id = metadata.get("turn_id") if isinstance(metadata, dict) else None
    if isinstance(turn_id, str):
        return _Place(payload["namespace"], payload["session_id"], turn_id)
    return _Place(payload["namespace"], payload["session_id"], None, entry.seq)


class _Fold:
    """One subject's memory as it grows, and the gates looked at on the way."""

    def __init__(self, namespace: str) -> None:
        self._subject_id = split_namespace(namespace)[1]
        self._memory = SubjectMemory(namespace)
        self._overlays: list[StoredEntry] = []
        self._applied = 0
        self._turns: dict[str, int] = {}
        self._first: dict[str, tuple[int, int]] = {}
        self._imported: dict[str, int] = {}
        self._asked: dict[_Place, dict[str, None]] = {}
        self._checks: list[Check] = []

    def expect(self, entry: StoredEntry) -> None:
        """Takes note of an entry of the overlays ledger; it counts from its time on."""
        self._overlays.append(entry)

    def take(self, entry: StoredEntry, payload: dict[str, Any], place: _Place) -> None:
        """The next signal."""
        logged_us = us_of(entry.timestamp, "timestamp")
        self._catch_up(logged_us)
        self._memory.apply_signal(entry.seq, entry.timestamp, payload_as(SignalPayload, payload))
        if place.turn_id is not None:
            self._turns.setdefault(place.turn_id, len(self._turns) + 1)
        signal_id = payload["signal_id"]
        if signal_id not in self._first:
            self._first[signal_id] = (logged_us, self._number_of(place))
        self._asked.setdefault(place, {})[signal_id] = None

    def look(self, entry: StoredEntry, place: _Place, config: HO3MemoryConfig) -> None:
        """That was the last signal of its turn: looks at the gates of them all."""
        as_of_us, turn = us_of(entry.timestamp, "timestamp"), self._number_of(place)
        cut = Cut(as_of_us, entry.seq, NO_END)
        for each in self._asked.pop(place):
            gate = self._memory.gate(each, cut, config)
            if gate.reason not in _WHATEVER_THE_THRESHOLDS:
                tally, imported = (gate.count, gate.session_count), self._imported.get(each)
                self._checks.append(Check(each, as_of_us, turn, *self._first[each], tally, imported, gate.reason))

    def _number_of(self, place: _Place) -> int:
        """The turn's number; a signal that names none came in the newest."""
        return self._turns[place.turn_id] if place.turn_id is not None else max(1, len(self._turns))

    def _catch_up(self, logged_us: int) -> None:
        """Applies what was learned and decided up to a moment."""
        while self._applied < len(self._overlays):
            entry = self._overlays[self._applied]
            if us_of(entry.timestamp, "timestamp") > logged_us:
                return
            self._applied += 1
            payload = events.read_payload(entry.entry_type, entry.payload)
            self._memory.apply_overlay(entry.seq, entry.timestamp, entry.entry_type, payload)
            if entry.entry_type == events.HO3_OVERLAY and payload.get("artifact_id") is None and payload.get("window_end"):
                end_us, signal_id = us_of(payload["window_end"], "window_end"), payload["signal_id"]
                self._imported[signal_id] = max(end_us, self._imported.get(signal_id, end_us))

    def record(self) -> SubjectRecord:
        """All of it, once the last signal was taken."""
        self._catch_up(NO_END)
        learned = [events.in_words(entry.payload) for entry in self._overlays if entry.entry_type == events.HO3_OVERLAY]
        return SubjectRecord(
            self._subject_id,
            self._memory.event_count,
            len(self._turns),
            tuple(self._checks),
            {str(each["signal_id"]): Fate(weight_of(each), False) for each in learned} | self._taken_back(),
            len({each.get("artifact_id") or each["overlay_id"] for each in learned}),
        )

    def _taken_back(self) -> dict[str, Fate]:
        """The signals whose line a person took back, and nobody gave again."""
        signal_of: dict[str, str] = {}
        weights: dict[str, float] = {}
        gone: dict[str, None] = {}
        for entry in self._overlays:
            payload = events.in_words(entry.payload)
            if entry.entry_type == events.HO3_QUARANTINED:
                gone[str(payload["target"])] = None
                continue
            key = str(payload.get("artifact_id") or payload.get("overlay_id"))
            if entry.entry_type == events.HO3_OVERLAY:
                signal_of[key] = str(payload["signal_id"])
                weights[signal_of[key]] = weight_of(payload)
            elif entry.entry_type == events.HO3_OVERLAY_DEACTIVATED and "superseded_by" not in payload:
                gone[key] = None
            elif entry.entry_type == events.HO3_OVERLAY_WEIGHT_UPDATED:
                gone.pop(key, None)
        signals: Sequence[str] = [signal_of.get(each, each) for each in gone]
        return {each: Fate(weights[each], True) for each in signals if each in weights}
