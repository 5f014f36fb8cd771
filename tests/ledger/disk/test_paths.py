"""Where a ledger may live and who may write it: each wrong place is told before anything is accepted (docs/ledger.md)."""

import errno
import os
import sys
from pathlib import Path

import anyio
import pytest

from kitchener.errors import LedgerDiskError, LedgerLocked, LedgerPathError, LedgerWriteError
from kitchener.ledger import LedgerReader, verify_file
from kitchener.ledger.disk.file_ops import FileOps
from tests.cli.shared.commands import finish, start_program
from tests.ledger.support import FaultFS, fact, fill, numbers, open_ledger

HOLD = """
import sys, fcntl, time
file = open(sys.argv[1], "ab")
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


async def refusal(path: Path, ops: FileOps | None = None) -> str:
    with pytest.raises(LedgerPathError) as refused:
        async with open_ledger(path, file_ops=ops):
            pytest.fail("it was opened")
    assert str(path.name) in str(refused.value)
    return refused.value.problem


async def test_missing_directories_are_made_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "l.jsonl"
    ops = FaultFS()
    async with open_ledger(path, file_ops=ops):
        assert [name for kind, name in ops.log if kind == "make_directory"] == ["a", "b", "index"]
        assert [(kind, name) for kind, name in ops.log if kind == "sync_directory"] == [
            ("sync_directory", tmp_path.name),
            ("sync_directory", "a"),
            ("sync_directory", "b"),
            ("sync_directory", "b"),
        ], "a name is on disk before anything depends on it"
    assert [oct(each.stat().st_mode & 0o777) for each in (path.parent, path)] == ["0o700", "0o600"]


async def test_a_second_writer_in_this_process_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    async with open_ledger(path) as ledger:
        with pytest.raises(
            LedgerLocked, match=r"in use by this process.*: close the runtime that has it, or use another root"
        ) as refused:
            async with open_ledger(path):
                pytest.fail("it was opened")
        assert (refused.value.path, refused.value.holder) == (str(path), "this process")
        await ledger.write(fact(1))
        await ledger.commit()
    async with open_ledger(path) as ledger:
        assert ledger.position == 1


async def test_a_second_writer_in_another_process_is_refused_and_the_holder_named(tmp_path: Path) -> None:
    path = tmp_path / "l.jsonl"
    await fill(path, [1])
    async with await anyio.open_process([sys.executable, "-c", HOLD, str(path)], stderr=None) as process:
        assert process.stdout is not None
        await process.stdout.receive()
        with pytest.raises(LedgerLocked) as refused:
            async with open_ledger(path):
                pytest.fail("it was opened")
        assert refused.value.holder == f"process {process.pid}"
        async with LedgerReader.open(path) as reader:
            assert reader.position == 1, "readers need no lock"
        process.kill()
    async with open_ledger(path) as ledger:
        assert ledger.position == 1


async def test_a_directory_is_no_ledger(tmp_path: Path) -> None:
    (tmp_path / "l.jsonl").mkdir()
    assert "is a directory" in await refusal(tmp_path / "l.jsonl")


async def test_a_file_as_directory_is_no_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LedgerPathError, match="not a directory"):
        async with open_ledger(tmp_path / "file" / "l.jsonl"):
            pytest.fail("it was opened")


@pytest.mark.parametrize("exists", [True, False])
async def test_a_symlink_is_not_followed(tmp_path: Path, exists: bool) -> None:
    target, path = tmp_path / "other.jsonl", tmp_path / "l.jsonl"
    if exists:
        target.write_bytes(b"")
    path.symlink_to(target)
    assert "symbolic link" in await refusal(path)
    assert target.exists() == exists


async def test_a_device_is_no_ledger(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "l.jsonl")
    assert "not a regular file" in await refusal(tmp_path / "l.jsonl")


@pytest.mark.parametrize(
    ("error", "problem"),
    [
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
        (errno.ENOSPC, "disk is full"),
        (errno.EIO, "Input/output"),
    ],
)
async def test_the_systems_refusals_are_told_in_words(tmp_path: Path, error: int, problem: str) -> None:
    """Injected, because tests may run as a user whom nothing is denied."""
    assert problem in await refusal(tmp_path / "l.jsonl", FaultFS(1, error, only=["open"]))


@pytest.mark.parametrize("error", [errno.EROFS, errno.ENOSPC, errno.EIO])
async def test_a_disk_that_may_take_the_ledger_later_is_no_wrong_path(tmp_path: Path, error: int) -> None:
    """Regression: a service manager gave up on a server whose disk was read-only for a while."""
    with pytest.raises(LedgerDiskError):
        async with open_ledger(tmp_path / "l.jsonl", file_ops=FaultFS(1, error, only=["open"])):
            pytest.fail("it was opened")


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "smb3", "fuse.sshfs"])
async def test_a_network_file_system_is_refused(tmp_path: Path, kind: str) -> None:
    class Network(FileOps):
        def file_system(self, fd: int) -> str:
            return kind

    assert kind in await refusal(tmp_path / "l.jsonl", Network())


def test_the_file_system_is_known_where_the_system_tells(tmp_path: Path) -> None:
    if not Path("/proc/self/mountinfo").exists():
        pytest.skip("this system does not tell")
    ops = FileOps()
    fd = ops.open(tmp_path / "x", os.O_CREAT | os.O_WRONLY)
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        assert f" - {ops.file_system(fd)} " in mounts
    finally:
        ops.close(fd)


async def test_a_file_that_is_swapped_while_open_takes_no_more_entries(tmp_path: Path) -> None:
    """Device and inode are compared before each commit."""
    path = tmp_path / "l.jsonl"

    async def use(swap: str) -> None:
        async with open_ledger(path) as ledger:
            await ledger.write(fact(1))
            await ledger.commit()
            if swap == "replaced":
                path.rename(tmp_path / "old.jsonl")
                path.write_bytes(b"")
            elif swap == "removed":
                path.unlink()
            else:
                with path.open("ab") as file:
                    file.write(b"x")
            await ledger.write(fact(2))
            with pytest.raises(LedgerWriteError):
                await ledger.commit()
            assert await numbers(ledger.read()) == [1, 2]

    for swap, problem in (("replaced", "another file"), ("removed", "No such file"), ("longer", "somebody else")):
        with pytest.raises(LedgerWriteError, match=problem):
            await use(swap)
        for file in [path, *(tmp_path / "index").iterdir()]:
            file.unlink(missing_ok=True)
    assert verify_file(tmp_path / "old.jsonl").entries == 1


LIMITED = """
import resource, signal, sys, anyio
from pathlib import Path
from kitchener.errors import LedgerWriteError
from tests.ledger.support import fact, open_ledger

