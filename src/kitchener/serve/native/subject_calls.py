"""Answers requests about their own subject: what the key allows, what was learned, and the erasure.

Explained in `docs/server.md`.
"""

from collections.abc import Callable
from importlib.metadata import version
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, StrictBool, StringConstraints
from starlette.requests import Request
from starlette.types import ASGIApp

from kitchener.config import DEFAULT_AGENT
from kitchener.config.field_docstrings import DescribedModel
from kitchener.errors import CallerError, ConfigError
from kitchener.ids import memory_namespace
from kitchener.inspection.memory_views import learned_views, signal_views
from kitchener.memory.signals import normalise
from kitchener.runtime.admin.operation import Operation
from kitchener.runtime.admin.operations import DeactivateArtifact, QuarantineTarget, SubjectMemoryChange
from kitchener.serve.access.guard import caller_of, subject_of
from kitchener.serve.event_stream import KEEP_ALIVE_S
from kitchener.serve.native.session_access import SessionAccess
from kitchener.serve.operations_table import read_model
from kitchener.serve.problems import RequestRefused, json_response
from kitchener.times import iso_of

ForgettingReason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1_000)]


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
                "default_agent": agents[0] if len(agents) == 1 else DEFAULT_AGENT if DEFAULT_AGENT in agents else None,
                "rights": list(caller.settings.rights),
                "needs_key": not caller.is_local,
                "max_message_chars": limits.max_message_chars,
                "keep_alive_s": KEEP_ALIVE_S,
                "version": version("kitchener"),
            }
        )


class SubjectErasure(DescribedModel):
    """The confirmation of an erasure."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

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


class ForgottenLine(DescribedModel):
    """A learned line that must no longer be used."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

    agent: str | None = Field(None, max_length=128)
    """The agent class that learned it. None: ADMIN, or the only one of this key."""
    reason: ForgettingReason = "by request"
    """Why; it is recorded."""
    block: StrictBool = False
    """Whether its signal is also kept from being learned from again."""


class ForgottenSignal(DescribedModel):
    """A signal or an event that must no longer count."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

    agent: str | None = Field(None, max_length=128)
    """The agent class whose memory it is in. None: ADMIN, or the only one of this key."""
    target: str = Field(min_length=1, max_length=1_024)
    """A signal id, or `EVT-…`."""
    reason: ForgettingReason = "by request"
    """Why; it is recorded."""


class MemoryCalls:
    """Answers requests about the memory of a subject.

    Args:
        access: knows the subjects and agent classes of requests
    """

    def __init__(self, access: SessionAccess) -> None:
        self._access = access

    async def show(self, request: Request) -> ASGIApp:
        """The learned lines and the signals of the subject."""
        agent, subject_id = self._agent(request, request.query_params.get("agent")), subject_of(request)
        told: dict[str, object] = {"agent": agent, "subject_id": subject_id}
        try:
            memory = self._access.runtime.memory(agent)
        except CallerError:
            return json_response({**told, "enabled": False, "as_of": None, "learned": [], "signals": []})
        subject, cut = await memory.snapshot(namespace=memory_namespace(agent, subject_id))
        learned = [each.as_json() for each in learned_views(subject, cut, memory.config)]
        signals = [each.as_json() for each in signal_views(subject, cut, memory.config)]
        as_of = iso_of(cut.as_of_us)
        return json_response({**told, "enabled": True, "as_of": as_of, "learned": learned, "signals": signals})

    async def deactivate(self, request: Request) -> ASGIApp:
        """Deactivates a learned line."""
        body = read_model(ForgottenLine, await request.body() or b"{}")
        operation = DeactivateArtifact(
            agent_class=self._agent(request, body.agent),
            subject_id=subject_of(request),
            artifact_id=request.path_params["artifact_id"],
            reason=body.reason,
            block=body.block,
        )
        return await self._changed(operation)

    async def quarantine(self, request: Request) -> ASGIApp:
        """Stops a signal or an event from counting, and deactivates the learned lines that lose their support."""
        body = read_model(ForgottenSignal, await request.body())
        agent, target = self._agent(request, body.agent), body.target
        if not target.startswith("EVT-"):
            target = normalise(target, self._access.runtime.memory(agent).kinds)
        operation = QuarantineTarget(
            agent_class=agent,
            subject_id=subject_of(request),
            target=target,
            reason=body.reason,
        )
        return await self._changed(operation)

    async def _changed(self, operation: Operation[SubjectMemoryChange]) -> ASGIApp:
        change = await operation.run(self._access.runtime.admin_root)
        withdrawn = [
            {"artifact_id": each.artifact_id, "signal_id": each.signal_id, "line": each.line} for each in change.withdrawn
        ]
        return json_response({"target": change.target, "written": change.is_written, "withdrawn": withdrawn})

    def _agent(self, request: Request, named: str | None) -> str:
        return self._access.supervisor(caller_of(request), named).agent_class
