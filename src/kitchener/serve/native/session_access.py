"""Finds the session that the path of a request names, for the subject of its key. Explained in `docs/server.md`."""

from typing import Final, NamedTuple

import anyio
from starlette.requests import Request

from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.config import DEFAULT_AGENT
from kitchener.errors import UnknownSession
from kitchener.ledger import Ledgers
from kitchener.plain_names import quoted
from kitchener.runtime import Runtime
from kitchener.serve.access.callers import Caller
from kitchener.serve.access.guard import caller_of, subject_of
from kitchener.serve.problems import RequestRefused

_POLL_S: Final = 0.02
"""Seconds between two checks whether an aborted turn has ended. An abort takes one commit."""


class FoundSession(NamedTuple):
    """A session, and the supervisor that serves it."""

    supervisor: HO2Supervisor
    session: SessionManager
    ledgers: Ledgers


class SessionAccess:
    """Finds sessions.

    Args:
        runtime: has the sessions
    """

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    def classes(self, caller: Caller) -> list[str]:
        """The agent classes that a caller reaches."""
        return [each for each in self.runtime.config.class_names if caller.reaches(each)]

    def supervisor(self, caller: Caller, agent_class: str | None) -> HO2Supervisor:
        """The agent that is meant; None: ADMIN, or the only one that the caller reaches.

        Raises:
            RequestRefused: there is no such agent for the caller, or none is meant
        """
        reached = self.classes(caller)
        name = agent_class if agent_class is not None else reached[0] if len(reached) == 1 else DEFAULT_AGENT
        if name in reached:
            return self.runtime.supervisor(name)
        if agent_class is None and reached:
            several = f"this key reaches several agents: name one, such as {quoted(reached[0])}; GET /v1/me lists them"
            raise RequestRefused(400, "invalid_request", several)
        raise caller.unknown_agent(name)

    async def wait_ended(self, session: SessionManager, turn_id: str) -> None:
        """Returns when a turn that was stopped has ended on record, at the latest after `limits.abort_grace_s`."""
        with anyio.move_on_after(self.runtime.config.limits.abort_grace_s):
            while (turn := session.state.open_turn) is not None and turn.turn_id == turn_id:  # noqa: ASYNC110  a rare wait
                await anyio.sleep(_POLL_S)

    async def of(self, request: Request) -> FoundSession:
        """The session in the path.

        Raises:
            CallerError: its id is none
            UnknownSession: there is none of this id, or it belongs to another subject or agent
        """
        return await self.named(request, request.path_params["session_id"])

    async def named(self, request: Request, session_id: str) -> FoundSession:
        """A session of the request's subject; raises as `of`."""
        subject_id = subject_of(request)
        for agent_class in self.classes(caller_of(request)):
            supervisor = self.runtime.supervisor(agent_class)
            try:
                session = await supervisor.session(session_id)
            except UnknownSession:
                continue
            if session.subject_id == subject_id:
                return FoundSession(supervisor, session, self.runtime.ledgers(agent_class))
            break
        raise UnknownSession(session_id, "this key")
