"""Folds a namespace's entries from the two ledgers into its memory, and answers questions about it as of a cut. Pure.

New entries and stored entries go through the same fold, one by one. Every answer is as of a cut, so replaying a turn of last
month sees last month's memory.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from kitchener.config import HO3MemoryConfig
from kitchener.ledger.format.lines import NO_END
from kitchener.memory.gate import GateResult, is_within_window, judge, thresholds
from kitchener.memory.overlays import Overlay, OverlayHistory, OverlayRecord, parse_overlay
from kitchener.memory.signals import Cut, RecordedEvent, SignalAccumulator, SignalEvent, SignalLog
from kitchener.memory.timestamps import us_of
from kitchener.records import events
from kitchener.records.entries import (
    OverlayDeactivatedPayload,
    OverlayWeightPayload,
    QuarantinePayload,
    SignalPayload,
    payload_as,
)
from kitchener.records.ref import Ref
from kitchener.sealed_values import is_sealed
from kitchener.times import iso_of


class Quarantine(NamedTuple):
    """One order to ignore a signal or an event."""

    seq: int
    """Number of the entry in the overlays ledger."""
    logged_us: int
    """Timestamp of the entry, microseconds since the epoch."""
    target: str
    """A signal id or an event id."""


_NOTHING: frozenset[str] = frozenset()
_EVERYTHING = Cut(NO_END, NO_END, NO_END)


class SubjectMemory:
    """The memory of one namespace. Mutable; the code that applies entries to it owns it."""

    __slots__ = (
        "_by_signal",
        "_erased",
        "_events",
        "_histories",
        "_logs",
        "_quarantines",
        "_words",
        "event_count",
        "last_us",
        "namespace",
        "overlay_refs",
        "pins",
        "promised",
        "record_chars",
    )

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self.event_count = 0
        """Number of signal events in memory."""
        self.record_chars = 0
        """Characters of the recorded overlays and of the decisions about them, with a constant for each record."""
        self.last_us = 0
        """Timestamp of the newest entry applied, microseconds since the epoch."""
        self.overlay_refs: dict[str, tuple[Ref, str]] = {}
        """Artifact key to the newest entry with its overlay, and that entry's time."""
        self.promised: set[str] = set()
        """Ids of events whose write is in progress; the next event must not reuse them."""
        self.pins = 0
        """Number of writes in progress. While it is above 0 the cache keeps this object, so that no second fold misses one."""
        self._logs: dict[str, SignalLog] = {}
        self._events: dict[str, tuple[str, int]] = {}
        self._histories: dict[str, OverlayHistory] = {}
        self._erased: dict[str, OverlayHistory] = {}
        self._by_signal: dict[str, list[str]] = {}
        self._quarantines: list[Quarantine] = []
        self._words: dict[str, str] = {}

    def in_words(self, signal_id: str) -> str:
        """The words of a keyed signal id. Other ids, and keyed ids whose words were erased, stay unchanged."""
        return self._words.get(signal_id, signal_id)

    def apply_signals(self, seq: int, timestamp: str, seen: SignalPayload) -> None:
        """Applies an entry of the signals ledger, in words. Ignores known event ids."""
        logged_us = us_of(timestamp, "timestamp")
        if logged_us > self.last_us:
            self.last_us = logged_us
        self._note_words(seen)
        seen_us = logged_us if seen["timestamp"] == timestamp else us_of(seen["timestamp"], "timestamp")
        session_id, turn_id = sys.intern(seen["session_id"]), sys.intern(seen.get("turn_id", ""))
        for event_id, named in seen["signals"].items():
            if event_id in self._events:
                continue
            signal_id = sys.intern(named)
            log = self._logs.get(signal_id)
            if log is None:
                log = self._logs[signal_id] = SignalLog()
            self._events[event_id] = (signal_id, len(log))
            log.append(seq, logged_us, seen_us, event_id, session_id, turn_id)
            self.event_count += 1

    def apply_overlay(
        self, seq: int, timestamp: str, entry_type: str, payload: Mapping[str, object], ref: Ref | None = None
    ) -> None:
        """Applies an entry of the overlays ledger; ignores unknown types."""
        logged_us = us_of(timestamp, "timestamp")
        self.last_us = max(self.last_us, logged_us)
        self._note_words(payload)
        if entry_type == events.HO3_OVERLAY:
            overlay = parse_overlay(readable_overlay(payload))
            if ref is not None:
                self.overlay_refs[overlay.key] = (ref, timestamp)
            self._record(overlay.key, OverlayRecord(seq, logged_us, entry_type, overlay, None, False, ""))
            keys = self._by_signal.setdefault(overlay.signal_id, [])
            if overlay.key not in keys:
                keys.append(overlay.key)
        elif entry_type in (events.HO3_OVERLAY_DEACTIVATED, events.HO3_OVERLAY_WEIGHT_UPDATED):
            decision = payload_as(OverlayDeactivatedPayload, payload)
            weight = payload_as(OverlayWeightPayload, payload).get("new_weight")
            reason, blocks = decision.get("reason"), decision.get("block_signal") is True
            text = reason if isinstance(reason, str) else why_erased(payload)
            decided = decision.get("event_ts") if decision.get("is_dated", True) else None
            effective_us = us_of(decided, "event_ts") if decided is not None else logged_us
            cancels = "target" in decision or "erased_subject" in decision
            record = OverlayRecord(seq, effective_us, entry_type, None, weight, blocks, text, cancels)
            self._record(decision["artifact_id"], record)
        elif entry_type == events.SUBJECT_ERASED:
            # The artifacts can still be listed, as erased, but no longer close a gate.
            for key, history in self._histories.items():
                self._erased.setdefault(key, OverlayHistory()).records += history.records
            self._histories.clear()
            self._by_signal.clear()
            self._quarantines.clear()
        elif entry_type == events.HO3_QUARANTINED:
            self._quarantines.append(Quarantine(seq, logged_us, payload_as(QuarantinePayload, payload)["target"]))

    def forget_signals(self) -> None:
        """Removes all signal events so far, because the subject was erased."""
        self._logs.clear()
        self._events.clear()
        self._words.clear()
        self.event_count = 0

    def has_event(self, event_id: str) -> bool:
        """Whether an event of this id was logged."""
        return event_id in self._events

    def event(self, event_id: str) -> tuple[str, SignalEvent] | None:
        """The signal of an event and the event; None: this namespace has no such event."""
        found = self._events.get(event_id)
        return None if found is None else (found[0], self._logs[found[0]][found[1]])

    def ordinal(self, signal_id: str, session_id: str, turn_id: str) -> int:
        """The number of the next event of a signal in a turn, from 1."""
        log = self._logs.get(signal_id)
        return 1 if log is None else log.ordinal(session_id, turn_id)

    def signal_ids(self) -> list[str]:
        """The ids of all signals with events, in alphabetical order."""
        return sorted(self._logs)

    def accumulators(self, cut: Cut, half_life_hours: float) -> Iterator[SignalAccumulator]:
        """The counts of each signal, in alphabetical order; signals without events at the cut are left out."""
        return filter(None, (self.accumulate(signal_id, cut, half_life_hours) for signal_id in self.signal_ids()))

    def accumulate(self, signal_id: str, cut: Cut, half_life_hours: float) -> SignalAccumulator | None:
        """The counts of a signal; None: no event counts at the cut."""
        log, without = self._logs.get(signal_id), self.quarantined(cut)
        if log is None or signal_id in without:
            return None
        return log.accumulate(signal_id, cut, without, half_life_hours)

    def gate(self, signal_id: str, cut: Cut, config: HO3MemoryConfig) -> GateResult:
        """The verdict on a signal's gate at a cut; see `gate.py`."""
        log, without = self._logs.get(signal_id), self.quarantined(cut)
        is_quarantined = signal_id in without
        keys = self._by_signal.get(signal_id)
        histories = [self._histories[key] for key in keys] if keys else ()
        return judge(
            signal_id,
            (0, 0) if log is None or is_quarantined else log.tally(cut, without),
            config,
            is_consolidated=bool(histories) and any(_is_consolidated(each, cut, config) for each in histories),
            is_blocked=bool(histories) and any(each.is_blocked(cut) for each in histories),
            is_quarantined=is_quarantined,
        )

    def overlays(self, cut: Cut, signal_id: str | None = None) -> Iterator[Overlay]:
        """The artifacts as of a cut, deactivated ones included, in the order in which they were logged."""
        if signal_id is not None:
            return filter(None, (self._histories[key].at(cut) for key in self._by_signal.get(signal_id, ())))
        keys = {**self._erased, **self._histories} if self._erased else self._histories
        return filter(None, (self.overlay(key, cut) for key in keys))

    def overlay(self, key: str, cut: Cut) -> Overlay | None:
        """One artifact as of a cut, by artifact id or overlay id; None: it is unknown there."""
        history = self._histories.get(key)
        found = None if history is None else history.at(cut)
        return self._erased[key].at(cut) if found is None and key in self._erased else found

    def history(self, key: str, cut: Cut = _EVERYTHING) -> list[OverlayRecord]:
        """The records of an artifact within a cut, in the order in which they took effect; without a cut, all."""
        return [record for each in (self._erased, self._histories) if key in each for record in each[key].visible(cut)]

    def quarantined(self, cut: Cut) -> frozenset[str]:
        """Signal and event ids that do not count at a cut."""
        if not self._quarantines:
            return _NOTHING
        return frozenset(
            each.target for each in self._quarantines if each.seq <= cut.overlays_seq and each.logged_us <= cut.as_of_us
        )

    def has_support(self, overlay: Overlay, cut: Cut, config: HO3MemoryConfig) -> bool:
        """Whether the sources of an artifact that are not in quarantine would still open its gate."""
        without = self.quarantined(cut)
        count, sessions = 0, set[str]()
        for event_id in dict.fromkeys(overlay.source_event_ids):
            found = self.event(event_id)
            if found is not None and event_id not in without and found[0] not in without:
                count += 1
                sessions.add(found[1].session_id)
        needed, sessions_needed = thresholds(overlay.signal_id, config)
        return count >= needed and len(sessions) >= sessions_needed

    def recorded(self, event_ids: Iterable[str], cut: Cut) -> list[RecordedEvent]:
        """Events with the other signals of their turns, in the order of the ledger; unknown ids are left out."""
        found = sorted(
            ((signal, event) for signal, event in filter(None, map(self.event, event_ids))), key=lambda pair: pair[1].seq
        )
        beside = _signals_of_turns(self._logs, (event.turn_id for _, event in found), cut)
        return [
            RecordedEvent(
                event.event_id,
                signal,
                event.session_id,
                iso_of(event.seen_us),
                event.turn_id or None,
                tuple(other for other in beside.get(event.turn_id, ()) if other != signal),
            )
            for signal, event in found
        ]

    def _note_words(self, payload: Mapping[str, object]) -> None:
        words = payload.get("words")
        if isinstance(words, dict) and not is_sealed(words):
            self._words.update(words)

    def _record(self, key: str, record: OverlayRecord) -> None:
        self._histories.setdefault(key, OverlayHistory()).add(record)
        overlay = record.overlay
        self.record_chars += _RECORD_CHARS + (len(overlay.line) + len(str(overlay.content)) if overlay is not None else 0)


