"""What the ledger's tests stand on: a clock that is set, a file system that fails on demand, and ledgers written with them."""

import os
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from kitchener.config import LedgerConfig
from kitchener.ledger import LedgerClient, LedgerEntry, StoredEntry
from kitchener.ledger.disk.file_ops import FileOps

LEDGER = "HO2M:ADMIN"
NOON = 1_771_412_400_000_000
"""2026-02-18T11:00:00Z in microseconds."""


class SetClock:
    """A clock that says what it was told."""

    def __init__(self, time_us: int = NOON) -> None:
        self.now = time_us

    def time_us(self) -> int:
        return self.now


class Died(BaseException):
    """The process is gone: nothing that is done after this reaches the disk."""


class FaultFS(FileOps):
    """The real file system, with calls counted, recorded, and failing or ending the process at the n-th.

    Args:
        at: which call fails, counted from 1 over all kinds; None: none does
        error: what it fails with; None: the process dies there, and no later call happens at all
        forever: every call from then on fails
        only: count and fail these kinds only
    """

    def __init__(
        self,
        at: int | None = None,
        error: int | None = None,
        *,
        forever: bool = False,
        only: Iterable[str] | None = None,
    ) -> None:
        self.calls = 0
        self.log: list[tuple[str, str]] = []
        """Kind of call, and name of the file, in order."""
        self.at, self.error, self.forever = at, error, forever
        self._only = frozenset(only) if only is not None else None
        self._names: dict[int, str] = {}

    def _pass(self, kind: str, name: str) -> None:
        if self._only is not None and kind not in self._only:
            self.log.append((kind, name))
            return
        self.calls += 1
        if self.at is not None and (self.calls == self.at or (self.calls > self.at and (self.forever or self.error is None))):
            if self.error is None:
                raise Died
            raise OSError(self.error, os.strerror(self.error))
        self.log.append((kind, name))

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        self._pass("open", path.name)
        fd = super().open(path, flags, mode)
        self._names[fd] = path.name
        return fd

    def lock(self, fd: int) -> None:
        self._pass("lock", self._names[fd])
        super().lock(fd)

    def fstat(self, fd: int) -> os.stat_result:
        self._pass("fstat", self._names[fd])
        return super().fstat(fd)

    def stat(self, path: Path) -> os.stat_result:
        self._pass("stat", path.name)
        return super().stat(path)

    def read(self, fd: int, size: int, offset: int) -> bytes:
        self._pass("read", self._names[fd])
        return super().read(fd, size, offset)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._pass("write", self._names[fd])
        return super().write(fd, data)

    def overwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._pass("overwrite", self._names[fd])
        return super().overwrite(fd, data, offset)

    def truncate(self, fd: int, size: int) -> None:
        self._pass("truncate", self._names[fd])
        super().truncate(fd, size)

    def sync(self, fd: int) -> None:
        self._pass("sync", self._names[fd])
        super().sync(fd)

    def make_directory(self, path: Path) -> None:
        self._pass("make_directory", path.name)
        super().make_directory(path)

    def sync_directory(self, path: Path) -> None:
        self._pass("sync_directory", path.name)
        super().sync_directory(path)

    def list_directory(self, path: Path) -> list[str]:
        self._pass("list_directory", path.name)
        return super().list_directory(path)

    def link(self, path: Path, other: Path) -> None:
        self._pass("link", other.name)
        super().link(path, other)

    def rename(self, path: Path, other: Path) -> None:
        self._pass("rename", other.name)
        super().rename(path, other)

    def unlink(self, path: Path) -> None:
        self._pass("unlink", path.name)
        super().unlink(path)

    def protect(self, path: Path) -> None:
        self._pass("protect", path.name)
        super().protect(path)

    def close(self, fd: int) -> None:
        # Also after death: the kernel closes what a process leaves open.
        self.log.append(("close", self._names.pop(fd)))
        super().close(fd)


class Killing(FaultFS):
    """Ends this process for good at the n-th call."""

    def _pass(self, kind: str, name: str) -> None:
        self.calls += 1
        if self.calls == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


class CountedReads(FileOps):
    """Counts the bytes that are read from ledgers."""

    def __init__(self) -> None:
        self.bytes_read = 0

    def read(self, fd: int, size: int, offset: int) -> bytes:
        data = super().read(fd, size, offset)
        self.bytes_read += len(data)
        return data


class ShortWrites(FileOps):
    """Takes a few bytes of each write."""

    def write(self, fd: int, data: bytes | memoryview) -> int:
        return super().write(fd, data[:7])

    def overwrite(self, fd: int, data: bytes, offset: int) -> int:
        return super().overwrite(fd, data[:7], offset)


def open_ledger(path: Path, **options: Any) -> AbstractAsyncContextManager[LedgerClient]:
    """A ledger with a clock that stands at noon."""
    return LedgerClient.open(path, **{"ledger_id": LEDGER, "clock": SetClock(), **options})


def index_of(path: Path) -> Path:
    """The file of the index of the one ledger in a directory."""
    (file,) = (path.parent / "index").glob("*.sqlite")
    return file


def fact(number: int, session_id: str = "SES-0a1b2c3d", **payload: Any) -> LedgerEntry:
    """Some entry."""
    return LedgerEntry("WO_PLANNED", f"WO-{number:03d}", {"v": 1, "session_id": session_id, "n": number, **payload})


def segments_of(size: int, **settings: Any) -> LedgerConfig:
    """Settings with segments that are smaller than settings allow, so that a few entries make many."""
    return LedgerConfig(**settings).model_copy(update={"segment_bytes": size})


async def fill(path: Path, commits: Sequence[int], **options: Any) -> bytes:
    """Writes a ledger whose commits have these sizes; gives the file's bytes."""
    number = 0
    async with open_ledger(path, **options) as ledger:
        for size in commits:
            for _ in range(size):
                number += 1
                await ledger.write(fact(number))
            await ledger.commit()
    return path.read_bytes()


async def numbers(entries: Any) -> list[int]:
    """The numbers of what a reader gives."""
    return [entry.seq async for entry in entries]


def forget_index(path: Path) -> None:
    """Deletes the index beside a ledger."""
    for file in (path.parent / "index").glob("*"):
        file.unlink()


def damaged_copies(path: Path) -> list[Path]:
    """The files with bytes that recovery cut off."""
    return sorted(path.parent.glob(f"{path.name}.damaged-*"))


def change(path: Path, how: Callable[[bytes], bytes]) -> None:
    """Rewrites a file in place."""
    path.write_bytes(how(path.read_bytes()))


def bodies(entries: Iterable[StoredEntry]) -> list[bytes]:
    """The stored bytes of entries."""
    return [entry.body for entry in entries]
