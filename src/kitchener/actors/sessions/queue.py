"""The queue of one session: the call that holds the session, and the calls that wait for it. `admission.py` operates it."""

from collections import deque

import anyio


class Waiter:
    """A call that waits for the session."""

    __slots__ = ("granted", "is_replaced", "is_turn")

    def __init__(self, *, is_turn: bool) -> None:
        self.granted = anyio.Event()
        """Set when the call gets the session, or when a newer message replaced it."""
        self.is_replaced = False
        """Whether a newer message replaced it."""
        self.is_turn = is_turn
        """Whether the call is a turn."""


class SessionQueue:
    """The running call and the waiting calls of one session. It exists only while there is at least one call."""

    __slots__ = ("is_replaced", "scope", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[Waiter] = deque()
        self.scope: anyio.CancelScope | None = None
        """The running turn's cancel scope; None until the turn has one."""
        self.is_replaced = False
        """Whether a newer message replaced the running turn."""
