"""`kitchener memory tune`: shows what other gate thresholds would have learned from recorded signals. Takes no lock."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Annotated, Final, TypeVar

import anyio.to_thread
from cyclopts import Parameter

from kitchener.cli.exits import OK
from kitchener.cli.memory.agent_memory import AgentMemory
from kitchener.cli.options import NO_OPTIONS, JsonFlag, Options
from kitchener.cli.terminal.output import print_json, print_table, print_text
from kitchener.cli.terminal.progress import progress_bar
from kitchener.cli.terminal.stop_signals import run_to_end
from kitchener.config import HO3MemoryConfig
from kitchener.errors import CallerError, NotOnRecord
from kitchener.memory import MemoryReader
from kitchener.plain_names import counted, quoted
from kitchener.tuning import GateOutcome, GateRecord, GateSetting, Spread, grid, read_gate_record, simulate

AT_MOST: Final = 1_000
"""Most settings of one sweep."""
_MOST_EVENTS: Final = 100_000
_MOST_HOURS: Final = 87_600
_MOST_HALF_LIFE: Final = 876_000
_PART: Final = re.compile(r"(\d{1,7})(?:\.\.(\d{1,7}))?", re.ASCII)
N = TypeVar("N", int, float)


def tune(
    subject: Annotated[str | None, Parameter(help="Only this subject's signals. Default: those of all subjects.")] = None,
    *,
    options: Options = NO_OPTIONS,
    counts: Annotated[
        str | None, Parameter(name="--count", help="Values of gate_count_threshold, such as 2..8 or 3,5,10.")
    ] = None,
    sessions: Annotated[
        str | None, Parameter(name="--sessions", help="Values of gate_session_threshold, such as 1..4.")
    ] = None,
    windows: Annotated[
        str | None,
        Parameter(name="--window", help="Values of gate_window_hours, such as 24,168,336. Default: as configured."),
    ] = None,
    half_lives: Annotated[
        str | None, Parameter(name="--half-life", help="Values of decay_half_life_hours. Default: as configured.")
    ] = None,
    json: JsonFlag = False,
) -> int:
    """Show what other thresholds of the gate would have learned from the recorded signals, how soon, and how steadily.

    Calls no model. Without ranges it tries values near the configured thresholds. Works while a server runs.

    For example:

        kitchener memory tune ada
        kitchener memory tune --count 2..8 --sessions 1..4
        kitchener memory tune --window 24,168 --half-life 24,336 --json
    """

    async def work() -> int:
        place = AgentMemory.of(options)
        settings = _settings(GateSetting.of(place.config), counts, sessions, windows, half_lives)
        async with place.reader() as reader:
            if reader is None:
                remedy = "" if place.is_on else f"; {place.how_to_turn_on()}"
                raise NotOnRecord(f"no signal is on record for agent class {place.agent_class!r}{remedy}")
            sweep = Sweep(place.config, subject, await _read(reader, place.agent_class, subject))
        await sweep.run(settings)
        if json:
            print_json({"agent_class": place.agent_class, **sweep.as_json()})
        else:
            sweep.tell(place.agent_class)
        return OK

    return run_to_end(work)


def _settings(current: GateSetting, *texts: str | None) -> list[GateSetting]:
    """The settings to be tried."""
    counts, sessions, windows, half_lives = texts
    near_count = range(max(1, current.count - 3), current.count + 4)
    near_sessions = range(max(1, current.sessions - 2), current.sessions + 2)
    is_default = not any(texts)
    found = grid(
        current,
        counts=_values("--count", counts, _MOST_EVENTS, int) or (near_count if is_default else ()),
        sessions=_values("--sessions", sessions, _MOST_EVENTS, int) or (near_sessions if is_default else ()),
        windows=_values("--window", windows, _MOST_HOURS, int),
        half_lives=_values("--half-life", half_lives, _MOST_HALF_LIFE, float),
    )
    if len(found) > AT_MOST + 1:  # besides the current one
        raise CallerError(f"these ranges make {len(found):,} settings: expected at most {AT_MOST:,}; take fewer values of each")
    return found


def _values(option: str, text: str | None, most: int, number: Callable[[int], N]) -> list[N]:
    """Parses a list of values such as `2..8` or `3,5,8..10`.

    Raises:
        CallerError: the list is malformed, a range runs backwards, or a value is out of bounds
    """
    if text is None:
        return []
    values: dict[int, None] = {}
    for part in text.split(","):
        found = _PART.fullmatch(part.strip())
        first, last = (int(found[1]), int(found[2] or found[1])) if found is not None else (0, 0)
        if not 1 <= first <= last <= most:
            raise CallerError(
                f"{option} {quoted(text, 60)}: expected whole numbers from 1 to {most:,}, as in 3, 2..8 (upwards) or 3,5,8..10"
            )
        if last - first >= AT_MOST:
            raise CallerError(f"{option} {quoted(text, 60)}: expected at most {AT_MOST:,} values")
        values |= dict.fromkeys(range(first, last + 1))
    return [number(each) for each in values]


async def _read(reader: MemoryReader, agent_class: str, subject: str | None) -> GateRecord:
    async with progress_bar("signals, read twice", 2 * reader.signals.position) as seen:
        return await read_gate_record(reader, agent_class, subject, seen=seen.add)


@dataclass(slots=True)
class Sweep:
    """Simulates several settings with one record."""

    config: HO3MemoryConfig
    subject_id: str | None
    record: GateRecord
    outcomes: Sequence[GateOutcome] = ()

    async def run(self, settings: Sequence[GateSetting]) -> None:
        """Simulates each setting in a thread. An interrupt takes effect between two settings."""
        outcomes: list[GateOutcome] = []
        async with progress_bar("settings", len(settings), outcomes.__len__):
            for setting in settings:
                outcome = await anyio.to_thread.run_sync(simulate, self.record.subjects, setting, self.config)
                outcomes.append(outcome)
        self.outcomes = outcomes

    def as_json(self) -> dict[str, object]:
        current = GateSetting.of(self.config)
        return {
            "subject_id": self.subject_id,
            "given": "the same signals",
            "on_record": self._on_record(),
            "own_thresholds": {kind: each.model_dump() for kind, each in sorted(self.config.gate_overrides.items())},
            "settings": [{"current": each.setting == current, **each.as_json()} for each in self.outcomes],
        }

    def _on_record(self) -> dict[str, int]:
        subjects = self.record.subjects
        return {
            "subjects": len(subjects),
            "sealed_subjects": self.record.sealed,
            "signals": sum(each.events for each in subjects),
            "turns": sum(each.turns for each in subjects),
            "gates": sum(len(each.checks) for each in subjects),
            "crossings": self.record.crossings,
            "artifacts": sum(each.artifacts for each in subjects),
            "taken_back": sum(fate.is_taken_back for each in subjects for fate in each.fates.values()),
        }

    def tell(self, agent_class: str) -> None:
        """Prints the result as a table."""
        found = self._on_record()
        whose = counted(found["subjects"], "subject") if self.subject_id is None else self.subject_id
        print_text(
            f"{whose} ({agent_class}): {counted(found['signals'], 'signal')} in {counted(found['turns'], 'turn')};"
            f" on record {counted(found['artifacts'], 'artifact')}, {found['taken_back']:,} taken back"
        )
        rows = [_row(each, GateSetting.of(self.config)) for each in self.outcomes]
        knobs = [knob.name for knob in fields(GateSetting)]
        swept = [name for name in knobs if len({row[name] for row in rows}) > 1 or name in ("count", "sessions")]
        print_table(("·", *swept, *_COLUMNS), rows)
        for line in self._notes():
            print_text(line)

    def _notes(self) -> Iterator[str]:
        yield "given the same signals: each crossing counts as learned from at once; `>` is the current setting"
        yield "events, turns, hours: from a signal's first event to its first crossing, median / nine of ten within"
        if self.config.gate_overrides:
            kinds = ", ".join(sorted(self.config.gate_overrides))
            yield f"thresholds of their own (gate_overrides), which the sweep does not move: {kinds}"
        if self.record.sealed:
            sealed = counted(self.record.sealed, "subject")
            yield f"left out, because their signals are sealed and the key is missing: {sealed}"


_COLUMNS: Final = ("artifacts", "learned", "renewals", "flips", "subjects", "events", "turns", "hours", "taken_back")


def _row(outcome: GateOutcome, current: GateSetting) -> dict[str, object]:
    setting = outcome.setting
    return {
        **asdict(setting),
        "half_life_hours": f"{setting.half_life_hours:g}",
        "·": ">" if setting == current else "",
        **{name: getattr(outcome, name) for name in ("artifacts", "learned", "renewals", "flips", "subjects")},
        **{name: _spread(getattr(outcome, name)) for name in ("events", "turns", "hours")},
        "taken_back": f"{outcome.taken_back} of {outcome.known}" if outcome.known else None,
    }


def _spread(spread: Spread | None) -> str | None:
    return None if spread is None else f"{_short(spread.median)} / {_short(spread.p90)}"


def _short(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.2g}" if value < 1 else f"{value:,.1f}"
