"""A machine that loses its power: what its disk may hold of all five ledgers at any moment of a life that was recorded.

Of each file the synced prefix is there; of the rest each sector is there, empty, or missing with all behind it. What is derived
(the indexes) is gone. The subjects' keys are there: a key is synced before an entry is sealed with it. The tape is
written by `crash_tape.py`: every change and sync of a file, and everything that was said.
"""

import base64
import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.faults.crashes.crash_load import EFFECTS

_SECTOR: Final = 512


class PowerLoss:
    """The state of the machine after the first so many events of a tape.

    Args:
        tape: the recorded life
        events: how many of its events took place
    """

    def __init__(self, tape: Sequence[dict[str, Any]], events: int) -> None:
        self.said: list[str] = []
        """What was said before, line by line."""
        self._synced: dict[str, bytes] = {}
        self._written: dict[str, bytes] = {}
        self._effects = 0
        for event in tape[:events]:
            self._take(event)

    def _take(self, event: dict[str, Any]) -> None:
        name, kind = event.get("file", ""), event["kind"]
        self._effects = event["effects"]
        if kind == "said":
            self.said.append(event["line"])
        elif kind == "sync":
            self._synced[name] = self._written.get(name, b"")
        else:
            self._written[name] = self._written.get(name, b"") + base64.b64decode(event["data"])

    def build(self, root: Path, where: Path, chance: random.Random) -> None:
        """Puts what the disk holds into another directory.

        Args:
            root: where the life took place
            where: where its remains go; made
            chance: decides what became of each sector that was not synced
        """
        for name, data in self._written.items():
            path = where / Path(name).relative_to(root)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(_remains(self._synced.get(name, b""), data, chance))
        shutil.copytree(root.with_name(f"{root.name}.keys"), where.with_name(f"{where.name}.keys"), symlinks=True)
        effects = root / EFFECTS
        if self._effects:
            (where / EFFECTS).write_bytes(effects.read_bytes()[: self._effects])


def _remains(synced: bytes, written: bytes, chance: random.Random) -> bytes:
    start, data = len(synced), bytearray(written)
    del data[start + chance.randint(0, len(data) - start) :]
    for sector in range(start // _SECTOR, -(-len(data) // _SECTOR)):
        begin, end = max(sector * _SECTOR, start), min((sector + 1) * _SECTOR, len(data))
        if chance.random() < 0.3:
            data[begin:end] = bytes(end - begin)
    return bytes(data)


def read_tape(path: Path) -> list[dict[str, Any]]:
    """The events of a recorded life."""
    return [json.loads(line) for line in path.read_text().splitlines()]
