"""A root with a turn to prove, once for the tests of a file, and the turn's bundle."""

from pathlib import Path

import pytest

from tests.verifier.proofs import Proven, bundle, fill


@pytest.fixture(scope="module")
def proven(tmp_path_factory: pytest.TempPathFactory) -> Proven:
    return fill(tmp_path_factory.mktemp("proven"))


@pytest.fixture(scope="module")
def good(proven: Proven) -> Path:
    """The bundle of a turn that was shown learned lines."""
    return bundle(proven, proven.turns[-1], proven.directory / "good.json")
