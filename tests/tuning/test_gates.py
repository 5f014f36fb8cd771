"""What other thresholds of the gate would have learned, against a recount of its own and for every life (docs/memory.md)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.config import GateThresholds, HO3MemoryConfig
from kitchener.memory.gate import GateReason
from kitchener.tuning import GateCheck, GateOutcome, GateSetting, LineFate, Spread, SubjectRecord, grid, simulate
from tests.shared.property_examples import examples

HOUR = 3_600_000_000
SIGNALS = ("tool:read", "intent:question", "outcome:success")
CURRENT = GateSetting.of(HO3MemoryConfig())


class Event(NamedTuple):
    """One signal, each in a turn of its own."""

    hours: int
    signal_id: str
    session: int
    is_blocked: bool = False
    """Somebody had blocked or quarantined its signal by then."""


lives = st.lists(
    st.builds(Event, st.integers(0, 400), st.sampled_from(SIGNALS), st.integers(0, 4), st.sampled_from([False] * 9 + [True])),
    max_size=60,
).map(lambda events: sorted(events, key=lambda event: event.hours))
knobs = st.builds(
    GateSetting, st.integers(1, 6), st.integers(1, 4), st.sampled_from([1, 24, 168]), st.sampled_from([1.0, 50.0])
)


def record_of(events: Sequence[Event], **fates: LineFate) -> SubjectRecord:
    """The record of a subject who gave these signals."""
    checks, seen = [], dict[str, list[tuple[int, Event]]]()
    for turn, event in enumerate(events, 1):
        mine = seen.setdefault(event.signal_id, [])
        mine.append((turn, event))
        tally = (len(mine), len({each.session for _, each in mine}))
        first_turn, first = mine[0]
        recorded: GateReason = "below_count"
        if event.is_blocked:
            continue
        checks.append(
            GateCheck(
                event.signal_id,
                event.hours * HOUR,
                turn,
                first.hours * HOUR,
                first_turn,
                tally,
                None,
                recorded,
            )
        )
    known = {name.replace("_", ":", 1): fate for name, fate in fates.items()}
    return SubjectRecord("ada", len(events), len(events), tuple(checks), known)


def crossings(events: Sequence[Event], setting: GateSetting) -> list[tuple[int, str]]:
    """Where the gates open, recounted from the definition: enough events, enough sessions, nothing learned in the window."""
    found: list[tuple[int, str]] = []
    for n, event in enumerate(events):
        mine = [each for each in events[: n + 1] if each.signal_id == event.signal_id]
        learned = [hours for hours, signal_id in found if signal_id == event.signal_id]
        is_open = (
            event.signal_id != "outcome:success"
            and not event.is_blocked
            and len(mine) >= setting.count
            and len({each.session for each in mine}) >= setting.sessions
            and all(event.hours - hours > setting.window_hours for hours in learned)
        )
        if is_open:
            found.append((event.hours, event.signal_id))
    return found


@settings(max_examples=examples(few=60, many=1_000))
@given(lives, knobs)
def test_every_count_is_the_one_that_the_definition_gives(events: list[Event], setting: GateSetting) -> None:
    found, outcome = crossings(events, setting), simulate([record_of(events)], setting, HO3MemoryConfig())
    signals = {signal_id for _, signal_id in found}
    assert (outcome.artifacts, outcome.learned) == (len(found), len(signals))
    assert outcome.renewals + outcome.flips == len(found) - len(signals)
    assert outcome.subjects == bool(found)
    assert (outcome.events is None) == (outcome.turns is None) == (outcome.hours is None) == (not found)


@settings(max_examples=examples(few=60, many=1_000))
@given(st.lists(lives, max_size=3), knobs, st.integers(0, 3), st.integers(0, 3))
def test_lower_thresholds_never_learn_less_nor_later(
    people: list[list[Event]], setting: GateSetting, fewer_events: int, fewer_sessions: int
) -> None:
    """Whatever is open under the higher ones is open under the lower ones, and taking the first open gate after each window
    never falls behind."""
    subjects = [record_of(events) for events in people]
    lower = replace(setting, count=max(1, setting.count - fewer_events), sessions=max(1, setting.sessions - fewer_sessions))
    high, low = (simulate(subjects, each, HO3MemoryConfig()) for each in (setting, lower))
    assert low.artifacts >= high.artifacts
    assert low.learned >= high.learned
    assert low.subjects >= high.subjects


@settings(max_examples=examples(few=40, many=1_000))
@given(lives, knobs, st.integers(1, 300))
def test_a_longer_window_never_makes_more_artifacts_and_learns_the_same_signals(
    events: list[Event], setting: GateSetting, more: int
) -> None:
    short, long = (
        simulate([record_of(events)], each, HO3MemoryConfig())
        for each in (setting, replace(setting, window_hours=setting.window_hours + more))
    )
    assert long.artifacts <= short.artifacts
    assert (long.learned, long.events, long.hours) == (short.learned, short.events, short.hours)


def outcome_of(events: Sequence[Event], config: HO3MemoryConfig | None = None, **changes: Any) -> GateOutcome:
    config = config or HO3MemoryConfig(gate_count_threshold=2, gate_session_threshold=1, gate_window_hours=10)
    return simulate([record_of(events)], replace(GateSetting.of(config), **changes), config)


def test_a_line_that_faded_and_comes_back_flips_and_one_that_still_speaks_is_renewed() -> None:
    """Its weight is 1 where the record does not say another; with a half-life of 10 hours it is below 0.05 after 44."""
    often = [Event(0, "tool:read", 0), Event(1, "tool:read", 0), Event(20, "tool:read", 0), Event(80, "tool:read", 0)]
    found = outcome_of(often, half_life_hours=10.0)
    assert (found.artifacts, found.learned, found.renewals, found.flips) == (3, 1, 1, 1)
    assert (outcome_of(often).renewals, outcome_of(often).flips) == (2, 0)


def test_a_line_fades_from_the_weight_that_it_had_on_record() -> None:
    events = [Event(0, "tool:read", 0), Event(1, "tool:read", 0), Event(21, "tool:read", 0)]
    config = HO3MemoryConfig(gate_count_threshold=2, gate_session_threshold=1, gate_window_hours=10)
    setting = replace(GateSetting.of(config), half_life_hours=10.0)
    heavy, light = (simulate([record_of(events, tool_read=LineFate(weight, False))], setting, config) for weight in (1.0, 0.15))
    assert (heavy.renewals, heavy.flips) == (1, 0)
    assert (light.renewals, light.flips) == (0, 1)


def test_how_soon_is_counted_from_the_first_event_to_the_first_crossing() -> None:
    events = [
        Event(0, "outcome:success", 0),
        Event(5, "tool:read", 0),
        Event(6, "intent:question", 0),
        Event(9, "tool:read", 0),
    ]
    found = outcome_of(events)
    assert (found.events, found.turns, found.hours) == (Spread(2, 2), Spread(3, 3), Spread(4.0, 4.0))


def test_taken_back_counts_what_the_record_can_say_of_the_same_signals() -> None:
    events = [Event(n, signal_id, 0) for n in range(2) for signal_id in ("tool:read", "intent:question")]
    config = HO3MemoryConfig(gate_count_threshold=2, gate_session_threshold=1)
    found = simulate(
        [record_of(events, tool_read=LineFate(0.8, True), tool_other=LineFate(0.8, True))], GateSetting.of(config), config
    )
    assert (found.learned, found.known, found.taken_back) == (2, 1, 1)


def test_what_was_imported_keeps_its_signal_closed_for_the_window() -> None:
    record = record_of([Event(0, "tool:read", 0), Event(5, "tool:read", 0), Event(20, "tool:read", 0)])
    imported = replace(record, checks=tuple(each._replace(imported_end_us=0) for each in record.checks))
    config = HO3MemoryConfig(gate_count_threshold=1, gate_session_threshold=1, gate_window_hours=10)
    assert [simulate([each], GateSetting.of(config), config).artifacts for each in (record, imported)] == [2, 1]


def test_kinds_with_thresholds_of_their_own_do_not_move_with_the_sweep() -> None:
    config = HO3MemoryConfig(gate_overrides={"tool": GateThresholds(count=2, sessions=1)})
    events = [Event(n, "tool:read", 0) for n in range(2)]
    assert [outcome_of(events, config, count=count).artifacts for count in (1, 2, 9)] == [1, 1, 1]


@given(
    st.lists(st.integers(1, 9), max_size=4), st.lists(st.integers(1, 9), max_size=4), st.lists(st.integers(1, 99), max_size=3)
)
def test_a_grid_has_every_combination_once_in_order_and_the_current_setting(
    counts: list[int], sessions: list[int], windows: list[int]
) -> None:
    found = grid(CURRENT, counts=counts, sessions=sessions, windows=windows)
    assert found == sorted(set(found))
    assert CURRENT in found
    wanted = {
        GateSetting(count, number, window, CURRENT.half_life_hours)
        for count in counts or [CURRENT.count]
        for number in sessions or [CURRENT.sessions]
        for window in windows or [CURRENT.window_hours]
    }
    assert set(found) == wanted | {CURRENT}


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_a_spread_is_the_middle_and_what_nine_of_ten_do_not_exceed(values: list[int]) -> None:
    found = Spread.of(values)
    assert found is not None
    assert sum(each <= found.median for each in values) * 2 >= len(values)
    assert sum(each >= found.median for each in values) * 2 >= len(values)
    assert sum(each <= found.p90 for each in values) * 10 >= 9 * len(values)
    assert found.p90 in values
    smaller = [each for each in values if each < found.p90]
    assert not smaller or len(smaller) * 10 < 9 * len(values)
    assert Spread.of([]) is None
