"""Stops all writing in a forked child, which shares its parent's open ledger files and their locks.

A `flock` lock belongs to the open file, and a child inherits the open file. Without this module a child could write beside its
parent, and would keep the lock after the parent has closed the ledger.
"""

import os
from typing import Protocol
from weakref import WeakSet

_PROBLEM = "this process was forked from the one that opened the ledger, which alone may write it; open it after the fork"


class Stoppable(Protocol):
    """A writer that can be stopped."""

    def poison(self, problem: str) -> None:
        """Stops all writing, with this problem as the reason."""
        ...


_open: WeakSet[Stoppable] = WeakSet()


def watch(each: Stoppable) -> None:
    """Registers a writer; every child forked while the writer exists stops its own copy."""
    _open.add(each)


def unwatch(each: Stoppable) -> None:
    """Unregisters a writer that has closed its files. By the next fork, their descriptors may belong to other files."""
    _open.discard(each)


def _stop_all() -> None:
    for each in _open:
        each.poison(_PROBLEM)


os.register_at_fork(after_in_child=_stop_all)
