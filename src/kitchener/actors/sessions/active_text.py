"""Counts the text of a runtime's active sessions, and passivates idle sessions while there is too much.

`SessionDirectory` bounds the number of active sessions. This module bounds their text, because a few long messages take as much
memory as thousands of short ones. It does not know what a session holds.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

from kitchener.actors.sessions.queue import SessionQueue


class TextHolder(Protocol):
    """An active session."""

    queue: SessionQueue | None
    """The calls that hold the session or wait for it; None: it is idle."""
    rejecting: int
    """Rejections that are being written."""

    @property
    def is_ended(self) -> bool:
        """Whether the session takes no more turns."""
        ...

    def held_chars(self) -> int:
        """The characters that the session holds now."""
        ...


class ActiveText:
    """The text of the active sessions of all agent classes, in the order in which the sessions became idle.

    Args:
        max_chars: most characters of all sessions together. Running sessions are never passivated, nor is the session that was
            counted last
    """

    def __init__(self, max_chars: int) -> None:
        self._max_chars = max_chars
        self._sessions: OrderedDict[TextHolder, tuple[int, Callable[[], None]]] = OrderedDict()
        self.chars = 0
        """Characters of all sessions, each as counted last."""

    def add(self, session: TextHolder, passivate: Callable[[], None]) -> None:
        """Counts a session that was activated.

        Args:
            session: the session
            passivate: passivates it, and then calls `forget`
        """
        self._sessions[session] = 0, passivate
        self.count(session)

    def rest(self, session: TextHolder) -> None:
        """Counts a session whose calls are over. An ended session is passivated at once, because it gets no more messages."""
        if session.is_ended and not session.rejecting and (counted := self._sessions.get(session)) is not None:
            counted[1]()
        else:
            self.count(session)

    def count(self, session: TextHolder) -> None:
        """Counts an idle session. While there is too much text, passivates the session that has been idle longest."""
        counted = self._sessions.get(session)
        if counted is None:
            return  # passivated in the meantime
        chars = session.held_chars()
        self.chars += chars - counted[0]
        self._sessions[session] = chars, counted[1]
        self._sessions.move_to_end(session)
        if self.chars > self._max_chars:
            self._passivate(session)

    def forget(self, session: TextHolder) -> None:
        """Stops counting a session that was passivated."""
        if session in self._sessions:
            self.chars -= self._sessions.pop(session)[0]

    def _passivate(self, newest: TextHolder) -> None:
        running = 0
        while self.chars > self._max_chars and running < _RUNNING_AT_ONCE:
            oldest, (_, passivate) = next(iter(self._sessions.items()))
            if oldest is newest:
                return
            if oldest.queue is not None or oldest.rejecting:  # in use: move it back, so that idle sessions come first
                self._sessions.move_to_end(oldest)
                running += 1
            else:
                passivate()


_RUNNING_AT_ONCE: Final = 16
"""Most running sessions that one call looks at; the next call looks at the rest."""
