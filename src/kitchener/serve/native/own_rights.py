"""Answers which rights the key of a request has, for clients that show only what they can do. Explained in `docs/server.md`."""

from importlib.metadata import version

from starlette.requests import Request
from starlette.types import ASGIApp

from kitchener.serve.access.guard import caller_of
from kitchener.serve.native.session_access import SessionAccess
from kitchener.serve.problems import json_response


class OwnRights:
    """Answers requests about their own key.

    Args:
        access: knows the subjects and agent classes of requests
    """

    def __init__(self, access: SessionAccess) -> None:
        self._access = access

    async def show(self, request: Request) -> ASGIApp:
        """The subject of the request, and the agents and rights of its key."""
        caller, limits = caller_of(request), self._access.runtime.config.limits
        agents = self._access.classes(caller)
        return json_response(
            {
                "subject_id": self._access.subject(request),
                "agents": agents,
                "default_agent": agents[0] if len(agents) == 1 else "ADMIN" if "ADMIN" in agents else None,
                "rights": list(caller.settings.rights),
                "needs_key": not caller.is_local,
                "max_message_chars": limits.max_message_chars,
                "keep_alive_s": self._access.runtime.config.serve.keep_alive_s,
                "version": version("kitchener"),
            }
        )
