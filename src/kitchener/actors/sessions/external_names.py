"""Finds sessions by a client's own name for a conversation, and caches them for the most recently used names.

Every request of a chat client names its conversation. Without the cache, each request would wait for a worker thread that
searches the index. This module does not know the content of sessions. Explained in `docs/sessions.md`.
"""

from collections import OrderedDict
from typing import NamedTuple

from kitchener.ids import SessionId
from kitchener.ledger.protocols import LedgerGroup
from kitchener.records.events import read_common
from kitchener.records.index_keys import external_index_key

OwnedName = tuple[str | None, str]
"""The subject whose name it is (None: no subject), and the name."""


class KnownSessions(NamedTuple):
    """The cached sessions of a name."""

    sessions: tuple[SessionId, ...]
    """The newest sessions of the name, oldest first."""
    limit: int
    """Most sessions that are cached for the name."""


class ExternalNames:
    """The sessions of one agent class, by the names that clients gave them. Each subject has its own names.

    Args:
        ledgers: contain the starts of sessions
        max_names: most names whose sessions are cached; the most recently used stay
    """

    def __init__(self, ledgers: LedgerGroup, max_names: int) -> None:
        self._ledgers, self._max_names = ledgers, max_names
        self._known: OrderedDict[OwnedName, KnownSessions] = OrderedDict()
        self._searches: dict[OwnedName, object] = {}
        """The last running look-up of each name. The start of a session with the name removes it, so that its result is not
        cached. Starts with other names do not, or conversations that begin together would each be looked up twice."""

    async def sessions(self, external_id: str, subject_id: str | None, limit: int) -> tuple[SessionId, ...]:
        """The newest sessions with this name, at most `limit`, oldest first.

        Args:
            external_id: the name
            subject_id: whose name it is; None: sessions that were started without a subject
            limit: at least 1
        """
        name = (subject_id, external_id)
        known = self._known.get(name)
        if known is None or known.limit < limit:
            known, is_current = await self._found(name, limit)
            if not is_current or not self._ledgers.is_sole_writer:
                return known.sessions
            self._known[name] = known
            if len(self._known) > self._max_names:
                self._known.popitem(last=False)
        self._known.move_to_end(name)
        return known.sessions[-limit:]

    async def _found(self, name: OwnedName, limit: int) -> tuple[KnownSessions, bool]:
        """The recorded sessions with a name, and whether no session was started during the look-up."""
        search = self._searches[name] = object()
        try:
            starts = await self._ledgers.ho2m.last(key=external_index_key(*name), limit=limit)
            known = KnownSessions(tuple(SessionId(read_common(start)["session_id"]) for start in starts), limit)
            return known, self._searches.get(name) is search
        finally:
            if self._searches.get(name) is search:
                del self._searches[name]

    def started(self, session_id: SessionId, external_id: str, subject_id: str | None) -> None:
        """Adds a session that was just recorded under this name."""
        self._searches.pop((subject_id, external_id), None)
        known = self._known.get((subject_id, external_id))
        if known is not None:
            newest = (*known.sessions, session_id)[-known.limit :]
            self._known[subject_id, external_id] = known._replace(sessions=newest)

    def forget(self, subject_id: str) -> None:
        """Forgets the names of a subject and of sessions without a subject. Call it after another writer has started
        sessions."""
        for names in (self._known, self._searches):
            for name in [each for each in names if each[0] in (subject_id, None)]:
                del names[name]
