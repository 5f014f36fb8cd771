"""Keeps what is known of a connection besides its messages: whether and why it ended, and what a command wrote elsewhere.

`connection.py` notes it, `server.py` tells it.
"""

import math
from collections import deque
from collections.abc import Mapping
from typing import Final, TextIO

import anyio

from kitchener.mcp.connection_errors import LAST_WORDS_CHARS
from kitchener.plain_names import quoted

_LAST_WORDS_S: Final = 0.5
"""How long to wait for the last words of a command that ended."""


class ConnectionState:
    """What is known of one connection, which may not have come about yet.

    Attributes:
        lost: set when the connection has ended
        lost_at: when that was, on the event loop's clock; infinite before
        tools_changed: set when the list of tools must be read again: it changed, or the server may be gone
    """

    def __init__(self) -> None:
        self.lost, self.lost_at, self.tools_changed = anyio.Event(), math.inf, Signal()
        self._reason = ""
        self._stray_line = ""
        self.last_words: deque[str] = deque(maxlen=20)
        """The newest lines that a command wrote to its standard error."""
        self.errors: TextIO | None = None
        """Where a command writes its standard error to; None: there is no command."""
        self.is_silent = anyio.Event()
        """Set when the standard error can no longer be read; from the beginning for a server without a command."""
        self.listed: list[Mapping[str, object]] = []
        """The newest page of tools, as the server wrote it."""

    def lose(self, reason: str = "") -> None:
        """Notes that the connection has ended. The first reason that is given counts, and the first time."""
        self._reason = self._reason or reason
        self.lost_at = min(self.lost_at, anyio.current_time())
        self.lost.set()

    def note_stray_line(self, line: str) -> None:
        """Notes a line of a command's output that is no message, such as a log that belongs on its standard error."""
        self._stray_line = self._stray_line or line

    async def cause(self, text: str) -> str:
        """Returns the reason why the connection ended, with the last words of a command. Waits shortly for these.

        Args:
            text: the reason, where none was noted
        """
        with anyio.move_on_after(_LAST_WORDS_S):
            await self.is_silent.wait()
        return self.cause_now(text)

    def cause_now(self, text: str) -> str:
        """Like `cause`, without waiting."""
        said = " ".join(" ".join(self.last_words).split())[-LAST_WORDS_CHARS:]
        stray = f"its standard output has what is no message: {quoted(self._stray_line)}" if self._stray_line else ""
        return ": ".join(each for each in (self._reason or text, stray, f"its last output: {said}" if said else "") if each)


class Signal:
    """An event that can be taken back."""

    def __init__(self) -> None:
        self._event = anyio.Event()

    def set(self) -> None:
        """Wakes all waiting tasks."""
        self._event.set()

    async def wait(self) -> None:
        """Returns once it is set, and takes it back."""
        await self._event.wait()
        self._event = anyio.Event()


__all__ = ["ConnectionState", "Signal"]
