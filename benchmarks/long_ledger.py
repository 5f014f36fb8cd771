"""What a ledger's length costs: opening it, bringing a session back out of it, proving a turn of it, and verifying it.

Some sessions are recorded by a real runtime; then their ledger is filled up with other sessions' entries through the real
writer, to one size after another, and measured at each. What does not depend on the length stays the same from row to row.

    python -m benchmarks.long_ledger
    python -m benchmarks.long_ledger --entries 100000 1000000 10000000 --jobs 2 --json
    python -m benchmarks.long_ledger --entries 1000 1000000 --turns 5 --jobs 0      # the size of a turn's proof
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import anyio
import anyio.to_thread

from kitchener import open_runtime
from kitchener.cli.ledger.proof import evidence_of
from kitchener.cli.options import Options
from kitchener.clock import SystemClock
from kitchener.config import LedgerConfig, RuntimeConfig
from kitchener.ledger import LedgerClient, LedgerEntry, verify_ledger
from kitchener.ledger.bundles.bundle import MAX_BUNDLE_BYTES, write_bundle
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.ledger.verify.checkpoint import sign_ledger
from kitchener.records.index_keys import index_keys
from kitchener.signing import Signer, make_key
from kitchener.times import iso_of

HO2M = Path("HO2/ADMIN/ho2m.jsonl")
COMMIT_ENTRIES = 20_000
"""Entries written between two commits while a ledger is filled up."""
OTHER_TURNS = 50
"""Turns of each session that fills it up."""


class Counting(FileOps):
    """The file system, with what is read counted."""

    def __init__(self) -> None:
        self.reads = self.bytes = 0

    def read(self, fd: int, size: int, offset: int) -> bytes:
        data = super().read(fd, size, offset)
        self.reads += 1
        self.bytes += len(data)
        return data


def tell(text: str, *, is_quiet: bool) -> None:
    """How far it is, on standard error."""
    if not is_quiet:
        print(f"  {text}", file=sys.stderr, flush=True)


async def talk(root: Path, session_id: str | None, turns: int) -> tuple[str, list[float]]:
    """Some turns of a session, new or brought back; its id, and the CPU milliseconds of each turn."""
    took = []
    config = RuntimeConfig(plane_root=str(root), ledger=LedgerConfig(durability="none"))
    async with open_runtime(config) as runtime:
        supervisor = runtime.supervisor("ADMIN")
        warm = await supervisor.start_session(subject_id="warm-up")
        for _ in range(2):  # what only the first turn of a process costs is not the session's
            await supervisor.handle_turn("Hello", session_id=warm)
        session = session_id or await supervisor.start_session(subject_id="ada")
        for number in range(turns):
            began = time.process_time()
            await supervisor.handle_turn(f"Message {number}: what is new in the garden?", session_id=session)
            took.append((time.process_time() - began) * 1e3)
    return session, took


async def fill_up(path: Path, entries: int, *, is_quiet: bool) -> None:
    """Writes entries of other sessions until the ledger has so many."""
    config = LedgerConfig(durability="os")
    async with LedgerClient.open(
        path, ledger_id="HO2M:ADMIN", config=config, index_keys=index_keys, index_dir=index_of(path)
    ) as ledger:
        told = time.perf_counter()
        while ledger.position < entries:
            number = ledger.position
            session, turn = f"SES-{number // (7 * OTHER_TURNS):08x}", number // 7 % OTHER_TURNS
            facts: dict[str, Any] = {
                "v": 1,
                "session_id": session,
                "subject_id": f"anon-{session}",
                "turn_id": f"T-{session[4:]}-{turn:06d}",
                "wo_id": f"WO-{session}-{turn:03d}",
                "wo_type": "synthesize",
                "input_hash": "sha256:" + "0f" * 32,
            }
            for _ in range(7):
                await ledger.write(LedgerEntry("WO_PLANNED", facts["wo_id"], facts))
            if ledger.position - ledger.durable_position >= COMMIT_ENTRIES:
                await ledger.commit()
                if time.perf_counter() - told > 10:
                    told = time.perf_counter()
                    tell(f"{ledger.position:,} of {entries:,} entries written", is_quiet=is_quiet)


def index_of(path: Path) -> Path:
    """Where the runtime keeps the index."""
    return path.parents[2] / "index"


async def open_times(path: Path, repeat: int = 5) -> dict[str, Any]:
    """Milliseconds of opening it for writing, the best of some, and what was read from the ledger's files."""
    took, ops = [], Counting()
    for _ in range(repeat):
        ops = Counting()
        began = time.perf_counter()
        opened = LedgerClient.open(path, ledger_id="HO2M:ADMIN", index_keys=index_keys, index_dir=index_of(path), file_ops=ops)
        async with opened as ledger:
            took.append((time.perf_counter() - began) * 1e3)
            assert ledger.opened_from == "checkpoint"
    return {"open_ms": round(min(took), 1), "open_reads": ops.reads, "open_read_bytes": ops.bytes}


