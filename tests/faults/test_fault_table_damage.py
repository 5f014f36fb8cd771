"""Fault table, damage: what another process wrote is changed behind its back (docs/survival.md).

Durable data that is not what was written is refused by `kitchener ledger verify` (exit code 6) and by opening, with the place,
and nothing is repaired. What is derived (the index) is made anew.
"""

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from kitchener.ledger import verify_file
from tests.cli.shared.commands import finish, start
from tests.faults.ledger_process import Worker, acknowledged, holds, only
from tests.ledger.support import LEDGER, forget_index, index_of

COMMITS = (1, 2, 3, 1)
WRITTEN = sum(COMMITS)

Edit = Callable[[list[bytes]], list[bytes]]
EDITS: dict[str, Edit] = {
    "line edited": lambda lines: [line.replace(b'"n":3', b'"n":8') for line in lines],
    "first line removed": lambda lines: lines[1:],
    "line removed": lambda lines: lines[:2] + lines[3:],
    "commit removed": lambda lines: lines[:1] + lines[3:],
    "line duplicated": lambda lines: [*lines[:3], lines[2], *lines[3:]],
    "lines reordered": lambda lines: [*lines[:1], lines[2], lines[1], *lines[3:]],
    "commits reordered": lambda lines: lines[:1] + lines[3:6] + lines[1:3] + lines[6:],
    "invalid UTF-8": lambda lines: [line.replace(b"WO-003", b"WO\xff003") for line in lines],
    "NUL bytes": lambda lines: [line.replace(b"WO-003", b"WO\x00003") for line in lines],
    "a sector of NUL bytes": lambda lines: [lines[0], bytes(512), *lines[1:]],
    "carriage returns": lambda lines: [line.replace(b"\n", b"\r\n") for line in lines],
    "byte order mark": lambda lines: [b"\xef\xbb\xbf" + lines[0], *lines[1:]],
    "blank line": lambda lines: [*lines[:2], b"\n", *lines[2:]],
}


@pytest.fixture
def written(worker: Worker, place: Path, anyio_backend: str) -> bytes:
    """A ledger that another process wrote, and closed; its bytes."""
    events = worker.run("write", path=place, commits=COMMITS, backend=anyio_backend)
    assert (acknowledged(events), events[-1]["code"]) == (WRITTEN, 0)
    return place.read_bytes()


def is_refused(worker: Worker, path: Path, backend: str, error: str = "LedgerDamaged") -> str:
    """Asserts that another process does not open it, and that nobody changed it; what it says."""
    before = path.read_bytes()
    events = worker.run("write", path=path, commits=(1,), backend=backend)
    failure = only(events, "failed")
    assert (failure["error"], events[-1]["code"]) == (error, 1)
    assert path.read_bytes() == before, "nothing is repaired"
    assert str(path) in failure["text"]
    return str(failure["text"])


def verdict(worker: Worker, path: Path) -> int:
    """The exit code of `kitchener ledger verify`."""
    return int(only(worker.run("cli", arguments=["ledger", "verify", str(path)]), "said")["code"])


@pytest.mark.parametrize(("index", "anyio_backend"), [("kept", "asyncio"), ("lost", "trio")])
@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_file_is_refused(
    worker: Worker, place: Path, anyio_backend: str, written: bytes, edit: str, index: str
) -> None:
    """With the index, and without: then the chain alone has to tell."""
    place.write_bytes(b"".join(EDITS[edit](written.splitlines(keepends=True))))
    assert verdict(worker, place) == 6
    if index == "lost":
        forget_index(place)
    if index == "lost" or not place.read_bytes().endswith(written.splitlines(keepends=True)[-1]):
        assert "line" in is_refused(worker, place, anyio_backend)
    else:  # the index vouches for what is before its mark; `verify_on_open = "full"` looks at all of it
        events = worker.run("write", path=place, commits=(1,), config={"verify_on_open": "full"}, backend=anyio_backend)
        assert only(events, "failed")["error"] == "LedgerDamaged"


def test_a_flipped_bit_anywhere_is_refused(worker: Worker, place: Path, anyio_backend: str, written: bytes) -> None:
    """One bit of every seventh byte, a different bit each time; the whole of the ledger is read again at the opening."""
    for position in range(0, len(written), 7):
        data = bytearray(written)
        data[position] ^= 1 << position // 7 % 8
        place.write_bytes(data)
        assert not verify_file(place).ok, position
    place.write_bytes(data)
    assert verdict(worker, place) == 6
    for position in range(5, len(written), 131):
        data = bytearray(written)
        data[position] ^= 1 << position % 8
        place.write_bytes(data)
        events = worker.run("write", path=place, commits=(1,), config={"verify_on_open": "full"}, backend=anyio_backend)
        assert only(events, "failed")["error"] == "LedgerDamaged", position
        assert place.read_bytes() == data


@pytest.mark.parametrize("kept", [0, 3, 6])
def test_a_tail_that_was_cut_off_is_missed(worker: Worker, place: Path, anyio_backend: str, written: bytes, kept: int) -> None:
    """Whole commits are gone, so the chain is right; the index has seen more of it on disk."""
    place.write_bytes(b"".join(written.splitlines(keepends=True)[:kept]))
    assert verify_file(place).ok
    assert f"at least {WRITTEN} entries" in is_refused(worker, place, anyio_backend, "LedgerTailMissing")


