"""The other processes of these tests, and where a ledger of theirs goes."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.faults.ledger_process import Worker


@pytest.fixture(scope="session")
def worker() -> Iterator[Worker]:
    """Another process that writes ledgers."""
    with Worker() as started:
        yield started


@pytest.fixture(scope="session")
def neighbour() -> Iterator[Worker]:
    """One more, for what two do at once."""
    with Worker() as started:
        yield started


@pytest.fixture
def place() -> Iterator[Path]:
    """Where a ledger goes: a file that is not there yet."""
    with TemporaryDirectory(prefix="kitchener-") as name:
        yield Path(name) / "plane" / "l.jsonl"
