"""Admits each turn of one agent class and runs it: at most one in a session, and only so many in the runtime.

`admission.py` decides when a turn begins; `runner.py` runs it within its deadline. Between them, this module checks again what
may have changed while the turn waited. Explained in `docs/turn.md`.
"""

from kitchener.actors.admission.admission import Admission
from kitchener.actors.admission.request_checks import RequestChecks
from kitchener.actors.approval.approvals import Approvals
from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.sessions.directory import SessionDirectory
from kitchener.actors.turn.reply import TurnOutcome
from kitchener.actors.turn.runner import TurnRunner
from kitchener.lanes.calling_chain import CALLING_CHAIN, live_links
from kitchener.records.turn import TurnCall, UpdateListener


class AdmittedTurns:
    """Runs the turns of one agent class, each when it is admitted.

    Args:
        checks: refuses a turn that its own session waits for
        admission: the queues of the sessions and the slots of the runtime
        sessions: knows which subjects are being erased
        approvals: ends the requests for approval whose time is over
        runner: runs an admitted turn
    """

    def __init__(
        self,
        checks: RequestChecks,
        admission: Admission,
        sessions: SessionDirectory,
        approvals: Approvals,
        runner: TurnRunner,
    ) -> None:
        self._checks, self._admission, self._sessions = checks, admission, sessions
        self._approvals, self._runner = approvals, runner

    async def run(self, session: SessionManager, message: str, call: TurnCall, listener: UpdateListener | None) -> TurnOutcome:
        """Waits in the session's queue and for a slot of the runtime, then runs the turn and returns its outcome.

        A turn that a tool of another turn runs takes no slot of its own, because the other turn keeps its slot while it waits.

        Raises:
            ReentrantTurn: the session waits for the tool that makes this call
            SessionBusy, Overloaded, TurnReplaced, UnsupportedPart: recorded as `TURN_REJECTED`; the turn was not admitted
            RuntimeClosed, SessionEnded, SubjectErased: the session or the runtime takes no more turns
            TurnTimeout, TurnOverloaded, TurnReplaced, TurnShutDown: the turn ran and was aborted
        """
        links = live_links()
        if nested := links != ():
            self._checks.nesting(session.session_id)
        token = CALLING_CHAIN.set((*links, session.session_id))
        try:
            queue = await self._admission.enter(session, message, call, nested=nested)
            try:
                session.check_open()  # an earlier call in the session's queue may have ended the session
                self._sessions.check(session.subject_id)
                if session.state.approvals is not None:
                    await self._approvals.expire(session)
                return await self._runner.run(session, queue, message, call, listener)
            finally:
                self._admission.leave(session, nested=nested)
        finally:
            CALLING_CHAIN.reset(token)