def test_an_old_copy_is_noticed(worker: Worker, place: Path, anyio_backend: str, written: bytes) -> None:
    worker.run("write", path=place, commits=(2,), backend=anyio_backend)
    place.write_bytes(written)
    is_refused(worker, place, anyio_backend, "LedgerTailMissing")
    command = start("ledger", "accept-head", place, "--reason", "restored on Monday", cwd=place.parent)
    assert finish(command).code == 0
    assert b'"LEDGER_HEAD_ACCEPTED"' in place.read_bytes().splitlines()[-1]
    later = {"accept_clock_jump": True}  # the command's clock is the real one, and not the worker's
    events = worker.run("write", path=place, commits=(1,), config=later, backend=anyio_backend)
    assert acknowledged(events) == WRITTEN + 2


@pytest.mark.parametrize("anyio_backend", ["asyncio", pytest.param("trio", marks=pytest.mark.soak)])  # which wrote the file
def test_the_real_command_exits_with_6_and_names_the_place(place: Path, written: bytes) -> None:
    """Not only `invoke` in a child: the program as a shell starts it."""
    lines = written.splitlines(keepends=True)
    place.write_bytes(b"".join(EDITS["line edited"](lines)))
    command = [sys.executable, "-m", "kitchener", "ledger", "verify", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 6
    assert f"line 3 (byte {len(lines[0]) + len(lines[1])}): entry_hash: expected" in done.stdout + done.stderr


# --- what is derived ---------------------------------------------------------------------------------------------------------


def lose(path: Path, other: Path) -> None:
    """There is none."""
    shutil.rmtree(path.parent / "index")


def fall_behind(path: Path, other: Path) -> None:
    """It is that of the ledger's first commit."""
    shutil.copy(other / "behind.sqlite", index_of(path))


def break_head(path: Path, other: Path) -> None:
    """It is no SQLite file any more."""
    index_of(path).write_bytes(b"garbage" * 1000)


def break_rows(path: Path, other: Path) -> None:
    """It is one, and its rows are not what was written."""
    connection = sqlite3.connect(index_of(path))
    for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        for _, column, kind, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall():
            if kind == "BLOB":
                connection.execute(f"UPDATE {table} SET {column} = zeroblob(24)")
    connection.commit()
    connection.close()


def cut_short(path: Path, other: Path) -> None:
    """Half of it is there."""
    data = index_of(path).read_bytes()
    index_of(path).write_bytes(data[: len(data) // 2])


@pytest.mark.parametrize("harm", [lose, fall_behind, break_head, break_rows, cut_short])
def test_an_index_is_made_anew(worker: Worker, place: Path, anyio_backend: str, harm: Callable[[Path, Path], None]) -> None:
    """Missing, behind or damaged: the next opening works, and finds what a scan finds."""
    other = place.parent.parent / "other"
    other.mkdir()
    worker.run("write", path=place, commits=COMMITS[:1])
    shutil.copy(index_of(place), other / "behind.sqlite")
    worker.run("write", path=place, commits=COMMITS[1:])
    harm(place, other)
    events = worker.run("write", path=place, commits=(1,), backend=anyio_backend)
    assert (acknowledged(events), events[-1]["code"]) == (WRITTEN + 1, 0)

    async def check() -> None:
        assert await holds(place, WRITTEN + 1, WRITTEN + 1) == WRITTEN + 1

    anyio.run(check, backend=anyio_backend)
    assert index_of(place).read_bytes() != b"garbage" * 1000


def test_an_index_that_has_seen_another_chain_is_told_and_not_made_anew(
    worker: Worker, place: Path, anyio_backend: str
) -> None:
    """It may be another ledger's, or the ledger's own and the chain was rebuilt: a person has to say which."""
    elsewhere = place.parent.parent / "other" / "plane" / place.name
    elsewhere.parent.mkdir(parents=True)
    worker.run("write", path=elsewhere, commits=(2, 2), filler=17)
    worker.run("write", path=place, commits=COMMITS)
    shutil.copy(index_of(elsewhere), index_of(place))
    assert "as its index recorded" in is_refused(worker, place, anyio_backend)
    index_of(place).unlink()
    events = worker.run("write", path=place, commits=(1,), backend=anyio_backend)
    assert (acknowledged(events), events[-1]["code"]) == (WRITTEN + 1, 0)


@pytest.mark.parametrize("content", [b"", b"garbage", b'{"seq":1}\n'])
def test_a_signed_head_that_is_none_is_refused_and_its_absence_is_not(
    worker: Worker, place: Path, anyio_backend: str, written: bytes, content: bytes
) -> None:
    """A head is evidence, not derived: what stands in its place is never written over."""
    head = place.with_name(f"{place.name}.checkpoint")
    head.write_bytes(content)
    events = worker.run("write", path=place, commits=(1,), backend=anyio_backend)
    assert only(events, "failed")["error"] == "LedgerDamaged"
    assert head.read_bytes() == content
    assert place.read_bytes() == written
    head.unlink()
    assert acknowledged(worker.run("write", path=place, commits=(1,), backend=anyio_backend)) == WRITTEN + 1


def test_another_ledgers_file_is_refused(worker: Worker, place: Path, anyio_backend: str, written: bytes) -> None:
    """Also without its index: the file says whose it is."""
    forget_index(place)
    place.write_bytes(written.replace(LEDGER.encode(), b"HO2M:OTHER"))
    assert "ledger_id" in is_refused(worker, place, anyio_backend)
