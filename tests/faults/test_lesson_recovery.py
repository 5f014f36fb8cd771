"""Consolidations that a crash cut off get their end when the ledgers are next opened, whoever comes back (docs/survival.md).

Dying is a copy of all ledgers at the moment that counts, opened by somebody else.
"""

from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.ledger import LedgerEntry, open_ledgers
from kitchener.memory import HO3Memory
from kitchener.memory.reader import OVERLAYS_FILE
from kitchener.records.prompt import PromptRequest
from tests.acceptance.memory.memory_kit import (
    ADA,
    EASY,
    MANUAL,
    QUESTIONS,
    Stopping,
    asked,
    check_all,
    ledger_entries,
    lives,
    memory_entries,
    open_remembering,
    overlays,
    student,
)
from tests.acceptance.stack import QUICK, open_scripted, places
from tests.faults.test_consolidation_crash import CUT_OFF, DONE, copied
from tests.shared.event_loops import ON_ASYNCIO, ON_TRIO


async def cut_off(root: Path, copy: Path, where: str) -> None:
    """A consolidation whose process died while the model thought, after its answer, or after the overlay."""
    commits: list[Any] = []

    async def die() -> None:
        await commits[0]()
        copied(root, copy, with_index=True)

    async def gate(request: PromptRequest) -> None:
        if request.wo_type == "consolidate" and where == "asked":
            await die()

    async with open_remembering(root, provider=student(gate=gate), wrap=Stopping) as (stack, memory):
        commits.append(stack.ledgers.commit)
        memory.before = die if where == "answered" else None
        memory.after = die if where == "learned" else None
        await stack.turn("something", subject_id="ada")
        await stack.supervisor.run_consolidation([QUESTIONS], namespace=ADA)


async def only_opened(root: Path, **settings: Any) -> int:
    """A runtime in which nothing is said; how often its model was asked."""
    provider = student()
    with anyio.fail_after(20):
        async with open_scripted(root, provider, **{**EASY, **settings}) as runtime:
            await runtime.drain()
    return len(asked(provider))


@pytest.mark.parametrize(
    ("where", "life", "learned"),
    [("asked", [*CUT_OFF, "WO_ABANDONED:crash"], 0), ("answered", DONE, 1), ("learned", DONE, 1)],
)
async def test_opening_the_ledgers_ends_what_was_cut_off(tmp_path: Path, where: str, life: list[str], learned: int) -> None:
    """Nobody has to come back for it: the subject may never say another word."""
    root, copy = tmp_path / "live", tmp_path / "copy"
    await cut_off(root, copy, where)
    assert list(lives(copy).values()) == [CUT_OFF]
    assert await only_opened(copy) == 0
    assert list(lives(copy).values()) == [life]
    assert len(overlays(copy)) == learned
    before = ledger_entries(copy)
    assert await only_opened(copy) == 0
    assert ledger_entries(copy) == before, "a second time there is nothing to do"
    check_all(copy)


@ON_ASYNCIO
async def test_its_end_names_the_answer_that_it_had(tmp_path: Path) -> None:
    root, copy = tmp_path / "live", tmp_path / "copy"
    await cut_off(root, copy, "learned")
    await only_opened(copy)

    def end(of: Path) -> dict[str, Any]:
        done = [e for e in ledger_entries(of) if e["entry_type"] == "WO_COMPLETED" and e["entity_id"].startswith("WO-CONS-")]
        (only,) = [entry["payload"] for entry in done]
        return {key: value for key, value in only.items() if key != "cost"} | {
            "tokens": (only["cost"]["input_tokens"], only["cost"]["output_tokens"])
        }

    assert end(copy) == end(root)


async def test_no_overlay_is_written_before_its_plan_and_its_answer_are_on_disk(tmp_path: Path) -> None:
    """The ledgers have no common transaction: a round that is cut off may keep the overlay and lose what it rests on."""
    root, copy = tmp_path / "live", tmp_path / "copy"

    async def look() -> None:
        copied(root, copy, with_index=True)

    async with open_remembering(root, provider=student(), wrap=Stopping) as (stack, memory):
        memory.before = look
        await stack.turn("something", subject_id="ada")
        await stack.supervisor.run_consolidation([QUESTIONS], namespace=ADA)
    assert list(lives(copy).values()) == [CUT_OFF]
    answered = [e["entry_type"] for e in ledger_entries(copy, "ho1m") if e["entity_id"].startswith("WO-CONS-")]
    assert answered[-1] == "WO_COMPLETED"


