"""Fault table, places and company: who else is there, where a ledger may not be, and what the clock says (docs/survival.md).

Everything here is told before an entry is accepted, or, where it happens later, before another one is acknowledged.
"""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from kitchener.ledger import verify_file
from kitchener.ledger.format.lines import StoredEntry
from tests.cli.shared.commands import finish, start
from tests.faults.ledger_process import Worker, acknowledged, only
from tests.ledger.support import open_ledger

HOUR = 3_600 * 1_000_000


def refusal(worker: Worker, path: Path, backend: str, **job: Any) -> tuple[str, str]:
    """The error with which another process does not open a ledger."""
    events = worker.run("write", path=path, commits=(1,), backend=backend, **job)
    assert [event["event"] for event in events] == ["failed", "ended"], "before anything was accepted"
    return events[0]["error"], events[0]["text"]


# --- company -----------------------------------------------------------------------------------------------------------------


def test_a_second_writer_in_another_process_is_told_who_has_it(
    worker: Worker, neighbour: Worker, place: Path, anyio_backend: str
) -> None:
    with neighbour.holding(place) as pid:
        error, text = refusal(worker, place, anyio_backend)
        assert error == "LedgerLocked"
        assert str(place) in text
        assert f"process {pid}" in text
    assert acknowledged(worker.run("write", path=place, commits=(1,), backend=anyio_backend)) == 1, "it is free"


def test_a_second_writer_in_the_same_process_is_refused(worker: Worker, place: Path, anyio_backend: str) -> None:
    """And the first one goes on: its lock is not lost by the attempt."""
    events = worker.run("twice", path=place, backend=anyio_backend)
    told = only(events, "refused")
    assert told["error"] == "LedgerLocked"
    assert "this process" in told["text"]
    assert acknowledged(events) == 1


def test_a_command_that_writes_exits_with_7_while_somebody_else_does(
    worker: Worker, neighbour: Worker, place: Path, tmp_path: Path
) -> None:
    """And one that reads does not mind."""
    source = tmp_path / "in.jsonl"
    source.write_text('{"conversation": "c", "subject_id": "s", "message": "hello"}\n')
    root = ["--root", str(tmp_path / "plane")]
    assert only(worker.run("cli", arguments=["run", str(source), *root]), "said")["code"] == 0
    ledger = tmp_path / "plane" / "HO2" / "ADMIN" / "ho2m.jsonl"
    with neighbour.holding(ledger, config={"accept_clock_jump": True}) as pid:
        said = only(worker.run("cli", arguments=["run", str(source), *root]), "said")
        assert said["code"] == 7
        assert str(ledger) in said["text"]
        assert f"process {pid}" in said["text"]
        assert only(worker.run("cli", arguments=["ledger", "verify", *root]), "said")["code"] == 0
        assert only(worker.run("cli", arguments=["session", "list", *root]), "said")["code"] == 0


async def test_readers_beside_a_writer_see_a_growing_prefix(
    worker: Worker, neighbour: Worker, place: Path, anyio_backend: str
) -> None:
    """Each look holds what the one before held, to the last byte; half-written commits are not seen."""
    commits = [1 + n % 4 for n in range(60)]
    total = sum(commits) + 1
    worker.run("write", path=place, commits=(1,), backend=anyio_backend)
    neighbour.begin("watch", path=place, until=total, backend=anyio_backend)
    assert neighbour.hears() == {"event": "seen", "position": 1}
    worker.run("write", path=place, commits=commits, disk={"is": "short"}, backend=anyio_backend)
    seen = [event["position"] for event in neighbour.rest() if event["event"] == "seen"]
    assert seen == sorted(set(seen))
    assert seen[-1] == total
    assert set(seen) <= {1 + sum(commits[:n]) for n in range(len(commits) + 1)}, "whole commits only"


# --- places ------------------------------------------------------------------------------------------------------------------


def test_a_directory_is_no_ledger(worker: Worker, place: Path, anyio_backend: str) -> None:
    place.mkdir(parents=True)
    error, text = refusal(worker, place, anyio_backend)
    assert (error, "is a directory" in text) == ("LedgerPathError", True)


@pytest.mark.parametrize("target", ["a ledger", "nothing", "itself"])
def test_a_symlink_is_not_followed(worker: Worker, place: Path, anyio_backend: str, target: str) -> None:
    other = place.with_name("other.jsonl")
    place.parent.mkdir(parents=True)
    if target == "a ledger":
        worker.run("write", path=other, commits=(1,))
    place.symlink_to(place if target == "itself" else other)
    error, text = refusal(worker, place, anyio_backend)
    assert (error, "symbolic link" in text) == ("LedgerPathError", True)
    assert other.exists() == (target == "a ledger")


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "smb3", "fuse.sshfs"])
def test_a_network_file_system_is_refused(worker: Worker, place: Path, anyio_backend: str, kind: str) -> None:
    error, text = refusal(worker, place, anyio_backend, disk={"is": "elsewhere", "kind": kind})
    assert (error, kind in text) == ("LedgerPathError", True)


@pytest.fixture
def open_place(place: Path) -> Path:
    """A place that everybody may enter."""
    place.parent.parent.chmod(0o755)
    place.parent.mkdir(mode=0o755)
    return place


def rights(job: dict[str, Any]) -> dict[str, Any]:
    """Root may do everything, so the other process becomes nobody first."""
    return {**job, "as_nobody": os.geteuid() == 0}


