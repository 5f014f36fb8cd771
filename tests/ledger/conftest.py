"""Where these tests write: in memory if there is such a place, because they open some thousands of ledgers."""

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

QUICK_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A directory of the test's own. A sync costs nothing there; which syncs are asked for is checked by recording them."""
    with TemporaryDirectory(dir=QUICK_DISK, prefix="kitchener-") as name:
        yield Path(name)