async def read_back_times(path: Path, session_id: str, repeat: int = 7) -> dict[str, Any]:
    """CPU milliseconds of reading all entries of one session, the best of some, and what was read from the ledger's files."""
    took, ops, found = list[float](), Counting(), list[Any]()
    opened = LedgerClient.open(path, ledger_id="HO2M:ADMIN", index_keys=index_keys, index_dir=index_of(path), file_ops=ops)
    async with opened as ledger:
        for _ in range(repeat):
            ops.reads = ops.bytes = 0
            began = time.process_time()
            found = [entry.payload async for entry in ledger.read(session_id=session_id)]
            took.append((time.process_time() - began) * 1e3)
    return {
        "session_entries": len(found),
        "read_session_cpu_ms": round(min(took), 2),
        "read_session_reads": ops.reads,
        "read_session_bytes": ops.bytes,
    }


async def activation_ms(root: Path, sessions: Sequence[str]) -> float:
    """The first turn of a session after a start against its later ones, CPU milliseconds: what bringing it back costs."""
    extra = []
    for session_id in sessions:
        _, took = await talk(root, session_id, 6)
        extra.append(took[0] - median(took[1:]))
    return round(min(extra), 2)


async def proof_bytes(root: Path, session_id: str, signer: Signer) -> int:
    """Size of the bundle that proves the session's first turn, after all heads have been signed."""
    options, turn_id = Options(root=root), f"T-{session_id.removeprefix('SES-')}-000001"
    for path in options.paths().ledgers():
        await anyio.to_thread.run_sync(sign_ledger, path, signer, iso_of(SystemClock().time_us()))
    pieces = list[bytes]()
    write_bundle(pieces.append, turn_id, session_id, await evidence_of(options, turn_id), max_bytes=MAX_BUNDLE_BYTES)
    return sum(map(len, pieces))


async def verify_times(path: Path, jobs: int) -> dict[str, Any]:
    """Entries a second and core, and a second of the clock with some processes."""
    began, cpu = time.perf_counter(), time.process_time()
    report = await verify_ledger(path, jobs=1)
    wall, used = time.perf_counter() - began, time.process_time() - cpu
    assert report.ok, report.fault
    shared = await verify_ledger(path, jobs=jobs)
    assert shared.ok, shared.fault
    return {
        "verify_per_core_s": round(report.entries / used),
        "verify_per_s": round(report.entries / wall),
        f"verify_per_s_in_{jobs}": round(shared.entries / shared.seconds),
    }


async def run(arguments: argparse.Namespace) -> None:
    """All measurements, one row for each size."""
    rows = []
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        root = Path(name)
        path, signer = root / HO2M, make_key(root / "benchmark.key")
        sessions = [[(await talk(root, None, arguments.turns))[0] for _ in range(3)] for _ in arguments.entries]
        for entries, mine in zip(arguments.entries, sessions, strict=True):
            began = time.perf_counter()
            await fill_up(path, entries, is_quiet=arguments.json)
            tell(f"{entries:,} entries are there after {time.perf_counter() - began:.0f} s", is_quiet=arguments.json)
            files = [path, *path.with_name(f"{path.name}.segments").glob("*.segment")]
            row: dict[str, Any] = {
                "entries": entries,
                "mib": round(sum(file.stat().st_size for file in files) / 2**20),
                "segments": len(files) - 1,
            }
            row |= await open_times(path)
            row |= await read_back_times(path, mine[0])
            row |= await verify_times(path, arguments.jobs) if arguments.jobs else {}
            row["proof_bytes"] = await proof_bytes(root, sessions[0][0], signer)
            row["activation_cpu_ms"] = await activation_ms(root, mine)
            rows.append(row)
            if not arguments.json:
                print("  ".join(f"{key} {value:,}" for key, value in row.items()), flush=True)
    if arguments.json:
        print(json.dumps(rows))


def main() -> None:
    """Reads the arguments and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, nargs="+", default=[100_000, 1_000_000], help="sizes, ascending")
    parser.add_argument("--turns", type=int, default=50, help="turns of each session that is brought back")
    parser.add_argument("--jobs", type=int, default=2, help="processes that verify; 0: do not verify")
    parser.add_argument("--directory", type=Path, default=None, help="where to write; default: the temporary directory")
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--json", action="store_true", help="print one JSON array and no progress")
    arguments = parser.parse_args()
    anyio.run(run, arguments, backend=arguments.backend)


if __name__ == "__main__":
    main()
