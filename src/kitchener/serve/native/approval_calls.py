"""Tool calls of a session that wait for a person: list, approve, deny. Explained in `docs/server.md`."""

from collections.abc import Iterable
from functools import partial
from typing import Any, ClassVar, Final

from pydantic import ConfigDict
from starlette.requests import Request
from starlette.types import ASGIApp

from kitchener.config.field_docstrings import DescribedModel
from kitchener.errors import UnknownApproval
from kitchener.ids import split_approval_id
from kitchener.records.entries.approvals import ApprovalScope
from kitchener.runtime.queries.approval_list import ApprovalInfo
from kitchener.serve.access.guard import caller_of, place_of, subject_of
from kitchener.serve.event_stream import until_gone
from kitchener.serve.native.message_calls import result_json
from kitchener.serve.native.session_access import FoundSession, SessionAccess
from kitchener.serve.operations_table import read_model
from kitchener.serve.problems import json_response
from kitchener.serve.served_turns import ServedTurns, WholeRun

_FIELDS: Final = (
    "approval_id",
    "session_id",
    "turn_id",
    "wo_id",
    "tool_id",
    "arguments",
    "reason",
    "rule",
    "message",
    "response_schema",
    "requested_at",
    "expires_at",
)


class Approval(DescribedModel):
    """How a call is allowed."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

    arguments: dict[str, object] | None = None
    """Arguments in place of the model's. None: the model's."""
    answer: Any = None  # any JSON value, checked by the request's own schema
    """The answer to the question that the tool asks. None: yes."""
    scope: ApprovalScope = "once"
    """`session`: also later calls of the tool in this session."""
    message: str | None = None
    """What to tell the model about it."""


class Denial(DescribedModel):
    """Why a call is refused."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

    message: str | None = None
    """What to tell the model about it."""


class ApprovalCalls:
    """Answers requests about tool calls that wait.

    Args:
        access: finds sessions
        turns: runs the turns that continue
    """

    def __init__(self, access: SessionAccess, turns: ServedTurns) -> None:
        self._access, self._turns = access, turns

    async def all_waiting(self, request: Request) -> ASGIApp:
        """The calls of the subject's sessions, and of the agents that these asked, that wait, oldest first."""
        supervisor, subject_id = (
            self._access.supervisor(caller_of(request), request.query_params.get("agent")),
            subject_of(request),
        )
        found = await self._access.runtime.pending_approvals(supervisor.agent_class, subject_id=subject_id)
        return json_response({"approvals": _as_json(request, found)})

    async def waiting(self, request: Request) -> ASGIApp:
        """The calls of a session, and of the agents that it asked, that wait, oldest first."""
        of, runtime = await self._access.of(request), self._access.runtime
        found = await runtime.pending_approvals(of.supervisor.agent_class, session_id=of.session.session_id)
        return json_response({"approvals": _as_json(request, found)})

    async def approve(self, request: Request) -> ASGIApp:
        """Allows a call, and answers with the reply of the continued turn."""
        body, found = read_model(Approval, await request.body() or b"{}"), await self._of(request)
        given = {"arguments": body.arguments, "answer": body.answer, "scope": body.scope, "message": body.message}
        approve = partial(found.supervisor.approve, request.path_params["approval_id"], **given)
        return await self._answered(request, found, partial(approve, answered_by=found.session.subject_id))

    async def deny(self, request: Request) -> ASGIApp:
        """Refuses a call, and answers with the reply of the continued turn."""
        body, found = read_model(Denial, await request.body() or b"{}"), await self._of(request)
        deny = partial(found.supervisor.deny, request.path_params["approval_id"], body.message)
        return await self._answered(request, found, partial(deny, answered_by=found.session.subject_id))

    async def _of(self, request: Request) -> FoundSession:
        """The session of the path, in which the approval must have been requested."""
        found, approval_id = await self._access.of(request), request.path_params["approval_id"]
        if split_approval_id(approval_id)[0] != found.session.session_id:
            raise UnknownApproval(approval_id)
        return found

    async def _answered(self, request: Request, found: FoundSession, answer: WholeRun) -> ASGIApp:
        place_of(request).check_turn()
        place_of(request).check_continuation()
        turn = self._turns.begin_whole(place_of(request), found.supervisor.agent_class, found.session.session_id, answer)
        result = await until_gone(request.receive, turn.result, turn.leave)
        return json_response({"result": result_json(result) if result is not None else None})


def _as_json(request: Request, found: Iterable[ApprovalInfo]) -> list[dict[str, object]]:
    """What the key may read: an agent that was asked may be one that it does not reach."""
    reached = [each for each in found if caller_of(request).reaches(each.agent_class)]
    return [{"agent": each.agent_class, **{name: getattr(each, name) for name in _FIELDS}} for each in reached]
