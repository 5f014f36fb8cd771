"""Artifacts: the fields of an overlay, when it is shown, and its state as of any moment (docs/memory.md)."""

import json
from pathlib import Path
from typing import Any

import pytest

from kitchener.errors import CallerError
from kitchener.ledger import LedgerEntry
from kitchener.memory import HO3Memory, compute_artifact_id, gate_window_key
from tests.memory.shared.kit import HOUR, NOON, SetClock, at, entries, learned, open_memory, recur

VECTORS = Path(__file__).parent.parent.parent / "vectors" / "artifact_ids.json"
OLDER = {
    "overlay_id": "OVL-older-1",
    "signal_id": "tool:read_file",
    "salience_weight": 0.7,
    "decay_modifier": 0.9,
    "source_event_ids": ["EVT-lost"],
    "content": {"bias": "Prefers short answers.", "category": "brevity"},
    "window_start": at(-2),
    "window_end": at(-1),
    "created_at": at(-1),
}


async def artifact(memory: HO3Memory, **changes: Any) -> str:
    """Learns something and gives its artifact id."""
    await memory.log_overlay(learned(await recur(memory), **changes))
    artifact_id = (await memory.read_overlays(active_only=False))[-1].artifact_id
    assert artifact_id is not None
    return artifact_id


async def test_as_of_ts_deterministic_decay(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock, decay_half_life_hours=336.0) as memory:
        await memory.log_signal("intent:question", "SES-00000001")
        [early] = await memory.read_signals(as_of_ts=at(336))
        clock.now = NOON + 900 * HOUR
        [late] = await memory.read_signals(as_of_ts=at(336))
    assert early == late
    assert float(f"{early.decay:.12g}") == 0.5


async def test_as_of_ts_none_uses_wall_clock(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock) as memory:
        await memory.log_signal("intent:question", "SES-00000001")
        for hours in (0, 24, 336):
            clock.now = NOON + hours * HOUR
            assert await memory.read_signals() == await memory.read_signals(as_of_ts=at(hours))
        assert await memory.read_signals() != await memory.read_signals(as_of_ts=at())


