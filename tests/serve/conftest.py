"""What holds for the tests of the server: how fast the machine is decides nothing."""

import pytest

from kitchener.actors.turn import context_time
from kitchener.schemas import compiled_schemas


@pytest.fixture(autouse=True)
def processor_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work takes no time of the processor, which counts for the limits of a key, unless a test says what it takes.

    Otherwise a slow machine would refuse requests that a test wants answered.
    """
    for module in (compiled_schemas, context_time):
        monkeypatch.setattr(module, "thread_time", lambda: 0.0)
