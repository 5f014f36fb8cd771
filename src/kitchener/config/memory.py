"""Defines the settings of `[memory]`, the long-term memory."""

from typing import Annotated

from pydantic import Field, StringConstraints

from kitchener.config.settings_parser import Name, Positive, Settings


class GateThresholds(Settings):
    """`[memory.gate_overrides.<kind>]`: the gate of one kind of signal."""

    count: Positive
    """Events of a signal that open its gate."""
    sessions: Positive
    """Distinct sessions of those events that open its gate."""


SIGNAL_KINDS = ("intent", "tool", "domain", "task", "outcome")
"""The kinds of signals that are always known."""


class HO3MemoryConfig(Settings):
    """`[memory]`: what recurs often enough to be learned, and how long it lasts."""

    enabled: bool = False
    """Whether memory opens although no agent class has `ho3_enabled`, so that the program can read and write it."""
    memory_dir: str | None = None
    """Directory of `signals.jsonl` and `overlays.jsonl`. None: `HOT/memory` under `plane_root`."""
    gate_count_threshold: Positive = 5
    """Events of one signal that open its gate."""
    gate_session_threshold: Positive = 3
    """Distinct sessions of those events that open its gate, so that one long conversation teaches nothing."""
    gate_window_hours: Annotated[int, Field(ge=1, le=87_600)] = 168
    """How long a gate stays closed after its signal was consolidated, hours. A week."""
    decay_half_life_hours: Annotated[float, Field(gt=0, le=876_000, allow_inf_nan=False)] = 336.0
    """Time after which the weight of a signal or a learned line has halved, hours. Two weeks."""
    salience_floor: Annotated[float, Field(ge=0, le=1)] = 0.05
    """Weight, after decay, below which a learned line is no longer shown."""
    gate_exclude: tuple[Name, ...] = ("outcome:success",)
    """Signals that are counted but never consolidated. Ordinary success recurs in every turn and would teach nothing."""
    gate_overrides: dict[Name, GateThresholds] = Field(default_factory=dict)
    """Thresholds of single kinds of signals, by kind."""
    custom_kinds: tuple[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,31}$")], ...] = ()
    """Further kinds of signals, which a program may log, besides intent, tool, domain, task and outcome."""
    supersede_on_renewal: bool = True
    """Whether a new artifact of a signal deactivates the signal's earlier ones. Without it near-duplicates pile up."""
    max_line_chars: Annotated[int, Field(ge=16, le=2_000)] = 240
    """Longest learned line, characters. A longer one is refused."""
    resident_events: Annotated[int, Field(ge=1_000, le=1_000_000_000_000)] = 200_000
    """Signal events kept in memory; 128 characters of learned lines count as one. Beyond it, the subjects unused for
    longest are evicted and read again when needed."""
