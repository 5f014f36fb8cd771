"""Answers requests about their own subject: what the key allows, and the erasure. Explained in `docs/server.md`."""

from collections.abc import Callable
from importlib.metadata import version

from pydantic import ConfigDict
from starlette.requests import Request
from starlette.types import ASGIApp

from kitchener.config.field_docstrings import DescribedModel
from kitchener.errors import ConfigError
from kitchener.serve.access.guard import caller_of, subject_of
from kitchener.serve.event_stream import KEEP_ALIVE_S
from kitchener.serve.native.session_access import SessionAccess
from kitchener.serve.operations_table import read_model
from kitchener.serve.problems import RequestRefused, json_response


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
                "subject_id": subject_of(request),
                "agents": agents,
                "default_agent": agents[0] if len(agents) == 1 else "ADMIN" if "ADMIN" in agents else None,
                "rights": list(caller.settings.rights),
                "needs_key": not caller.is_local,
                "max_message_chars": limits.max_message_chars,
                "keep_alive_s": KEEP_ALIVE_S,
                "version": version("kitchener"),
            }
        )


class SubjectErasure(DescribedModel):
    """The confirmation of an erasure."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)

    subject_id: str
    """The subject again, as confirmation, because an erasure cannot be undone."""


class ErasureCalls:
    """Answers requests to erase a subject.

    Args:
        access: knows the subjects of requests
        *forget: drop the texts that the server itself caches
    """

    def __init__(self, access: SessionAccess, *forget: Callable[[], object]) -> None:
        self._access, self._forget = access, forget

    async def erase(self, request: Request) -> ASGIApp:
        """Erases the subject, and answers with the report. It continues if the client goes away."""
        body, subject_id = read_model(SubjectErasure, await request.body()), subject_of(request)
        if body.subject_id != subject_id:
            raise RequestRefused(400, "invalid_request", "subject_id: expected the subject of this request, as confirmation")
        try:
            report = await self._access.runtime.erase_subject(subject_id)
        except ConfigError:
            raise RequestRefused(
                409, "not_sealed", "content is stored in plain text here, so there is no key to destroy; see docs/erasure.md"
            ) from None
        for each in self._forget:
            each()
        return json_response(report.as_json())
