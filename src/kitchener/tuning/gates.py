"""Other thresholds for the gate, over signals that are on record: what would have been learned, how soon, how steadily. Pure.

The verdicts are those of `memory/gate.py`, asked again for each gate that a turn looked at; what each gate had before it is
read by `signals.py`. A setting is worked out on its own: where a gate opens, its signal counts as learned from at once, and
what the ledger says was learned under the recorded settings plays no part. Explained in `docs/memory.md`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from typing import Any, NamedTuple

from kitchener.config import HO3MemoryConfig
from kitchener.memory.gate import GateReason, is_within_window, judge
from kitchener.memory.signals import decay
from kitchener.memory.timestamps import HOUR_US


@dataclass(frozen=True, slots=True, order=True)
class Setting:
    """The knobs of the gate that are swept; settings are ordered by them, in this order."""

    count: int
    """`gate_count_threshold`"""
    sessions: int
    """`gate_session_threshold`"""
    window_hours: int
    """`gate_window_hours`"""
    half_life_hours: float
    """`decay_half_life_hours`"""

    @classmethod
    def of(cls, config: HO3MemoryConfig) -> "Setting":
        """The one that is configured."""
        return cls(
            config.gate_count_threshold,
            config.gate_session_threshold,
            config.gate_window_hours,
            config.decay_half_life_hours,
        )

    def applied_to(self, config: HO3MemoryConfig) -> HO3MemoryConfig:
        """The configuration with these knobs."""
        return config.model_copy(
            update={
                "gate_count_threshold": self.count,
                "gate_session_threshold": self.sessions,
                "gate_window_hours": self.window_hours,
                "decay_half_life_hours": self.half_life_hours,
            }
        )


class Check(NamedTuple):
    """One gate as a turn looked at it, and what it had before it. It was neither excluded nor blocked nor in quarantine."""

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
    """Events that count, and distinct sessions they came in."""
    imported_end_us: int | None
    """The newest `window_end` of what had been imported about the signal; None: nothing."""
    recorded: GateReason
    """The verdict under the configured settings, with what was learned on record by then."""


class Fate(NamedTuple):
    """What became of a line that was learned from a signal on record."""

    weight: float
    """What its newest overlay weighed when it was learned."""
    is_taken_back: bool
    """Somebody deactivated it, or put its signal or events in quarantine; superseded by a newer one is not that."""


@dataclass(frozen=True, slots=True)
class SubjectRecord:
    """What is on record of one subject's signals."""

    subject_id: str
    events: int
    """Signal events."""
    turns: int
    """Turns that gave one."""
    checks: tuple[Check, ...]
    """Every gate that was looked at and that thresholds decide, in the order of the ledger."""
    fates: Mapping[str, Fate] = field(default_factory=dict)
    """What was learned on record, by signal."""
    artifacts: int = 0
    """Artifacts on record."""


class Spread(NamedTuple):
    """The middle of some numbers, and the one that nine of ten do not exceed; both are among them."""

    median: float
    p90: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread | None":
        """None where there are no numbers."""
        ranked = sorted(values)
        return cls(ranked[(len(ranked) - 1) // 2], ranked[-(-9 * len(ranked) // 10) - 1]) if ranked else None

    def as_json(self) -> dict[str, float]:
        """Both by name."""
        return self._asdict()


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """What one setting would have come to, given the same signals."""

    setting: Setting
    learned: int
    """Signals that would have been learned from, each once for each subject."""
    renewals: int
    """Times that a line would have been learned anew while it still spoke."""
    flips: int
    """Times that a line would have come back: it had faded below `salience_floor`, then its gate opened again."""
    subjects: int
    """Subjects of whom something would have been learned."""
    events: Spread | None
    """Events from the first of a signal to its first crossing."""
    turns: Spread | None
    """The subject's turns, from that of the first event to that of the crossing, both included."""
    hours: Spread | None
    """Hours in between."""
    known: int
    """Signals among `learned` that were learned from on record too."""
    taken_back: int
    """Signals among `known` whose line somebody took back."""

    @property
    def artifacts(self) -> int:
        """Artifacts that would have been made."""
        return self.learned + self.renewals + self.flips

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON types."""
        names = ("artifacts", "learned", "renewals", "flips", "subjects")
        soon = {name: getattr(self, name) for name in ("events", "turns", "hours")}
        return {
            **asdict(self.setting),
            **{name: getattr(self, name) for name in names},
            "to_first_crossing": {name: spread and spread.as_json() for name, spread in soon.items()},
            "on_record": {"known": self.known, "taken_back": self.taken_back},
        }


def grid(
    current: Setting,
    *,
    counts: Sequence[int] = (),
    sessions: Sequence[int] = (),
    windows: Sequence[int] = (),
    half_lives: Sequence[float] = (),
) -> list[Setting]:
    """Every combination of some values, the current setting among them, in ascending order; no values: the current one's."""
    ways = product(
        counts or (current.count,),
        sessions or (current.sessions,),
        windows or (current.window_hours,),
        half_lives or (current.half_life_hours,),
    )
    return sorted({current, *(Setting(*way) for way in ways)})


def simulate(subjects: Sequence[SubjectRecord], setting: Setting, config: HO3MemoryConfig) -> GateOutcome:
    """What a setting would have made of the recorded signals.

    Args:
        subjects: what is on record
        setting: the knobs
        config: everything else: exclusions, thresholds of single kinds, the floor
    """
    config, tally = setting.applied_to(config), _Tally(_usual_weight(subjects))
    for subject in subjects:
        tally.begin(subject)
        for check in subject.checks:
            if _crosses(check, tally.learned_at.get(check.signal_id), config):
                tally.cross(check, config)
    return tally.outcome(setting)


def _crosses(check: Check, learned_at_us: int | None, config: HO3MemoryConfig) -> bool:
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


class _Tally:
    """What a setting comes to, crossing by crossing."""

    def __init__(self, usual_weight: float) -> None:
        self.learned_at: dict[str, int] = {}
        """When each signal of the subject was learned from last."""
        self._usual_weight = usual_weight
        self._fates: Mapping[str, Fate] = {}
        self._soon: list[tuple[int, int, float]] = []
        self._renewals = self._flips = self._subjects = self._known = self._taken_back = 0

    def begin(self, subject: SubjectRecord) -> None:
        """The next subject's crossings follow."""
        self.learned_at, self._fates = {}, subject.fates

    def cross(self, check: Check, config: HO3MemoryConfig) -> None:
        """A gate opened, and its signal is learned from at once."""
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

    def outcome(self, setting: Setting) -> GateOutcome:
        """The sum."""
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
    """What a line weighs of which the record does not say it: the middle of those on record, else 1."""
    found = Spread.of([fate.weight for subject in subjects for fate in subject.fates.values()])
    return 1.0 if found is None else found.median
