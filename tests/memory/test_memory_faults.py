"""Killed processes and failing disks: what was acknowledged is there and adds up, and reads go on (docs/memory.md)."""

import errno
from pathlib import Path
from typing import Any

import pytest

from kitchener.config import LedgerConfig
from kitchener.errors import EntryTooLarge, LedgerLocked, LedgerWriteError
from kitchener.ledger import verify_file
from kitchener.memory import HO3Memory
from tests.cli.shared.commands import start_program
from tests.ledger.support import FaultFS
from tests.memory.shared.killed_logger import PROGRAM, SUBJECTS
from tests.memory.shared.kit import ADA, QUICK, at, learned, open_memory, recur
from tests.memory.shared.oracle import Files, compare

DURABLE = LedgerConfig(linger_ms=0, accept_clock_jump=True)


@pytest.mark.parametrize("acknowledged", [1, 7, 40])
async def test_a_killed_process_leaves_a_prefix_that_adds_up(tmp_path: Path, acknowledged: int) -> None:
    with start_program(PROGRAM, tmp_path) as process:
        assert process.stdout is not None
        acknowledged = next(number for line in process.stdout if (number := int(line)) >= acknowledged)
        process.kill()
    async with open_memory(tmp_path) as memory:
        logged = memory.signals.position
        assert logged >= acknowledged
        files = Files(tmp_path)
        ids = [line["entry"]["payload"]["event_id"] for line in files.signals]
        assert ids == [f"EVT-{n}" for n in range(1, logged + 1)]
        for namespace in SUBJECTS:
            await compare(memory, files, namespace, at(), None, ["tool:read_file"])
        before = [(await memory.read_signals(namespace=each)) for each in SUBJECTS]
        for n in range(1, logged + 1):  # the same turns once more
            await memory.log_signal("tool:read_file", f"SES-{n % 4}", f"EVT-{n}", namespace=SUBJECTS[n % 3])
        assert memory.signals.position == logged
        assert [(await memory.read_signals(namespace=each)) for each in SUBJECTS] == before
    for name in ("signals", "overlays"):
        assert verify_file(tmp_path / "HOT" / "memory" / f"{name}.jsonl").ok


@pytest.mark.parametrize("name", ["signals", "overlays"])
@pytest.mark.parametrize("lost", [1, 30, 200])
async def test_a_torn_end_costs_what_was_not_acknowledged(tmp_path: Path, name: str, lost: int) -> None:
    """A process that died in the middle of a write leaves part of a line."""
    async with open_memory(tmp_path) as memory:
        sources = await recur(memory, namespace=ADA)
        await memory.log_overlay(learned(sources), namespace=ADA)
    file = tmp_path / "HOT" / "memory" / f"{name}.jsonl"
    whole = file.read_bytes()
    with file.open("ab") as out:
        out.write(whole[: whole.index(b"\n")][:-lost])
    async with open_memory(tmp_path) as memory:
        assert file.read_bytes() == whole
        await compare(memory, Files(tmp_path), ADA, at(), None, ["tool:read_file"])


async def refuse_all(memory: HO3Memory, artifact_id: str) -> None:
    """Asserts that a memory takes nothing any more."""
    calls: list[Any] = [
        memory.log_signal("tool:read_file", "SES-9"),
        memory.log_overlay(learned(["EVT-1"], model="another")),
        memory.deactivate_overlay(artifact_id, "tested", at()),
        memory.update_overlay_weight(artifact_id, 0.1, "tested", at()),
        memory.quarantine("EVT-1", "tested"),
        memory.commit(),
    ]
    for call in calls:
        with pytest.raises(LedgerWriteError):
            await call


async def use_failing(root: Path, disk: FaultFS, before: tuple[Any, Any]) -> None:
    """Uses a memory while its disk begins to fail."""
    async with open_memory(root, ledger=DURABLE, disk=disk) as memory:
        assert (await memory.read_signals(), await memory.read_active_biases()) == before
        artifact_id = before[1][0].artifact_id or ""
        disk.at = disk.calls + 1
        await memory.log_signal("tool:read_file", "SES-8", "EVT-8")
        await memory.update_overlay_weight(artifact_id, 0.7, "tested", at())
        for ledger in memory.ledgers:
            with pytest.raises(LedgerWriteError, match="No space left"):
                await ledger.commit()
        await refuse_all(memory, artifact_id)
        [found] = await memory.read_signals()
        assert found.event_ids[:5] == before[0][0].event_ids
        assert len(await memory.read_active_biases()) == 1
        assert (await memory.check_gate("tool:read_file")).already_consolidated
        assert await memory.read_signals(namespace=ADA) == [], "and one that was not in memory"


@pytest.mark.parametrize("kind", ["write", "sync"])
async def test_a_disk_that_fails_is_told_and_reads_go_on(tmp_path: Path, kind: str) -> None:
    async with open_memory(tmp_path, ledger=DURABLE) as memory:
        for n in range(5):
            await memory.log_signal("tool:read_file", f"SES-{n % 3}", f"EVT-{n + 1}")
        await memory.log_overlay(learned([f"EVT-{n + 1}" for n in range(5)]))
        before = await memory.read_signals(), await memory.read_active_biases()
    with pytest.raises(LedgerWriteError):  # when it is closed, for what is pending then
        await use_failing(tmp_path, FaultFS(only=[kind], error=errno.ENOSPC, forever=True), before)
    async with open_memory(tmp_path) as memory:
        files = Files(tmp_path)
        await compare(memory, files, "default", at(), None, ["tool:read_file"])
        [found] = await memory.read_signals()
        assert found.event_ids[:5] == before[0][0].event_ids


async def test_what_could_not_be_written_counts_nowhere(tmp_path: Path) -> None:
    """Too large: refused before anything is written, and the counts are those of the file."""
    async with open_memory(tmp_path, ledger=QUICK.model_copy(update={"max_entry_bytes": 2_048})) as memory:
        await memory.log_signal("tool:read_file", "SES-1", "EVT-1")
        with pytest.raises(EntryTooLarge):
            await memory.log_signal("tool:read_file", "SES-1", "EVT-2", {"said": "x" * 2_048})
        assert [each.count for each in await memory.read_signals()] == [1]
        await memory.log_signal("tool:read_file", "SES-1", "EVT-2")
        assert [each.count for each in await memory.read_signals()] == [2]
        with pytest.raises(EntryTooLarge):
            await memory.log_overlay(learned(["EVT-1"], content={"bias": "x", "more": "x" * 2_048}))
        assert await memory.read_overlays(active_only=False) == []
        await memory.commit()
        await compare(memory, Files(tmp_path), "default", at(), None, ["tool:read_file"])


async def test_two_writers_do_not_share_a_memory(tmp_path: Path) -> None:
    async with open_memory(tmp_path) as memory:
        with pytest.raises(LedgerLocked):
            async with open_memory(tmp_path):
                pytest.fail("two writers")
        await memory.log_signal("tool:read_file", "SES-1")
