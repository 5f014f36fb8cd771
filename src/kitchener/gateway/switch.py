"""Forbids real model calls in the whole process, for test suites.

The setting `allow_model_calls` forbids them too; either one is enough.
"""

from collections.abc import Iterator
from contextlib import contextmanager


class _Switch:
    """Counts the active blocks, so that blocks can nest."""

    __slots__ = ("blocks",)

    def __init__(self) -> None:
        self.blocks = 0


_SWITCH = _Switch()


@contextmanager
def forbid_model_calls() -> Iterator[None]:
    """Makes every provider that is not built in fail with `ProviderError` reason `forbidden` inside the block.

    It applies to all gateways, event loops and threads of the process. Blocks may nest.
    """
    _SWITCH.blocks += 1
    try:
        yield
    finally:
        _SWITCH.blocks -= 1


def model_calls_forbidden() -> bool:
    """Whether a `forbid_model_calls` block is active."""
    return _SWITCH.blocks > 0
