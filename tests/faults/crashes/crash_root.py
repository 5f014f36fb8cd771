"""One directory of ledgers whose processes are killed: what they promised, and how it is opened again and looked at.

`crash_harness.py` decides who is killed when; here is what comes after it.
"""

import json
import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from kitchener.testing.kill_places import KillPlaces
from tests.faults.crashes.crash_checks import Promises, check_files, check_record, check_running
from tests.faults.crashes.crash_load import Load, Tell, namespaces, open_loaded, say, session_of, subject_of
from tests.faults.crashes.crash_process import Process


@dataclass(slots=True)
class Summary:
    """What a run came to."""

    backend: str
    kills: int = 0
    at_boundaries: int = 0
    under_load: int = 0
    in_recovery: int = 0
    power_losses: int = 0
    """Beside the kills."""
    boundaries: int = 0
    """Places in one short life, over the kinds of life that were tried."""
    acknowledged: int = 0
    completed: int = 0
    aborted: int = 0
    outcome_unknown: int = 0
    consolidations: int = 0
    outlived: int = 0
    """Lives that ended by themselves before they came to the place where they were to be killed."""
    recovered_batches: int = 0
    """Half-written commits that were cut off."""
    segments: int = 0
    """Files of ledgers that were finished."""
    seconds: float = 0.0
    violations: list[str] = field(default_factory=list)


class Root:
    """One directory of ledgers, and what the processes that lived there promised."""

    def __init__(
        self, path: Path, summary: Summary, sessions: Sequence[int], *, is_tiny: bool, segment_bytes: int | None
    ) -> None:
        self.path, self.summary, self.sessions = path, summary, sessions
        self.is_tiny, self.segment_bytes = is_tiny, segment_bytes
        self.promises = Promises()
        self.first = dict.fromkeys(sessions, 0)
        self.pending: list[tuple[int, int]] = []
        path.mkdir()

    def load(self, turns: int | None = None) -> Load:
        """A life that goes on where the last one ended."""
        return Load(self.path, dict(self.first), turns, self.is_tiny, self.segment_bytes)

    def note(self, lines: Sequence[str]) -> None:
        """Takes down what a process said before it died."""
        asked = list(self.pending)
        for line in lines:
            word, *rest = line.split()
            if word == "ask":
                asked.append((int(rest[0]), int(rest[1])))
                self.first[int(rest[0])] = int(rest[1])
            elif word in ("ack", "unknown"):
                message = (int(rest[0]), int(rest[1]))
                if word == "ack":
                    self.promises.acknowledged[message] = (rest[2], rest[3])
                else:
                    self.promises.unknown.add(message)
                self.first[message[0]] = message[1] + 1
            elif word == "failed":
                self.summary.violations.append(f"{self.path.name}: {json.loads(line.partition(' ')[2])}")
            elif word in ("wrong", "hangs"):
                self.summary.violations.append(f"{self.path.name}: {line}")
        over = {*self.promises.acknowledged, *self.promises.unknown}
        self.pending = [message for message in dict.fromkeys(asked) if message not in over]

    def mend(self, backend: str, chance: random.Random, *, is_last: bool = False) -> dict[str, int]:
        """Opens it again, itself killed now and then, says what was interrupted again, and checks everything."""
        while True:
            at = chance.randrange(1, 40) if chance.random() < 0.15 else None
            pending = self.pending

            async def life(tell: Tell, _: KillPlaces, pending: list[tuple[int, int]] = pending) -> None:
                await _mend(self, pending, tell, is_last=is_last)

            process = Process(life, backend, at)
            code = process.wait()
            self.note(process.lines)
            if code == -signal.SIGKILL and at is not None:
                self.summary.kills += 1
                self.summary.in_recovery += 1
                continue
            if code != 0:
                self.summary.violations.append(f"{self.path.name}: the process after the crash ended with {code}")
            told = next((line for line in process.lines if line.startswith("counts ")), "counts {}")
            counts: dict[str, int] = json.loads(told.partition(" ")[2])
            return counts

    def settle(self, backend: str, chance: random.Random) -> None:
        """The last look: everything that is ripe is learned, and the whole is counted."""
        counts = self.mend(backend, chance, is_last=True)
        self.summary.acknowledged += len(self.promises.acknowledged)
        self.summary.outcome_unknown += len(self.promises.unknown)
        for name, count in counts.items():
            setattr(self.summary, name, getattr(self.summary, name) + count)


async def _mend(root: Root, pending: list[tuple[int, int]], tell: Tell, *, is_last: bool) -> None:
    promises = root.promises

    def keep(line: str) -> None:
        word, *rest = line.split()
        if word == "ack":
            promises.acknowledged[int(rest[0]), int(rest[1])] = (rest[2], rest[3])
        elif word == "unknown":
            promises.unknown.add((int(rest[0]), int(rest[1])))
        tell(line)

    async with open_loaded(root.load()) as runtime:
        supervisor = runtime.supervisor()
        for number in root.sessions:
            await supervisor.start_session(session_of(number), subject_id=subject_of(number))
        async with anyio.create_task_group() as tasks:
            for session, number in pending:
                tasks.start_soon(say, runtime, session, number, keep)
        if not pending:
            await say(runtime, 0, root.first[0], keep)
        await runtime.drain()
        if is_last:
            for line in [each async for each in _learn_all(runtime)]:
                tell(line)
        wrong = await check_running(runtime, root.sessions)
    recorded, more = await check_files(root.path, is_thorough=is_last)
    for each in (*wrong, *more, *check_record(root.path, recorded, promises)):
        tell(f"wrong {each}")
    counts = {
        "completed": len(recorded.turns("TURN_COMPLETED")),
        "aborted": len(recorded.turns("TURN_ABORTED")),
        "consolidations": sum(entry.entry_type == "HO3_OVERLAY" for entry in recorded.overlays),
        "recovered_batches": len(list(root.path.rglob("*.damaged-*"))),
        "segments": len(list(root.path.rglob("*.segments/*.segment"))),
    }
    tell(f"counts {json.dumps(counts)}")


async def _learn_all(runtime: Any) -> Any:
    """Learns from every signal whose gate is open; says which stay open nevertheless."""
    memory = runtime.memory()
    for namespace in namespaces():
        signals = [each.signal_id for each in await memory.read_signals(namespace=namespace)]
        await runtime.supervisor().run_consolidation(signals, namespace=namespace)
        for signal_id in signals:
            if (await memory.check_gate(signal_id, namespace=namespace)).crossed:
                yield f"wrong {signal_id} of {namespace} was never learned"
