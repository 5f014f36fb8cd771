"""Where a process can be killed: before and after each entry, before, in the middle of and after each write, sync and renaming.

`KillPlaces.watch` puts itself between the ledgers of this process and their files. Every place that is passed counts as one; at
the chosen one the process kills itself, as `kill -9` would: nothing is flushed, no `finally` runs.
"""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kitchener.ledger import LedgerClient, LedgerEntry, StoredEntry, client
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.records.ref import Ref


class KillPlaces:
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
        ops, write, write_all = _WatchedFiles(self), LedgerClient.write, LedgerClient.write_all

        async def watched(ledger: LedgerClient, entry: LedgerEntry, **options: Any) -> Ref:
            self.pass_by()
            ref = await write(ledger, entry, **options)
            self.pass_by()
            return ref

        async def watched_all(ledger: LedgerClient, entries: Sequence[LedgerEntry], **options: Any) -> list[StoredEntry]:
            self.pass_by()
            stored = await write_all(ledger, entries, **options)
            self.pass_by()
            return stored

        setattr(client, "FileOps", lambda: ops)  # noqa: B010  a forked child's own copy of the module
        setattr(LedgerClient, "write", watched)  # noqa: B010
        setattr(LedgerClient, "write_all", watched_all)  # noqa: B010


class _WatchedFiles(FileOps):
    def __init__(self, places: KillPlaces) -> None:
        self._places = places

    def write(self, fd: int, data: bytes | memoryview) -> int:
        places = self._places
        places.pass_by()
        if places.is_next():
            super().write(fd, data[: len(data) // 2])  # and dies with half of it on disk
        places.pass_by()
        written = super().write(fd, data)
        places.pass_by()
        return written

    def sync(self, fd: int) -> None:
        self._places.pass_by()
        super().sync(fd)
        self._places.pass_by()

    # What follows happens where a file is finished and the next one takes its name.

    def link(self, path: Path, other: Path) -> None:
        self._places.pass_by()
        super().link(path, other)
        self._places.pass_by()

    def rename(self, path: Path, other: Path) -> None:
        self._places.pass_by()
        super().rename(path, other)
        self._places.pass_by()

    def protect(self, path: Path) -> None:
        self._places.pass_by()
        super().protect(path)
