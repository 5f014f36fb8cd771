"""Passes the outputs of functions that a client has run to the turn that waits for them.

The id of a call names its session, so outputs find their work order whatever history the request claims. Explained in
`docs/server.md`.
"""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.errors import ApprovalAnswered, UnknownApproval, UnknownSession
from kitchener.ledger import ReadableLedger
from kitchener.records.tools.client_tools import ClientCall
from kitchener.records.turn import TurnResult, UpdateListener
from kitchener.runtime.queries.approval_list import list_approvals
from kitchener.serve.chat_completions.client_functions import GivenOutputs, unknown_call
from kitchener.serve.problems import RequestRefused
from kitchener.serve.served_turns import ContinuedRun


class LeftCalls(NamedTuple):
    """The calls that a work order still waits for."""

    turn_id: str
    """The turn that asked."""
    requests: frozenset[str]
    """The ids of all its requests and calls without an answer."""
    calls: tuple[ClientCall, ...]
    """The client's open calls, oldest first."""


async def session_of_outputs(
    supervisor: HO2Supervisor, subject_id: str, given: GivenOutputs, name: str | None = None
) -> SessionManager:
    """The session whose calls these are.

    Args:
        supervisor: the agent
        subject_id: whose request it is
        given: the outputs
        name: the session or the conversation that the request names; None: it names none

    Raises:
        RequestRefused: the subject has no such call, or not there
    """
    call_id = next(iter(given.outputs))
    try:
        session = await supervisor.session(given.session_id)
    except UnknownSession:
        raise unknown_call(call_id) from None
    if session.subject_id != subject_id or name not in (None, given.session_id, session.state.external_id):
        raise unknown_call(call_id)
    return session


def waits_for(session: SessionManager, given: GivenOutputs) -> bool:
    """Whether one of the calls has no output yet."""
    approvals, now = session.state.approvals, session.now()
    return approvals is not None and any(each.approval_id in given.outputs and each.expires_at > now for each in approvals.open)


def continued_run(
    supervisor: HO2Supervisor, given: GivenOutputs, then: Callable[[UpdateListener | None], Awaitable[TurnResult]] | None = None
) -> ContinuedRun:
    """Gives outputs and continues the turn.

    Args:
        supervisor: the agent
        given: the outputs
        then: runs the turn of a message that follows them; None: there is none, and the continued turn is told
    """

    async def run(tell: UpdateListener | None) -> TurnResult | None:
        result = await _give(supervisor, given, tell if then is None else None)
        return result if then is None else await then(tell)

    return run


async def read_left(ledger: ReadableLedger, session: SessionManager, wo_id: str) -> LeftCalls:
    """The calls that a work order of a session still waits for."""
    found = await list_approvals(ledger, session.now(), session_id=session.session_id)
    asked = [each for each in found if each.wo_id == wo_id]
    open_ones = [each for each in asked if each.status == "waiting"]
    calls = [ClientCall(each.approval_id, each.tool_id, each.arguments or {}) for each in open_ones if each.is_of_client]
    return LeftCalls(asked[0].turn_id if asked else "", frozenset(each.approval_id for each in open_ones), tuple(calls))


async def _give(supervisor: HO2Supervisor, given: GivenOutputs, tell: UpdateListener | None) -> TurnResult | None:
    try:
        return await supervisor.answer_client_calls(given.outputs, listener=tell)
    except UnknownApproval as error:
        raise unknown_call(error.approval_id) from None
    except ApprovalAnswered as error:
        raise RequestRefused(409, "call_closed", str(error)) from None
