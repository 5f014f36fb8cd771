"""Appends entries to a session outside its turns, so that the session in memory stays the fold of its ledger.

Repairs and imports use it while a runtime serves turns. This module does not interpret the entries. Explained in
`docs/sessions.md`.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from kitchener.actors.admission.admission import Admission
from kitchener.actors.authority.authority import ContextAuthority
from kitchener.actors.sessions.directory import SessionDirectory
from kitchener.ledger import LedgerEntry
from kitchener.records.entries import CommonPayload, payload_as
from kitchener.records.events import is_of_shared_intent, read_common


class OutsideEntries:
    """Adds entries to the sessions of one agent class.

    Args:
        sessions: the sessions of the agent class
        admission: the queues of the sessions
        authority: caches subjects' turns and shared intents; None if it is off
    """

    def __init__(self, sessions: SessionDirectory, admission: Admission, authority: ContextAuthority | None) -> None:
        self._sessions, self._admission, self._authority = sessions, admission, authority

    async def append(self, session_id: str, entries: Sequence[LedgerEntry]) -> None:
        """Appends entries about a session, after the calls that already wait for it. Durable when it returns.

        Raises:
            CallerError, UnknownSession, SubjectErased: the session cannot be changed
            Overloaded: too many calls wait for it, or they take too long
        """
        session = await self._sessions.find(session_id)
        async with self._admission.call(session):
            await session.write_all(
                [(each.entry_type, each.entity_id, payload_as(CommonPayload, each.payload)) for each in entries]
            )
            await session.commit()
        if self._authority is not None:
            self._authority.subject_turns.forget(session.subject_id)

    def wrote(self, entries: Sequence[LedgerEntry]) -> None:
        """Has the sessions of a subject read entries about shared intents that were just written directly to HO2m."""
        if self._authority is None:
            return
        for each in entries:
            subject_id = read_common(each).get("subject_id")
            if isinstance(subject_id, str) and is_of_shared_intent(each.entry_type, each.payload):
                self._authority.shared.wrote(subject_id)

    @contextmanager
    def importing(self, subject_id: str) -> Iterator[None]:
        """Makes the turns of a subject read the entries that an import writes within the block."""
        self._sessions.names.forget(subject_id)
        if self._authority is None:
            turns: AbstractContextManager[None] = nullcontext()
        else:
            turns = self._authority.subject_turns.importing(subject_id)
        try:
            with turns:
                yield
        finally:  # part of it may be written
            self._sessions.names.forget(subject_id)
            if self._authority is not None:
                self._authority.shared.wrote(subject_id)
