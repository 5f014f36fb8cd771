"""Replaces the memory during a replay by doubles that give what the turn read, and compare what it tells."""

from collections.abc import Iterable, Mapping
from typing import TypedDict, Unpack

from kitchener.config import HO3MemoryConfig
from kitchener.errors import KitchenerError
from kitchener.ids import split_namespace
from kitchener.ledger import Ledger, LedgerReader, StoredEntry
from kitchener.memory.gate import GateResult
from kitchener.memory.overlays import Overlay
from kitchener.memory.reader import MemoryReader, TimeInput
from kitchener.memory.recorded_signals import seen_in, stored_signals, turn_of_signals
from kitchener.memory.signals import event_id, events_of_turn, normalise
from kitchener.memory.store import SignalOperations
from kitchener.memory.subject_cache import OVERLAYS, SIGNALS
from kitchener.memory.subject_memory import SubjectMemory
from kitchener.records import events
from kitchener.records.entries import DegradationPayload, MemoryPayload, SignalPayload, payload_as
from kitchener.records.ref import Ref
from kitchener.replaying.comparison import first_difference
from kitchener.replaying.doubles import RecordedClock, failing_again
from kitchener.replaying.tape import Tape


class _ReadScope(TypedDict, total=False):
    """The arguments of every READ besides its time."""

    up_to: Mapping[str, int] | None
    namespace: str


