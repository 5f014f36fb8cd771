"""Ids for new sessions that no session has, looked up by the dozen, because a look-up waits for a thread.

`directory.py` takes one per session that is started without an id; what an id looks like is said in `kitchener/ids.py`.
"""

from collections import deque
from collections.abc import Container

import anyio

from kitchener.errors import CallerError
from kitchener.ids import IdSource, SessionId, is_session_id
from kitchener.ledger import Ledgers


class FreshIds:
    """Session ids that nobody has.

    Args:
        ids: where they are drawn
        ledgers: know the sessions that were ever started
        active: knows those that are about to be
    """

    def __init__(self, ids: IdSource, ledgers: Ledgers, active: Container[str]) -> None:
        self._ids, self._ledgers, self._active = ids, ledgers, active
        self._fresh: deque[SessionId] = deque()
        self._drawn: anyio.Event | None = None
        self._waiting = 0

    async def take(self) -> SessionId:
        """An id that was never given out. Raises CallerError where all that were drawn are taken."""
        for _ in range(_ATTEMPTS):
            if self._fresh:
                return self._fresh.popleft()
            if self._drawn is None:
                await self._draw()
            else:  # somebody else is at it, for all who wait
                self._waiting += 1
                try:
                    await self._drawn.wait()
                finally:
                    self._waiting -= 1
        raise CallerError("all random session ids that were drawn are taken; set session_id_digits to 16 or more")

    def forget(self, session_id: str) -> None:
        """A caller has chosen this id; it is not given out any more."""
        if session_id in self._fresh:
            self._fresh.remove(SessionId(session_id))

    async def _draw(self) -> None:
        done = self._drawn = anyio.Event()
        try:
            await anyio.lowlevel.checkpoint()  # so that all who start a session now are counted
            count = min(max(_AT_ONCE, self._waiting + 1), _AT_MOST)
            drawn = dict.fromkeys(self._ids.session_id() for _ in range(count))
            for each in drawn:
                check_session_id(each)
            taken = await self._ledgers.ho2m.known_sessions(drawn)
            self._fresh.extend(each for each in drawn if each not in taken and each not in self._active)
        finally:
            self._drawn = None
            done.set()


def check_session_id(session_id: str) -> None:
    """Raises CallerError where a text has not the form of a session id."""
    if not isinstance(session_id, str) or not is_session_id(session_id):
        raise CallerError(f"session id {session_id!r:.80}: expected `SES-` and 8 to 32 lower-case hex digits")


_ATTEMPTS = 8
_AT_ONCE = 64
_AT_MOST = 4_096