async def main():
    async with open_ledger(Path(sys.argv[1])) as ledger:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        for number in range(1000):
            await ledger.write(fact(number + 1))
            if number == 20:
                await ledger.commit()
                resource.setrlimit(resource.RLIMIT_FSIZE, (Path(sys.argv[1]).stat().st_size + 1000, hard))
        try:
            await ledger.commit()
        except LedgerWriteError as error:
            assert "too large" in str(error).lower(), error
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            raise SystemExit(7)
anyio.run(main)
"""


async def test_a_true_partial_write_by_the_operating_system(tmp_path: Path) -> None:
    """A file size limit makes the kernel itself write a part and then refuse (EFBIG)."""
    path = tmp_path / "l.jsonl"
    run = finish(start_program(LIMITED, path))
    assert run.code == 7, run.err
    async with open_ledger(path) as ledger:
        assert ledger.recovered is not None
        assert await numbers(ledger.read()) == list(range(1, 22))


PRINTS = """
import os, sys, anyio
from contextlib import suppress
from pathlib import Path
from tests.ledger.support import fact, open_ledger

async def main():
    for number in (0, 1, 2):
        os.close(number)
    async with open_ledger(Path(sys.argv[1])) as ledger:
        for n in (1, 2):
            await ledger.write(fact(n))
            await ledger.commit()
            for number in (0, 1, 2):
                with suppress(OSError):
                    os.write(number, b"a library prints this")

anyio.run(main)
"""


async def test_what_is_printed_never_goes_into_a_ledger(tmp_path: Path) -> None:
    """Even if the program has closed its standard streams, whose descriptors new files would get."""
    path = tmp_path / "l.jsonl"
    finish(start_program(PRINTS, path))
    assert b"a library prints this" not in path.read_bytes()
    async with open_ledger(path) as ledger:
        assert ledger.position == 2
