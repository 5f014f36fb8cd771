"""How a supervisor lets go of a subject who is erased while it runs: nothing new is taken, what runs ends, nothing is kept.

Others' turns go on meanwhile. What happens to the ledgers and the key is the runtime's matter. Explained in `docs/erasure.md`.
"""

import anyio

from kitchener.actors.authority.authority import ContextAuthority
from kitchener.actors.consolidation.consolidator import Consolidator
from kitchener.actors.mailbox.calling_chain import calling_chain
from kitchener.actors.sessions.admission import Admission
from kitchener.actors.sessions.directory import SessionDirectory
from kitchener.config import LimitsConfig
from kitchener.errors import Overloaded, ReentrantTurn


class Leaving:
    """One agent class's part in an erasure.

    Args:
        sessions: of the agent class
        admission: their queues
        consolidator: learns about subjects; None: nobody does
        authority: keeps subjects' turns for recall; None: it is off
        limits: how long a cancelled turn may take
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
        """Takes nothing of the subject from now on, until `end`."""
        self._sessions.barred.add(subject_id)

    async def begin(self, subject_id: str, namespace: str) -> None:
        """Takes nothing of the subject from now on, and returns when nothing of theirs runs; `end` must follow.

        Raises:
            ReentrantTurn: a tool of the subject's own turn asks for it
            Overloaded: a turn, or a consolidation, did not end in time
        """
        sessions = self._sessions.active_of(subject_id)
        for session in sessions:
            if session.session_id in calling_chain():
                raise ReentrantTurn(
                    f"session {session.session_id!r} waits for the tool that erases its subject; erase when its turn is over"
                )
        self.bar(subject_id)
        for session in sessions:
            # Twice: once for the turn to be aborted, once for those in line to find that they are not let in.
            await self._admission.expel(session, anyio.current_time() + 2 * self._grace_s)
        if self._consolidator is not None:
            with anyio.move_on_after(2 * self._grace_s) as waiting:
                await self._consolidator.bar(namespace)
            if waiting.cancelled_caught:
                raise Overloaded(f"a consolidation about {subject_id!r}", 1)

    def forget(self, subject_id: str) -> None:
        """Drops what is kept of the subject in memory."""
        for session in self._sessions.active_of(subject_id):
            self._sessions.put_away(session)
        if self._authority is not None:
            self._authority.recalling.forget(subject_id)

    def end(self, subject_id: str, namespace: str) -> None:
        """Takes the subject's calls again: they may begin anew."""
        self._sessions.barred.discard(subject_id)
        if self._consolidator is not None:
            self._consolidator.unbar(namespace)
