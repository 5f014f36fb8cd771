"""The other processes of these tests, and a disk whose syncs cost nothing."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.faults.ledger_process import Worker
from tests.ledger.conftest import QUICK_DISK


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """Another process that writes ledgers."""
    with Worker() as started:
        yield started


@pytest.fixture(scope="module")
def neighbour() -> Iterator[Worker]:
    """One more, for what two do at once."""
    with Worker() as started:
        yield started


@pytest.fixture
def place() -> Iterator[Path]:
    """Where a ledger goes: a file that is not there yet, in memory if there is such a place."""
    with TemporaryDirectory(dir=QUICK_DISK, prefix="kitchener-") as name:
        yield Path(name) / "plane" / "l.jsonl"
