"""A process-wide switch that forbids real model calls, for test suites.

It stands beside `allow_model_calls` of the configuration: either of them is enough to forbid.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class _Switch:
    """Counts the blocks that forbid, so that they nest."""

    __slots__ = ("blocks",)

    def __init__(self) -> None:
        self.blocks = 0


_SWITCH = _Switch()


@contextmanager
def forbid_model_calls() -> Iterator[None]:
    """Inside the block every provider that is not built in fails with `ProviderError` reason `forbidden`.

    It holds for all gateways, event loops and threads of the process. Blocks may nest.
    """
    _SWITCH.blocks += 1
    try:
        yield
    finally:
        _SWITCH.blocks -= 1


def model_calls_forbidden() -> bool:
    """Whether some `forbid_model_calls` block is active."""
    return _SWITCH.blocks > 0
