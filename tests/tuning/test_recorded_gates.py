"""The sweep over real ledgers: under the settings of the record it gives the verdicts of the record (docs/memory.md)."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.config import HO3MemoryConfig
from kitchener.errors import LedgerDamaged, NotOnRecord
from kitchener.ids import memory_namespace
from kitchener.memory import HO3Memory, MemoryReader
from kitchener.records import events
from kitchener.replaying.on_record.recorded_ledgers import memory_settings, open_recorded
from kitchener.runtime.root_layout import sealer_of
from kitchener.sealing import Keyring, Sealer
from kitchener.tuning import GateRecord, GateSetting, read_gate_record, simulate
from tests.memory.shared.kit import ADA, BO, HOUR, NOON, SetClock, at, learned, open_memory
from tests.replay.shared.recorded_sessions import record
from tests.replay.test_replay_diverges import ENFORCE, LEARNING
from tests.shared.payloads import payload_of
from tests.shared.property_examples import examples

SETTINGS: dict[str, Any] = {"gate_count_threshold": 3, "gate_session_threshold": 2, "gate_window_hours": 24}
SIGNALS = ("tool:read_file", "intent:question", "domain:files")

steps = st.lists(
    st.one_of(
        st.tuples(st.just("turn"), st.integers(0, 2), st.lists(st.sampled_from(SIGNALS), min_size=1, max_size=4)),
        st.tuples(st.just("wait"), st.sampled_from([1, 23, 30])),
        st.tuples(st.just("quarantine"), st.sampled_from(SIGNALS)),
        st.tuples(st.just("deactivate"), st.integers(0, 2), st.booleans()),
    ),
    max_size=40,
)


async def live(memory: HO3Memory, clock: SetClock, life: list[tuple[Any, ...]]) -> tuple[int, int]:
    """Turns that learn at once from every gate that opens; how many gates opened, and how many artifacts that gave."""
    opened = made = 0
    for number, step in enumerate(life):
        clock.now += 1
        match step:
            case ("turn", session, signal_ids):
                for signal_id in signal_ids:
                    clock.now += 1
                    await memory.log_signal(signal_id, f"SES-{session}", None, {"turn_id": f"T-{number}"}, namespace=ADA)
                gate_ts = memory.last_logged_ts
                gates = [await memory.check_gate(each, gate_ts, namespace=ADA) for each in dict.fromkeys(signal_ids)]
                for gate in gates:
                    clock.now += 1
                    if gate.crossed:
                        opened += 1
                        (found,) = await memory.read_signals(gate.signal_id, namespace=ADA)
                        overlay = learned([*found.event_ids], gate.signal_id, window_end=gate_ts)
                        made += bool(await memory.log_overlay(overlay, namespace=ADA))
            case ("wait", hours):
                clock.now += hours * HOUR
            case ("quarantine", target):
                if target in (await memory.subject(ADA)).signal_ids():
                    await memory.quarantine(target, "tested", namespace=ADA)
            case ("deactivate", place, block):
                every = await memory.read_overlays(active_only=False, namespace=ADA)
                if place < len(every):
                    hours = (clock.now - NOON) / HOUR
                    await memory.deactivate_overlay(str(every[place].artifact_id), "no", at(hours), block=block, namespace=ADA)
    return opened, made


async def read(root: Path, subject_id: str | None = None, **settings: Any) -> tuple[GateRecord, MemoryReader]:
    async with MemoryReader.open(root, HO3MemoryConfig(**settings), clock=SetClock()) as reader:
        return await read_gate_record(reader, "ADMIN", subject_id), reader


@settings(max_examples=examples(few=20, many=500))
@given(life=steps)
async def test_the_configured_thresholds_give_the_verdicts_and_the_artifacts_of_the_record(life: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as name:
        clock = SetClock()
        async with open_memory(Path(name), clock, **SETTINGS) as memory:
            opened, made = await live(memory, clock, life)
        if not any(step[0] == "turn" for step in life):
            return
        found, reader = await read(Path(name), **SETTINGS)
        assert found.crossings == opened
        outcome = simulate(found.subjects, GateSetting.of(reader.config), reader.config)
        assert outcome.artifacts == made
        (ada,) = found.subjects
        assert ada.turns == sum(step[0] == "turn" for step in life)
        assert ada.events == sum(len(step[2]) for step in life if step[0] == "turn")


@pytest.mark.parametrize("mode", [{}, ENFORCE], ids=["attention", "authority"])
async def test_a_recorded_session_has_the_candidates_that_its_turns_found(tmp_path: Path, mode: dict[str, Any]) -> None:
    """Turns of a real runtime: what `TURN_COMPLETED` names as candidates is what the checks say."""
    config, _ = await record(
        tmp_path, ["hello there", "which packages?", "tool please", "new: plan", "thanks"], sessions=2, **LEARNING, **mode
    )
    async with open_recorded(config, "ADMIN") as recorded:
        ho2m = recorded.readers[recorded.ho2m]
        ends = [payload_of(entry) async for entry in ho2m.read(entry_type=events.TURN_COMPLETED)]
    memory = memory_settings(config, config.agents["ADMIN"])
    async with MemoryReader.open(tmp_path, memory, sealer=sealer_of(config)) as reader:
        found = await read_gate_record(reader, "ADMIN")
        (ada,) = found.subjects
        crossed = [check.signal_id for check in ada.checks if check.recorded == "crossed"]
        kept = await reader.subject(memory_namespace("ADMIN", ada.subject_id))
        named = [
            kept.in_words(each) for end in ends for each in end["consolidation_candidates"]
        ]  # keyed, as the root is sealed
        assert sorted(crossed) == sorted(named)
        assert crossed
        assert ada.turns == len(ends) == 10
        assert simulate(found.subjects, GateSetting.of(reader.config), reader.config).artifacts == ada.artifacts == len(crossed)


async def test_what_a_person_took_back_is_known_and_what_was_superseded_is_not_that(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock, **SETTINGS) as memory:
        life: list[tuple[Any, ...]] = [("turn", n % 2, SIGNALS) for n in range(4)]
        await live(memory, clock, [*life, ("wait", 30), *life, ("quarantine", "domain:files"), ("deactivate", 3, False)])
        every = await memory.read_overlays(active_only=False, namespace=ADA)
    found, _ = await read(tmp_path, **SETTINGS)
    (ada,) = found.subjects
    assert ada.artifacts == len(every) == 6
    taken = {every[3].signal_id, "domain:files"}
    assert {signal_id for signal_id, fate in ada.fates.items() if fate.is_taken_back} == taken
    assert ada.fates.keys() == set(SIGNALS)


async def test_subjects_are_told_apart_and_one_can_be_chosen(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock, **SETTINGS) as memory:
        await live(memory, clock, [("turn", 0, SIGNALS)])
        await memory.log_signal("tool:x", "SES-9", namespace=BO)
        await memory.log_signal("tool:x", "SES-9", namespace="RESIDENT%3Ayo/ada")
    everybody, _ = await read(tmp_path)
    assert [(each.subject_id, each.events) for each in everybody.subjects] == [("ada", 3), ("bo", 1)]
    one, _ = await read(tmp_path, "bo")
    assert [each.subject_id for each in one.subjects] == ["bo"]
    with pytest.raises(
        NotOnRecord, match=r"subject 'nobody' gave no signal to agent class 'ADMIN'; `kitchener memory signals`"
    ):
        await read(tmp_path, "nobody")


async def test_a_subject_whose_key_was_destroyed_is_counted_and_left_out(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path / "keys")
    sealer = Sealer(keyring, events.SEALED_FIELDS)
    async with open_memory(tmp_path, sealer=sealer, **SETTINGS) as memory:
        for namespace in (ADA, BO):
            await memory.log_signal("tool:x", "SES-1", metadata={"turn_id": "T-1"}, namespace=namespace)
    keyring.destroy("bo")
    again = Sealer(Keyring(tmp_path / "keys"), events.SEALED_FIELDS)
    async with MemoryReader.open(tmp_path, sealer=again) as reader:
        found = await read_gate_record(reader, "ADMIN")
    assert ([each.subject_id for each in found.subjects], found.sealed) == (["ada"], 1)


async def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await memory.log_signal("tool:x", "SES-1", namespace=ADA)
    file = tmp_path / "HOT" / "memory" / "signals.jsonl"
    file.write_bytes(file.read_bytes().replace(b"tool:x", b"tool:y"))
    with pytest.raises(LedgerDamaged):
        await read(tmp_path)
