"""Runs a turn within its deadline, and aborts it if it is cut off. The record ends with `TURN_COMPLETED` or `TURN_ABORTED`.

A turn is cut off by its deadline, a newer message, an erasure, a shutdown, or the cancellation of its caller. If it waited for
room in a full queue at its deadline, that queue is the cause on record. The supervisor calls this module when the message is
admitted; `turn.py` has the steps of the turn. Explained in `docs/turn.md`.
"""

from contextlib import suppress

import anyio

from kitchener.actors.admission.admission import TurnLimiter
from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.sessions.directory import SessionDirectory
from kitchener.actors.sessions.queue import SessionQueue
from kitchener.actors.turn.present_tools import PresentTools
from kitchener.actors.turn.reply import TurnOutcome
from kitchener.actors.turn.turn import Turn
from kitchener.actors.turn.updates import ListenerFailed, kept_apart
from kitchener.cancellation import ended_by, ends_caller, failed_alone
from kitchener.errors import (
    CommitUnknown,
    LedgerError,
    LedgerWriteError,
    Overloaded,
    SubjectErased,
    TurnOverloaded,
    TurnReplaced,
    TurnShutDown,
    TurnTimeout,
)
from kitchener.lanes.askers import WAITING_TURN, WaitingTurn
from kitchener.records import events
from kitchener.records.attempt_record import UnansweredCall
from kitchener.records.entries import AbortReason
from kitchener.records.turn import TurnCall, UpdateListener


class TurnRunner:
    """Runs the admitted turns of one agent class.

    Args:
        tools: gives each turn its tools, with the components that all turns of the agent class share
        sessions: knows which subjects are being erased
        limiter: limits the running turns; a shutdown closes it
        abort_grace_s: how long a cut-off turn may take to record its end, seconds
    """

    def __init__(self, tools: PresentTools, sessions: SessionDirectory, limiter: TurnLimiter, abort_grace_s: float) -> None:
        self._tools, self._sessions, self._limiter = tools, sessions, limiter
        self._ledgers, self._abort_grace_s = tools.services.ledgers, abort_grace_s

    async def run(
        self, session: SessionManager, queue: SessionQueue, message: str, call: TurnCall, listener: UpdateListener | None
    ) -> TurnOutcome:
        """Runs the turn of a message and returns its outcome when the record is durable.

        Args:
            session: the session, held by this turn
            queue: the session's queue, which can cancel the turn
            message: the user's message
            call: the options of the call
            listener: receives the updates of a streamed turn; None: the turn is not streamed
        """
        services = self._tools.services
        started = services.loop_time()
        deadline = call.deadline if call.deadline is not None else started + services.config.turn_deadline_s
        if self._tools.are_replaced:
            with anyio.CancelScope(deadline=deadline):  # if it passes, the turn begins with the earlier tools and ends at once
                services = await self._tools.renew()
        turn = Turn(services, session, message, deadline, kept_apart(listener) if listener is not None else None)
        queue.scope = scope = anyio.CancelScope(deadline=deadline)
        self._ledgers.enter_turn()
        self._limiter.track(scope)
        self._tools.registry.hold(turn.turn_id, services.constants.tools)
        waiting = WaitingTurn(deadline, turn.ids)
        token = WAITING_TURN.set(waiting)
        outcome: TurnOutcome | None = None
        of_listener: BaseException | None = None
        try:
            with ended_by(scope):
                await turn.start(call)
                outcome = await turn.run()
                await self._ledgers.commit()
                return outcome
        except BaseException as error:
            await self._abort(turn, self._reason(error))
            if not isinstance(error, ListenerFailed):
                if not isinstance(error, LedgerError):
                    await failed_alone(error)  # raises the cancellation of the caller, if the error hides it
                raise
            of_listener = error.error
        finally:
            WAITING_TURN.reset(token)
            self._tools.registry.hold(turn.turn_id, None)
            self._limiter.untrack(scope)
            self._ledgers.leave_turn()
        if of_listener is not None:
            try:
                raise of_listener
            finally:
                del of_listener  # this frame, which the error's traceback holds, must not hold the error
        if outcome is not None:
            await self._commit_late(turn)
            return outcome
        raise await self._cut_off(session, turn, queue, _late(turn.turn_id, waiting.refusal, deadline - started))

    def _reason(self, error: BaseException) -> AbortReason:
        """Why a turn is aborted that ended with an error."""
        is_callers = isinstance(error, ListenerFailed) or (ends_caller(error) and not isinstance(error, LedgerError))
        if not is_callers:
            return "crash"
        return "shutdown" if self._limiter.is_closed else "cancelled"

    async def _commit_late(self, turn: Turn) -> None:
        """Returns when the commit is durable. A completed turn is never aborted, even if its wait for the commit was cut off.

        Raises:
            CommitUnknown: the commit took longer than `abort_grace_s`
        """
        with anyio.move_on_after(self._abort_grace_s, shield=True):
            await self._ledgers.commit()
            return
        raise CommitUnknown(turn.turn_id)

    async def _cut_off(
        self, session: SessionManager, turn: Turn, queue: SessionQueue, late: TurnOverloaded | TurnTimeout
    ) -> Exception:
        """Aborts a turn whose scope was cancelled, and returns the error for its caller.

        The cause is an erasure, a newer message, a shutdown, or the turn's deadline; `late` is the error for the deadline.
        """
        if session.subject_id in self._sessions.barred:
            await self._abort(turn, "cancelled")
            return SubjectErased(session.subject_id)
        if queue.is_replaced:
            await self._abort(turn, "cancelled")
            return TurnReplaced(session.session_id)
        if self._limiter.is_closed:
            await self._abort(turn, "shutdown")
            return TurnShutDown(f"turn {turn.turn_id} was aborted: the runtime is shutting down")
        await self._abort(turn, "overloaded" if isinstance(late, TurnOverloaded) else "timeout")
        waited_for = await self._waited_for(session.session_id, turn.turn_id)
        if isinstance(late, TurnOverloaded):
            return TurnOverloaded(late.what, late.limit, turn.turn_id, waited_for)
        return TurnTimeout(turn.turn_id, late.seconds, waited_for)

    async def _waited_for(self, session_id: str, turn_id: str) -> str:
        """The attempts of the model call that the turn waited for; "": none, or unknown."""
        call = UnansweredCall()
        with anyio.move_on_after(self._abort_grace_s, shield=True), suppress(LedgerError):
            async for entry in self._ledgers.ho1m.read(session_id=session_id, entry_type=events.OF_MODEL_CALLS):
                if events.read_common(entry).get("turn_id") == turn_id:
                    call.take(entry.entity_id, entry.entry_type, entry.payload)
        return call.words

    async def _abort(self, turn: Turn, reason: AbortReason) -> None:
        """Records the abort. A cancellation waits for this clean-up alone, for at most `abort_grace_s`."""
        with anyio.CancelScope(deadline=anyio.current_time() + self._abort_grace_s, shield=True):
            with suppress(LedgerWriteError):  # the caller already gets the error that caused the abort
                await turn.abort(reason)


def _late(turn_id: str, refusal: Overloaded | None, seconds: float) -> TurnOverloaded | TurnTimeout:
    """The error of a turn that passed its deadline of `seconds`. If it waited for room in a full queue, that queue's error."""
    return TurnTimeout(turn_id, seconds) if refusal is None else TurnOverloaded(refusal.what, refusal.limit, turn_id)
