"""Fault table, disk: it is full, it fails, it does half of what it was asked, and whoever waits for it is cancelled.

The writer is another process (docs/survival.md). Who waits gets `LedgerWriteError`, nothing more is written, reading goes on;
what the next process shows beyond the last acknowledged entry is on disk before it is shown.
"""

import errno
import os
from pathlib import Path

import pytest

from kitchener.ledger import verify_file
from tests.faults.ledger_process import Event, Worker, acknowledged, holds, only
from tests.ledger.support import FaultFS, damaged_copies, open_ledger

COMMITS = (1, 3, 2)
ERRORS = [errno.EIO, errno.ENOSPC, errno.EDQUOT]


def refusals(events: list[Event]) -> set[str]:
    """The errors that were told, to whoever waited and at the end."""
    return {event["error"] for event in events if event["event"] in ("refused", "failed")}


def test_the_system_takes_no_more_bytes_in_the_middle_of_a_commit(worker: Worker, place: Path, anyio_backend: str) -> None:
    """A real limit (RLIMIT_FSIZE, with its signal ignored): the kernel writes a part, and refuses the rest."""
    events = worker.run("write", path=place, commits=(3, 40, 1), limit=5_000, goes_on=True, backend=anyio_backend)
    assert [event["event"] for event in events] == [
        *["opened", "acknowledged", "refused", "reads", "refused", "reads", "failed", "ended"],
    ]
    told = [event for event in events if event["event"] == "refused"]
    assert {event["error"] for event in told} == {"LedgerWriteError"}
    assert all("File too large" in event["text"] for event in told)
    assert [event["numbers"][:3] for event in events if event["event"] == "reads"] == [[1, 2, 3]] * 2, "reading goes on"


async def test_what_a_full_disk_left_is_cut_off_and_kept_beside(worker: Worker, place: Path, anyio_backend: str) -> None:
    events = worker.run("write", path=place, commits=(3, 40), limit=5_000, goes_on=True, backend=anyio_backend)
    assert acknowledged(events) == 3
    torn = place.stat().st_size
    again = worker.run("write", path=place, commits=(1,), backend=anyio_backend)
    assert only(again, "opened")["recovered"] == sum(copy.stat().st_size for copy in damaged_copies(place)) > 0
    assert place.stat().st_size < torn
    assert await holds(place, 4, 4) == 4


async def test_a_disk_that_stays_full_does_not_stop_recovery(worker: Worker, place: Path, anyio_backend: str) -> None:
    """The cut bytes cannot be kept; the cut itself needs no room."""
    worker.run("write", path=place, commits=(3, 40), limit=5_000, goes_on=True, backend=anyio_backend)
    full = {"is": "fails", "at": 1, "error": errno.ENOSPC, "forever": True, "only": ["write"]}
    events = worker.run("write", path=place, commits=(), disk=full, backend=anyio_backend)
    assert only(events, "opened")["position"] == 3
    assert damaged_copies(place) == [], "no empty file that says it holds them"
    assert await holds(place, 3, 3) == 3


def test_a_device_that_is_always_full_is_no_place_for_a_ledger(worker: Worker, anyio_backend: str) -> None:
    events = worker.run("write", path="/dev/full", commits=(1,), backend=anyio_backend)
    assert only(events, "failed")["error"] == "LedgerPathError"
    assert "not a regular file" in only(events, "failed")["text"]


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
@pytest.mark.parametrize("kind", ["write", "sync"])
@pytest.mark.parametrize("error", ERRORS, ids=errno.errorcode.get)
async def test_a_write_or_sync_that_fails_poisons_the_ledger(
    worker: Worker, place: Path, anyio_backend: str, error: int, kind: str, forever: bool
) -> None:
    """Each write, each sync, until none fails any more: nobody is told that something is durable that is not."""
    for at in range(1, 100):
        path = place.parent / str(at) / "l.jsonl"
        disk = {"is": "fails", "at": at, "error": error, "forever": forever, "only": [kind]}
        events = worker.run("write", path=path, commits=COMMITS, disk=disk, goes_on=True, backend=anyio_backend)
        if events[-1]["code"] == 0:
            break
        assert refusals(events) <= {"LedgerWriteError", "LedgerDiskError"}
        order = [event["event"] for event in events if event["event"] in ("acknowledged", "refused")]
        assert order == sorted(order), "nothing is acknowledged after the first refusal"
        reads = [event["numbers"] for event in events if event["event"] == "reads"]
        assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in reads)
        if path.exists():
            await holds(path, acknowledged(events), sum(COMMITS))
    assert at > len(COMMITS)


