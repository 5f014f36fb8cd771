"""Finds the sessions that a client's own name stands for, and remembers them for the names that were used last.

Every request of a chat client names its conversation. Without what is remembered, each of them would wait for a worker thread
that searches the index. Knows nothing of what the sessions hold. Explained in `docs/sessions.md`.
"""

from collections import OrderedDict
from typing import NamedTuple

from kitchener.ids import SessionId
from kitchener.ledger.ledger import LedgerGroup
from kitchener.records import events


class KnownSessions(NamedTuple):
    """What is remembered of a name."""

    sessions: tuple[SessionId, ...]
    """The newest sessions of the name, oldest first."""
    limit: int
    """At most so many are remembered."""


class ExternalNames:
    """The sessions of one agent class by the names that clients gave them; each subject has names of its own.

    Args:
        ledgers: where the starts of sessions are on record
        max_names: names whose sessions are remembered, those used last
    """

    def __init__(self, ledgers: LedgerGroup, max_names: int) -> None:
        self._ledgers, self._max_names = ledgers, max_names
        self._known: OrderedDict[tuple[str | None, str], KnownSessions] = OrderedDict()
        self._changes = 0
        """Counts what was started or dropped, so that a look-up that took longer is not remembered."""

    async def sessions(self, external_id: str, subject_id: str | None, limit: int) -> tuple[SessionId, ...]:
        """The newest sessions with this name, at most `limit`, oldest first.

        Args:
            external_id: the name
            subject_id: whose name it is; None: of sessions that were started without a subject
            limit: at least 1
        """
        name = (subject_id, external_id)
        known = self._known.get(name)
        if known is None or known.limit < limit:
            changes = self._changes
            key = events.external_index_key(subject_id, external_id)
            starts = await self._ledgers.ho2m.last(key=key, limit=limit)
            known = KnownSessions(tuple(SessionId(str(start.payload["session_id"])) for start in starts), limit)
            if changes != self._changes or not self._ledgers.is_sole_writer:
                return known.sessions
            self._known[name] = known
            if len(self._known) > self._max_names:
                self._known.popitem(last=False)
        self._known.move_to_end(name)
        return known.sessions[-limit:]

    def started(self, session_id: SessionId, external_id: str, subject_id: str | None) -> None:
        """A session with this name is on record from now on."""
        self._changes += 1
        known = self._known.get((subject_id, external_id))
        if known is not None:
            newest = (*known.sessions, session_id)[-known.limit :]
            self._known[subject_id, external_id] = known._replace(sessions=newest)

    def forget(self, subject_id: str) -> None:
        """Drops the names of a subject, and of sessions without one: somebody else has written starts of sessions."""
        self._changes += 1
        for name in [each for each in self._known if each[0] in (subject_id, None)]:
            del self._known[name]