class RecordedMemory(MemoryReader):
    """The recorded memory: reads as of recorded times and positions, and compares each logged signal with the record."""

    def __init__(
        self, signals: LedgerReader, overlays: LedgerReader, config: HO3MemoryConfig, clock: RecordedClock, tape: Tape
    ) -> None:
        super().__init__(signals, overlays, config, clock)
        self._tape = tape
        self._subjects: dict[str, SubjectMemory] = {}
        self.last_logged_ts = ""
        """ISO time of the recorded entry of the signal that was logged last."""

    async def subject(self, namespace: str) -> SubjectMemory:
        """All recorded entries of a namespace, folded once. Each question ignores the entries after its own time."""
        found = self._subjects.get(namespace)
        if found is None:
            found = self._subjects[namespace] = await super().subject(namespace)
        return found

    @property
    def ledgers(self) -> tuple[Ledger, ...]:
        """None: a replay writes nothing."""
        return ()

    async def read_active_biases(self, as_of_ts: TimeInput | None = None, **view: Unpack[_ReadScope]) -> list[Overlay]:
        """See `MemoryReader`; fails where the recorded call failed."""
        self._failfailing_again()
        return await super().read_active_biases(as_of_ts, **view)

    async def read_refs(self, keys: Iterable[str], *, namespace: str = "default") -> dict[str, tuple[Ref, str]]:
        """The entries that contained the artifacts when the turn started."""
        found, end = {}, self._tape.positions.get(OVERLAYS, 0)
        for key in keys:
            records = await self.read_records(key, namespace=namespace)
            held = [each for each in records if each.entry_type == events.HO3_OVERLAY and each.seq <= end]
            if held:
                found[key] = (held[-1].ref, held[-1].timestamp)
        return found

    async def check_gate(self, signal_id: str, as_of_ts: TimeInput | None = None, **view: Unpack[_ReadScope]) -> GateResult:
        """See `MemoryReader`; fails where the recorded call failed."""
        self._failfailing_again()
        return await super().check_gate(signal_id, as_of_ts, **view)

    async def log_turn(self, signal_ids: Iterable[str], session_id: str, turn_id: str, *, namespace: str) -> None:
        """Compares the turn's signals with the recorded ones. Before version 8 of the policy, each has an entry of its own."""
        told = [normalise(each, self.kinds) for each in signal_ids]
        stored = {each: self.stored_id(each, namespace=namespace) for each in told}
        seen = events_of_turn(session_id, turn_id, (stored[each] for each in told))
        common = {"session_id": session_id, "namespace": namespace, "subject_id": split_namespace(namespace)[1]}
        words = {mine: each for each, mine in stored.items()}
        turn = self._tape.turn
        if turn is None or turn.policy_version > 7:
            self._compare(turn_id, {**common, "turn_id": turn_id, "signals": seen}, words)
            return
        counted = dict[str, int]()
        for each in told:
            mine = stored[each]
            n = counted[mine] = counted.get(mine, 0) + 1
            alone = {"signals": {event_id(session_id, turn_id, mine, n): mine}, "metadata": {"turn_id": turn_id}}
            self._compare(each, {**common, **alone}, {mine: each})

    def _compare(self, what: str, given: dict[str, object], words: Mapping[str, str]) -> None:
        """Compares what is logged with the next recorded entry of the signals ledger."""
        expected = self._tape.next_of(SIGNALS)
        given = _with_lines(events.with_signals(given, words))
        if expected is None:
            self._failfailing_again()
            self._tape.diverge("signal", None, what, (events.HO3_SIGNAL, what, None), payload={}, now=given)
        if "words" in payload_as(MemoryPayload, expected.payload):
            given["words"] = {mine: each for mine, each in words.items() if mine != each}
        read = _with_lines(events.read_payload(expected.entry_type, expected.payload))
        recorded = {key: read.get(key) for key in given}
        if (found := first_difference(events.HO3_SIGNAL, recorded, given)) is not None:
            about = (events.HO3_SIGNAL, expected.entity_id, expected.entry_id)
            self._tape.diverge(*found, about, payload=recorded, now=given)
        self.last_logged_ts = self._tape.pass_over(SIGNALS).timestamp

    def stored_id(self, signal_id: str, *, namespace: str) -> str:
        """A signal's id in the form that the turn recorded. An older version stored every id in plain words."""
        for entry in self._tape.of_turn(events.HO3_SIGNAL):
            for event, stored in stored_signals(entry).items():
                if signal_id in (stored, seen_in(entry)["signals"][event]):
                    return stored
        return signal_id

    async def log_overlay(self, overlay: Overlay | Mapping[str, object], *, namespace: str) -> str:
        """Raises KitchenerError, because a replay learns nothing."""
        raise KitchenerError("a replay learns nothing")

    async def last_turn_id(self, session_id: str) -> str | None:
        """The turn of the session's newest signal that the replay may see."""
        end = self._tape.seen.get(SIGNALS, 0)
        newest: StoredEntry | None = None
        for entry in self._tape.entries.get(SIGNALS, ()):
            newest = entry if entry.seq <= end else newest
        return turn_of_signals(newest) if newest is not None else None

    def _failfailing_again(self) -> None:
        turn = self._tape.turn
        expected = self._tape.next_of(self._tape.ho2m) if turn is not None else None
        if expected is not None and expected.entry_type == events.DEGRADATION:
            degraded = payload_as(DegradationPayload, expected.payload)
            if degraded.get("component") == "HO3":
                raise failing_again(str(degraded.get("error")))


class RecordedLearning(SignalOperations[Ledger]):
    """The memory during a replayed consolidation.

    Args:
        signals, overlays: the doubles of the two ledgers
        config: thresholds and limits
        clock: shows the time when the consolidation started
        about: the field `consolidates` of its plan
    """

    def __init__(
        self,
        signals: Ledger,
        overlays: Ledger,
        config: HO3MemoryConfig,
        clock: RecordedClock,
        about: Mapping[str, object],
    ) -> None:
        super().__init__(signals, overlays, config, clock)
        self._about = about

    def stored_id(self, signal_id: str, *, namespace: str = "default") -> str:
        """See `SignalOperations`; in plain words if an older version recorded it so."""
        return signal_id if self._about["signal_id"] == signal_id else super().stored_id(signal_id, namespace=namespace)


def _with_lines(payload: Mapping[str, object]) -> dict[str, object]:
    """A payload with its signals as a list of lines, which says what differs better than event ids do."""
    signals = payload_as(SignalPayload, payload).get("signals")
    lines = sorted(f"{each} {event}" for event, each in signals.items()) if isinstance(signals, dict) else signals
    return {**payload, "signals": lines}