async def test_what_was_not_acknowledged_is_written_again_before_it_is_shown(
    worker: Worker, place: Path, anyio_backend: str
) -> None:
    """After a failed fsync the pages may be lost and pass for clean. So the next process does not trust what it reads."""
    disk = {"is": "fails", "at": 4, "error": errno.EIO, "only": ["sync"]}
    events = worker.run("write", path=place, commits=(1, 1, 1, 2), disk=disk, goes_on=True, backend=anyio_backend)
    promised = acknowledged(events)
    ops = FaultFS()
    async with open_ledger(place, file_ops=ops) as ledger:
        done = [kind for kind, name in ops.log if name == place.name]
        assert ledger.position > promised
        assert done.index("overwrite") < done.index("sync")
    await holds(place, promised, 5)


async def test_interrupted_and_short_writes_are_finished(worker: Worker, place: Path, anyio_backend: str) -> None:
    """Seven bytes at a time, and a real signal before each: every entry is there."""
    for disk in ("short", "interrupts"):
        path = place.parent / disk / "l.jsonl"
        events = worker.run("write", path=path, commits=COMMITS, disk={"is": disk}, backend=anyio_backend)
        assert (acknowledged(events), events[-1]["code"]) == (sum(COMMITS), 0)
        assert verify_file(path).entries == sum(COMMITS)
        await holds(path, sum(COMMITS), sum(COMMITS))


async def test_a_call_that_was_interrupted_is_told_like_any_failure(worker: Worker, place: Path, anyio_backend: str) -> None:
    """Python repeats interrupted calls itself; one that comes through all the same (EINTR) is not taken for done."""
    disk = {"is": "fails", "at": 2, "error": errno.EINTR, "only": ["write"]}
    events = worker.run("write", path=place, commits=COMMITS, disk=disk, goes_on=True, backend=anyio_backend)
    assert refusals(events) == {"LedgerWriteError"}
    await holds(place, acknowledged(events), sum(COMMITS))


async def test_a_cancelled_waiter_does_not_stop_the_commit(worker: Worker, place: Path, anyio_backend: str) -> None:
    """It leaves without knowing; the disk goes on, and the entry is durable in the end."""
    events = worker.run("cancel", path=place, backend=anyio_backend)
    assert [event["event"] for event in events] == ["left", "acknowledged", "ended"]
    assert events[0]["durable"] == 0, "unknown, not failed"
    assert events[1]["position"] == 1
    assert await holds(place, 1, 1) == 1


async def test_an_entry_over_the_limit_leaves_no_trace(worker: Worker, place: Path, anyio_backend: str) -> None:
    """`EntryTooLarge`, and the next entry has its number."""
    config = {"max_entry_bytes": 2_000}
    events = worker.run("write", path=place, commits=(1,), filler=3_000, config=config, goes_on=True, backend=anyio_backend)
    assert only(events, "refused")["error"] == "EntryTooLarge"
    assert only(events, "reads")["numbers"] == []
    assert place.stat().st_size == 0
    assert acknowledged(worker.run("write", path=place, commits=(1,), config=config, backend=anyio_backend)) == 1
    assert await holds(place, 1, 1) == 1


def test_the_default_limit_is_one_mebibyte(worker: Worker, place: Path, anyio_backend: str) -> None:
    events = worker.run("write", path=place, commits=(1,), filler=1 << 20, goes_on=True, backend=anyio_backend)
    assert "1048576" in only(events, "refused")["text"].replace(",", "")
    assert os.path.getsize(place) == 0
