"""Turns a client's answer about a waiting tool call into the turn that continues after it."""

from functools import partial

from kitchener.actors.approval.given_answer import GivenAnswer
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.errors import UnknownApproval, UnknownSession
from kitchener.ids import split_approval_id
from kitchener.serve.chat_completions.client_history import SpokenAnswer
from kitchener.serve.served_turns import ContinuedRun


async def given_answer(supervisor: HO2Supervisor, subject_id: str, answer: SpokenAnswer) -> tuple[str, ContinuedRun]:
    """The session of a waiting call, and a function that gives the answer and runs the turn.

    Args:
        supervisor: the agent
        subject_id: who answers
        answer: the answer

    Raises:
        UnknownApproval: there is no such call in a session of this subject
        CallerError: the id of the call is none
    """
    approval_id = answer.approval_id
    session_id, _, _ = split_approval_id(approval_id)
    try:
        is_own = (await supervisor.session(session_id)).subject_id == subject_id
    except UnknownSession:
        is_own = False
    if not is_own:
        raise UnknownApproval(approval_id)
    given = GivenAnswer(
        decision="approved" if answer.is_approved else "denied", message=answer.reason or None, answered_by=subject_id
    )
    return session_id, partial(supervisor.answer_approval, approval_id, given)
