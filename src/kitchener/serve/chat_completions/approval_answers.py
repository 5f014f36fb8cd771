"""Tells a chat's user how to answer about a waiting tool call, and turns the answer into the turn that continues after it."""

from functools import partial

from kitchener.actors.approval.given_answer import GivenAnswer
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.errors import UnknownApproval, UnknownSession
from kitchener.ids import split_approval_id
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime
from kitchener.serve.chat_completions.chat_request import how_to_answer
from kitchener.serve.chat_completions.client_history import SpokenAnswer
from kitchener.serve.served_turns import ContinuedRun


async def told_how(runtime: Runtime, agent_class: str, result: TurnResult) -> str:
    """What to write after a reply, so that the user knows how to answer about its waiting calls; "": nothing.

    A question that needs more than yes or no cannot be answered in a chat.

    Args:
        runtime: has the waiting calls
        agent_class: the agent that replied
        result: the turn of the reply
    """
    if not result.pending_approval:
        return ""
    waiting = await runtime.pending_approvals(agent_class, session_id=result.session_id)
    asked = [each for each in waiting if each.approval_id in result.pending_approval and each.status == "waiting"]
    plain = [each for each in asked if each.response_schema is None]
    if not plain:
        return ""
    return how_to_answer(plain[0].wo_id if len(plain) == len(asked) > 1 else plain[0].approval_id)


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
