"""What was known at a moment stays what it was, whatever is logged later; renewal replaces what was (docs/memory.md)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kitchener.errors import LedgerClockError
from kitchener.memory import HO3Memory, MemoryReader
from kitchener.memory.reader import ReadOperations
from tests.memory.shared.kit import HOUR, NOON, QUICK, SetClock, at, learned, open_memory, recur


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop is enough: what the memory knows does not depend on it."""
    return "asyncio"


WEEK = 168


async def view(memory: ReadOperations, moment: str | None = None, up_to: Mapping[str, int] | None = None) -> tuple[Any, ...]:
    """Everything that can be read as of a moment, or a place."""
    cut: dict[str, Any] = {"as_of_ts": moment, "up_to": up_to}
    return (
        await memory.read_signals(**cut),
        await memory.read_overlays(active_only=False, **cut),
        await memory.read_active_biases(**cut),
        await memory.check_gate("tool:read_file", **cut),
        await memory.check_gate("intent:question", **cut),
    )


async def live(memory: HO3Memory, clock: SetClock, hours: int = 12) -> list[tuple[str, dict[str, int]]]:
    """A life in hourly steps, or its beginning; the moment and the positions after each."""
    stops: list[tuple[str, dict[str, int]]] = []
    artifact_id = ""
    for hour in range(hours):
        clock.now = NOON + hour * HOUR
        await memory.log_signal("tool:read_file", f"SES-{hour % 3}")
        if hour % 2:
            await memory.log_signal("intent:question", f"SES-{hour % 4}")
        [found] = await memory.read_signals("tool:read_file")
        if hour == 5:
            await memory.log_overlay(learned(list(found.event_ids), hours=hour))
            artifact_id = (await memory.read_overlays())[0].artifact_id or ""
        elif hour == 6:
            await memory.update_overlay_weight(artifact_id, 0.3, "tested", at(hour))
        elif hour == 8:
            await memory.deactivate_overlay(artifact_id, "tested", at(hour), block=True)
        elif hour == 9:
            await memory.quarantine(found.event_ids[1], "tested")
        elif hour == 11:
            await memory.quarantine("intent:question", "tested")
        stops.append((at(hour), {"SIGNALS": memory.signals.position, "OVERLAYS": memory.overlays.position}))
    return stops


async def test_an_earlier_moment_or_place_stays_what_it_was(tmp_path: Path) -> None:
    clock, then = SetClock(), list[tuple[Any, ...]]()
    async with open_memory(tmp_path / "a", clock) as memory:
        stops = await live(memory, clock)
    for hours in range(1, 13):  # what each moment was, seen from that moment: the same life, no longer than that
        clock = SetClock()
        async with open_memory(tmp_path / str(hours), clock) as memory:
            await live(memory, clock, hours)
            then.append(await view(memory))
    assert len({repr(each) for each in then}) == len(then), "every step shows"
    clock = SetClock(NOON + 400 * HOUR)
    async with open_memory(tmp_path / "a", clock) as memory, MemoryReader.open(tmp_path / "a", clock=clock) as reader:
        for (moment, up_to), expected in zip(stops, then, strict=True):
            for readable in (memory, reader):
                assert await view(readable, moment) == expected
                assert await view(readable, moment, up_to) == expected
        await recur(memory, count=20)
        for (moment, _), expected in zip(stops, then, strict=True):
            assert await view(memory, moment) == expected