@ON_TRIO
async def test_a_line_that_was_taken_back_meanwhile_does_not_return(tmp_path: Path) -> None:
    """Between the crash and the next start somebody deactivates the line: its work order is closed, the line stays out."""
    root, copy = tmp_path / "live", tmp_path / "copy"
    await cut_off(root, copy, "learned")
    async with HO3Memory.open(copy, ledger_config=QUICK) as memory:
        (line,) = await memory.read_overlays(namespace=ADA)
        await memory.deactivate_overlay(str(line.artifact_id), "not true", "2026-01-01T00:00:00+00:00", namespace=ADA)
    await only_opened(copy)
    assert list(lives(copy).values()) == [DONE]
    kinds = [entry["entry_type"] for entry in memory_entries(copy, Path(OVERLAYS_FILE).stem)]
    assert kinds == ["HO3_OVERLAY", "HO3_OVERLAY_DEACTIVATED"]


@ON_ASYNCIO
async def test_a_program_that_consolidates_by_hand_ends_it_with_its_first_call(tmp_path: Path) -> None:
    """Without a runtime nobody opens anything by itself: `run_consolidation` does it, whatever it is asked for."""
    root, copy = tmp_path / "live", tmp_path / "copy"
    await cut_off(root, copy, "learned")
    async with open_remembering(copy, **MANUAL) as (stack, _):
        assert await stack.supervisor.run_consolidation(["domain:other"], namespace=ADA) == []
    assert list(lives(copy).values()) == [DONE]


@ON_ASYNCIO
async def test_one_that_was_overtaken_by_many_is_found(tmp_path: Path) -> None:
    """It waited for its model while a hundred others were begun and ended."""
    root, copy = tmp_path / "live", tmp_path / "copy"
    await cut_off(root, copy, "learned")
    (hanging,) = lives(copy)
    async with open_ledgers(**places(copy), config=QUICK) as ledgers:
        for n in range(100):
            wo_id, session_id = f"WO-CONS-{n:016x}-001", f"CONS-{n:016x}"
            common = {"v": 1, "session_id": session_id, "subject_id": "ada", "wo_id": wo_id}
            await ledgers.ho2m.write(LedgerEntry("WO_PLANNED", wo_id, {**common, "wo_type": "consolidate"}))
            await ledgers.ho2m.write(LedgerEntry("WO_ABANDONED", wo_id, {**common, "reason": "BUDGET"}))
    await only_opened(copy)
    found = lives(copy)
    assert found.pop(hanging) == DONE
    assert set(map(tuple, found.values())) == {("WO_PLANNED", "WO_ABANDONED:BUDGET")}


@ON_TRIO
async def test_one_that_a_recovery_left_long_after_the_crash_is_found(tmp_path: Path) -> None:
    """Regression: the recovery was killed after it had ended another one. Its entry made the crash look recent."""
    root, copy = tmp_path / "live", tmp_path / "copy"
    await cut_off(root, copy, "learned")
    async with open_ledgers(**places(copy), config=QUICK) as ledgers:
        of_another = {"v": 1, "session_id": "CONS-0", "subject_id": "bo", "wo_id": "WO-CONS-0-001", "reason": "crash"}
        await ledgers.ho2m.write(LedgerEntry("WO_ABANDONED", "WO-CONS-0-001", of_another))
    await only_opened(copy, consolidation_deadline_s=0.000_001)  # however short, "long after" is longer
    assert DONE in lives(copy).values()
    assert CUT_OFF not in lives(copy).values()


async def test_one_that_says_too_little_of_itself_is_abandoned(tmp_path: Path) -> None:
    """Another program's entry, say: it does not keep the runtime from starting, and it does not stay open."""
    wo_id, session_id = "WO-CONS-0000000000000001-001", "CONS-0000000000000001"
    async with open_ledgers(**places(tmp_path), config=QUICK) as ledgers:
        payload = {"v": 1, "session_id": session_id, "wo_id": wo_id, "wo_type": "consolidate"}
        await ledgers.ho2m.write(LedgerEntry("WO_PLANNED", wo_id, payload))
    await only_opened(tmp_path)
    assert lives(tmp_path) == {wo_id: ["WO_PLANNED", "WO_ABANDONED:crash"]}
