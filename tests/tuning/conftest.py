"""What is proposed from a record needs one event loop only."""

import pytest


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "trio"
