"""What a subject's memory holds: how near each gate is, and which learned lines are in use."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from kitchener.config import HO3MemoryConfig
from kitchener.inspection.shown_text import UNREADABLE, one_line, short_time
from kitchener.memory import GateResult, Overlay, SignalAccumulator
from kitchener.memory.bias import weight_of
from kitchener.memory.signals import Cut
from kitchener.memory.subject_memory import SubjectMemory
from kitchener.records import events
from kitchener.times import iso_text

LineState = Literal["speaks", "deactivated", "expired", "faded"]


_BAR: Final = 8
_LINE_WIDTH: Final = 100


@dataclass(frozen=True, slots=True)
class SignalView:
    """One signal: what it adds up to, and its gate."""

    signal_id: str
    total: SignalAccumulator | None
    """None: it is in quarantine."""
    gate: GateResult

    def as_json(self) -> dict[str, object]:
        total, gate = self.total, self.gate
        return {
            "signal_id": self.signal_id,
            "count": gate.count,
            "sessions": gate.session_count,
            "session_ids": [] if total is None else list(total.session_ids),
            "first_seen": None if total is None else iso_text(total.first_seen),
            "last_seen": None if total is None else iso_text(total.last_seen),
            "decay": None if total is None else total.decay,
            "gate": {
                "state": gate.reason,
                "crossed": gate.crossed,
                "progress": gate.progress,
                "count_threshold": gate.count_threshold,
                "session_threshold": gate.session_threshold,
                "already_consolidated": gate.already_consolidated,
            },
        }

    def as_row(self, window_hours: int) -> dict[str, object]:
        total = self.total
        return {
            "signal": self.signal_id,
            "count": self.gate.count,
            "sessions": self.gate.session_count,
            "last_seen": None if total is None else short_time(total.last_seen.isoformat()),
            "decay": None if total is None else f"{total.decay:.2f}",
            "gate": gate_text(self.gate, window_hours),
        }


def signal_views(subject: SubjectMemory, cut: Cut, config: HO3MemoryConfig) -> Iterator[SignalView]:
    """Every signal as of a cut, in alphabetical order; those in quarantine are among them."""
    for signal_id in subject.signal_ids():
        total = subject.accumulate(signal_id, cut, config.decay_half_life_hours)
        gate = subject.gate(signal_id, cut, config)
        if total is not None or gate.reason == "quarantined":
            yield SignalView(signal_id, total, gate)


@dataclass(frozen=True, slots=True)
class LearnedView:
    """One artifact: what it says and whether it still speaks."""

    overlay: Overlay
    state: LineState
    why: str
    """Why it does not speak; "" where it does."""
    weight: float
    """Its weight as it was set."""
    weight_now: float
    """What decay has left of it."""

    def as_json(self) -> dict[str, object]:
        overlay = self.overlay
        return {
            **{name: getattr(overlay, name) for name in ("artifact_id", "overlay_id", "signal_id")},
            "state": self.state,
            "why": self.why or None,
            "line": overlay.line,
            "artifact_type": overlay.artifact_type,
            "labels": None if overlay.labels is None else {kind: list(found) for kind, found in overlay.labels.items()},
            "scope": overlay.scope,
            "weight": self.weight,
            "weight_now": self.weight_now,
            "learned_at": overlay.consolidation_event_ts or overlay.created_at,
            "expires_at": overlay.expires_at_event_ts,
        }

    def lines(self) -> Iterator[str]:
        """Some lines for a reader."""
        overlay = self.overlay
        yield f"{overlay.key}  {line_text(overlay, _LINE_WIDTH)}"
        yield f"  {overlay.artifact_type or _category(overlay)} from {overlay.signal_id}; {where_it_speaks(overlay)}"
        yield f"  weight {self.weight_now:.2f} now, {self.weight:.2f} when set; learned {learned_at(overlay)}"
        if self.state != "speaks":
            yield f"  {self.state}: {one_line(self.why, _LINE_WIDTH)}"


def learned_views(subject: SubjectMemory, cut: Cut, config: HO3MemoryConfig) -> Iterator[LearnedView]:
    """Everything that was learned as of a cut, in the order in which it was."""
    return (learned_view(each, subject, cut, config) for each in subject.overlays(cut))


def learned_view(overlay: Overlay, subject: SubjectMemory, cut: Cut, config: HO3MemoryConfig) -> LearnedView:
    """One artifact as of a cut."""
    weight, now = weight_of(overlay.as_mapping()), overlay.salience(cut.as_of_us, config.decay_half_life_hours)
    if not overlay.enabled:
        return LearnedView(overlay, "deactivated", _last_reason(overlay.key, subject, cut), weight, now)
    if overlay.is_expired(cut.as_of_us):
        return LearnedView(overlay, "expired", f"at {overlay.expires_at_event_ts}", weight, now)
    if now < config.salience_floor:
        why = f"its weight {now:.3g} is below salience_floor = {config.salience_floor:g}"
        return LearnedView(overlay, "faded", why, weight, now)
    return LearnedView(overlay, "speaks", "", weight, now)


def _last_reason(key: str, subject: SubjectMemory, cut: Cut) -> str:
    visible = subject.history(key, cut)
    newest = visible[-1] if visible else None
    if newest is None or newest.entry_type != events.HO3_OVERLAY_DEACTIVATED:
        return "it was recorded as disabled, or its text is sealed and cannot be opened"
    return f"{newest.reason or UNREADABLE}{', its signal is blocked' if newest.blocks else ''}"


def gate_text(gate: GateResult, window_hours: int) -> str:
    """How near a gate is, as a bar and in words."""
    counts = f"{gate.count}/{gate.count_threshold} events, {gate.session_count}/{gate.session_threshold} sessions"
    words = {
        "crossed": f"{counts}: open, learned from after the next such turn",
        "already_consolidated": f"learned from within the last {window_hours:,} h",
        "excluded": "counted, never learned from (gate_exclude)",
        "blocked": "blocked: what was learned from it was deactivated for good",
        "quarantined": "in quarantine, does not count",
    }.get(gate.reason, counts)
    return f"{_bar(gate)} {words}"


def _bar(gate: GateResult) -> str:
    """Full only where nothing is missing."""
    if gate.is_barred:
        return "·" * _BAR
    if gate.reason in ("crossed", "already_consolidated"):
        return "█" * _BAR
    done = min(_BAR - 1, round(gate.progress * _BAR))
    return "█" * done + "░" * (_BAR - done)


def line_text(overlay: Overlay, width: int) -> str:
    return one_line(overlay.line, width) or (UNREADABLE if overlay.is_erased else "(no text)")


def where_it_speaks(overlay: Overlay) -> str:
    """In which turns its line is shown."""
    if overlay.scope == "global":
        return "shown in every turn"
    if overlay.labels is None:
        return "shown in turns without labels" if overlay.artifact_id is None else "its labels are erased, or sealed"
    named = [f"{kind} {', '.join(found)}" for kind, found in sorted(overlay.labels.items()) if found]
    return f"shown in turns of {' or '.join(named)}" if named else "shown in no turn, it has no labels"


def learned_at(overlay: Overlay) -> str:
    """When it was learned, for a reader."""
    return short_time(overlay.consolidation_event_ts or overlay.created_at or "at an unknown time")


def _category(overlay: Overlay) -> str:
    return one_line(str(overlay.content.get("category") or "imported"), 40)
