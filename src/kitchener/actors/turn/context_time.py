"""Books the processor time of choosing a turn's context to its caller, so that a server can bound it.

The caller's code sets `CONTEXT_TIME`, and the turn books its time there. The choice never depends on the booked time, and a
replay books nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import thread_time

CONTEXT_TIME: ContextVar[Callable[[float], None] | None] = ContextVar("CONTEXT_TIME", default=None)
"""Receives the seconds of processor time that turns book; None: they book none."""


@contextmanager
def booked() -> Iterator[None]:
    """Books the processor time of the block, in which nothing is awaited."""
    book = CONTEXT_TIME.get()
    if book is None:
        yield
        return
    began = thread_time()
    try:
        yield
    finally:
        book(thread_time() - began)
