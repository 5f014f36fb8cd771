"""Finds the files of ledgers' indexes, and their directories: below the root, or near a ledger that belongs to no root."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Final

from kitchener.ids import path_part

_NAME: Final = "index"
_LEVELS_UP: Final = 4
"""Directories above a ledger's file that may hold its index, beginning with the file's own."""


def index_dir_of(root: Path | str) -> Path:
    """The directory of the indexes of the ledgers below a root."""
    return Path(root) / _NAME


def index_dirs_near(ledger: Path) -> list[Path]:
    """The directories that may hold the index of a ledger's file, nearest first."""
    return [index_dir_of(above) for above in [*ledger.absolute().parents][:_LEVELS_UP]]


def index_path(directory: Path, ledger_id: str, ledger: Path) -> Path:
    """The file of a ledger's index.

    The name contains the ledger's id and a hash of the ledger's path relative to the index. Two files with one id thus have two
    indexes, and a whole directory tree can be moved.
    """
    where = os.path.relpath(ledger.resolve(), directory.resolve())
    name = path_part(ledger_id)[:120]  # file systems end at 255 bytes
    return directory / f"{name}-{sha256(f'{ledger_id}|{where}'.encode()).hexdigest()[:12]}.sqlite"