def test_a_read_only_directory_is_refused(worker: Worker, open_place: Path, anyio_backend: str) -> None:
    open_place.parent.chmod(0o555)
    error, text = refusal(worker, open_place, anyio_backend, **rights({}))
    open_place.parent.chmod(0o755)
    assert (error, "permission denied" in text) == ("LedgerPathError", True)
    assert list(open_place.parent.iterdir()) == []


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o222])
def test_a_file_without_permission_is_refused(worker: Worker, open_place: Path, anyio_backend: str, mode: int) -> None:
    """Reading alone is not enough, nor is writing alone."""
    worker.run("write", path=open_place, commits=(2,))
    before = open_place.read_bytes()
    shutil.rmtree(open_place.parent / "index")
    open_place.parent.chmod(0o777)
    open_place.chmod(mode)
    error, text = refusal(worker, open_place, anyio_backend, **rights({}))
    open_place.chmod(0o600)
    assert (error, "permission denied" in text) == ("LedgerPathError", True)
    assert open_place.read_bytes() == before


def test_the_real_command_tells_a_wrong_place_in_one_line(place: Path) -> None:
    place.mkdir(parents=True)
    (place.parent / "HO2").write_text("a file")
    source = place.parent / "in.jsonl"
    source.write_text('{"conversation": "c", "message": "hello"}\n')
    done = finish(start("run", source, "--root", place.parent, cwd=place.parent))
    assert done.code == 2
    assert "is not a directory" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("swap", ["replaced", "removed", "longer", "shorter"])
async def test_a_file_that_is_swapped_while_open_takes_no_more_entries(
    worker: Worker, place: Path, anyio_backend: str, swap: str
) -> None:
    """Device, inode and length are compared before each commit; what was acknowledged is where it was written."""
    worker.begin("write", path=place, commits=(2, 1, 1), pauses=True, goes_on=True, backend=anyio_backend)
    assert worker.hears()["event"] == "opened"
    worker.go_on()
    assert worker.hears() == {"event": "acknowledged", "position": 2}
    kept = place.with_name("kept.jsonl")
    if swap == "longer":
        with place.open("ab") as file:
            file.write(b"x")
    elif swap == "shorter":
        shutil.copy(place, kept)
        os.truncate(place, 10)
    else:
        place.rename(kept)
        if swap == "replaced":
            shutil.copy(kept, place)
    worker.go_on()
    told = worker.hears()
    assert (told["event"], told["error"]) == ("refused", "LedgerWriteError")
    worker.go_on()
    assert [event["event"] for event in worker.rest()][-2:] == ["failed", "ended"]
    assert verify_file(kept if kept.exists() else place).entries == 2


# --- clocks ------------------------------------------------------------------------------------------------------------------


async def entries_of(path: Path) -> list[StoredEntry]:
    """What stands in a ledger."""
    async with open_ledger(path) as ledger:
        return [entry async for entry in ledger.read()]


@pytest.mark.parametrize(
    ("times", "different"),
    [([0, 0, 0, 1, 2, -50, -49, 3], 4), ([0], 1), ([0, 0, 0, -9, -8, -7, -6, -5], 1)],
    ids=["steps back and comes again", "frozen", "set back for good"],
)
async def test_time_never_goes_back_in_a_ledger(
    worker: Worker, place: Path, anyio_backend: str, times: list[int], different: int
) -> None:
    """The last time is repeated, and the order is that of the numbers."""
    microseconds = [each * 1_000_000 for each in times]
    events = worker.run("write", path=place, commits=(6,), times=microseconds, backend=anyio_backend)
    assert acknowledged(events) == 6
    assert verify_file(place).ok
    stamps = [entry.timestamp for entry in await entries_of(place)]
    assert stamps == sorted(stamps)
    assert len(set(stamps)) == different


async def test_a_clock_that_leaps_ahead_is_refused(worker: Worker, place: Path, anyio_backend: str) -> None:
    """And nothing is written with the time of the leap; told that it is right, it is believed."""
    ahead = [0, 0, 0, 2 * HOUR]
    events = worker.run("write", path=place, commits=(1, 2), times=ahead, goes_on=True, backend=anyio_backend)
    assert only(events, "refused")["error"] == "LedgerClockError"
    written = len(only(events, "reads")["numbers"])
    assert verify_file(place).entries == written
    assert {entry.timestamp[:13] for entry in await entries_of(place)} <= {"2026-02-18T11"}
    right = {"accept_clock_jump": True}
    again = worker.run("write", path=place, commits=(1,), times=[2 * HOUR], config=right, backend=anyio_backend)
    assert acknowledged(again) == written + 1


async def test_a_ledger_that_ends_in_the_future_is_not_opened(worker: Worker, place: Path, anyio_backend: str) -> None:
    """One boot in 2099 must not date everything that follows."""
    future = 80 * 365 * 24 * HOUR
    worker.run("write", path=place, commits=(1,), times=[future], backend=anyio_backend)
    before = place.read_bytes()
    error, text = refusal(worker, place, anyio_backend, times=[0])
    assert error == "LedgerClockError"
    assert "accept_clock_jump" in text
    assert place.read_bytes() == before
    events = worker.run("write", path=place, commits=(2,), times=[0], config={"accept_clock_jump": True}, backend=anyio_backend)
    assert acknowledged(events) == 3
    assert verify_file(place).ok
