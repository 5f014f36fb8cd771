"""A process that writes a ledger and is killed. Its arguments say what it does:

DIRECTORY fsync|os SEGMENT_BYTES    forks a writer for each n that kills itself at its n-th file operation;
                                    prints how each ended, as JSON; 0 bytes: one file
FILE stream                         many writers; prints each number that was acknowledged, until it is killed
"""

import gc
import importlib
import json
import os
import sys
from pathlib import Path

import anyio

from kitchener.config import LedgerConfig
from kitchener.ledger import LedgerClient
from tests.ledger.support import Killing, fact, open_ledger, segments_of

PROGRAM = "from tests.ledger.killed_writer import main; main()"
COMMITS = (1, 3, 2)
BACKENDS = ("asyncio", "trio")


async def write_until_killed(path: Path, at: int, config: LedgerConfig, acknowledged: int) -> None:
    async with open_ledger(path, file_ops=Killing(at), config=config) as ledger:
        for size in COMMITS:
            for _ in range(size):
                await ledger.write(fact(ledger.position + 1))
            await ledger.commit()
            os.write(acknowledged, f"{ledger.position}\n".encode())


def kill_at_each_call(directory: Path, durability: str, segment_bytes: int) -> list[dict[str, object]]:
    config = segments_of(segment_bytes or 10**9, durability=durability)
    for backend in BACKENDS:  # before the forks, which would each do it
        importlib.import_module(f"anyio._backends._{backend}")
    gc.freeze()
    outcomes: list[dict[str, object]] = []
    while not outcomes or outcomes[-1]["signal"]:
        path = directory / f"{durability}{len(outcomes)}" / "l.jsonl"
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            backend = BACKENDS[len(outcomes) % 2]
            anyio.run(write_until_killed, path, len(outcomes) + 1, config, writer, backend=backend)
            os._exit(0)
        os.close(writer)
        _, status = os.waitpid(child, 0)
        with os.fdopen(reader) as pipe:
            acknowledged = [int(line) for line in pipe]
        outcomes.append({"signal": os.WTERMSIG(status), "acknowledged": acknowledged, "path": str(path)})
    return outcomes


async def stream(path: Path) -> None:
    async def write(ledger: LedgerClient) -> None:
        while True:
            await ledger.write(fact(ledger.position + 1))
            written = ledger.position
            await ledger.commit()
            os.write(1, f"{written}\n".encode())

    async with open_ledger(path) as ledger, anyio.create_task_group() as tasks:
        for _ in range(20):
            tasks.start_soon(write, ledger)


def main() -> None:
    path, mode = Path(sys.argv[1]), sys.argv[2]
    if mode == "stream":
        anyio.run(stream, path)
    else:
        json.dump(kill_at_each_call(path, mode, int(sys.argv[3])), sys.stdout)
