"""Where a process can be killed: before and after each entry, before, in the middle of and after each write, sync and renaming.

`Reaper.watch` puts itself between the ledgers of this process and their files. Every place that is passed counts as one; at the
chosen one the process kills itself, as `kill -9` would: nothing is flushed, no `finally` runs. `Tape` writes down instead what
happens to the files, for `crash_power.py`.
"""

import base64
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kitchener.ledger import LedgerClient, LedgerEntry, StoredEntry, client
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.records.ref import Ref


class Reaper:
    """Counts the places passed, and ends the process at one of them.

    Args:
        at: which, from 1; None: none
    """

    def __init__(self, at: int | None) -> None:
        self.passed = 0
        self._at = at

    def is_next(self) -> bool:
        """Whether the process dies at the next place."""
        return self._at is not None and self.passed + 1 == self._at

    def pass_by(self) -> None:
        """One more place."""
        self.passed += 1
        if self.passed == self._at:
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(self) -> None:
        """Every ledger that is opened in this process from now on passes by here."""
        ops, write, write_all = _ReapedFiles(self), LedgerClient.write, LedgerClient.write_all

        async def reaped(ledger: LedgerClient, entry: LedgerEntry, **options: Any) -> Ref:
            self.pass_by()
            ref = await write(ledger, entry, **options)
            self.pass_by()
            return ref

        async def reaped_all(ledger: LedgerClient, entries: Sequence[LedgerEntry]) -> list[StoredEntry]:
            self.pass_by()
            stored = await write_all(ledger, entries)
            self.pass_by()
            return stored

        setattr(client, "FileOps", lambda: ops)  # noqa: B010  a forked child's own copy of the module
        setattr(LedgerClient, "write", reaped)  # noqa: B010
        setattr(LedgerClient, "write_all", reaped_all)  # noqa: B010


class _ReapedFiles(FileOps):
    def __init__(self, reaper: Reaper) -> None:
        self._reaper = reaper

    def write(self, fd: int, data: bytes | memoryview) -> int:
        reaper = self._reaper
        reaper.pass_by()
        if reaper.is_next():
            super().write(fd, data[: len(data) // 2])  # and dies with half of it on disk
        reaper.pass_by()
        written = super().write(fd, data)
        reaper.pass_by()
        return written

    def sync(self, fd: int) -> None:
        self._reaper.pass_by()
        super().sync(fd)
        self._reaper.pass_by()

    # What follows happens where a file is finished and the next one takes its name.

    def link(self, path: Path, other: Path) -> None:
        self._reaper.pass_by()
        super().link(path, other)
        self._reaper.pass_by()

    def rename(self, path: Path, other: Path) -> None:
        self._reaper.pass_by()
        super().rename(path, other)
        self._reaper.pass_by()

    def protect(self, path: Path) -> None:
        self._reaper.pass_by()
        super().protect(path)


class Tape(FileOps):
    """The real file system, and a record of what is done to the ledgers' files, in order.

    Args:
        path: where it is recorded
        effects: the file of the effects; with each event its size is noted
    """

    def __init__(self, path: Path, effects: Path) -> None:
        self._tape = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._effects = effects
        self._names: dict[int, str] = {}
        setattr(client, "FileOps", lambda: self)  # noqa: B010  a forked child's own copy of the module

    def note(self, kind: str, **facts: Any) -> None:
        """One more event."""
        size = self._effects.stat().st_size if self._effects.exists() else 0
        os.write(self._tape, json.dumps({"kind": kind, "effects": size, **facts}).encode() + b"\n")

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        fd = super().open(path, flags, mode)
        self._names[fd] = str(path)
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> int:
        written = super().write(fd, data)
        self.note("write", file=self._names[fd], data=base64.b64encode(data[:written]).decode())
        return written

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.note("sync", file=self._names[fd])
