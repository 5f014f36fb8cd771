"""Turns a caller's requests about intents into events: declare, fork, close, abandon, reopen, and resolve a conflict.

Each call waits in the session's FIFO queue. It is checked against the session's ledger before anything is written. Explained
in `docs/context.md`.
"""

from collections.abc import Callable, Sequence
from typing import Final, get_args

from kitchener.actors.admission.admission import Admission
from kitchener.actors.admission.argument_checks import check_list, check_name, check_not_inside, check_text
from kitchener.actors.authority.authority import ContextAuthority
from kitchener.actors.authority.session_thread import SessionThread
from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.sessions.directory import SessionDirectory
from kitchener.actors.sessions.fresh_ids import check_session_id
from kitchener.context import IntentEvent, SessionIntents, keep_intent, with_scopes
from kitchener.context.intents.transitions import abandoned, closed, declared, forked, next_intent_id, reopened
from kitchener.errors import CallerError, InvalidLifecycle, SessionEnded
from kitchener.ids import IntentId
from kitchener.plain_names import quoted
from kitchener.records.entries import IntentScope

_SCOPES: Final = get_args(IntentScope)
_Make = Callable[[SessionIntents, SessionThread], list[IntentEvent]]


class IntentCalls:
    """Implements the intent methods of `HO2Supervisor`.

    Args:
        sessions: the sessions of the agent class
        admission: the queues of the sessions
        authority: the Context Authority; None: it is off. If it is off or in `shadow`, every call is refused
    """

    def __init__(self, sessions: SessionDirectory, admission: Admission, authority: ContextAuthority | None) -> None:
        self._sessions, self._admission = sessions, admission
        self._authority = authority if authority is not None and not authority.is_shadow else None

    async def declare(
        self, session_id: str, objective: str, *, scope: IntentScope, parent: str | None, targets: Sequence[str]
    ) -> IntentId:
        """Puts a new intent on record and returns its id. Raises CallerError if an argument is invalid."""
        check_text("objective", objective)
        if scope not in _SCOPES:
            raise CallerError(f"scope = {quoted(scope)}: expected one of {', '.join(_SCOPES)}")
        check_list("targets", targets)
        for each in targets:
            check_text("targets", each)

        if parent is not None:
            check_name("parent_intent_id", parent)

        def new_events(intents: SessionIntents, thread: SessionThread) -> list[IntentEvent]:
            if parent is not None and parent not in intents.intents:
                raise InvalidLifecycle(parent, f"intent {parent} was never declared, so it cannot be a parent")
            new = next_intent_id(intents)
            event = declared(intents, new, objective, scope=scope, parent_intent_id=parent, targets=targets, created_by="user")
            return [event]

        events = await self._write(session_id, new_events)
        return IntentId(events[0].entity_id)

    async def fork(self, session_id: str, intent_id: str, objectives: Sequence[str], active: int | None) -> list[IntentId]:
        """Forks an intent into children and returns their ids. `active` is the position of the child that becomes active."""
        check_name("intent_id", intent_id)
        check_list("objectives", objectives)
        if not objectives:
            raise CallerError("objectives is empty: expected one for each child")
        if len(objectives) > MAX_CHILDREN:
            raise CallerError(
                f"objectives has {len(objectives)} texts: expected at most {MAX_CHILDREN}; fork a child again for more"
            )
        for each in objectives:
            check_text("objective", each)
        if active is not None and (type(active) is not int or not 0 <= active < len(objectives)):
            raise CallerError(f"active = {quoted(active)}: expected a position in objectives, 0 to {len(objectives) - 1}")

        def new_events(intents: SessionIntents, thread: SessionThread) -> list[IntentEvent]:
            _check_live(intent_id, intents)  # before its children are written
            known, children = dict(intents.intents), list[IntentEvent]()
            for objective in objectives:
                new = next_intent_id(intents._replace(intents=known))
                child = declared(intents, new, objective, parent_intent_id=intent_id, created_by="user")
                known[new] = known[intent_id]  # reserves the id, so that the next child gets another one
                children.append(child)
            ids = [child.entity_id for child in children]
            chosen = ids[active] if active is not None else None
            return [*children, forked(intent_id, ids, chosen, "forked by the user")]

        events = await self._write(session_id, new_events)
        return [IntentId(event.entity_id) for event in events[:-1]]

    async def close(self, session_id: str, intent_id: str, outcome: str) -> None:
        """Records that the user closed an intent, which no message reopens then."""
        check_name("intent_id", intent_id)
        check_text("outcome", outcome)
        await self._write(session_id, lambda intents, _: [closed(intent_id, outcome, "closed by the user", by="user")])

    async def abandon(self, session_id: str, intent_id: str, reason: str) -> None:
        """Records that the user gave an intent up, and why."""
        check_name("intent_id", intent_id)
        check_text("reason", reason)
        await self._write(session_id, lambda intents, _: [abandoned(intent_id, reason)])

    async def reopen(self, session_id: str, intent_id: str, reason: str) -> None:
        """Reopens an intent that ended or was deferred."""
        check_name("intent_id", intent_id)
        check_text("reason", reason)
        await self._write(session_id, lambda intents, _: [reopened(intent_id, reason)])

    async def keep(self, session_id: str, intent_id: str) -> None:
        """Resolves a conflict: this intent supersedes all other competing intents."""
        check_name("keep", intent_id)

        def new_events(intents: SessionIntents, thread: SessionThread) -> list[IntentEvent]:
            assert self._authority is not None
            competing = self._authority.resolve(thread).competing
            if intent_id not in competing:
                there_are = f"the competing intents are {', '.join(competing)}" if competing else "no intents compete"
                raise InvalidLifecycle(intent_id, f"intent {intent_id} is not a competing intent: {there_are}")
            return list(keep_intent(intent_id, competing))

        await self._write(session_id, new_events)

    async def _write(self, session_id: str, make: _Make) -> list[IntentEvent]:
        authority = self._authority
        if authority is None:
            raise CallerError('intents need context_mode = "enforce"; without it there are none')
        check_session_id(session_id)
        check_not_inside(session_id, "changes its intents")
        session = await self._sessions.find_open(session_id)
        async with self._admission.call(session), authority.shared.lock:
            thread = session.thread
            session.check_open()
            if thread is None:
                raise SessionEnded(session_id)
            await authority.follow_shared(thread, session_id, session.subject_id, authority.shared.position)
            first = authority.first_intent(thread, session_id) if thread.state.turns else None
            if first is not None:  # the session has turns from a time without the Authority; these get their own intent
                await _append(authority, session, thread, [first])
            made = make(SessionIntents(session.session_id, "", thread.state.intents), thread)
            # Written all together or not at all. A fork without its children would be a different decision.
            await _append(authority, session, thread, made)
            await session.commit()
        return made


MAX_CHILDREN: Final = 100
"""Most intents that one fork declares. Each is compared with all others of the session, and later turns list the intents that
compete."""


async def _append(
    authority: ContextAuthority, session: SessionManager, thread: SessionThread, made: Sequence[IntentEvent]
) -> None:
    authority.check(thread, made, session.now())
    await session.write_all(with_scopes(made, thread.state.intents))


def _check_live(intent_id: str, intents: SessionIntents) -> None:
    record = intents.intents.get(intent_id)
    if record is None:
        raise InvalidLifecycle(intent_id, f"intent {intent_id} was never declared")
    if not record.is_live:
        raise InvalidLifecycle(intent_id, f"intent {intent_id} was {record.status} before")
