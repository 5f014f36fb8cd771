"""What holds of the memory for every life: three ways to work out the same memory, and no way from one subject to another."""

import re
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.errors import CallerError, InvalidSignal
from kitchener.memory import HO3Memory, MemoryReader, select_biases
from kitchener.memory.bias import score
from kitchener.memory.learned_lines import problem_of, tidy
from kitchener.memory.signals import normalise, normalise_value
from kitchener.times import datetime_of
from tests.memory.shared.kit import ADA, BO, HOUR, NOON, SetClock, at, learned, open_memory
from tests.memory.shared.oracle import Files, compare, rounded
from tests.shared.property_examples import examples

SIGNALS = ["tool:read_file", "intent:question", "outcome:success"]
SETTINGS: dict[str, Any] = {
    "gate_count_threshold": 3,
    "gate_session_threshold": 2,
    "gate_window_hours": 24,
    "decay_half_life_hours": 20.0,
    "salience_floor": 0.3,
}

subjects = st.sampled_from([ADA, BO])
signals = st.sampled_from(SIGNALS)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("signal"), subjects, signals, st.integers(0, 2), st.sampled_from([None, "EVT-1", "EVT-2", "EVT-3"])),
        st.tuples(st.just("signal"), subjects, signals, st.integers(0, 2), st.none()),
        st.tuples(st.just("overlay"), subjects, signals, st.sampled_from([0.2, 0.5, 1.0]), st.sampled_from([None, 5, 50])),
        st.tuples(st.just("deactivate"), subjects, st.integers(0, 3), st.booleans()),
        st.tuples(st.just("weight"), subjects, st.integers(0, 3), st.sampled_from([0.0, 0.4, 1.0])),
        st.tuples(st.just("deactivate at"), subjects, st.integers(0, 3), st.sampled_from([-60, -2, 3, 40])),
        st.tuples(st.just("weight at"), subjects, st.integers(0, 3), st.sampled_from([-60, -2, 3, 40])),
        st.tuples(st.just("quarantine"), subjects, st.sampled_from([*SIGNALS, "EVT-1", "EVT-2"])),
        st.tuples(st.just("wait"), st.sampled_from([1, 7, 23, 60])),
        st.tuples(st.just("step back"), st.sampled_from([1, 30])),
    ),
    min_size=1,
    max_size=40,
)


async def decide(memory: HO3Memory, decision: str, artifact_id: str, hours: float, value: Any, namespace: str) -> None:
    """One decision about an artifact; `value` of one with "at" says how many hours from now it takes effect."""
    match decision:
        case "deactivate":
            await memory.deactivate_overlay(artifact_id, "tested", at(hours), block=value, namespace=namespace)
        case "weight":
            await memory.update_overlay_weight(artifact_id, value, "tested", at(hours), namespace=namespace)
        case "deactivate at":
            await memory.deactivate_overlay(artifact_id, "tested", at(hours + value), namespace=namespace)
        case _:
            await memory.update_overlay_weight(artifact_id, 0.7, "tested", at(hours + value), namespace=namespace)


