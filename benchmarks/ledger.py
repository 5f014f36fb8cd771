"""Measures the ledger: what a write costs, how many commits it takes, how fast it verifies, opens and finds a session.

Wall-clock figures depend on the disk and on who else uses the machine; compare figures of one run.

    python benchmarks/ledger.py
    python benchmarks/ledger.py --entries 1000000 --json
"""

import argparse
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import anyio

from kitchener.config import LedgerConfig
from kitchener.ledger import LedgerClient, LedgerEntry, verify_file
from kitchener.ledger.format.bulk import check_lines

WRITERS = (1, 8, 64, 512)
ENTRIES_PER_TURN = 10
TURNS_PER_SESSION = 50


def payload(session_id: str, number: int) -> dict[str, Any]:
    """Some 300 bytes of payload in the shape that work orders have."""
    return {
        "v": 1,
        "session_id": session_id,
        "subject_id": f"anon-{session_id}",
        "turn_id": f"T-{session_id[4:]}-{number:06d}",
        "wo_id": f"WO-{session_id}-{number:03d}",
        "wo_type": "synthesize",
        "intent_id": None,
        "targets": [],
        "acceptance": ["non-empty"],
        "input_hash": "sha256:" + "0f" * 32,
    }


async def measure_write(directory: Path, rounds: int = 40, size: int = 1_000) -> dict[str, Any]:
    """CPU microseconds of one `write`, the best of several rounds; commits are not counted."""
    payloads = [payload(f"SES-{n % 16:08x}", n) for n in range(size)]
    best = float("inf")
    async with LedgerClient.open(directory / "write.jsonl", ledger_id="BENCH") as ledger:
        for _ in range(rounds):
            began = time.thread_time()
            for each in payloads:
                await ledger.write(LedgerEntry("WO_PLANNED", "WO-SES-00000000-001", each))
            best = min(best, (time.thread_time() - began) / size)
            await ledger.commit()
    return {"write_us": round(best * 1e6, 2), "payload_bytes": len(json.dumps(payloads[0], separators=(",", ":")))}


async def measure_appends(directory: Path, writers: int, seconds: float = 2.0) -> dict[str, Any]:
    """Entries made durable a second, where each of many writers waits for each of its entries."""
    counts = [0] * writers
    async with LedgerClient.open(directory / f"appends{writers}.jsonl", ledger_id="BENCH") as ledger:
        end = time.perf_counter() + seconds

        async def write(number: int) -> None:
            entry, count = LedgerEntry("WO_PLANNED", "WO-SES-00000000-001", payload(f"SES-{number:08x}", 1)), 0
            while time.perf_counter() < end:
                await ledger.write(entry)
                await ledger.commit()
                count += 1
            counts[number] = count

        began, cpu = time.perf_counter(), time.process_time()
        async with anyio.create_task_group() as tasks:
            for number in range(writers):
                tasks.start_soon(write, number)
        took, used = time.perf_counter() - began, time.process_time() - cpu
    total = sum(counts)
    return {"writers": writers, "appends_per_s": round(total / took), "cpu_us_per_append": round(used / total * 1e6, 1)}


