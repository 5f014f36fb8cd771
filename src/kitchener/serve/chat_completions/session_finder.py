"""Finds the session that a request of a stateless client continues, or begins one: empty, or with the claimed history.

Explained in `docs/server.md`.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

import anyio
import anyio.lowlevel

from kitchener.actors.admission.argument_checks import MAX_NAME
from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.clock import Clock
from kitchener.errors import SessionEnded, SessionMismatch, SubjectErased
from kitchener.ids import is_session_id
from kitchener.records import events
from kitchener.records.index_keys import idempotency_index_key, turn_index_key
from kitchener.runtime import Runtime
from kitchener.runtime.portable.conversation_file import SpokenConversation, SpokenMessage
from kitchener.serve.access.allowances import RequestPlace
from kitchener.serve.access.counted_work import IMPORTED_MESSAGES, READ_TURNS, length_of
from kitchener.serve.chat_completions.chat_request import SaidPair, as_sent
from kitchener.serve.chat_completions.client_history import ClaimedHistory, Histories, read_pairs
from kitchener.serve.problems import RequestRefused
from kitchener.serve.served_turns import ServedTurns
from kitchener.times import iso_of

BY_KEY: Final = "key:"
"""The prefix of the name of a conversation that has only the idempotency key of its message as a name."""
_MAX_BRANCHES: Final = 16
"""Newest sessions of one conversation that are compared with the history of a request: more edits and regenerated replies than
a person goes back to. Each costs the reading of a session."""


class SessionFinder:
    """Finds the sessions of requests, or begins them.

    Args:
        runtime: has the sessions
        turns: the turns that run for requests
        clock: the time of day, which tells branches of a conversation apart
    """

    def __init__(self, runtime: Runtime, turns: ServedTurns, clock: Clock) -> None:
        self._runtime, self._turns, self._clock = runtime, turns, clock
        self.histories = Histories()
        self._locks: dict[tuple[str, str, str], tuple[anyio.Lock, list[None]]] = {}

    @asynccontextmanager
    async def chosen(
        self,
        place: RequestPlace,
        supervisor: HO2Supervisor,
        subject_id: str,
        name: str | None,
        claimed: Sequence[SaidPair] | None,
        key: str | None,
    ) -> AsyncIterator[str]:
        """The id of the session; the block begins the turn, while no other request for the conversation is served.

        Args:
            place: the request; a session that begins with messages counts as further ones
            supervisor: the agent
            subject_id: whose session it is
            name: the client's name of the conversation, or a session id; None: the client has none
            claimed: what the client says was said before; None: it says nothing, and the newest session of the name continues
            key: the idempotency key of the message, whose session continues whatever is claimed; None: it has none

        Raises:
            RequestRefused: the name cannot be one, or further requests come too fast
            UnknownSession, SessionMismatch, SessionEnded: a session was named that cannot continue
        """
        if name is None:
            place.count_more(_count(claimed or ()))
            yield await self._begun(supervisor, subject_id, None, claimed or ())
            return
        if is_session_id(name):
            yield await self._named(supervisor, subject_id, name)
            return
        if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
            raise RequestRefused(400, "session_invalid", f"the session's name: expected 1 to {MAX_NAME} printable characters")
        async with self._alone((supervisor.agent_class, subject_id, name)):
            found = await self._found(supervisor, subject_id, name, claimed, key)
            if found is None:
                place.count_more(_count(claimed or ()))
                found = await self._begun(supervisor, subject_id, name, claimed or ())
            yield found

    @asynccontextmanager
    async def after(
        self,
        place: RequestPlace,
        supervisor: HO2Supervisor,
        session: SessionManager,
        turn_id: str,
        name: str | None,
        key: str | None,
    ) -> AsyncIterator[str]:
        """The id of the session that continues after a turn: the turn's session, or a new one if that has later turns.

        Args:
            place: the request, as of `chosen`
            supervisor: the agent
            session: the session of the turn
            turn_id: the turn
            name: the client's name of the conversation, or a session id; None: that of the session. In another conversation,
                what was said until the turn is the claimed history
            key: the idempotency key of the message, whose session continues; None: it has none

        Raises:
            RequestRefused, UnknownSession, SessionMismatch: as `chosen`
            SessionEnded: the session has ended
        """
        session_id, own_name = session.session_id, session.state.external_id
        ho2m = self._runtime.ledgers(supervisor.agent_class).ho2m
        if name not in (None, own_name):
            await self._caught_up(supervisor, session_id)
            place.count_more(length_of(session) // READ_TURNS)
            said = await read_pairs(session, turn_id)
            async with self.chosen(place, supervisor, session.subject_id, name, said, key) as chosen:
                yield chosen
            return
        async with self._alone((supervisor.agent_class, session.subject_id, session_id)):
            await self._caught_up(supervisor, session_id)
            session.check_open()
            if key is not None and await ho2m.last(key=idempotency_index_key("session", session_id, key)):
                yield session_id
                return
            (start,) = await ho2m.last(key=turn_index_key(turn_id))
            # A turn completes once, so the second one, if not the first, is a later turn. Reading all of them would take long.
            later = ho2m.read(session_id=session_id, entry_type=(events.TURN_COMPLETED,), after_seq=start.seq, limit=2)
            if not [each async for each in later if each.entity_id != turn_id]:
                yield session_id
                return
            found = None
            if key is not None:
                own_name = own_name or f"{BY_KEY}{key}"
                found = await self._of_key(supervisor, await self._of_name(supervisor, session.subject_id, own_name), key)
            if found is None:
                turns = length_of(session)
                place.count_more(turns // READ_TURNS + 2 * turns // IMPORTED_MESSAGES)
                found = await self._begun(supervisor, session.subject_id, own_name, await read_pairs(session, turn_id))
            yield found

    async def _named(self, supervisor: HO2Supervisor, subject_id: str, session_id: str) -> str:
        session = await supervisor.session(session_id)
        if session.subject_id != subject_id:
            raise SessionMismatch(session_id, "subject", subject_id)
        session.check_open()
        return session_id

    async def _found(
        self, supervisor: HO2Supervisor, subject_id: str, name: str, claimed: Sequence[SaidPair] | None, key: str | None
    ) -> str | None:
        """The session of the key, or the newest session of the conversation whose history is the claimed one."""
        session_ids = await self._of_name(supervisor, subject_id, name)
        if key is not None and (keyed := await self._of_key(supervisor, session_ids, key)) is not None:
            return keyed
        history = ClaimedHistory.of(claimed) if claimed is not None else None
        for session_id in session_ids:
            await anyio.lowlevel.checkpoint()  # others continue between two comparisons
            await self._caught_up(supervisor, session_id)
            try:
                session = await supervisor.session(session_id)
                session.check_open()
            except SubjectErased:
                self.histories.forget()
                continue
            except SessionEnded:
                continue
            if history is None or await self.histories.continues(session, history):
                return session_id
        return None

    async def _of_name(self, supervisor: HO2Supervisor, subject_id: str, name: str) -> Sequence[str]:
        """The newest sessions of a conversation, the newest one first."""
        named = await supervisor.find_all_external(name, subject_id=subject_id, limit=_MAX_BRANCHES)
        return named[::-1]

    async def _of_key(self, supervisor: HO2Supervisor, session_ids: Sequence[str], key: str) -> str | None:
        """The session that has had the message of an idempotency key; None: none of these."""
        ho2m = self._runtime.ledgers(supervisor.agent_class).ho2m
        for session_id in session_ids:
            if await ho2m.last(key=idempotency_index_key("session", session_id, key)):
                return session_id
        return None

    async def _caught_up(self, supervisor: HO2Supervisor, session_id: str) -> None:
        """Waits for the turns that run in a session, because what they add is part of its history."""
        if supervisor.config.overlap_policy == "queue":
            for turn in self._turns.of_session(session_id):
                await turn.done.wait()

    async def _begun(self, supervisor: HO2Supervisor, subject_id: str, name: str | None, claimed: Sequence[SaidPair]) -> str:
        """A new session, with what the client claims as imported messages, but those without a reply."""
        claimed = [each for each in claimed if not each.is_unanswered]
        if not claimed:
            return await supervisor.start_session(subject_id=subject_id, external_id=name)
        messages = list[SpokenMessage]()
        for pair in claimed:
            messages.append(SpokenMessage("user", pair.message, None, ""))
            messages.append(SpokenMessage("assistant", as_sent(pair.reply), None, ""))
        messages = [each for each in messages if each.text.strip()]
        title = f"continued {iso_of(self._clock.time_us())}"  # the same history may be continued twice, in two sessions
        earlier = SpokenConversation(name, title, tuple(messages))
        return await self._runtime.begin_from(earlier, subject_id=subject_id, agent_class=supervisor.agent_class)

    @asynccontextmanager
    async def _alone(self, key: tuple[str, str, str]) -> AsyncIterator[None]:
        """Lets one request at a time choose the session of a conversation."""
        lock, users = self._locks.setdefault(key, (anyio.Lock(), []))
        users.append(None)
        try:
            async with lock:
                yield
        finally:
            users.pop()
            if not users:
                del self._locks[key]


def _count(claimed: Sequence[SaidPair]) -> int:
    """The further requests that a session counts which begins with these messages."""
    return 2 * len(claimed) // IMPORTED_MESSAGES
