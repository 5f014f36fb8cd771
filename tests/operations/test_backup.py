"""A root that was copied while turns ran is restored elsewhere: it verifies, replays and can be continued (docs/operations.md).

One event loop: what is copied are files.
"""

import subprocess
from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from kitchener.config import LedgerConfig, RuntimeConfig
from kitchener.ledger import verify_file
from kitchener.replaying import replay_session
from kitchener.runtime import Runtime, open_runtime
from tests.acceptance.memory.memory_kit import EASY, student
from tests.acceptance.stack import scripted_config

SCRIPT = Path(__file__).parents[2] / "operations/backup.sh"
SMALL = LedgerConfig.model_construct(**{**LedgerConfig().model_dump(), "durability": "os", "segment_bytes": 16_384})
"""Files are finished every few turns, also while they are copied. The settings allow no such small ones."""


async def talk(runtime: Runtime, subject_id: str, told: list[str], stop: anyio.Event) -> None:
    """Messages of one subject, until the test says that it is enough."""
    supervisor = runtime.supervisor()
    session_id = await supervisor.start_session(subject_id=subject_id)
    while not stop.is_set():
        await supervisor.handle_turn(f"message {len(told)}", session_id=session_id)
        told.append(session_id)


async def copied_while_running(config: RuntimeConfig, *arguments: str) -> int:
    """Copies the root while six sessions of two subjects talk. Returns how many turns had ended before."""
    told, stop = list[str](), anyio.Event()
    async with open_runtime(config, providers={"scripted": student()}) as runtime, anyio.create_task_group() as tasks:
        for number in range(6):
            tasks.start_soon(talk, runtime, ("ada", "bo")[number % 2], told, stop)
        while len(told) < 24:
            await checkpoint()
        before = len(told)
        await anyio.run_process([str(SCRIPT), *arguments])
        while len(told) < before + 10:
            await checkpoint()
        stop.set()
    return before


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_copy_of_a_running_root_verifies_replays_and_goes_on(tmp_path: Path) -> None:
    config = scripted_config(tmp_path / "root", **EASY, ledger=SMALL, context_mode="enforce")
    root, copy = tmp_path / "root", tmp_path / "elsewhere/root"
    before = await copied_while_running(config, f"{root}", f"{copy}", f"{root}.keys", f"{copy}.keys")
    assert not (copy / "index").exists()
    assert list((copy / "HO2/ADMIN/ho2m.jsonl.segments").iterdir())

    restored = config.model_copy(update={"plane_root": str(copy)})
    async with open_runtime(restored, providers={"scripted": student()}) as runtime:
        sessions = await runtime.sessions()
        assert {each.subject_id for each in sessions} == {"ada", "bo"}
        assert sum(each.turns for each in sessions) >= before
        for each in sessions:
            assert (await runtime.supervisor().handle_turn("again", session_id=each.session_id)).response == "echo: again"
    assert all(verify_file(path).ok for path in copy.rglob("*.jsonl"))
    reports = [await replay_session(each.session_id, config=restored) for each in sessions]
    assert [each.is_identical for each in reports] == [True] * 6


def test_it_writes_over_nothing_and_copies_nothing_that_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for arguments, told in (((tmp_path, tmp_path / "there"), "already exists"), ((tmp_path, tmp_path / "new"), "is no root")):
        found = subprocess.run([SCRIPT, *arguments], capture_output=True, text=True, check=False)
        assert (found.returncode, told in found.stderr, (tmp_path / "new").exists()) == (1, True, False)