async def test_as_of_ts_in_read_active_biases(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await artifact(memory, expires_at_event_ts=at(10))
        assert len(await memory.read_active_biases(at(9))) == 1
        assert await memory.read_active_biases(at(11)) == []
        assert await memory.read_active_biases(at(-1)) == [], "it was not there yet"


async def test_as_of_ts_in_is_consolidated(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock) as memory:
        sources = await recur(memory)
        clock.now = NOON + HOUR
        await memory.log_overlay(learned(sources, hours=1))
        moments = [at(), at(1), at(169), at(169.5)]
        first = [await memory.check_gate("tool:read_file", moment) for moment in moments]
        clock.now = NOON + 500 * HOUR
        assert [await memory.check_gate("tool:read_file", moment) for moment in moments] == first
    assert [gate.already_consolidated for gate in first] == [False, True, True, False]
    assert [gate.crossed for gate in first] == [True, False, False, True]


async def test_structured_artifact_all_fields(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        fields = learned(
            await recur(memory),
            labels={"domain": ["files", "docs"], "task": ["inspect"]},
            scope="global",
            weight=0.25,
            expires_at_event_ts=at(100),
            created_at=at(0.5),
            overlay_id="OVL-0123456789abcdef",
        )
        await memory.log_overlay(fields)
    async with open_memory(tmp_path) as memory:
        [found] = await memory.read_overlays()
    said = json.loads(json.dumps(found.as_mapping()))
    key = gate_window_key(at(), 168)
    artifact_id = compute_artifact_id(["tool:read_file"], key, "offline-1", "PRM-CONSOLIDATE-001")
    assert said == {**fields, "artifact_id": artifact_id, "enabled": True, "unverified_event_ids": []}


async def test_structured_artifact_backward_read(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        assert await memory.import_overlays([OLDER]) == ["OVL-older-1"]
    async with open_memory(tmp_path) as memory:
        [found] = await memory.read_overlays()
    assert (found.artifact_id, found.labels, found.scope) == (None, None, None)
    assert {name: value for name, value in json.loads(json.dumps(found.as_mapping())).items() if name in OLDER} == OLDER


@pytest.mark.parametrize("artifact_type", ["topic_affinity", "interaction_style", "task_pattern", "constraint"])
async def test_artifact_type_stored(tmp_path: Path, artifact_type: str) -> None:
    async with open_memory(tmp_path) as memory:
        await artifact(memory, artifact_type=artifact_type)
        assert [each.artifact_type for each in await memory.read_overlays()] == [artifact_type]
    assert entries(tmp_path, "overlays")[0]["payload"]["artifact_type"] == artifact_type


async def test_labels_stored(tmp_path: Path) -> None:
    labels = {"domain": ["files", "docs"], "task": ["inspect"]}
    async with open_memory(tmp_path) as memory:
        await artifact(memory, labels=labels)
        [found] = await memory.read_overlays()
        assert found.labels == {"domain": ("files", "docs"), "task": ("inspect",)}
    assert entries(tmp_path, "overlays")[0]["payload"]["labels"] == labels


async def test_context_line_stored(tmp_path: Path) -> None:
    line = "Wants the reason first – “why”, then how."
    async with open_memory(tmp_path) as memory:
        await artifact(memory, context_line=line)
        assert [each.context_line for each in await memory.read_overlays()] == [line]
    assert entries(tmp_path, "overlays")[0]["payload"]["context_line"] == line


async def test_deactivate_overlay(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        artifact_id = await artifact(memory)
        [before] = await memory.read_active_biases()
        assert await memory.deactivate_overlay(artifact_id, "not true", at()) == before.overlay_id
        assert await memory.read_active_biases() == []
        assert await memory.read_overlays() == []
        [kept] = await memory.read_overlays(active_only=False)
        assert kept == before.model_copy(update={"enabled": False})
    types = [entry["entry_type"] for entry in entries(tmp_path, "overlays")]
    assert types == ["HO3_OVERLAY", "HO3_OVERLAY_DEACTIVATED"]
    assert entries(tmp_path, "overlays")[1]["payload"]["reason"] == "not true"


async def test_deactivate_nonexistent_raises(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        with pytest.raises(ValueError, match="ART-000000000000") as refused:
            await memory.deactivate_overlay("ART-000000000000", "not true", at())
        assert isinstance(refused.value, CallerError)
        assert memory.overlays.position == 0


async def test_update_weight(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        artifact_id = await artifact(memory, weight=0.8)
        for weight in (0.3, 0.6, 0.4):
            await memory.update_overlay_weight(artifact_id, weight, "seen again", at())
            assert [each.weight for each in await memory.read_active_biases()] == [weight]
    async with open_memory(tmp_path) as memory:
        assert [each.weight for each in await memory.read_overlays()] == [0.4]


async def test_expiry_filter(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await artifact(memory, expires_at_event_ts=at(10))
        assert await memory.read_active_biases(at(10)) == [], "at that moment it speaks no more"
        assert len(await memory.read_overlays(as_of_ts=at(10))) == 1, "it is not gone"


async def test_expiry_not_expired(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await artifact(memory, expires_at_event_ts=at(10))
        assert len(await memory.read_active_biases(at(9.999))) == 1


async def test_idempotency_skip_duplicate(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        sources = await recur(memory)
        first = await memory.log_overlay(learned(sources))
        again = await memory.log_overlay(learned(sources, weight=0.1, context_line="Something else altogether."))
        assert first == again
        assert [each.weight for each in await memory.read_overlays()] == [0.8]
    assert len(entries(tmp_path, "overlays")) == 1


async def test_idempotency_reactivate(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        artifact_id = await artifact(memory)
        [before] = await memory.read_overlays()
        await memory.deactivate_overlay(artifact_id, "not true", at())
        again = await memory.log_overlay(learned(list(before.source_event_ids), weight=0.5))
        assert again == before.overlay_id
        assert await memory.read_active_biases() == [before.model_copy(update={"weight": 0.5})]
    types = [entry["entry_type"] for entry in entries(tmp_path, "overlays")]
    assert types == ["HO3_OVERLAY", "HO3_OVERLAY_DEACTIVATED", "HO3_OVERLAY_WEIGHT_UPDATED"]


def test_compute_artifact_id_deterministic() -> None:
    vectors = json.loads(VECTORS.read_text())
    assert len(vectors) == 10
    for vector in vectors:
        key = gate_window_key(vector["window_end"], vector["gate_window_hours"])
        assert key == vector["gate_window_key"]
        sources, by = vector["source_signal_ids"], (vector["model"], vector["prompt_pack_version"])
        assert compute_artifact_id(sources, key, *by) == vector["artifact_id"]
        assert compute_artifact_id(tuple(reversed(sources)), key, *by) == vector["artifact_id"]


async def test_event_ts_decides_as_of_when_a_line_is_inactive(tmp_path: Path) -> None:
    """Deactivated with `event_ts` 2 h after noon, it is inactive as of 3 h after noon, whenever the record was written."""
    for written in (2, 40):
        clock = SetClock()
        async with open_memory(tmp_path / str(written), clock) as memory:
            artifact_id = await artifact(memory)
            clock.now = NOON + written * HOUR
            await memory.deactivate_overlay(artifact_id, "not true", at(2))
            active = [len(await memory.read_active_biases(at(hours))) for hours in (1, 1.999, 2, 3, 41)]
        assert active == [1, 1, 0, 0, 0]


async def test_later_event_ts_wins_whatever_was_written_last(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock) as memory:
        artifact_id = await artifact(memory, weight=0.8)
        clock.now = NOON + 10 * HOUR
        await memory.update_overlay_weight(artifact_id, 0.5, "seen again", at(6))
        await memory.deactivate_overlay(artifact_id, "not true", at(4))
        found = {hours: [each.weight for each in await memory.read_active_biases(at(hours))] for hours in (3, 5, 7, 11)}
    assert found == {3: [0.8], 5: [], 7: [0.5], 11: [0.5]}


async def test_a_decision_may_be_dated_ahead(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock) as memory:
        artifact_id = await artifact(memory)
        await memory.deactivate_overlay(artifact_id, "after the move", at(5))
        assert len(await memory.read_active_biases()) == 1
        clock.now = NOON + 5 * HOUR
        assert await memory.read_active_biases() == []


async def test_a_decision_dated_before_its_line_takes_effect_with_the_line(tmp_path: Path) -> None:
    """Otherwise the line, which came later, would undo the decision about it."""
    clock = SetClock()
    clock.now = NOON + 5 * HOUR
    async with open_memory(tmp_path, clock) as memory:
        artifact_id = await artifact(memory)
        await memory.deactivate_overlay(artifact_id, "not true", at(-20))
        assert await memory.read_active_biases() == []
        assert await memory.read_active_biases(at(5.5)) == []


async def test_a_decision_on_record_from_before_counts_when_it_was_written(tmp_path: Path) -> None:
    """In version 1 `event_ts` decided nothing, and what turns were shown rests on that."""
    clock = SetClock()
    async with open_memory(tmp_path, clock) as memory:
        artifact_id = await artifact(memory)
        [overlay] = await memory.read_overlays()
        clock.now = NOON + 10 * HOUR
        older = {"v": 1, "namespace": "default", "subject_id": "default", "artifact_id": artifact_id, "reason": "not true"}
        dated = {**older, "overlay_id": overlay.overlay_id, "event_ts": at(2)}
        await memory.overlays.write(LedgerEntry("HO3_OVERLAY_DEACTIVATED", overlay.overlay_id, dated))
        await memory.overlays.commit()
    async with open_memory(tmp_path, clock) as memory:
        assert [len(await memory.read_active_biases(at(hours))) for hours in (1, 5, 9, 11)] == [1, 1, 1, 0]
        clock.now = NOON + 20 * HOUR
        later = {**dated, "weight": 0.4, "event_ts": at(3)}
        await memory.overlays.write(LedgerEntry("HO3_OVERLAY_WEIGHT_UPDATED", overlay.overlay_id, later))
        await memory.overlays.commit()
    async with open_memory(tmp_path, clock) as memory:
        found = {hours: [each.weight for each in await memory.read_active_biases(at(hours))] for hours in (9, 15, 21)}
    assert found == {9: [0.8], 15: [], 21: [0.4]}


async def test_a_quarantine_cancels_what_was_decided_for_later(tmp_path: Path) -> None:
    """A weight that was dated ahead does not bring a line back whose sources are in quarantine."""
    clock = SetClock()
    async with open_memory(tmp_path, clock) as memory:
        artifact_id = await artifact(memory)
        [overlay] = await memory.read_overlays()
        await memory.update_overlay_weight(artifact_id, 0.9, "more of it tomorrow", at(24))
        assert [each.key for each in await memory.quarantine(overlay.signal_id, "a joke")] == [artifact_id]
        assert await memory.read_active_biases(at(25)) == []
        await memory.update_overlay_weight(artifact_id, 0.9, "no joke", at(26))
        assert len(await memory.read_active_biases(at(27))) == 1


async def test_lifecycle_resolution_latest_wins(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock) as memory:
        artifact_id = await artifact(memory, weight=0.8)
        steps: list[float | None] = [0.5, None, 0.7, None, None, 0.2]
        for hours, weight in enumerate(steps, 1):
            clock.now = NOON + hours * HOUR
            if weight is None:
                await memory.deactivate_overlay(artifact_id, "not true", at(hours))
            else:
                await memory.update_overlay_weight(artifact_id, weight, "seen again", at(hours))
        expected = [(True, 0.8), (True, 0.5), (False, 0.5), (True, 0.7), (False, 0.7), (False, 0.7), (True, 0.2)]
        for hours, (enabled, weight) in enumerate(expected):
            for cut in ({"as_of_ts": at(hours)}, {"up_to": {"OVERLAYS": hours + 1}}):
                [found] = await memory.read_overlays(active_only=False, **cut)
                assert (found.enabled, found.weight) == (enabled, weight), cut
