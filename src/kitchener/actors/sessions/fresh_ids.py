"""Finds unused ids for new sessions, and unused numbers for turns and work orders after a crash.

Unused ids are drawn many at a time, because each look-up waits for a worker thread. `directory.py` takes one for each session
that is started without an id. `kitchener/ids.py` defines the form of an id.
"""

from collections import deque
from collections.abc import Container
from typing import NamedTuple

import anyio

from kitchener.actors.turn_memory import LongTermMemory
from kitchener.cancellation import raises_cut_off
from kitchener.errors import CallerError
from kitchener.ids import IdSource, SessionId, is_session_id
from kitchener.ledger import LedgerGroup
from kitchener.plain_names import quoted
from kitchener.records.events import read_common


class FreshIds:
    """A stock of unused session ids.

    Args:
        ids: source of random ids
        ledgers: contain every session ever started
        active: the ids of active sessions
    """

    def __init__(self, ids: IdSource, ledgers: LedgerGroup, active: Container[str]) -> None:
        self._ids, self._ledgers, self._active = ids, ledgers, active
        self._fresh: deque[SessionId] = deque()
        self._drawn: anyio.Event | None = None
        self._waiting = 0

    async def take(self) -> SessionId:
        """Returns an unused id. Raises CallerError if all ids that were drawn are in use."""
        for _ in range(_ATTEMPTS):
            if self._fresh:
                return self._fresh.popleft()
            if self._drawn is None:
                await self._draw()
            else:  # another task draws ids for all waiting tasks
                self._waiting += 1
                try:
                    await self._drawn.wait()
                finally:
                    self._waiting -= 1
        raise CallerError("all random session ids that were drawn are taken; give `open_runtime` others: ids=RandomIds(16)")

    def forget(self, session_id: str) -> None:
        """Removes an id that a caller has chosen, so that `take` does not return it."""
        if session_id in self._fresh:
            self._fresh.remove(SessionId(session_id))

    async def _draw(self) -> None:
        done = self._drawn = anyio.Event()
        try:
            await anyio.lowlevel.checkpoint()  # lets other tasks that start a session now be counted
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
    """Raises CallerError unless the text has the form of a session id."""
    if not isinstance(session_id, str) or not is_session_id(session_id):
        raise CallerError(
            f"{quoted(session_id)} is not a session id: expected `SES-` and 8 to 32 lower-case hex digits; `external_id` of a"
            " session takes a name of your own"
        )


class TakenNumbers(NamedTuple):
    """The newest turn and work order of a session that HO1m or the memory know. HO2m may have lost them in a crash."""

    turn: int
    work_order: int


async def taken_numbers(session_id: SessionId, ledgers: LedgerGroup, memory: LongTermMemory | None) -> TakenNumbers:
    """Reads which numbers of a session are taken; 0 where there is none."""
    turn = work_order = 0
    if newest := await ledgers.ho1m.last(session_id=session_id):
        work_order = int(newest[-1].entity_id.rpartition("-")[2])
        turn = int(read_common(newest[-1])["turn_id"].rpartition("-")[2])
    signalled = None
    if memory is not None:
        with raises_cut_off("resuming the session"):
            signalled = await memory.last_turn_id(session_id)
    if signalled:
        number = signalled.rpartition("-")[2]
        turn = max(turn, int(number) if number.isdecimal() else 0)
    return TakenNumbers(turn, work_order)


_ATTEMPTS = 8
_AT_ONCE = 64
_AT_MOST = 4_096