async def test_places_tell_apart_what_one_moment_does_not(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await recur(memory, count=6)
        counts = [[each.count for each in await memory.read_signals(as_of_ts=at(), up_to={"SIGNALS": seq})] for seq in range(8)]
        assert counts == [[], [1], [2], [3], [4], [5], [6], [6]]
        assert [each.count for each in await memory.read_signals(up_to={"OVERLAYS": 0})] == [6], "the other ledger is not cut"


async def test_a_clock_that_steps_back_hides_nothing(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock) as memory:
        sources = await recur(memory, count=4)
        clock.now = NOON - HOUR // 2
        sources.append(await memory.log_signal("tool:read_file", "SES-00000009"))
        assert (await memory.check_gate("tool:read_file")).crossed
        assert [each.event_ids for each in await memory.read_signals()] == [tuple(sources)]
        assert [each.decay for each in await memory.read_signals()] == [1.0]
        await memory.log_overlay(learned(sources))
        assert len(await memory.read_active_biases()) == 1
        assert (await memory.check_gate("tool:read_file")).already_consolidated
        now = await view(memory)
    async with open_memory(tmp_path, clock) as memory, MemoryReader.open(tmp_path, clock=clock) as reader:
        assert await view(memory) == await view(reader) == now
        assert [each.count for each in await memory.read_signals(as_of_ts=at(-0.5))] == [], "an explicit moment is meant so"


async def test_a_deactivated_artifact_does_not_come_back_within_its_window(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock) as memory:
        await memory.log_overlay(learned(await recur(memory)))
        [artifact] = await memory.read_overlays()
        await memory.deactivate_overlay(artifact.artifact_id or "", "wrong", at())
        gate = await memory.check_gate("tool:read_file")
        assert (gate.crossed, gate.already_consolidated, gate.reason) == (False, True, "already_consolidated")
        clock.now = NOON + WEEK * HOUR + 1
        assert (await memory.check_gate("tool:read_file")).crossed, "in the next window it may"


async def test_a_blocked_signal_does_not_come_back_at_all(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock) as memory:
        sources = await recur(memory)
        await memory.log_overlay(learned(sources))
        [artifact] = await memory.read_overlays()
        await memory.deactivate_overlay(artifact.artifact_id or "", "wrong", at(), block=True)
        clock.now = NOON + 10 * WEEK * HOUR
        gate = await memory.check_gate("tool:read_file")
        assert (gate.crossed, gate.reason, gate.count) == (False, "blocked", 5)
        await recur(memory, "intent:question")
        assert (await memory.check_gate("intent:question")).crossed, "others are not blocked"
        assert (await memory.check_gate("tool:read_file", at())).reason == "blocked"
        assert (await memory.check_gate("tool:read_file", at(), up_to={"OVERLAYS": 1})).reason == "already_consolidated"
    async with open_memory(tmp_path, clock) as memory:
        assert (await memory.check_gate("tool:read_file")).reason == "blocked"
        await memory.update_overlay_weight(artifact.artifact_id or "", 0.5, "right after all", at())
        assert (await memory.check_gate("tool:read_file")).crossed, "who takes the artifact back takes its signal back"


@pytest.mark.parametrize("supersedes", [True, False])
async def test_renewal_in_the_next_window_takes_the_place_of_the_earlier(tmp_path: Path, supersedes: bool) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock, supersede_on_renewal=supersedes) as memory:
        sources, other = await recur(memory), await recur(memory, "intent:question")
        first = await memory.log_overlay(learned(sources))
        bystander = await memory.log_overlay(learned(other, "intent:question"))
        clock.now = NOON + 2 * WEEK * HOUR
        renewed = await memory.log_overlay(learned(sources, hours=2 * WEEK, context_line="Still looks into files."))
        assert renewed != first
        active = [each.overlay_id for each in await memory.read_overlays()]
        assert active == ([bystander, renewed] if supersedes else [first, bystander, renewed])
        assert len(await memory.read_overlays(active_only=False)) == 3
        before = [each.overlay_id for each in await memory.read_overlays(as_of_ts=at(2 * WEEK - 1))]
        assert before == [first, bystander], "until then it spoke"
        assert await memory.log_overlay(learned(sources, hours=2 * WEEK)) == renewed
        assert len(await memory.read_overlays()) == len(active)
        clock.now = NOON + 4 * WEEK * HOUR
        before_third = memory.overlays.position
        await memory.log_overlay(learned(sources, hours=4 * WEEK))
        assert memory.overlays.position == before_third + (2 if supersedes else 1), "only what was active is taken out"


async def test_other_thresholds_over_the_same_ledgers(tmp_path: Path) -> None:
    """Agent classes share the ledgers, not their settings."""
    async with open_memory(tmp_path) as memory:
        strict = memory.configured(memory.config.model_copy(update={"gate_count_threshold": 6}))
        await recur(memory)
        assert [(await each.check_gate("tool:read_file")).crossed for each in (memory, strict)] == [True, False]
        await strict.log_signal("tool:read_file", "SES-00000009")
        assert [(await each.check_gate("tool:read_file")).count for each in (memory, strict)] == [6, 6]
        assert (await strict.check_gate("tool:read_file")).crossed


async def test_thresholds_of_one_kind_and_exclusions(tmp_path: Path) -> None:
    overrides: Any = {"intent": {"count": 2, "sessions": 1}}
    async with open_memory(tmp_path, gate_overrides=overrides) as memory:
        await recur(memory, "intent:question", 2, 1)
        await recur(memory, "tool:read_file", 2, 1)
        await recur(memory, "outcome:success", 50, 9)
        await recur(memory, "outcome:failed", 5, 3)
        gates = [await memory.check_gate(each) for each in ("intent:question", "tool:read_file", "outcome:success")]
        assert [gate.reason for gate in gates] == ["crossed", "below_count", "excluded"]
        assert gates[2].count == 50, "it is counted and not learned from"
        assert (await memory.check_gate("outcome:failed")).crossed


async def test_a_clock_that_leaps_ahead_is_refused_and_nothing_is_counted(tmp_path: Path) -> None:
    clock = SetClock()
    config = QUICK.model_copy(update={"accept_clock_jump": False})
    async with open_memory(tmp_path, clock, ledger=config) as memory:
        await memory.log_signal("tool:read_file", "SES-00000001")
        clock.now += 1_000 * HOUR
        with pytest.raises(LedgerClockError):
            await memory.log_signal("tool:read_file", "SES-00000002")
        assert [each.count for each in await memory.read_signals()] == [1]
        clock.now = NOON + HOUR // 2
        await memory.log_signal("tool:read_file", "SES-00000002")
        assert [each.count for each in await memory.read_signals()] == [2]
