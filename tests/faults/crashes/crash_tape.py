"""Writes down what happens to the ledgers' files, for `crash_power.py`."""

import base64
import json
import os
from pathlib import Path
from typing import Any

from kitchener.ledger import client
from kitchener.ledger.disk.file_ops import FileOps


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
