"""Intents that belong to a subject and not to one session: what other sessions say of them, read at recorded positions.

A PROJECT, ARTIFACT or GLOBAL intent is declared in one session and may be above the intents of any other session of the same
agent class and subject. Its life is the order of the ledger, whoever writes it, and a turn sees of it what stood in HO2m when
the turn began. Explained in `docs/context.md`.
"""

from collections.abc import Sequence

import anyio

from kitchener.ledger import Ledgers, StoredEntry
from kitchener.records import events


class SharedIntents:
    """The way from the ledger to the sessions of one agent class. Costs nothing while no intent of the class is shared.

    Args:
        ledgers: where their entries are
    """

    def __init__(self, ledgers: Ledgers) -> None:
        self._ledgers = ledgers
        self._has_any: bool | None = None
        self._written: dict[str, int] = {}
        self.lock = anyio.Lock()
        """Held from a look at what is shared to the entry that rests on it: of two sessions that close an intent, one does."""

    @property
    def position(self) -> int:
        """Where HO2m stands now."""
        return self._ledgers.positions()[self._ledgers.ho2m.ledger_id]

    async def news(self, session_id: str, subject_id: str, after: int, position: int) -> Sequence[StoredEntry]:
        """What other sessions wrote about a subject's shared intents, in the order of the ledger.

        Args:
            session_id: whose own entries are left out
            subject_id: whose intents
            after: up to where the session has taken it; 0: it has taken nothing yet
            position: where HO2m stood when the turn began; later entries are left for the next turn
        """
        if not await self._may_be_news(subject_id, after):
            return ()
        found = self._ledgers.ho2m.read(key=events.shared_intents_key(subject_id), after_seq=after, up_to_seq=position)
        return [entry async for entry in found if entry.session_id != session_id]

    def wrote(self, subject_id: str) -> None:
        """Takes note that this process wrote an entry about a shared intent of a subject."""
        self._has_any = True
        self._written[subject_id] = self.position

    async def _may_be_news(self, subject_id: str, after: int) -> bool:
        if not self._ledgers.is_sole_writer:
            return True
        if self._has_any is None:
            self._has_any = bool(await self._ledgers.ho2m.last(key=events.SHARED_INTENTS))
        if not self._has_any:
            return False
        return after == 0 or self._written.get(subject_id, 0) > after
