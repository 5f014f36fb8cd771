"""Whether a large memory reads as fast as a small one: opening, rebuilding the index, and one subject's signals and gate.

    python benchmarks/memory.py
    python benchmarks/memory.py --sizes 10000:200 100000:2000 --json

Each size is EVENTS:SUBJECTS. All subjects take turns in a random order, four signals a turn, five turns a session, 128 turns a
commit. The sizes are then read alternately, one subject of each, so that whatever else the machine does hits both alike.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import psutil

from kitchener import HO3Memory
from kitchener.config import LedgerConfig
from kitchener.ledger import LedgerClient, LedgerEntry
from kitchener.memory.reader import SIGNALS_FILE
from kitchener.memory.signals import events_of_turn
from kitchener.memory.subject_cache import SIGNALS, signal_keys
from kitchener.records import events
from kitchener.records.entries import SignalPayload

SIGNALS_OF_A_TURN = ("intent:question", "domain:travel", "task:planning", "outcome:success")
TURNS_OF_A_SESSION, TURNS_OF_A_COMMIT = 5, 128
GATE = "domain:travel"


class Size(NamedTuple):
    """How much memory there is."""

    events: int
    subjects: int

    @property
    def turns_of_a_subject(self) -> int:
        """Every subject has the same number."""
        return self.events // len(SIGNALS_OF_A_TURN) // self.subjects


async def build(root: Path, size: Size, durability: Any) -> float:
    """Writes the signals as turns log them; returns seconds."""
    order, began, written = random.Random(14), time.perf_counter(), 0
    path = root / "HOT" / "memory" / SIGNALS_FILE
    config = LedgerConfig(durability=durability)
    where: dict[str, Any] = {"config": config, "index_dir": root / "index", "index_keys": signal_keys}
    async with LedgerClient.open(path, ledger_id=SIGNALS, **where) as ledger:
        for turn in range(size.turns_of_a_subject):
            for subject in order.sample(range(size.subjects), size.subjects):
                await log_turn(ledger, subject, turn)
                written += 1
                if written % TURNS_OF_A_COMMIT == 0:
                    await ledger.commit()
                    progress(written / (size.turns_of_a_subject * size.subjects), f"{size.events:,} events")
    progress(1.0, f"{size.events:,} events", end=True)
    return time.perf_counter() - began


async def log_turn(ledger: LedgerClient, subject: int, turn: int) -> None:
    """The entry that `HO3Memory.log_turn` writes, without its bookkeeping."""
    session_id = f"SES-{subject * 1_000 + turn // TURNS_OF_A_SESSION:08x}"
    turn_id = f"T-{session_id[4:]}-{turn % TURNS_OF_A_SESSION + 1:06d}"
    payload: SignalPayload = {
        "v": events.VERSIONS[events.HO3_SIGNAL],
        "namespace": f"ADMIN/subject-{subject}",
        "subject_id": f"subject-{subject}",
        "session_id": session_id,
        "turn_id": turn_id,
        "timestamp": "2026-02-18T10:30:00.000000+00:00",
        "signals": events_of_turn(session_id, turn_id, SIGNALS_OF_A_TURN),
    }
    await ledger.write(LedgerEntry(events.HO3_SIGNAL, turn_id, payload))


def progress(share: float, what: str, *, end: bool = False) -> None:
    """A bar on stderr."""
    if sys.stderr.isatty():
        full = int(share * 30)
        print(
            f"\rwriting {what}  {'█' * full}{'░' * (30 - full)} {share:4.0%}",
            end="\n" if end else "",
            file=sys.stderr,
            flush=True,
        )
    elif end:
        print(f"wrote {what}", file=sys.stderr, flush=True)


async def read_one(memory: HO3Memory, subject: int, size: Size) -> tuple[float, float]:
    """Wall-clock and CPU seconds of reading one subject's signals and one gate of it."""
    namespace = f"ADMIN/subject-{subject}"
    began, cpu = time.perf_counter(), time.process_time()
    signals = await memory.read_signals(namespace=namespace)
    gate = await memory.check_gate(GATE, namespace=namespace)
    took = time.perf_counter() - began, time.process_time() - cpu
    assert [each.count for each in signals] == [size.turns_of_a_subject] * len(SIGNALS_OF_A_TURN)
    assert gate.count == size.turns_of_a_subject
    return took


