"""What the memory's tests stand on: a memory on real files with a clock that is set, and what is written into it."""

import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from kitchener.clock import Clock
from kitchener.config import HO3MemoryConfig, LedgerConfig
from kitchener.memory import HO3Memory
from kitchener.times import iso_of
from tests.ledger.support import NOON, SetClock

__all__ = ["ADA", "BO", "HOUR", "NOON", "QUICK", "SetClock", "at", "entries", "learned", "open_memory", "recur", "texts"]

HOUR = 3_600_000_000
"""Microseconds."""
ADA, BO = "ADMIN/ada", "ADMIN/bo"
"""Two subjects."""
QUICK = LedgerConfig(durability="os", linger_ms=0, accept_clock_jump=True)
"""Nobody waits for a disk, and the clock may leap by weeks."""


def open_memory(
    root: Path,
    clock: Clock | None = None,
    *,
    ledger: LedgerConfig = QUICK,
    sealer: Any = None,
    disk: Any = None,
    **settings: Any,
) -> AbstractAsyncContextManager[HO3Memory]:
    """The memory under a directory.

    Args:
        root: the directory
        clock: None: stands at noon
        ledger: how entries become durable
        sealer: None: nothing is sealed
        disk: the file system; None: the real one
        **settings: fields of `HO3MemoryConfig`
    """
    config = HO3MemoryConfig(**settings)
    return HO3Memory.open(root, config, clock=clock or SetClock(), ledger_config=ledger, sealer=sealer, file_ops=disk)


def at(hours: float = 0.0) -> str:
    """ISO text of noon and some hours."""
    return iso_of(NOON + round(hours * HOUR))


async def recur(
    memory: HO3Memory, signal_id: str = "tool:read_file", count: int = 5, sessions: int = 3, *, namespace: str = "default"
) -> list[str]:
    """Logs a signal some times, in sessions by turns; the ids of the events."""
    return [
        await memory.log_signal(signal_id, f"SES-{n % sessions:08x}", metadata={"turn_id": f"T-{n}"}, namespace=namespace)
        for n in range(count)
    ]


def learned(sources: list[str], signal_id: str = "tool:read_file", *, hours: float = 0.0, **changes: Any) -> dict[str, Any]:
    """A complete overlay.

    Args:
        sources: the events it was learned from
        signal_id: the signal it was learned from
        hours: how long after noon
        **changes: other fields, or other values
    """
    return {
        "signal_id": signal_id,
        "artifact_type": "topic_affinity",
        "labels": {"domain": ["files"], "task": []},
        "weight": 0.8,
        "scope": "agent",
        "context_line": "Often looks into files before asking.",
        "source_signal_ids": [signal_id],
        "source_event_ids": sources,
        "gate_snapshot": {"count": len(sources), "sessions": 3},
        "model": "offline-1",
        "prompt_pack_version": "PRM-CONSOLIDATE-001",
        "consolidation_event_ts": at(hours),
        "salience_weight": 0.8,
        "decay_modifier": 0.9,
        "content": {"bias": "Looks into files first.", "category": "topic_affinity"},
        "window_start": at(hours - 1),
        "window_end": at(hours),
        **changes,
    }


def entries(root: Path, name: str) -> list[dict[str, Any]]:
    """The entries of `signals` or `overlays` as they stand in the file: type, timestamp, payload. The memory must be closed."""
    text = (root / "HOT" / "memory" / f"{name}.jsonl").read_text()
    return [json.loads(line)["entry"] for line in text.splitlines()]


def texts(overlays: list[Any]) -> list[str]:
    """The lines of overlays."""
    return [overlay.line for overlay in overlays]
