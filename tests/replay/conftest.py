"""The root in which everything happens, recorded once for all tests that only read it."""

from pathlib import Path

import anyio
import pytest

from tests.replay import corpus


@pytest.fixture(scope="session")
def recorded_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sessions of `corpus.py`, under the policies of `corpus.toml`; not to be changed."""
    root = tmp_path_factory.mktemp("corpus")
    anyio.run(corpus.record, root)
    return root
