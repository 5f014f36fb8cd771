"""Turns tool calls that wait for a person into interrupts of AG-UI, and reads the answers to them.

Calls of the front end's own tools wait, too, but are no interrupts.

Explained in `docs/server.md`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field, StrictBool

from kitchener.actors.approval.given_answer import GivenAnswer
from kitchener.actors.sessions.active_session import SessionManager
from kitchener.config.field_docstrings import DescribedModel
from kitchener.errors import CallerError, UnknownApproval
from kitchener.ids import split_approval_id
from kitchener.ledger import ReadableLedger
from kitchener.records import events
from kitchener.records.entries.approvals import ApprovalScope
from kitchener.runtime.queries.approval_list import ApprovalInfo, approvals_in
from kitchener.serve.agui.run_calls import RequestedCall
from kitchener.serve.agui.run_input import ResumeAnswer
from kitchener.serve.operations_table import checked_body

CANCELLED: Final = "the person left the question unanswered"
"""The model reads this about an interrupt that was cancelled."""


class CallAnswer(DescribedModel):
    """The payload of an answer about a tool call."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", hide_input_in_errors=True)

    approved: StrictBool
    """True: the call runs, with `editedArgs` if they are given; False: it is denied."""
    edited_args: Annotated[dict[str, object] | None, Field(alias="editedArgs")] = None
    """The arguments to use in place of the model's."""
    message: str | None = None
    """A note for the model."""
    scope: ApprovalScope = "once"
    """`session`: also later calls of the tool in this session."""


_ANSWER_SCHEMA: Final[Mapping[str, object]] = {
    "type": "object",
    "properties": {
        "approved": {"type": "boolean"},
        "editedArgs": {"type": "object"},
        "message": {"type": "string"},
        "scope": {"type": "string", "enum": ["once", "session"]},
    },
    "required": ["approved"],
}


async def read_requested(ledger: ReadableLedger, session: SessionManager) -> list[ApprovalInfo]:
    """All requests for approval of a session, oldest first. A session that never had one is not read."""
    if session.state.approvals is None:
        return []
    found = ledger.read(session_id=session.session_id, entry_type=_ABOUT)
    return approvals_in([each async for each in found], session.now())


_ABOUT: Final = (events.APPROVAL_REQUESTED, events.APPROVAL_RESOLVED, events.WO_ABANDONED, events.SESSION_END)


def has_waiting(session: SessionManager, *, for_person: bool = False) -> bool:
    """Whether a call of a session waits for an answer, or for the output of the front end; `for_person`: for an answer."""
    approvals, now = session.state.approvals, session.now()
    if approvals is None:
        return False
    return any(each.expires_at > now and not (for_person and each.is_of_client) for each in approvals.open)


def waiting_calls(requested: Iterable[ApprovalInfo]) -> list[RequestedCall]:
    """The requests that wait: for a person, as interrupts, or for the front end."""
    return [
        RequestedCall(each.approval_id, each.tool_id, each.arguments or {}, None if each.is_of_client else _interrupt(each))
        for each in requested
        if each.status == "waiting"
    ]


def given_answers(answers: Sequence[ResumeAnswer], requested: Iterable[ApprovalInfo], by: str) -> list[tuple[str, GivenAnswer]]:
    """The answers that a run brings, each with its request.

    Interrupts that are over and that the client cancels are left out; a client must name them to continue its thread.

    Args:
        answers: of the run
        requested: the requests of the session
        by: who answers

    Raises:
        UnknownApproval: the session has no such request, or an earlier answer of the list is about it
        RequestRefused: the payload is no answer to it
    """
    known = {each.approval_id: each for each in requested if not each.is_of_client}
    found = list[tuple[str, GivenAnswer]]()
    for each in answers:
        request = known.pop(each.interrupt_id, None)
        if request is None:
            raise UnknownApproval(each.interrupt_id)
        answer = _given(each, request, by)
        if each.status != "cancelled" or not _is_over(request, answer):
            found.append((request.approval_id, answer))
    return found


def answered_session(answers: Sequence[ResumeAnswer]) -> str:
    """The session that the first answer is about. Raises UnknownApproval if the interrupt's id cannot be one."""
    try:
        return split_approval_id(answers[0].interrupt_id)[0]
    except CallerError:
        raise UnknownApproval(answers[0].interrupt_id) from None


def _given(answer: ResumeAnswer, request: ApprovalInfo, by: str) -> GivenAnswer:
    if answer.status == "cancelled":
        return GivenAnswer(decision="denied", message=CANCELLED, answered_by=by)
    if request.response_schema is not None and not _declines(answer.payload, request.response_schema):
        return GivenAnswer(decision="approved", answer=answer.payload, answered_by=by)
    read = checked_body(CallAnswer, answer.payload)
    if not read.approved:
        return GivenAnswer(decision="denied", message=read.message, answered_by=by)
    return GivenAnswer(decision="approved", arguments=read.edited_args, scope=read.scope, message=read.message, answered_by=by)


def _is_over(request: ApprovalInfo, answer: GivenAnswer) -> bool:
    """Whether a request has expired, is void, or has another answer."""
    is_other = request.resolved is not None and not answer.is_same(request.resolved)
    return is_other or request.status in ("expired", "void")


def _declines(payload: object, schema: Mapping[str, object]) -> bool:
    """Whether a payload refuses the call, where the tool's own question has no such field."""
    fields = schema.get("properties")
    is_asked = isinstance(fields, dict) and "approved" in fields
    return isinstance(payload, dict) and payload.get("approved") is False and not is_asked


def _interrupt(request: ApprovalInfo) -> dict[str, object]:
    """A request as a client sees it."""
    schema = request.response_schema
    return {
        "id": request.approval_id,
        "reason": request.reason,
        "message": request.message or f"May {request.tool_id} be called?",
        "toolCallId": request.approval_id,
        "responseSchema": _ANSWER_SCHEMA if schema is None else schema,
        "expiresAt": request.expires_at,
        "metadata": {"kitchener": {"tool": request.tool_id, "rule": request.rule}},
    }
