"""A batch run that is killed again and again, at any moment, ends with every turn once and ledgers that verify."""

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from kitchener.ledger import verify_file

CONVERSATIONS, MESSAGES, KILLS = 40, 25, 60


def run(source: Path, root: Path) -> "subprocess.Popen[bytes]":
    """The command, in a process of its own."""
    command = [sys.executable, "-m", "kitchener", "run", str(source), "--root", str(root), "--concurrency", "8"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.soak
def test_every_turn_is_there_once_after_sixty_kills(tmp_path: Path) -> None:
    """Kills at random moments of a run; each further run goes on where the last one was cut off."""
    chance = random.Random(20260101)
    source, root = tmp_path / "in.jsonl", tmp_path / "plane"
    lines = [
        json.dumps({"conversation": f"c{c}", "subject_id": f"s{c % 7}", "message": f"message {m} of conversation {c}"})
        for m in range(MESSAGES)
        for c in range(CONVERSATIONS)
    ]
    source.write_text("\n".join(lines) + "\n")
    for _ in range(KILLS):
        process = run(source, root)
        try:
            process.wait(timeout=chance.uniform(0.8, 2.5))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    process = run(source, root)
    assert process.wait(timeout=300) == 0
    keys: dict[str, str] = {}
    completed: Counter[str] = Counter()
    ledger = root / "HO2" / "ADMIN" / "ho2m.jsonl"
    for line in ledger.read_text().splitlines():
        entry = json.loads(line)["entry"]
        payload = entry["payload"]
        if entry["entry_type"] == "TURN_STARTED":
            keys[payload["turn_id"]] = payload["session_id"] + payload["idempotency_key"]
        elif entry["entry_type"] == "TURN_COMPLETED":
            completed[keys[payload["turn_id"]]] += 1
    assert len(completed) == CONVERSATIONS * MESSAGES
    assert set(completed.values()) == {1}
    for path in root.rglob("*.jsonl"):
        assert verify_file(path).ok
