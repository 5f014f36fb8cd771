"""Knows for whom the context of a turn is chosen, which takes processor time, so that a server can bound it.

What runs a turn for somebody sets `CONTEXT_TIME`; the turn books its time there. What is chosen never depends on what was
booked, and a replay counts nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import thread_time

CONTEXT_TIME: ContextVar[Callable[[float], None] | None] = ContextVar("CONTEXT_TIME", default=None)
"""Where turns book seconds of processor time; None: nowhere."""


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