_RECORD_CHARS: Final = 1_000
"""What a record takes besides its text, in characters."""


def _is_consolidated(history: OverlayHistory, cut: Cut, config: HO3MemoryConfig) -> bool:
    """Whether an overlay was logged within the window, even a deactivated one, so the next turn does not relearn it."""
    ends = (each.overlay.window_end for each in history.visible(cut) if each.overlay is not None)
    return any(end is not None and is_within_window(us_of(end, "window_end"), cut.as_of_us, config) for end in ends)


def _signals_of_turns(logs: Mapping[str, SignalLog], turns: Iterable[str], cut: Cut) -> dict[str, list[str]]:
    """The signals of some turns, by turn, in alphabetical order."""
    found: dict[str, list[str]] = {turn: [] for turn in turns if turn}
    for signal_id in sorted(logs):
        for turn in dict.fromkeys(event.turn_id for event in logs[signal_id].events(cut)):
            if turn in found:
                found[turn].append(signal_id)
    return found


def why_erased(payload: Mapping[str, object]) -> str:
    """The reason for a deactivation by an erasure, in words; "": the payload records no erasure."""
    erased = payload.get("erased_subject")
    if erased is None:
        return ""
    return (
        "its subject was erased" if erased == payload.get("subject_id") else f"a source of it, subject {erased!r}, was erased"
    )


def readable_overlay(payload: Mapping[str, object]) -> Mapping[str, object]:
    """An overlay's payload, disabled and without its sealed fields if their key was destroyed; otherwise unchanged."""
    sealed = [name for name, value in payload.items() if is_sealed(value)]
    return {**payload, **dict.fromkeys(sealed), "content": {}, "enabled": False} if sealed else payload
