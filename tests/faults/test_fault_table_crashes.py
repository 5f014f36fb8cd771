"""Fault table, crashes: a process that is killed at any call, and a machine that loses its power (docs/survival.md).

The writer is another process. After each crash this one opens the ledger: every acknowledged entry is there, and what is there
is a prefix of what was written.
"""

import base64
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from kitchener.ledger import verify_file
from tests.faults.ledger_process import Worker, acknowledged, holds
from tests.ledger.support import damaged_copies, fact, forget_index, open_ledger
from tests.shared.property_examples import examples

COMMITS = (1, 3, 2)
SECTOR = 512


@pytest.mark.parametrize("durability", ["fsync", "os"])
async def test_kill_9_at_any_call_of_opening_appending_and_closing(
    worker: Worker, place: Path, anyio_backend: str, durability: str
) -> None:
    """The n-th file operation is its last, for every n, until the process ends by itself."""
    for at in range(1, 1_000):
        path = place.parent / str(at) / "l.jsonl"
        disk = {"is": "kills", "at": at}
        events = worker.run(
            "write", path=path, commits=COMMITS, disk=disk, config={"durability": durability}, backend=anyio_backend
        )
        if events[-1]["code"] == 0:
            break
        assert events[-1]["code"] == -signal.SIGKILL
        if path.parent.exists():
            await holds(path, acknowledged(events), sum(COMMITS))
    assert at > 15
    assert acknowledged(events) == sum(COMMITS)


async def test_kill_9_while_recovering_from_a_kill(worker: Worker, place: Path, anyio_backend: str) -> None:
    """A half-written commit, and then a process that dies at every call of its recovery."""
    worker.run("write", path=place, commits=COMMITS, backend=anyio_backend)
    forget_index(place)
    torn = place.read_bytes()[:-20]
    for at in range(1, 1_000):
        place.write_bytes(torn)
        forget_index(place)
        events = worker.run("write", path=place, commits=(1,), disk={"is": "kills", "at": at}, backend=anyio_backend)
        assert await holds(place, max(4, acknowledged(events)), 5) in (4, 5)
        for copy in damaged_copies(place):
            copy.unlink()
        if events[-1]["code"] == 0:
            break
    assert at > 15


class Disk:
    """What is told of a ledger's file, and what a disk may have kept of it when the power went."""

    def __init__(self, chance: random.Random) -> None:
        self.synced = self.written = b""
        self._chance = chance

    def take(self, event: dict[str, Any]) -> None:
        """One more operation."""
        if event["kind"] == "write":
            self.written += base64.b64decode(event["data"])
        elif event["kind"] == "truncate":
            self.written = self.written[: event["size"]]
        else:
            self.synced = self.written

    def image(self, how: str) -> bytes:
        """The synced prefix, and of the rest, sector by sector, what chance left of it.

        Args:
            how: `dropped`: the file ends somewhere in it; `zeroed`: sectors are there and empty; `reordered`: later sectors
                were written and earlier ones were not
        """
        start, data, chance = len(self.synced), bytearray(self.written), self._chance
        if how == "dropped":
            return bytes(data[: start + chance.randint(0, len(data) - start)])
        sectors = range(start // SECTOR, -(-len(data) // SECTOR))
        lost = (
            [n for n in sectors if chance.random() < 0.4]
            if how == "zeroed"
            else list(sectors)[: chance.randint(0, len(sectors))]
        )
        for n in lost:
            begin, end = max(n * SECTOR, start), min((n + 1) * SECTOR, len(data))
            data[begin:end] = bytes(end - begin)
        return bytes(data)


@pytest.mark.hypothesis
@pytest.mark.parametrize("how", ["dropped", "zeroed", "reordered"])
@pytest.mark.parametrize("index", ["lost", "older"])
async def test_a_power_loss_at_any_moment(worker: Worker, place: Path, anyio_backend: str, how: str, index: str) -> None:
    """The other process tells what it does with the disk; at each moment the power goes, and an image or several are tried."""
    older, chance, tried = place.parent / "older", random.Random(f"{how} {index}"), 0
    images = examples(few=1, many=3)
    worker.run("write", path=place, commits=(2,), backend=anyio_backend)
    shutil.copytree(place.parent / "index", older)
    disk = Disk(chance)
    disk.synced = disk.written = place.read_bytes()
    promised, count = 2, 2 + sum(COMMITS)
    events = worker.run("write", path=place, commits=COMMITS, filler=300, disk={"is": "records"}, backend=anyio_backend)
    for event in events:
        if event["event"] == "acknowledged":
            promised = event["position"]
        if event["event"] != "disk":
            continue
        disk.take(event)
        for _ in range(images):
            image = disk.image(how)
            place.write_bytes(image)
            shutil.rmtree(place.parent / "index")
            if index == "older":
                shutil.copytree(older, place.parent / "index")
            async with open_ledger(place) as ledger:
                found = [entry.payload["n"] async for entry in ledger.read()]
                assert found == list(range(1, len(found) + 1))
                assert promised <= len(found) <= count
                assert place.read_bytes().startswith(disk.synced)
                await ledger.write(fact(len(found) + 1))
            assert verify_file(place).entries == len(found) + 1
            tried += 1
    assert tried >= images * (2 * len(COMMITS))
