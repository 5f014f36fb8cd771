"""The bistable gate: has a signal recurred often enough, in enough sessions, and was it not learned already? Pure."""

from dataclasses import dataclass
from typing import Literal

from kitchener.config import HO3MemoryConfig
from kitchener.memory.moments import HOUR_US

GateReason = Literal["crossed", "below_count", "below_sessions", "already_consolidated", "excluded", "blocked", "quarantined"]
"""Why a gate is open or closed."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """The verdict on one signal."""

    signal_id: str
    """Which signal."""
    crossed: bool
    """Whether it is ready to be learned from."""
    count: int
    """Events that count."""
    session_count: int
    """Distinct sessions they came in."""
    already_consolidated: bool
    """Whether it was learned from within the window."""
    reason: GateReason
    """Why."""
    count_threshold: int
    """Events that are needed."""
    session_threshold: int
    """Sessions that are needed."""

    @property
    def progress(self) -> float:
        """How far the gate is, 0 to 1: the lesser of both shares."""
        return min(1.0, self.count / self.count_threshold, self.session_count / self.session_threshold)


def thresholds(signal_id: str, config: HO3MemoryConfig) -> tuple[int, int]:
    """Events and sessions that open the gate of a signal."""
    override = config.gate_overrides.get(signal_id.partition(":")[0])
    if override is not None:
        return override.count, override.sessions
    return config.gate_count_threshold, config.gate_session_threshold


def is_within_window(window_end_us: int, as_of_us: int, config: HO3MemoryConfig) -> bool:
    """Whether what was learned at a moment still keeps its signal from being learned from; microseconds since the epoch."""
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
    """The gate of a signal.

    Args:
        signal_id: which signal
        tally: events and distinct sessions that count
        config: thresholds and exclusions
        is_consolidated: an overlay of the signal has its `window_end` within the last `gate_window_hours`
        is_blocked: somebody deactivated what was learned from it, and said that it shall not come back
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
