"""Reports the processor time of choosing a turn's context to its caller, so that a server can limit it.

The caller sets `CONTEXT_TIME`, and the turn reports its time there. The choice never depends on this time, and a replay reports
nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import thread_time

CONTEXT_TIME: ContextVar[Callable[[float], None] | None] = ContextVar("CONTEXT_TIME", default=None)
"""Receives the processor time of each choice, seconds; None: it is not measured."""


@contextmanager
def booked() -> Iterator[None]:
    """Reports the processor time of the block. The block must not await anything."""
    book = CONTEXT_TIME.get()
    if book is None:
        yield
        return
    began = thread_time()
    try:
        yield
    finally:
        book(thread_time() - began)
