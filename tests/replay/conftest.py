"""The root in which everything happens, recorded once for all tests that only read it; and the event loop of these tests."""

from pathlib import Path

import anyio
import pytest

from tests.replay import corpus
from tests.shared.shared_folders import made_once


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop is enough where `test_replay_anywhere.py` and `test_replay_identical.py` show that both say the same."""
    return "asyncio"


@pytest.fixture(scope="session")
def recorded_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sessions of `corpus.py`, under the policies of `corpus.toml`; not to be changed."""
    return made_once(tmp_path_factory, "corpus", lambda root: anyio.run(corpus.record, root))
