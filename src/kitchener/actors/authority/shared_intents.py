"""Reads what other sessions wrote about the shared intents of a subject, up to a recorded position of HO2m.

A PROJECT, ARTIFACT or GLOBAL intent is declared in one session. It may be the parent of intents in any other session of the
same agent class and subject. All sessions may change it; the order of their entries in the ledger decides. A turn sees the
entries that HO2m had when the turn started. Explained in `docs/context.md`.
"""

from collections.abc import Sequence
from typing import Final

import anyio

from kitchener.ledger import LedgerGroup, StoredEntry
from kitchener.records.events import read_common
from kitchener.records.index_keys import SHARED_INTENTS_KEY, shared_intents_key

_MAX_SUBJECTS: Final = 10_000
"""Most subjects whose positions are cached. Clearing the cache bounds memory, and costs each session one more read."""


class SharedIntents:
    """Reads the shared intents of one agent class. Reads no entries while no intent of the class is shared.

    Args:
        ledgers: the ledgers of the agent class
    """

    def __init__(self, ledgers: LedgerGroup) -> None:
        self._ledgers = ledgers
        self._has_any: bool | None = None
        self._written: dict[str, int] = {}
        """Subject to the position of the newest entry about shared intents that this process wrote since `_cleared_at`."""
        self._cleared_at = 0
        self.lock = anyio.Lock()
        """Held from reading the shared intents until the entry that depends on them is written. So two sessions cannot both
        close one intent."""

    @property
    def position(self) -> int:
        """The current position of HO2m."""
        return self._ledgers.positions()[self._ledgers.ho2m.ledger_id]

    async def news(self, session_id: str, subject_id: str, after: int, position: int | None) -> Sequence[StoredEntry]:
        """Returns other sessions' entries about a subject's shared intents, in the order of the ledger.

        Args:
            session_id: the session whose own entries are left out
            subject_id: the subject of the intents
            after: position up to which the session has read such entries; 0: it has read none
            position: position of HO2m when the turn started; the next turn reads later entries. None: read to the present end
        """
        if not await self._may_be_news(subject_id, after):
            return ()
        found = self._ledgers.ho2m.read(key=shared_intents_key(subject_id), after_seq=after, up_to_seq=position)
        return [entry async for entry in found if read_common(entry).get("session_id") != session_id]

    def wrote(self, subject_id: str) -> None:
        """Notes that this process wrote an entry about a shared intent of the subject, so that `news` reads it."""
        self._has_any = True
        if len(self._written) >= _MAX_SUBJECTS:
            self._written.clear()
            self._cleared_at = self.position
        self._written[subject_id] = self.position

    async def _may_be_news(self, subject_id: str, after: int) -> bool:
        if not self._ledgers.is_sole_writer:
            return True
        if self._has_any is None:
            self._has_any = bool(await self._ledgers.ho2m.last(key=SHARED_INTENTS_KEY))
        if not self._has_any:
            return False
        return after == 0 or self._written.get(subject_id, self._cleared_at) > after
