"""The memory on its own: signals add up, overlays are kept with their sources, the gate opens once (docs/memory.md)."""

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kitchener.errors import ProvenanceError
from tests.memory.shared.kit import HOUR, NOON, SetClock, at, entries, learned, open_memory, recur


async def test_log_signal_creates_entry(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        event_id = await memory.log_signal("intent:question", "SES-00000001", metadata={"turn_id": "T-1"})
    [entry] = entries(tmp_path, "signals")
    assert entry["entry_type"] == "HO3_SIGNAL"
    payload = entry["payload"]
    named = (payload["signal_id"], payload["session_id"], payload["event_id"], payload["timestamp"])
    assert named == ("intent:question", "SES-00000001", event_id, at())
    assert (payload["metadata"], payload["namespace"]) == ({"turn_id": "T-1"}, "default")


async def test_log_signal_returns_event_id(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        made = await memory.log_signal("intent:question", "SES-00000001")
        given = await memory.log_signal("intent:question", "SES-00000001", "EVT-0123456789abcdef")
    assert made.startswith("EVT-")
    assert len(made) == len("EVT-") + 16
    assert given == "EVT-0123456789abcdef"


async def test_read_signals_accumulates_count(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await recur(memory, count=3, sessions=1)
        [found] = await memory.read_signals()
    assert (found.signal_id, found.count) == ("tool:read_file", 3)


async def test_read_signals_tracks_sessions(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await recur(memory, count=5, sessions=2)
        [found] = await memory.read_signals()
    assert found.session_ids == ("SES-00000000", "SES-00000001")


async def test_read_signals_tracks_event_ids(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        logged = await recur(memory, count=3)
        [found] = await memory.read_signals()
    assert len(set(logged)) == 3
    assert list(found.event_ids) == logged


async def test_read_signals_last_seen(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock) as memory:
        for hours in (0, 2, 5):
            clock.now = NOON + hours * HOUR
            await memory.log_signal("intent:question", "SES-00000001")
        [found] = await memory.read_signals()
    assert found.last_seen == datetime.fromisoformat(at(5))
    assert found.last_seen.isoformat(timespec="microseconds") == entries(tmp_path, "signals")[-1]["payload"]["timestamp"]


async def test_read_signals_by_id(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await recur(memory, "tool:read_file", 2)
        await recur(memory, "intent:question", 3)
        [found] = await memory.read_signals("intent:question")
    assert (found.signal_id, found.count) == ("intent:question", 3)


async def test_read_signals_min_count_filter(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await recur(memory, "tool:read_file", 2)
        await recur(memory, "intent:question", 5)
        found = await memory.read_signals(min_count=3)
    assert [(each.signal_id, each.count) for each in found] == [("intent:question", 5)]


async def test_read_signals_empty(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        assert await memory.read_signals() == []
        assert await memory.read_signals("intent:question") == []


async def test_log_overlay_creates_entry(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        overlay_id = await memory.log_overlay(learned(await recur(memory)))
    [entry] = entries(tmp_path, "overlays")
    assert (entry["entry_type"], entry["entity_id"]) == ("HO3_OVERLAY", overlay_id)
    payload = entry["payload"]
    assert overlay_id.startswith("OVL-")
    assert (payload["overlay_id"], payload["signal_id"]) == (overlay_id, "tool:read_file")
    assert payload["content"] == {"bias": "Looks into files first.", "category": "topic_affinity"}


async def test_overlay_has_source_event_ids(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        sources = await recur(memory)
        await memory.log_overlay(learned(sources))
        [overlay] = await memory.read_overlays()
        assert list(overlay.source_event_ids) == sources
        with pytest.raises(ProvenanceError):
            await memory.log_overlay(learned([], "intent:question"))
        assert memory.overlays.position == 1


async def test_read_overlays_all(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        logged = await log_two(memory)
        assert [overlay.overlay_id for overlay in await memory.read_overlays()] == logged


async def test_read_overlays_by_signal_id(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        logged = await log_two(memory)
        assert [overlay.overlay_id for overlay in await memory.read_overlays("intent:question")] == logged[1:]


async def test_read_active_biases(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock, decay_half_life_hours=336.0, salience_floor=0.05) as memory:
        strong = await memory.log_overlay(learned(await recur(memory), weight=0.8))
        slight = learned(await recur(memory, "intent:question"), "intent:question", weight=0.06)
        weak = learned(await recur(memory, "domain:docs"), "domain:docs", weight=0.049)
        both = [strong, await memory.log_overlay(slight)]
        await memory.log_overlay(weak)
        assert [each.overlay_id for each in await memory.read_active_biases()] == both, "one is below the floor"
        # 0.06 is halved after 336 hours, and 0.8 falls below 0.05 after exactly four half-lives.
        clock.now = NOON + 336 * HOUR
        assert [each.overlay_id for each in await memory.read_active_biases()] == [strong]
        clock.now = NOON + 4 * 336 * HOUR
        assert [each.overlay_id for each in await memory.read_active_biases()] == [strong], "at the floor it still speaks"
        clock.now += HOUR
        assert await memory.read_active_biases() == []
        assert len(await memory.read_overlays()) == 3, "they fade, and are not gone"


async def test_gate_false_below_count(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await recur(memory, count=2, sessions=2)
        gate = await memory.check_gate("tool:read_file")
    assert (gate.crossed, gate.count, gate.reason, gate.already_consolidated) == (False, 2, "below_count", False)


async def test_gate_false_below_sessions(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await recur(memory, count=10, sessions=1)
        gate = await memory.check_gate("tool:read_file")
    assert (gate.crossed, gate.count, gate.session_count, gate.reason) == (False, 10, 1, "below_sessions")


async def test_gate_true_thresholds_met(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await recur(memory, count=4, sessions=3)
        assert not (await memory.check_gate("tool:read_file")).crossed
        await memory.log_signal("tool:read_file", "SES-00000000", metadata={"turn_id": "T-9"})
        gate = await memory.check_gate("tool:read_file")
    assert (gate.crossed, gate.count, gate.session_count, gate.already_consolidated) == (True, 5, 3, False)
    assert (gate.signal_id, gate.reason) == ("tool:read_file", "crossed")


async def test_gate_false_already_consolidated(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock, gate_window_hours=168) as memory:
        await memory.log_overlay(learned(await recur(memory)))
        gate = await memory.check_gate("tool:read_file")
        assert (gate.crossed, gate.count, gate.already_consolidated) == (False, 5, True)
        clock.now = NOON + 168 * HOUR
        assert (await memory.check_gate("tool:read_file")).already_consolidated, "the window's end is within it"
        clock.now += 1
        gate = await memory.check_gate("tool:read_file")
        assert (gate.crossed, gate.already_consolidated) == (True, False)


async def test_source_ledger_immutability(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        sources = await recur(memory)
        await memory.log_overlay(learned(sources))
    before = {name: file_of(tmp_path, name).read_bytes() for name in ("signals", "overlays")}
    async with open_memory(tmp_path) as memory:
        await memory.log_signal("tool:read_file", "SES-00000009")
        await memory.log_overlay(learned(sources, "intent:question"))
        [artifact, _] = await memory.read_overlays()
        assert artifact.artifact_id is not None
        await memory.update_overlay_weight(artifact.artifact_id, 0.1, "tested", at())
        await memory.quarantine(sources[0], "tested")
    for name, earlier in before.items():
        assert len(earlier) < file_of(tmp_path, name).stat().st_size
        assert file_of(tmp_path, name).read_bytes()[: len(earlier)] == earlier


async def log_two(memory: Any) -> list[str]:
    """Two overlays of two signals; their ids."""
    first = await memory.log_overlay(learned(await recur(memory)))
    second = await memory.log_overlay(learned(await recur(memory, "intent:question"), "intent:question"))
    return [first, second]


def file_of(root: Path, name: str) -> Path:
    """A ledger of the memory."""
    return root / "HOT" / "memory" / f"{name}.jsonl"
