"""A process that logs signals and learns from them until it is killed, and prints the number of each signal that is on disk."""

import os
import sys
from pathlib import Path

import anyio

from kitchener.config import LedgerConfig
from kitchener.memory import HO3Memory
from tests.memory.shared.kit import ADA, BO, at, learned, open_memory

PROGRAM = "from tests.memory.shared.killed_logger import main; main()"
"""Takes the directory."""
SUBJECTS = (ADA, BO, "default")


async def log_for_ever(root: Path) -> None:
    """Signal after signal; every fifth of a subject teaches something, every seventh time that is taken back."""
    async with open_memory(root, ledger=LedgerConfig(linger_ms=0)) as memory:
        n = 0
        while True:
            n += 1
            namespace = SUBJECTS[n % 3]
            await memory.log_signal("tool:read_file", f"SES-{n % 4}", f"EVT-{n}", {"turn_id": f"T-{n}"}, namespace=namespace)
            if n % 5 == 0:
                await learn(memory, namespace, n)
            await memory.commit()
            os.write(1, f"{n}\n".encode())


async def learn(memory: HO3Memory, namespace: str, n: int) -> None:
    """Something new each time, by another model each time."""
    [found] = await memory.read_signals(namespace=namespace)
    await memory.log_overlay(learned(list(found.event_ids), model=f"model-{n}"), namespace=namespace)
    if n % 7 == 0:
        [overlay] = await memory.read_overlays(namespace=namespace)
        await memory.deactivate_overlay(overlay.artifact_id or "", "tested", at(), namespace=namespace)


def main() -> None:
    anyio.run(log_for_ever, Path(sys.argv[1]))