async def live(memory: HO3Memory, clock: SetClock, life: list[tuple[Any, ...]]) -> list[tuple[str, Mapping[str, int]]]:
    """Does what the steps say, as far as it can be done; the moment and the places after each."""
    stops: list[tuple[str, Mapping[str, int]]] = []
    for step in life:
        hours = (clock.now - NOON) / HOUR
        match step:
            case ("signal", namespace, signal_id, session, event_id):
                await memory.log_signal(signal_id, f"SES-{session}", event_id, {"turn_id": "T-1"}, namespace=namespace)
            case ("overlay", namespace, signal_id, weight, expires):
                for found in await memory.read_signals(signal_id, namespace=namespace):
                    expiry = None if expires is None else at(hours + expires)
                    overlay = learned([*found.event_ids], signal_id, hours=hours, weight=weight, expires_at_event_ts=expiry)
                    await memory.log_overlay(overlay, namespace=namespace)
            case ("wait", duration):
                clock.now += duration * HOUR
            case ("step back", minutes):
                clock.now -= minutes * HOUR // 60
            case ("quarantine", namespace, target):
                try:
                    await memory.quarantine(target, "tested", namespace=namespace)
                except CallerError:
                    continue
            case (decision, namespace, number, value):
                every = await memory.read_overlays(active_only=False, namespace=namespace)
                if number >= len(every):
                    continue
                await decide(memory, decision, every[number].artifact_id or "", hours, value, namespace)
        moment = max(memory.signals.last_timestamp, memory.overlays.last_timestamp)
        stops.append((moment, {"SIGNALS": memory.signals.position, "OVERLAYS": memory.overlays.position}))
    return stops


