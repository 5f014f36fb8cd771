"""Simulates other thresholds of the gate with recorded signals: what would have been learned, how soon, and how steadily. Pure.

For each gate that a turn checked, `recorded_gates.py` reads the counts, and `memory/gate.py` gives the verdict again. Each
setting is simulated by itself: when a gate opens, its signal counts as learned from at once, and what was learned under the
recorded settings is ignored. Explained in `docs/memory.md`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import NamedTuple

from kitchener.config import HO3MemoryConfig
from kitchener.memory.gate import GateReason, is_within_window, judge
from kitchener.memory.signals import decay
from kitchener.memory.timestamps import HOUR_US


@dataclass(frozen=True, slots=True, order=True)
class GateSetting:
    """The thresholds of the gate that a sweep varies, and by which settings sort, in this order.

    They are `gate_count_threshold`, `gate_session_threshold`, `gate_window_hours` and `decay_half_life_hours` of `[memory]`.
    """

    count: int
    sessions: int
    window_hours: int
    half_life_hours: float

    @classmethod
    def of(cls, config: HO3MemoryConfig) -> "GateSetting":
        """The configured setting."""
        return cls(
            config.gate_count_threshold,
            config.gate_session_threshold,
            config.gate_window_hours,
            config.decay_half_life_hours,
        )

    def applied_to(self, config: HO3MemoryConfig) -> HO3MemoryConfig:
        """The configuration with this setting."""
        return config.model_copy(
            update={
                "gate_count_threshold": self.count,
                "gate_session_threshold": self.sessions,
                "gate_window_hours": self.window_hours,
                "decay_half_life_hours": self.half_life_hours,
            }
        )


class GateCheck(NamedTuple):
    """One check of a gate by a turn, with the counts. The signal was not excluded, blocked or in quarantine."""

    signal_id: str
    as_of_us: int
    """The turn's last signal entry, microseconds since the epoch."""
    turn: int
    """The subject's turn, from 1."""
    first_us: int
    """The first event of the signal, microseconds since the epoch."""
    first_turn: int
    """The turn of that event."""
    tally: tuple[int, int]
    """Number of events that count, and of their sessions."""
    imported_end_us: int | None
    """The newest `window_end` of imported overlays of the signal, microseconds since the epoch; None: there were none."""
    recorded: GateReason
    """The verdict under the configured setting, after all that had been learned before."""


class LineFate(NamedTuple):
    """What happened to a recorded learned line."""

    weight: float
    """The weight of its newest overlay when it was learned."""
    is_taken_back: bool
    """Whether a person deactivated it, or put its signal or events in quarantine. False if only a newer line replaced it."""


@dataclass(frozen=True, slots=True)
class SubjectRecord:
    """The recorded signals of one subject."""

    subject_id: str
    events: int
    """Signal events."""
    turns: int
    """Turns with a signal."""
    checks: tuple[GateCheck, ...]
    """Every checked gate that depends on the thresholds, in the order of the ledger."""
    fates: Mapping[str, LineFate] = field(default_factory=dict)
    """The recorded learned lines, by signal."""
    artifacts: int = 0
    """Number of recorded artifacts."""


