"""Tells what is open for writing that its process was forked: a child shares the files and their locks and may write nothing.

A lock of `flock` belongs to the open file, which a child has, too. So the child could write beside its parent, and would keep
the lock after the parent has closed the ledger.
"""

import os
from typing import Protocol
from weakref import WeakSet

_PROBLEM = "this process was forked from the one that opened the ledger, which alone may write it; open it after the fork"


class Stoppable(Protocol):
    """What takes no more entries once it is told so."""

    def poison(self, problem: str) -> None:
        """From now on nothing is written."""
        ...


_open: WeakSet[Stoppable] = WeakSet()


def watch(each: Stoppable) -> None:
    """From now on this is stopped in every child that is forked while it exists."""
    _open.add(each)


def _stop_all() -> None:
    for each in _open:
        each.poison(_PROBLEM)


os.register_at_fork(after_in_child=_stop_all)
