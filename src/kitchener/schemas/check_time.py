"""Knows for whom checks of values against strangers' schemas take processor time, so that a server can bound it.

What runs a turn for somebody sets `CHECK_TIME`; the checks book their time there. A check never depends on what was booked:
a turn that runs is decided alike whether or not anybody counts, and a replay counts nothing.
"""

from collections.abc import Callable
from contextvars import ContextVar

BookTime = Callable[[float], None]
"""Books seconds of processor time. Called in the thread that took them."""

CHECK_TIME: ContextVar[BookTime | None] = ContextVar("CHECK_TIME", default=None)
"""Where the code that runs here books its checks; None: nowhere. A worker has it from its asker (`lanes/askers.py`)."""