class Spread(NamedTuple):
    """The median of some numbers and their 90th percentile; both are among the numbers."""

    median: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """The spread of the numbers; None if there are none."""
        ranked = sorted(values)
        return cls(ranked[(len(ranked) - 1) // 2], ranked[-(-9 * len(ranked) // 10) - 1]) if ranked else None

    def as_json(self) -> dict[str, float]:
        return self._asdict()


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """What one setting would have learned from the recorded signals."""

    setting: GateSetting
    learned: int
    """Signals that would have been learned from, counted once for each subject."""
    renewals: int
    """How often a line would have been learned again while it was still shown."""
    flips: int
    """How often a line would have been learned again after it had faded below `salience_floor`."""
    subjects: int
    """Subjects about whom something would have been learned."""
    events: Spread | None
    """Number of a signal's events up to the first opening of its gate."""
    turns: Spread | None
    """Number of the subject's turns from the first event to that opening, both included."""
    hours: Spread | None
    """Hours from the first event to that opening."""
    known: int
    """Signals among `learned` that were also learned from on record."""
    taken_back: int
    """Signals among `known` whose line a person withdrew."""

    @property
    def artifacts(self) -> int:
        """Artifacts that would have been made."""
        return self.learned + self.renewals + self.flips

    def as_json(self) -> dict[str, object]:
        soon = {"events": self.events, "turns": self.turns, "hours": self.hours}
        return {
            **asdict(self.setting),
            "artifacts": self.artifacts,
            "learned": self.learned,
            "renewals": self.renewals,
            "flips": self.flips,
            "subjects": self.subjects,
            "to_first_crossing": {name: spread and spread.as_json() for name, spread in soon.items()},
            "on_record": {"known": self.known, "taken_back": self.taken_back},
        }


def grid(
    current: GateSetting,
    *,
    counts: Sequence[int] = (),
    sessions: Sequence[int] = (),
    windows: Sequence[int] = (),
    half_lives: Sequence[float] = (),
) -> list[GateSetting]:
    """Every combination of the values, and the current setting, ascending. A threshold without values keeps its current one."""
    combinations = product(
        counts or (current.count,),
        sessions or (current.sessions,),
        windows or (current.window_hours,),
        half_lives or (current.half_life_hours,),
    )
    return sorted({current, *(GateSetting(*each) for each in combinations)})


def simulate(subjects: Sequence[SubjectRecord], setting: GateSetting, config: HO3MemoryConfig) -> GateOutcome:
    """What a setting would have learned from the recorded signals.

    Args:
        subjects: the recorded signals
        setting: the thresholds
        config: everything else: exclusions, thresholds of single kinds, `salience_floor`
    """
    config, tally = setting.applied_to(config), _CrossingCounts(_usual_weight(subjects))
    for subject in subjects:
        tally.begin(subject)
        for check in subject.checks:
            if _crosses(check, tally.learned_at.get(check.signal_id), config):
                tally.cross(check, config)
    return tally.outcome(setting)


def _crosses(check: GateCheck, learned_at_us: int | None, config: HO3MemoryConfig) -> bool:
    newest = (
        learned_at_us if check.imported_end_us is None else max(check.imported_end_us, learned_at_us or check.imported_end_us)
    )
    return judge(
        check.signal_id,
        check.tally,
        config,
        is_consolidated=newest is not None and is_within_window(newest, check.as_of_us, config),
        is_blocked=False,
        is_quarantined=False,
    ).crossed


class _CrossingCounts:
    """Counts the openings of gates under one setting."""

    def __init__(self, usual_weight: float) -> None:
        self.learned_at: dict[str, int] = {}
        """When each of the subject's signals was last learned from, microseconds since the epoch."""
        self._usual_weight = usual_weight
        self._fates: Mapping[str, LineFate] = {}
        self._soon: list[tuple[int, int, float]] = []
        self._renewals = self._flips = self._subjects = self._known = self._taken_back = 0

    def begin(self, subject: SubjectRecord) -> None:
        """Starts the next subject."""
        self.learned_at, self._fates = {}, subject.fates

    def cross(self, check: GateCheck, config: HO3MemoryConfig) -> None:
        """Counts an opening of a gate, whose signal is learned from at once."""
        before, fate = self.learned_at.get(check.signal_id), self._fates.get(check.signal_id)
        if before is None:
            self._subjects += not self.learned_at
            hours = (check.as_of_us - check.first_us) / HOUR_US
            self._soon.append((check.tally[0], check.turn - check.first_turn + 1, round(hours, 3)))
            self._known += fate is not None
            self._taken_back += fate is not None and fate.is_taken_back
        else:
            weight = self._usual_weight if fate is None else fate.weight
            left = weight * decay((check.as_of_us - before) / HOUR_US, config.decay_half_life_hours)
            if float(f"{left:.12g}") < config.salience_floor:
                self._flips += 1
            else:
                self._renewals += 1
        self.learned_at[check.signal_id] = check.as_of_us

    def outcome(self, setting: GateSetting) -> GateOutcome:
        """What would have been learned under this setting, summed over all signals."""
        events, turns, hours = (Spread.of([each[n] for each in self._soon]) for n in range(3))
        return GateOutcome(
            setting,
            learned=len(self._soon),
            renewals=self._renewals,
            flips=self._flips,
            subjects=self._subjects,
            events=events,
            turns=turns,
            hours=hours,
            known=self._known,
            taken_back=self._taken_back,
        )


def _usual_weight(subjects: Sequence[SubjectRecord]) -> float:
    """The assumed weight of a line that is not recorded: the median of the recorded ones, else 1."""
    found = Spread.of([fate.weight for subject in subjects for fate in subject.fates.values()])
    return 1.0 if found is None else found.median
