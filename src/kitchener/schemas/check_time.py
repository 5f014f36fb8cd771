"""Counts the processor time of checks against strangers' schemas for each client, so that a server can bound it.

The code that runs a turn for a client sets `CHECK_TIME`, and the checks add their time there. A check never depends on the sum:
a running turn is decided the same way whether or not anybody counts, and a replay counts nothing.
"""

from collections.abc import Callable
from contextvars import ContextVar

BookTime = Callable[[float], None]
"""Books seconds of processor time. Called in the thread that took them."""

CHECK_TIME: ContextVar[BookTime | None] = ContextVar("CHECK_TIME", default=None)
"""Where the code that runs here books its checks; None: nowhere. A worker has it from its asker (`lanes/askers.py`)."""