async def measure_reads(roots: Sequence[Path], sizes: Sequence[Size], samples: int) -> list[dict[str, Any]]:
    """Opens all sizes, then reads random subjects of each: first all cold, then the same ones warm."""
    rows: list[dict[str, Any]] = []
    picks = [random.Random(2).sample(range(size.subjects), min(samples, size.subjects)) for size in sizes]
    async with AsyncExitStack() as stack:
        memories = []
        for root, size in zip(roots, sizes, strict=True):
            before, began = rss_mib(), time.perf_counter()
            memory = await stack.enter_async_context(HO3Memory.open(root))
            rows.append(
                {
                    "events": size.turns_of_a_subject * size.subjects * len(SIGNALS_OF_A_TURN),
                    "subjects": size.subjects,
                    "open_s": round(time.perf_counter() - began, 4),
                }
            )
            assert memory.signals.opened_from == "checkpoint", memory.signals.opened_from
            rows[-1]["open_rss_mib"] = round(rss_mib() - before, 1)
            memories.append(memory)
        for state in ("cold", "warm"):
            times: list[list[tuple[float, float]]] = [[] for _ in sizes]
            for number in range(min(map(len, picks))):
                for which, memory in enumerate(memories):
                    times[which].append(await read_one(memory, picks[which][number], sizes[which]))
            for row, found in zip(rows, times, strict=True):
                row.update(summary(state, found))
        rows[-1]["rss_mib"] = round(rss_mib(), 1)
    return rows


def summary(state: str, times: list[tuple[float, float]]) -> dict[str, float]:
    """Median and 95th percentile in microseconds, and the mean CPU time."""
    walls = sorted(wall for wall, _ in times)
    return {
        f"{state}_median_us": round(statistics.median(walls) * 1e6, 1),
        f"{state}_p95_us": round(walls[int(0.95 * (len(walls) - 1))] * 1e6, 1),
        f"{state}_cpu_us": round(statistics.fmean(cpu for _, cpu in times) * 1e6, 1),
    }


async def measure_rebuild(root: Path) -> float:
    """Seconds to open after the indexes were lost."""
    for file in (root / "index").iterdir():
        file.unlink()
    began = time.perf_counter()
    async with HO3Memory.open(root) as memory:
        took = time.perf_counter() - began
        assert memory.signals.opened_from == "full"
    return took


def rss_mib() -> float:
    """Resident memory of this process."""
    return float(psutil.Process().memory_info().rss) / (1 << 20)


async def run(options: argparse.Namespace) -> dict[str, Any]:
    """Builds, reads, rebuilds."""
    with tempfile.TemporaryDirectory(dir=options.dir) as name:
        roots = [Path(name, str(number)) for number in range(len(options.sizes))]
        built = [await build(root, size, options.durability) for root, size in zip(roots, options.sizes, strict=True)]
        rows = await measure_reads(roots, options.sizes, options.samples)
        for row, root, seconds in zip(rows, roots, built, strict=True):
            row["built_events_per_s"] = round(row["events"] / seconds)
            row["ledger_mib"] = round(sum(each.stat().st_size for each in root.rglob("*.jsonl")) / (1 << 20), 1)
            row["index_mib"] = round(sum(each.stat().st_size for each in (root / "index").iterdir()) / (1 << 20), 1)
            row["rebuild_s"] = round(await measure_rebuild(root), 3)
    first, last = rows[0], rows[-1]
    names = ("cold_median_us", "cold_p95_us", "cold_cpu_us", "warm_median_us", "warm_cpu_us")
    ratios = {f"ratio_{each.removesuffix('_us')}": round(last[each] / first[each], 3) for each in names}
    return {"backend": options.backend, "rows": rows, **ratios}


def parse_size(text: str) -> Size:
    """`EVENTS:SUBJECTS`."""
    events, _, subjects = text.partition(":")
    size = Size(int(events), int(subjects))
    if size.turns_of_a_subject < 1:
        raise argparse.ArgumentTypeError(f"{text}: fewer than {len(SIGNALS_OF_A_TURN)} events a subject")
    return size


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = [Size(10_000, 200), Size(1_000_000, 20_000)]
    parser.add_argument("--sizes", nargs="+", type=parse_size, default=sizes, metavar="EVENTS:SUBJECTS")
    parser.add_argument("--samples", type=int, default=200, help="subjects that are read (default 200)")
    parser.add_argument("--durability", choices=("fsync", "os", "none"), default="none", help="while the ledgers are written")
    parser.add_argument("--backend", choices=("asyncio", "trio"), default="asyncio")
    parser.add_argument("--dir", help="where the ledgers are written (default: the system's temporary directory)")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    options = parser.parse_args()
    figures = anyio.run(run, options, backend=options.backend)
    if options.json:
        print(json.dumps(figures))
        return
    rows = figures.pop("rows")
    for name in dict.fromkeys(name for row in rows for name in row):
        print(f"{name:>22}" + "".join(f"{row.get(name, ''):>16,}" if name in row else f"{'':>16}" for row in rows))
    for name, value in figures.items():
        print(f"{name:>22}{value:>16}")


if __name__ == "__main__":
    main()
