"""What is in quarantine no longer counts, takes what rested on it along, and does not come back (docs/memory.md)."""

from pathlib import Path

import pytest

from kitchener.errors import ProvenanceError
from tests.memory.shared.kit import ADA, BO, HOUR, NOON, SetClock, at, entries, learned, open_memory, recur


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop is enough: what the memory knows does not depend on it."""
    return "trio"


async def test_a_signal_in_quarantine_no_longer_counts(tmp_path: Path) -> None:
    clock = SetClock()
    async with open_memory(tmp_path, clock) as memory:
        await recur(memory, count=6)
        await recur(memory, "intent:question", 2)
        clock.now = NOON + HOUR
        assert await memory.quarantine("tool:read_file", "poisoned") == []
        assert [each.signal_id for each in await memory.read_signals()] == ["intent:question"]
        gate = await memory.check_gate("tool:read_file")
        assert (gate.crossed, gate.count, gate.session_count, gate.reason) == (False, 0, 0, "quarantined")
        await recur(memory, count=9)
        assert not (await memory.check_gate("tool:read_file")).crossed, "later events of it do not count either"
        assert (await memory.check_gate("tool:read_file", at(0.5))).crossed, "until then they did"
        assert await memory.quarantine("tool:read_file", "again") == []
    records = entries(tmp_path, "overlays")
    assert [entry["entry_type"] for entry in records] == ["HO3_QUARANTINED"], "once is enough"
    assert (records[0]["payload"]["target"], records[0]["payload"]["reason"]) == ("tool:read_file", "poisoned")


async def test_an_event_in_quarantine_no_longer_counts(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        logged = await recur(memory, count=5, sessions=3)
        await memory.quarantine(logged[2], "poisoned")  # the only one of its session
        [found] = await memory.read_signals()
        assert list(found.event_ids) == [*logged[:2], *logged[3:]]
        assert (found.count, found.session_ids) == (4, ("SES-00000000", "SES-00000001"))
        gate = await memory.check_gate("tool:read_file")
        assert (gate.count, gate.session_count, gate.reason) == (4, 2, "below_count")
        await memory.log_signal("tool:read_file", "SES-00000000", logged[2])
        assert (await memory.check_gate("tool:read_file")).count == 4, "its id stays in quarantine"


async def test_a_signal_is_named_as_it_was_logged_or_as_it_is_stored(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        await memory.log_signal("tool:read file", "SES-00000001")
        await memory.quarantine("tool:read file", "poisoned")
        assert await memory.read_signals() == []


@pytest.mark.parametrize("by", ["event", "signal"])
async def test_what_loses_its_support_goes_and_what_keeps_it_stays(tmp_path: Path, by: str) -> None:
    async with open_memory(tmp_path) as memory:
        tight = await recur(memory, "tool:read_file", 5, 3)
        ample = await recur(memory, "intent:question", 5, 3)
        other = await recur(memory, "domain:docs", 5, 3)
        ids = [
            await memory.log_overlay(learned([*tight], "tool:read_file")),
            await memory.log_overlay(learned([*ample, tight[0]], "intent:question")),
            await memory.log_overlay(learned([*other], "domain:docs")),
        ]
        lost = await memory.quarantine(tight[0] if by == "event" else "tool:read_file", "poisoned")
        assert [each.overlay_id for each in lost] == ids[:1]
        assert [each.overlay_id for each in await memory.read_active_biases()] == ids[1:]
        kept = await memory.read_overlays(active_only=False)
        assert [(each.overlay_id, each.enabled) for each in kept] == list(zip(ids, (False, True, True), strict=True))
    last = entries(tmp_path, "overlays")[-1]
    assert (last["entry_type"], last["payload"]["reason"]) == ("HO3_OVERLAY_DEACTIVATED", "quarantined")


async def test_a_source_named_twice_supports_once(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        sources = await recur(memory, count=5, sessions=3)
        await memory.log_overlay(learned([*sources, sources[0], sources[0]]))
        lost = await memory.quarantine(sources[4], "poisoned")
        assert len(lost) == 1, "four events are left, whatever the list says"


async def test_what_is_in_quarantine_teaches_nothing_new(tmp_path: Path) -> None:
    """A consolidation that was under way when somebody put its source in quarantine must not bring the line back."""
    clock = SetClock()
    async with open_memory(tmp_path, clock) as memory:
        sources = await recur(memory, count=6)
        await memory.log_overlay(learned(sources))
        assert len(await memory.quarantine("tool:read_file", "poisoned")) == 1
        for hours in (0, 400):
            clock.now = NOON + hours * HOUR
            before = memory.overlays.position
            with pytest.raises(ProvenanceError, match="quarantine"):
                await memory.log_overlay(learned(sources, hours=hours))
            assert memory.overlays.position == before
        assert await memory.read_active_biases() == []
        question = await recur(memory, "intent:question", 7)
        await memory.quarantine(question[3], "poisoned")
        with pytest.raises(ProvenanceError, match=question[3]):
            await memory.log_overlay(learned(question, "intent:question"))
        [found] = await memory.read_signals("intent:question")
        await memory.log_overlay(learned(list(found.event_ids), "intent:question"))
        assert len(await memory.read_active_biases()) == 1


async def test_quarantine_stays_with_its_subject(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        for namespace in (ADA, BO):
            for n in range(5):
                await memory.log_signal("tool:read_file", f"SES-{n % 3}", f"EVT-{n}", namespace=namespace)
            await memory.log_overlay(learned([f"EVT-{n}" for n in range(5)]), namespace=namespace)
        before = await memory.read_active_biases(namespace=BO)
        assert len(await memory.quarantine("EVT-0", "poisoned", namespace=ADA)) == 1
        await memory.quarantine("tool:read_file", "poisoned", namespace=ADA)
        assert await memory.read_active_biases(namespace=ADA) == []
        assert await memory.read_active_biases(namespace=BO) == before
        assert [each.count for each in await memory.read_signals(namespace=BO)] == [5]


async def test_recalling_what_was_learned_does_not_support_it(tmp_path: Path) -> None:
    """Reading is no event: an artifact shown a thousand times has the support that it had."""
    async with open_memory(tmp_path) as memory:
        await memory.log_overlay(learned(await recur(memory)))
        before = await memory.check_gate("tool:read_file"), await memory.read_signals(), memory.signals.position
        for _ in range(1_000):
            await memory.read_active_biases()
        assert (await memory.check_gate("tool:read_file"), await memory.read_signals(), memory.signals.position) == before
