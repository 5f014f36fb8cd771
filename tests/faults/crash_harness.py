"""Kills a runtime again and again, and looks after each time whether everything that was promised is there.

    python -m tests.faults.crash_harness --kills 500 --seed 1 --backend both

Half of the kills come at record boundaries: the same short life, killed at its first place, its second, and so on (places are
those of `crash_reaper.py`). The other half come under load, from outside at a random moment or at a random place. After each
kill another process opens the same root, is itself killed now and then, says again what was interrupted, and checks all that
`crash_checks.py` knows. What is survived and why is explained in `docs/survival.md`. Exit code 1: something was not.
"""

import argparse
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import anyio

from kitchener.config import LedgerConfig
from tests.faults.crash_checks import Promises, check_files, check_record, check_running
from tests.faults.crash_load import SESSIONS, Load, Tell, live, namespaces, open_loaded, say, session_of, subject_of
from tests.faults.crash_process import Process
from tests.faults.crash_reaper import Reaper

KILLS_A_ROOT = 8
"""Under load; then a root is settled and another begun, so that checking stays quick."""
SHORT_LIFE, SHORT_TURNS = (0, 3), 3
"""Sessions of one subject, and messages in each: enough for a switch, both tools, a closing message and a consolidation."""
LONGEST_LIFE_S = 0.12


@dataclass(slots=True)
class Summary:
    """What a run came to."""

    backend: str
    kills: int = 0
    at_boundaries: int = 0
    under_load: int = 0
    in_recovery: int = 0
    boundaries: int = 0
    """Places in one short life, over the kinds of life that were tried."""
    acknowledged: int = 0
    completed: int = 0
    aborted: int = 0
    outcome_unknown: int = 0
    consolidations: int = 0
    recovered_batches: int = 0
    """Half-written commits that were cut off."""
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

    def note(self, process: Process) -> None:
        """Takes down what a process said before it died."""
        asked = list(self.pending)
        for line in process.lines:
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

            async def life(tell: Tell, _: Reaper, pending: list[tuple[int, int]] = pending) -> None:
                await _mend(self, pending, tell, is_last=is_last)

            process = Process(life, backend, at)
            code = process.wait()
            self.note(process)
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