@settings(max_examples=examples(few=8, many=500))
@given(life=steps)
async def test_folded_along_folded_anew_and_a_plain_scan_agree_at_every_cut(life: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as name:
        root, clock = Path(name), SetClock()
        async with open_memory(root, clock, **SETTINGS) as memory:
            stops = await live(memory, clock, life)
            await memory.commit()
            end = at((clock.now - NOON) / HOUR + 30)
            cuts = [*[(moment, up_to) for moment, up_to in stops], *[(moment, None) for moment, _ in stops], (end, None)]
            half = [up_to for _, up_to in stops[len(stops) // 2 :][:1]]
            cuts += [(at((clock.now - NOON) / HOUR + hours), up_to) for hours in (-30, -1, 2, 5, 50) for up_to in (None, *half)]
            files = Files(root)
            for as_of, up_to in cuts:
                for namespace in (ADA, BO):
                    await compare(memory, files, namespace, as_of, up_to, SIGNALS)
            async with MemoryReader.open(root, memory.config, clock=clock) as anew:
                await compare(anew, files, ADA, *cuts[len(stops) // 2], SIGNALS)
        async with open_memory(root, clock, **SETTINGS) as memory:
            for as_of, up_to in cuts:
                await compare(memory, files, ADA, as_of, up_to, SIGNALS)


async def view(memory: HO3Memory, namespace: str, hours: float) -> tuple[Any, ...]:
    """All that can be read of a subject as of some hours after noon."""
    cut: dict[str, Any] = {"as_of_ts": at(hours), "namespace": namespace}
    return (
        await memory.read_signals(**cut),
        await memory.read_overlays(active_only=False, **cut),
        await memory.read_active_biases(**cut),
        [await memory.check_gate(each, **cut) for each in SIGNALS],
    )


@settings(max_examples=examples(few=8, many=500))
@given(life=steps)
async def test_one_subject_is_the_same_with_and_without_the_other(life: list[tuple[Any, ...]]) -> None:
    """Whatever ids the other uses: the same event ids, signals, sessions, artifacts."""
    views = []
    for lived in (life, [step for step in life if BO not in step]):
        with TemporaryDirectory() as name:
            clock = SetClock()
            async with open_memory(Path(name), clock, **SETTINGS) as memory:
                await live(memory, clock, [step for step in lived if step[0] != "step back"])
                views.append([await view(memory, ADA, (clock.now - NOON) / HOUR * part) for part in (0.5, 0.9, 1)])
    assert views[0] == views[1]


GRAMMAR = re.compile(r"(intent|tool|domain|task|outcome):[A-Za-z0-9_.\-/]{1,64}")
KINDS = frozenset(("intent", "tool", "domain", "task", "outcome"))
values = st.one_of(
    st.text(max_size=80), st.text("aZ0_.-/: é\n", max_size=140), st.text("_./-", max_size=70).map(lambda x: x + "a")
)


@given(kind=st.sampled_from(sorted(KINDS)), value=values)
def test_a_signal_id_is_made_plain_once_and_for_all(kind: str, value: str) -> None:
    try:
        made = normalise(f"{kind}:{value}", KINDS)
    except InvalidSignal:
        assert normalise_value(value) is None
        return
    assert GRAMMAR.fullmatch(made)
    assert normalise(made, KINDS) == made


@given(text=st.text(max_size=60))
def test_anything_else_is_refused_or_fits_the_grammar(text: str) -> None:
    try:
        made = normalise(text, KINDS)
    except InvalidSignal:
        return
    assert GRAMMAR.fullmatch(made)


@given(text=st.text(st.characters(), max_size=80))
def test_a_tidied_line_is_plain(text: str) -> None:
    line = tidy(text)
    assert tidy(line) == line
    problem = problem_of(line, 1_000)
    assert problem is None or line == "" or "instruction" in problem


labels = st.lists(st.sampled_from(["files", "docs", "mail"]), max_size=2, unique=True)
moments = st.one_of(st.none(), st.integers(-400, 400).map(at))
artifacts = st.fixed_dictionaries(
    {
        "weight": st.sampled_from([0.0, 0.1, 0.3, 0.5, 1.0]),
        "decay_modifier": st.sampled_from([0.5, 1.0]),
        "context_line": st.text("x", max_size=60),
        "enabled": st.booleans(),
        "expires_at_event_ts": moments,
        "consolidation_event_ts": st.integers(-400, 10).map(at),
    },
    optional={
        "labels": st.fixed_dictionaries({}, optional={"domain": labels, "task": labels}),
        "scope": st.sampled_from(["agent", "global"]),
    },
)
turns = st.fixed_dictionaries({}, optional={"domain": st.one_of(labels, st.just("files")), "task": labels})


@given(
    pool=st.lists(artifacts, max_size=8), turn=turns, budget=st.integers(0, 40), as_of=st.integers(-300, 300), data=st.data()
)
def test_the_chosen_lines_are_a_prefix_of_the_ranking_whatever_the_order(
    pool: list[dict[str, Any]], turn: dict[str, Any], budget: int, as_of: int, data: st.DataObject
) -> None:
    given_ = [{**each, "artifact_id": f"ART-{number}"} for number, each in enumerate(pool)]
    moment = datetime_of(NOON + as_of * HOUR)
    chosen = select_biases(given_, turn, budget, moment)
    everything = select_biases(given_, turn, 10_000, moment)
    assert chosen == everything[: len(chosen)]
    assert all(any(each is one for one in given_) for each in everything)
    assert sum(len(each["context_line"]) for each in chosen) <= budget * 4
    if len(chosen) < len(everything):
        assert sum(len(each["context_line"]) for each in everything[: len(chosen) + 1]) > budget * 4
    ranks = [(-rounded(score(each, moment)), each["artifact_id"]) for each in everything]
    assert ranks == sorted(ranks)
    for each in given_:
        expires = each["expires_at_event_ts"]
        alive = each["enabled"] and (expires is None or moment < datetime_of(NOON).fromisoformat(expires))
        assert (each in everything) == (alive and concerns(each, turn))
    shuffled = data.draw(st.permutations(given_))
    assert select_biases(shuffled, turn, budget, moment) == chosen


def concerns(artifact: dict[str, Any], turn: dict[str, Any]) -> bool:
    """Whether the turn is about what the artifact is about."""
    wanted = {name: {found} if isinstance(found, str) else set(found) for name, found in turn.items()}
    if artifact.get("scope") == "global":
        return True
    if "labels" not in artifact:
        return not any(wanted.values())
    return any(wanted[name] & set(artifact["labels"].get(name, ())) for name in wanted)


@pytest.mark.parametrize("budget", [-1, 0, 0.24])
def test_no_room_is_no_line(budget: float) -> None:
    assert select_biases([{"artifact_id": "ART-1", "scope": "global", "context_line": "x"}], {}, budget, at()) == []
