"""Finds the directories of ledgers' indexes: below the root, or near a ledger that belongs to no root."""

from pathlib import Path
from typing import Final

_NAME: Final = "index"
_LEVELS_UP: Final = 4
"""Directories above a ledger's file that may hold its index, beginning with the file's own."""


def index_dir_of(root: Path | str) -> Path:
    """The directory of the indexes of the ledgers below a root."""
    return Path(root) / _NAME


def index_dirs_near(ledger: Path) -> list[Path]:
    """The directories that may hold the index of a ledger's file, nearest first."""
    return [index_dir_of(above) for above in [*ledger.absolute().parents][:_LEVELS_UP]]