class Harness:
    """Many kills on many roots, with one event loop library.

    Args:
        where: the directory of all roots
        seed: of everything that is random
        backend: `asyncio` or `trio`
        segment_bytes: size of a ledger's segments; None: as configured by default
    """

    def __init__(self, where: Path, seed: int, backend: str, segment_bytes: int | None) -> None:
        self.summary = Summary(backend)
        self._where, self._backend, self._segment_bytes = where, backend, segment_bytes
        self._chance = random.Random(f"{seed} {backend}")
        self._roots = 0
        importlib.import_module(f"anyio._backends._{backend}")  # before the forks, which would each do it

    def run(self, kills: int, progress: Callable[[Summary], None]) -> Summary:
        """So many kills, half of them at record boundaries."""
        began = time.monotonic()
        for is_tiny in (False, True):
            self._at_boundaries(kills // 4, progress, is_tiny=is_tiny)
        while self.summary.kills < kills and not self.summary.violations:
            self._under_load(min(KILLS_A_ROOT, kills - self.summary.kills))
            self.summary.seconds = round(time.monotonic() - began, 1)
            progress(self.summary)
        self.summary.seconds = round(time.monotonic() - began, 1)
        return self.summary

    def _root(self, sessions: Sequence[int], *, is_tiny: bool) -> Root:
        self._roots += 1
        path = self._where / f"{self._backend}-{self._roots}"
        return Root(path, self.summary, sessions, is_tiny=is_tiny, segment_bytes=self._segment_bytes)

    def _drop(self, root: Root) -> None:
        if not self.summary.violations:
            shutil.rmtree(root.path)

    def _at_boundaries(self, kills: int, progress: Callable[[Summary], None], *, is_tiny: bool) -> None:
        """The same short life, killed at places that are spread evenly over it: at each of them where kills suffice."""
        places = self._places(is_tiny=is_tiny)
        self.summary.boundaries += places
        step = max(1.0, places / max(1, kills))
        for n in range(min(kills, places)):
            if self.summary.violations:
                return
            root = self._root(SHORT_LIFE, is_tiny=is_tiny)
            self._kill(root, root.load(turns=SHORT_TURNS), at=1 + int(n * step))
            self.summary.at_boundaries += 1
            root.settle(self._backend, self._chance)
            self._drop(root)
            if n % 25 == 24:
                progress(self.summary)

    def _places(self, *, is_tiny: bool) -> int:
        """How many places the short life passes."""
        root = self._root(SHORT_LIFE, is_tiny=is_tiny)
        load = root.load(turns=SHORT_TURNS)

        async def life(tell: Tell, reaper: Reaper) -> None:
            await live(load, tell)
            tell(f"passed {reaper.passed}")

        process = Process(life, self._backend)
        process.wait()
        root.note(process)
        root.settle(self._backend, self._chance)
        self._drop(root)
        return next((int(line.split()[1]) for line in process.lines if line.startswith("passed ")), 0)

    def _under_load(self, kills: int) -> None:
        root = self._root(range(SESSIONS), is_tiny=self._chance.random() < 0.3)
        for _ in range(kills):
            if self.summary.violations:
                return
            at = self._chance.randrange(1, 600) if self._chance.random() < 0.5 else None
            self._kill(root, root.load(), at=at)
            self.summary.under_load += 1
            root.mend(self._backend, self._chance)
        root.settle(self._backend, self._chance)
        self._drop(root)

    def _kill(self, root: Root, load: Load, *, at: int | None) -> None:
        async def life(tell: Tell, _: Reaper) -> None:
            await live(load, tell)

        process = Process(life, self._backend, at)
        if at is None:
            while "ready" not in process.lines and process.read(0.005):
                pass
            process.read(self._chance.uniform(0.0, LONGEST_LIFE_S))
            process.kill()
        code = process.wait()
        root.note(process)
        if code == -signal.SIGKILL:
            self.summary.kills += 1
        elif code != 0 or load.turns is None:
            self.summary.violations.append(f"{root.path.name}: a life ended with {code}")


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="crash_harness", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=500, help="how many, on each backend (default: 500)")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (default: 1)")
    parser.add_argument("--backend", choices=("asyncio", "trio", "both"), default="both")
    parser.add_argument("--root", type=Path, help="where to work; kept where something is wrong (default: in memory)")
    parser.add_argument("--segment-bytes", type=int, help="size of a ledger's segments, where ledgers have them")
    parser.add_argument("--json", action="store_true", help="print the summaries as one JSON value")
    args = parser.parse_args()
    if args.segment_bytes is not None and "segment_bytes" not in LedgerConfig.model_fields:
        parser.error("--segment-bytes: the ledgers of this version have no segments")
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    where = args.root or Path(tempfile.mkdtemp(prefix="kitchener-crash-", dir=shared))
    where.mkdir(parents=True, exist_ok=True)
    summaries = []
    for backend in ("asyncio", "trio") if args.backend == "both" else (args.backend,):
        harness = Harness(where, args.seed, backend, args.segment_bytes)
        summaries.append(harness.run(args.kills, _progress))
    if not any(each.violations for each in summaries):
        shutil.rmtree(where)
    if args.json:
        sys.stdout.write(json.dumps([asdict(each) for each in summaries], indent=2) + "\n")
    else:
        for each in summaries:
            sys.stdout.write("\n  ".join([_line(each), *each.violations]) + "\n")
    return 1 if any(each.violations for each in summaries) else 0


def _progress(summary: Summary) -> None:
    sys.stderr.write(_line(summary) + "\n")


def _line(summary: Summary) -> str:
    said = {key: value for key, value in asdict(summary).items() if key not in ("backend", "violations")}
    what = ", ".join(f"{value} {key.replace('_', ' ')}" for key, value in said.items())
    return f"{summary.backend}: {what}, {len(summary.violations)} violations"


if __name__ == "__main__":
    sys.exit(main())
