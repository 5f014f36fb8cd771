"""Kills a runtime again and again, and looks after each time whether everything that was promised is there.

    python -m tests.faults.crashes.crash_harness --kills 500 --seed 1 --backend both

Half of the kills come at record boundaries: the same short life, killed at its first place, its second, and so on (places are
those of `kitchener.testing.kill_places`). The other half come under load, from outside at a random moment or at a random
place. A fifth as many lives end in a power loss (`crash_power.py`). After each, another process opens the same root, is itself
killed now and then, says again what was interrupted, and checks all that `crash_checks.py` knows. What is survived and why is
explained in `docs/survival.md`. Exit code 1: something was not.
"""

import argparse
import gc
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
from dataclasses import asdict
from pathlib import Path

from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.policy_identity import policy_code
from kitchener.testing.kill_places import KillPlaces
from tests.faults.crashes.crash_load import EFFECTS, SESSIONS, Load, Tell, live
from tests.faults.crashes.crash_power import PowerLoss, read_tape
from tests.faults.crashes.crash_process import Process
from tests.faults.crashes.crash_root import Root, Summary
from tests.faults.crashes.crash_tape import Tape

KILLS_A_ROOT = 8
"""Under load; then a root is settled and another begun, so that checking stays quick."""
SHORT_LIFE, SHORT_TURNS = (0, 3), 3
"""Sessions of one subject, and messages in each: enough for a switch, both tools, a closing message and a consolidation."""
LONGEST_LIFE_S = 0.12


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
        # before the forks, which would each do it
        importlib.import_module(f"anyio._backends._{backend}")
        importlib.import_module("structlog")
        importlib.import_module("cryptography.hazmat.primitives.ciphers.aead")
        PromptLibrary.load()
        policy_code()
        gc.freeze()

    def sweep(self, progress: Callable[[Summary], None]) -> Summary:
        """One kill at each record boundary there is."""
        began = time.monotonic()
        for is_tiny in (False, True):
            self._at_boundaries(None, progress, is_tiny=is_tiny)
        self.summary.seconds = round(time.monotonic() - began, 1)
        return self.summary

    def run(self, kills: int, progress: Callable[[Summary], None]) -> Summary:
        """So many kills, half of them at record boundaries."""
        began = time.monotonic()
        for is_tiny in (False, True):
            self._at_boundaries(kills // 4, progress, is_tiny=is_tiny)
        if self._segment_bytes is None:  # what a power loss leaves is worked out for files that keep their names
            self._power_losses(kills // 5)
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
            shutil.rmtree(root.path.with_name(f"{root.path.name}.keys"), ignore_errors=True)  # none if it died before its first

    def _at_boundaries(self, kills: int | None, progress: Callable[[Summary], None], *, is_tiny: bool) -> None:
        """The same short life, killed at places that are spread evenly over it; None: at each of them."""
        places = self._places(is_tiny=is_tiny)
        self.summary.boundaries += places
        progress(self.summary)
        kills = places if kills is None else kills
        step = max(1.0, places / max(1, kills))
        for n in range(min(kills, places)):
            if self.summary.violations:
                return
            root = self._root(SHORT_LIFE, is_tiny=is_tiny)
            if self._kill(root, root.load(turns=SHORT_TURNS), at=1 + int(n * step)):
                self.summary.at_boundaries += 1
            root.settle(self._backend, self._chance)
            self._drop(root)
            if n % 25 == 24:
                progress(self.summary)

    def _places(self, *, is_tiny: bool) -> int:
        """How many places the short life passes."""
        root = self._root(SHORT_LIFE, is_tiny=is_tiny)
        load = root.load(turns=SHORT_TURNS)

        async def life(tell: Tell, places: KillPlaces) -> None:
            await live(load, tell)
            tell(f"passed {places.passed}")

        process = Process(life, self._backend)
        process.wait()
        root.note(process.lines)
        root.settle(self._backend, self._chance)
        self._drop(root)
        return next((int(line.split()[1]) for line in process.lines if line.startswith("passed ")), 0)

    def _under_load(self, kills: int) -> None:
        root = self._root(range(SESSIONS), is_tiny=self._chance.random() < 0.3)
        for _ in range(kills):
            if self.summary.violations:
                return
            at = self._chance.randrange(1, 600) if self._chance.random() < 0.5 else None
            if self._kill(root, root.load(), at=at):
                self.summary.under_load += 1
            root.mend(self._backend, self._chance)
        root.settle(self._backend, self._chance)
        self._drop(root)

    def _power_losses(self, count: int) -> None:
        """One life is recorded; then its power goes at moments that are spread evenly over it."""
        root = self._root(range(SESSIONS), is_tiny=False)
        load, path = root.load(turns=SHORT_TURNS), self._where / f"{root.path.name}.tape"

        async def life(tell: Tell, _: KillPlaces) -> None:
            tape = Tape(path, root.path / EFFECTS)

            def keep(line: str) -> None:
                tape.note("said", line=line)
                tell(line)

            await live(load, keep)

        if Process(life, self._backend).wait() != 0:
            self.summary.violations.append(f"{root.path.name}: the recorded life failed")
            return
        tape = read_tape(path)
        for n in range(count):
            if self.summary.violations:
                return
            remains = self._root(range(SESSIONS), is_tiny=False)
            loss = PowerLoss(tape, len(tape) * (n + 1) // count)
            loss.build(root.path, remains.path, self._chance)
            remains.note(loss.said)
            self.summary.power_losses += 1
            remains.settle(self._backend, self._chance)
            self._drop(remains)
        path.unlink()
        self._drop(root)

    def _kill(self, root: Root, load: Load, *, at: int | None) -> bool:
        """One life and its end; whether it was killed, or had come to its own end before."""

        async def life(tell: Tell, _: KillPlaces) -> None:
            await live(load, tell)

        process = Process(life, self._backend, at)
        if at is None:
            while "ready" not in process.lines and process.read(0.005):
                pass
            process.read(self._chance.uniform(0.0, LONGEST_LIFE_S))
            process.kill()
        code = process.wait()
        root.note(process.lines)
        if code == -signal.SIGKILL:
            self.summary.kills += 1
        elif code != 0 or load.turns is None:
            self.summary.violations.append(f"{root.path.name}: a life ended with {code}")
        else:
            self.summary.outlived += 1
        return code == -signal.SIGKILL


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="crash_harness", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kills", type=int, default=500, help="how many, on each backend (default: 500)")
    parser.add_argument("--sweep", action="store_true", help="kill at each record boundary instead, once")
    parser.add_argument("--seed", type=int, default=1, help="of everything random (default: 1)")
    parser.add_argument("--backend", choices=("asyncio", "trio", "both"), default="both")
    parser.add_argument("--root", type=Path, help="where to work; kept where something is wrong (default: in memory)")
    parser.add_argument(
        "--segment-bytes", type=int, help="size of a ledger's segments, such as 16384; then without power losses"
    )
    parser.add_argument("--json", action="store_true", help="print the summaries as one JSON value")
    args = parser.parse_args()
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    where = args.root or Path(tempfile.mkdtemp(prefix="kitchener-crash-", dir=shared))
    where.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what it filled is removed
    summaries = list[Summary]()
    try:
        for backend in ("asyncio", "trio") if args.backend == "both" else (args.backend,):
            harness = Harness(where, args.seed, backend, args.segment_bytes)
            summaries.append(harness.summary)
            if args.sweep:
                harness.sweep(_progress)
            else:
                harness.run(args.kills, _progress)
    except BaseException:
        Process.end()  # it would go on writing
        raise
    finally:
        if not any(each.violations for each in summaries):
            shutil.rmtree(where, ignore_errors=True)
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
