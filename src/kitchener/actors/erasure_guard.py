"""Stops a subject's turns and evicts its data from memory while the runtime erases the subject.

New calls of the subject are refused, and its running turns are cancelled. Turns of other subjects continue. The runtime handles
the ledgers and the key. Explained in `docs/erasure.md`.
"""

import anyio

from kitchener.actors.admission.admission import Admission
from kitchener.actors.authority.authority import ContextAuthority
from kitchener.actors.consolidation.consolidator import Consolidator
from kitchener.actors.sessions.directory import SessionDirectory
from kitchener.config import LimitsConfig
from kitchener.errors import ReentrantTurn, WaitedTooLong
from kitchener.lanes.calling_chain import calling_chain


class ErasureGuard:
    """The steps of an erasure in one agent class.

    Args:
        sessions: the sessions of the agent class
        admission: the queues of the sessions
        consolidator: runs consolidations; None if memory is off
        authority: caches subjects' turns for recall; None if it is off
        limits: `abort_grace_s` limits how long a cancelled turn may take
    """

    def __init__(
        self,
        sessions: SessionDirectory,
        admission: Admission,
        consolidator: Consolidator | None,
        authority: ContextAuthority | None,
        limits: LimitsConfig,
    ) -> None:
        self._sessions, self._admission, self._consolidator = sessions, admission, consolidator
        self._authority, self._grace_s = authority, limits.abort_grace_s

    def bar(self, subject_id: str) -> None:
        """Refuses all calls of the subject until `end`."""
        self._sessions.barred.add(subject_id)

    async def begin(self, subject_id: str, namespace: str) -> None:
        """Refuses all calls of the subject, and returns when none of its turns or consolidations runs. `end` must follow.

        Raises:
            ReentrantTurn: the caller is a tool of the subject's own turn
            WaitedTooLong: a turn or a consolidation did not end in time
        """
        sessions = self._sessions.active_of(subject_id)
        for session in sessions:
            if session.session_id in calling_chain():
                raise ReentrantTurn(
                    f"session {session.session_id!r} waits for the tool that erases its subject; erase when its turn is over"
                )
        self.bar(subject_id)
        for session in sessions:
            # Twice the grace: once for the running turn to abort, once for the waiting calls to be refused.
            await self._admission.expel(session, anyio.current_time() + 2 * self._grace_s)
        if self._consolidator is not None:
            with anyio.move_on_after(2 * self._grace_s) as waiting:
                await self._consolidator.bar(namespace)
            if waiting.cancelled_caught:
                raise WaitedTooLong(f"a consolidation about {subject_id!r}", 2 * self._grace_s)

    def forget(self, subject_id: str) -> None:
        """Evicts the subject's sessions and cached turns from memory."""
        for session in self._sessions.active_of(subject_id):
            self._sessions.passivate(session)
        if self._authority is not None:
            self._authority.subject_turns.forget(subject_id)

    def end(self, subject_id: str, namespace: str) -> None:
        """Accepts the subject's calls again, for new sessions."""
        self._sessions.barred.discard(subject_id)
        if self._consolidator is not None:
            self._consolidator.unbar(namespace)
