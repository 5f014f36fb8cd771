"""A runtime that learns and is killed again and again, at any moment, ends with every signal learned once."""

import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.acceptance.memory.memory_kit import check_all, ledger_entries, lives, overlays, signals

KILLS, SUBJECTS = 15, 6

LEARNING = """
import sys
from pathlib import Path

import anyio

from tests.acceptance.memory.memory_kit import EASY, say, student
from tests.acceptance.stack import QUESTION, open_scripted

root, seed, turns = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])


async def think(request):
    if request.wo_type == "consolidate":
        await anyio.sleep(0.05)  # so that many are in the works when the process dies


async def main():
    settings = {**EASY, "ho3_gate_count_threshold": 2, "ho3_gate_session_threshold": 2}
    classify = lambda message: {**QUESTION, "labels": {"domain": message.split()[-1]}}
    provider = student(classification=classify, latency_s=0.002, record=False, gate=think)
    async with open_scripted(root, provider, **settings) as runtime:
        print("ready", flush=True)
        for n in range(turns):
            async with anyio.create_task_group() as tasks:
                for subject in range(6):
                    say_it = lambda s=subject: say(runtime, f"about {(n + 5 * seed) // 2 % 20}", subject_id=f"s{s}")
                    tasks.start_soon(say_it)
        await runtime.drain()


anyio.run(main, backend=sys.argv[4])
"""


def start(root: Path, seed: int, turns: int, backend: str) -> "subprocess.Popen[bytes]":
    """The learner, in a process of its own, ready."""
    command = [sys.executable, "-c", LEARNING, str(root), str(seed), str(turns), backend]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    for line in process.stdout:  # logs of what the runtime found when it opened come first
        if line == b"ready\n":
            return process
    process.communicate()
    raise AssertionError(f"the learner ended with {process.returncode}")


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_every_signal_is_learned_once_after_many_kills(tmp_path: Path, backend: str) -> None:
    """Kills at random moments; then one undisturbed run, with enough turns to open every gate once more."""
    chance = random.Random(20260101)
    for n in range(KILLS):
        process = start(tmp_path, n, 10_000, backend)
        try:
            process.communicate(timeout=chance.uniform(0.0, 0.4))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
    process = start(tmp_path, KILLS, 90, backend)
    process.communicate(timeout=120)
    assert process.returncode == 0
    learned = Counter((each["namespace"], each["signal_id"]) for each in overlays(tmp_path))
    assert set(learned.values()) == {1}
    assert len(learned) == SUBJECTS * 21  # twenty domains and the questions
    events_of = {(each["namespace"], each["event_id"]) for each in signals(tmp_path)}
    for overlay in overlays(tmp_path):
        assert {(overlay["namespace"], each) for each in overlay["source_event_ids"]} <= events_of
    executed = Counter(
        entry["entity_id"]
        for entry in ledger_entries(tmp_path, "ho1m")
        if entry["entry_type"] == "WO_EXECUTING" and entry["entity_id"].startswith("WO-CONS-")
    )
    assert set(executed.values()) <= {1}
    assert all(told[0] == "WO_PLANNED" and told.count("WO_PLANNED") == 1 for told in lives(tmp_path).values())
    ended_well = [wo_id for wo_id, told in lives(tmp_path).items() if told[-1] == "WO_COMPLETED"]
    assert len(ended_well) <= len(learned)
    check_all(tmp_path)