async def make_ledger(path: Path, entries: int) -> None:
    """A ledger of many sessions whose turns are interleaved, 128 turns a commit."""
    sessions = max(1, entries // (ENTRIES_PER_TURN * TURNS_PER_SESSION))
    async with LedgerClient.open(path, ledger_id="BENCH", config=LedgerConfig(durability="os")) as ledger:
        for turn in range(entries // ENTRIES_PER_TURN):
            session_id = f"SES-{turn % sessions:08x}"
            facts = payload(session_id, turn // sessions)
            for _ in range(ENTRIES_PER_TURN):
                await ledger.write(LedgerEntry("WO_PLANNED", facts["wo_id"], facts))
            if turn % 128 == 127:
                await ledger.commit()


async def timed(action: Callable[[], Awaitable[Any]], repeat: int = 5) -> float:
    """Milliseconds of the fastest run."""
    best = float("inf")
    for _ in range(repeat):
        began = time.perf_counter()
        await action()
        best = min(best, time.perf_counter() - began)
    return round(best * 1e3, 2)


def verify_times(path: Path, rounds: int = 3) -> tuple[float, float]:
    """CPU seconds of verifying a ledger as it is done, and with every line checked by itself; alternately, the best of some."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        for place, check in enumerate((check_lines, lambda *_: None)):
            with patch("kitchener.ledger.format.checks.check_lines", check):
                cpu = time.process_time()
                report = verify_file(path)
                best[place] = min(best[place], time.process_time() - cpu)
            assert report.ok, report.fault
    return best[0], best[1]


async def measure_large(directory: Path, entries: int) -> dict[str, Any]:
    """Times on one large ledger."""
    path = directory / "large.jsonl"
    began = time.perf_counter()
    await make_ledger(path, entries)
    made = time.perf_counter() - began
    files = [path, *path.with_name(f"{path.name}.segments").glob("*.segment")]
    verified, by_line = await anyio.to_thread.run_sync(verify_times, path)

    async def open_only() -> None:
        async with LedgerClient.open(path, ledger_id="BENCH") as ledger:
            assert ledger.opened_from == "checkpoint"

    opened_ms = await timed(open_only)
    async with LedgerClient.open(path, ledger_id="BENCH") as ledger:

        async def read_session() -> None:
            found = [entry.payload async for entry in ledger.read(session_id="SES-00000001")]
            assert len(found) == ENTRIES_PER_TURN * TURNS_PER_SESSION

        async def last_entry() -> None:
            assert await ledger.last(session_id="SES-00000001")

        session_ms, last_ms = await timed(read_session), await timed(last_entry)
    for file in (directory / "index").iterdir():
        if file.name.startswith("BENCH"):
            file.unlink()
    rebuilt_ms = await timed(open_only_after_loss(path), repeat=1)
    return {
        "entries": entries,
        "bytes_per_entry": round(sum(each.stat().st_size for each in files) / entries),
        "made_per_s": round(entries / made),
        "verified_per_cpu_s": round(entries / verified),
        "verified_line_by_line_per_cpu_s": round(entries / by_line),
        "open_ms": opened_ms,
        "read_session_ms": session_ms,
        "last_ms": last_ms,
        "open_without_index_ms": rebuilt_ms,
    }


def open_only_after_loss(path: Path) -> Callable[[], Awaitable[None]]:
    """Opens a ledger whose index is gone."""

    async def action() -> None:
        async with LedgerClient.open(path, ledger_id="BENCH") as ledger:
            assert ledger.opened_from == "full"

    return action


async def run(arguments: argparse.Namespace) -> None:
    """All measurements, printed as they come or as one JSON object."""
    results: dict[str, Any] = {"backend": arguments.backend, "appends": []}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        directory = Path(name)
        results.update(await measure_write(directory))
        for writers in WRITERS:
            results["appends"].append(await measure_appends(directory, writers, arguments.seconds))
        if arguments.entries:
            results["large"] = await measure_large(directory, arguments.entries)
    if arguments.json:
        print(json.dumps(results))
        return
    print(f"write                    {results['write_us']:>10} µs CPU  ({results['payload_bytes']} bytes of payload)")
    for row in results["appends"]:
        each = f"({row['cpu_us_per_append']} µs CPU each)"
        print(f"{row['writers']:>4} waiting writers     {row['appends_per_s']:>10,} appends/s  {each}")
    for key, value in results.get("large", {}).items():
        print(f"{key:24} {value:>10,}")


def main() -> None:
    """Reads the arguments and measures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000, help="size of the large ledger; 0 leaves it out")
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each number of writers is measured")
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--directory", type=Path, default=None, help="where to write; default: the temporary directory")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    anyio.run(run, arguments, backend=arguments.backend)


if __name__ == "__main__":
    main()
