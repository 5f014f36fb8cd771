"""Turns the counts of a signal into the verdict of the bistable gate: whether consolidation may learn from it. Pure.

A gate opens for a signal with enough events in enough sessions that was not learned from recently.
"""

from dataclasses import dataclass
from typing import Literal

from kitchener.config import HO3MemoryConfig
from kitchener.memory.timestamps import HOUR_US

GateReason = Literal["crossed", "below_count", "below_sessions", "already_consolidated", "excluded", "blocked", "quarantined"]
"""Why a gate is open (`crossed`) or closed (the other values)."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """The verdict on one signal."""

    signal_id: str
    """The signal's id, `kind:value`."""
    crossed: bool
    """Whether the gate is open, so that consolidation may learn from the signal."""
    count: int
    """Number of counted events."""
    session_count: int
    """Number of distinct sessions with a counted event."""
    already_consolidated: bool
    """Whether consolidation learned from the signal within the window."""
    reason: GateReason
    """Why the gate is open or closed."""
    count_threshold: int
    """Number of events that open the gate."""
    session_threshold: int
    """Number of sessions that open the gate."""

    @property
    def is_barred(self) -> bool:
        """Whether the gate stays closed however often the signal recurs."""
        return self.reason in ("excluded", "blocked", "quarantined")

    @property
    def progress(self) -> float:
        """Progress toward the thresholds, 0 to 1: the smaller of the two ratios."""
        return min(1.0, self.count / self.count_threshold, self.session_count / self.session_threshold)


def thresholds(signal_id: str, config: HO3MemoryConfig) -> tuple[int, int]:
    """Numbers of events and of sessions that open the gate of a signal."""
    override = config.gate_overrides.get(signal_id.partition(":")[0])
    if override is not None:
        return override.count, override.sessions
    return config.gate_count_threshold, config.gate_session_threshold


def is_within_window(window_end_us: int, as_of_us: int, config: HO3MemoryConfig) -> bool:
    """Whether an overlay with this `window_end` still closes its signal's gate; times are microseconds since the epoch."""
    return window_end_us >= as_of_us - config.gate_window_hours * HOUR_US


def judge(
    signal_id: str,
    tally: tuple[int, int],
    config: HO3MemoryConfig,
    *,
    is_consolidated: bool,
    is_blocked: bool,
    is_quarantined: bool,
) -> GateResult:
    """Decides whether a signal's gate is open.

    Args:
        signal_id: the signal, `kind:value`
        tally: numbers of counted events and of distinct sessions
        config: thresholds and exclusions
        is_consolidated: an overlay of the signal has its `window_end` within the last `gate_window_hours`
        is_blocked: an artifact of the signal was deactivated with the order not to learn from the signal again
        is_quarantined: the signal itself is in quarantine
    """
    count, sessions = tally
    needed, sessions_needed = thresholds(signal_id, config)
    reason: GateReason
    if is_quarantined:
        reason = "quarantined"
    elif is_blocked:
        reason = "blocked"
    elif signal_id in config.gate_exclude:
        reason = "excluded"
    elif is_consolidated:
        reason = "already_consolidated"
    elif count < needed:
        reason = "below_count"
    elif sessions < sessions_needed:
        reason = "below_sessions"
    else:
        reason = "crossed"
    return GateResult(signal_id, reason == "crossed", count, sessions, is_consolidated, reason, needed, sessions_needed)
