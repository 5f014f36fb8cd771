"""`POST /v1/agui/{agent}`: an agent for front ends that speak AG-UI. Explained in `docs/server.md`."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from starlette.requests import Request
from starlette.types import ASGIApp

from kitchener.actors.admission.content_checks import MessageContent
from kitchener.actors.approval.given_answer import GivenAnswer
from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.clock import Clock
from kitchener.config import ServeConfig
from kitchener.errors import SessionMismatch, TurnReplaced, UnknownApproval, UnknownSession
from kitchener.ids import is_session_id
from kitchener.records.index_keys import idempotency_index_key
from kitchener.records.turn import TurnCompleted, TurnResult, UpdateListener
from kitchener.serve.access.allowances import RequestPlace
from kitchener.serve.access.counted_work import READ_TURNS, length_of
from kitchener.serve.access.guard import caller_of, place_of, subject_of
from kitchener.serve.access.request_names import SESSION_HEADER
from kitchener.serve.agui.interrupts import answered_session, given_answers, has_waiting, read_requested, waiting_calls
from kitchener.serve.agui.run_events import RunEvents
from kitchener.serve.agui.run_input import CONTINUED, RESUMED, AskedRun, RunInput, message_id, read_run
from kitchener.serve.chat_completions.asked_content import checked_content
from kitchener.serve.chat_completions.chat_chunks import turn_fields
from kitchener.serve.chat_completions.client_functions import read_functions
from kitchener.serve.chat_completions.client_outputs import continued_run, session_of_outputs, waits_for
from kitchener.serve.chat_completions.session_finder import SessionFinder
from kitchener.serve.event_stream import EventStream, until_gone
from kitchener.serve.native.session_access import SessionAccess
from kitchener.serve.operations_table import Parameter, Served
from kitchener.serve.problems import RequestRefused, problem_for
from kitchener.serve.served_turns import ServedTurn, ServedTurns, StreamedRun

MAX_SHOWN_TURNS: Final = 500
"""Most turns of a thread, the newest ones, that a client without messages gets."""
_STOPPED: Final = "turn_stopped"


class AguiEndpoint:
    """Answers the requests of AG-UI clients.

    Args:
        access: finds agents and subjects
        config: the settings of the server
        turns: runs the turns of requests
        clock: the time of day
        sessions: finds the sessions of threads
    """

    def __init__(
        self, access: SessionAccess, config: ServeConfig, turns: ServedTurns, clock: Clock, sessions: SessionFinder
    ) -> None:
        self._access, self._config, self._turns, self._clock = access, config, turns, clock
        self._sessions = sessions

    def operations(self) -> list[Served]:
        """The operation of this door."""
        agent = Parameter("agent", "path", "the agent class")
        path, summary = "/v1/agui/{agent}", "Run an agent for an AG-UI client"
        return [Served("POST", path, summary, self.run, "chat", RunInput, (agent,), errors=(409, 410, 504), streams=True)]

    async def run(self, request: Request) -> ASGIApp:
        """The events of a run: a reply to the last message, the turn after answers, or the messages of the thread."""
        asked, caller = read_run(await request.body()), caller_of(request)
        supervisor = self._access.supervisor(caller, request.path_params["agent"])
        subject_id = subject_of(request)
        if asked.body.resume or asked.body.messages:
            place_of(request).check_turn()
        functions = read_functions(asked.body.tools, None, allowed=supervisor.config.client_tools == "allow")
        run_id = asked.body.run_id
        content = await checked_content(request, supervisor, asked.message, asked.parts, functions, key=run_id)
        if asked.body.resume:
            caller.check("approve")
            resumed = await self._resumed(request, supervisor, subject_id, asked)
            if resumed is not None:
                return resumed
        elif not asked.body.messages:
            caller.check("read")
            return await self._shown_thread(place_of(request), supervisor, subject_id, asked)
        if asked.outputs is not None:
            continued = await self._continued(request, supervisor, subject_id, asked, content)
            if continued is not None:
                return continued
        async with self._sessions.chosen(
            place_of(request), supervisor, subject_id, asked.body.thread_id, asked.earlier, run_id
        ) as session_id:
            session = await supervisor.session(session_id)
            if has_waiting(session, for_person=True) and not await self._has_run(supervisor, session_id, run_id):
                return self._stream(supervisor, RunEvents(asked), session, None, asked)
            turn = self._turns.begin(
                place_of(request), supervisor.agent_class, session_id, self._replying(supervisor, session, asked, content)
            )
        # What is wrong with the request shows before the first event, and can still have a status of its own.
        await until_gone(request.receive, turn.wait_begun, turn.leave)
        return self._stream(supervisor, RunEvents(asked), session, turn, asked)

    def _replying(
        self, supervisor: HO2Supervisor, session: SessionManager, asked: AskedRun, content: MessageContent
    ) -> Callable[[UpdateListener | None], Awaitable[TurnResult]]:
        """Runs the turn of a message."""

        def started(listener: UpdateListener | None) -> Awaitable[TurnResult]:
            return supervisor.handle_turn(
                asked.message,
                session_id=session.session_id,
                subject_id=session.subject_id,
                idempotency_key=asked.body.run_id,
                listener=listener,
                **content._asdict(),
            )

        return started

    async def _continued(
        self, request: Request, supervisor: HO2Supervisor, subject_id: str, asked: AskedRun, content: MessageContent
    ) -> ASGIApp | None:
        """The run that continues with outputs of the front end's tools; None: the outputs were given before, and there is a
        message."""
        assert asked.outputs is not None
        try:
            session = await session_of_outputs(supervisor, subject_id, asked.outputs, asked.body.thread_id)
        except RequestRefused:
            if asked.message:  # then the outputs are only part of the history
                return None
            raise
        then = None
        if asked.message:
            if has_waiting(session, for_person=True) or not waits_for(session, asked.outputs):
                return None
            then = self._replying(supervisor, session, asked, content)
        place_of(request).check_continuation()
        give, made = continued_run(supervisor, asked.outputs, then), RunEvents(asked)
        turn = await self._begun(request, supervisor, session, give)
        return self._stream(supervisor, made, session, turn, asked)

    async def _has_run(self, supervisor: HO2Supervisor, session_id: str, run_id: str) -> bool:
        """Whether the session has a turn of this run, which may be the one that asks."""
        ho2m = self._access.runtime.ledgers(supervisor.agent_class).ho2m
        return bool(await ho2m.last(key=idempotency_index_key("session", session_id, run_id)))

    async def _resumed(self, request: Request, supervisor: HO2Supervisor, subject_id: str, asked: AskedRun) -> ASGIApp | None:
        """The run that continues after answers, which are all checked first; None: there is only a message to reply to."""
        answers = asked.body.resume or []
        session = await self._asking(supervisor, subject_id, asked)
        requested = await read_requested(self._access.runtime.ledgers(supervisor.agent_class).ho2m, session)
        given = given_answers(answers, requested, subject_id)
        if not given:
            return None if asked.message else self._stream(supervisor, RunEvents(asked), session, None, asked)
        place_of(request).check_continuation()
        answered = {approval_id for approval_id, _ in given}
        made = RunEvents(asked, [(each.approval_id, each.tool_id) for each in requested if each.approval_id in answered])
        turn = await self._begun(request, supervisor, session, partial(_answer_all, supervisor, given))
        return self._stream(supervisor, made, session, turn, asked)

    async def _begun(
        self, request: Request, supervisor: HO2Supervisor, session: SessionManager, give: StreamedRun
    ) -> ServedTurn | None:
        """The turn that continues; None: other calls still wait, so nothing has run."""
        turn = self._turns.begin(place_of(request), supervisor.agent_class, session.session_id, give)
        return turn if await until_gone(request.receive, turn.wait_begun, turn.leave) else None

    async def _asking(self, supervisor: HO2Supervisor, subject_id: str, asked: AskedRun) -> SessionManager:
        """The session of a thread in which a call waits.

        Raises:
            UnknownApproval: the subject's thread has no such session
        """
        answers, thread_id = asked.body.resume or [], asked.body.thread_id
        session_id = answered_session(answers)
        try:
            session = await supervisor.session(session_id)
        except UnknownSession:
            raise UnknownApproval(answers[0].interrupt_id) from None
        if session.subject_id != subject_id or thread_id not in (session_id, session.state.external_id):
            raise UnknownApproval(answers[0].interrupt_id)
        return session

    async def _shown_thread(self, place: RequestPlace, supervisor: HO2Supervisor, subject_id: str, asked: AskedRun) -> ASGIApp:
        """The messages and the waiting calls of a thread, for a client that has no messages. No turn runs."""
        thread_id = asked.body.thread_id
        if is_session_id(thread_id):
            session = await supervisor.session(thread_id)
            if session.subject_id != subject_id:
                raise SessionMismatch(thread_id, "subject", subject_id)
        else:
            found = await supervisor.find_external(thread_id, subject_id=subject_id)
            if found is None:
                return EventStream(_once(self._empty(asked)), self._config, _nobody)
            session = await supervisor.session(found)
        place.count_more(length_of(session) // READ_TURNS)
        said = [each async for each in session.read_history()][-MAX_SHOWN_TURNS:]
        messages = list[dict[str, object]]()
        for each in said:
            if each.user_message and not each.is_resumed:
                messages.append({"id": f"{each.turn_id}:user", "role": "user", "content": each.user_message})
            if each.response:
                goes_on = "" if not each.is_resumed else RESUMED if each.continues is None else CONTINUED
                name = message_id(each.turn_id, 1, goes_on)
                messages.append({"id": name, "role": "assistant", "content": each.response})
        return self._stream(supervisor, RunEvents(asked), session, None, asked, messages=messages)

    def _empty(self, asked: AskedRun) -> bytes:
        made = RunEvents(asked)
        return made.start(self._now_ms()) + made.finish(self._now_ms())

    def _stream(
        self,
        supervisor: HO2Supervisor,
        made: RunEvents,
        session: SessionManager,
        turn: ServedTurn | None,
        asked: AskedRun,
        messages: Sequence[Mapping[str, object]] | None = None,
    ) -> ASGIApp:
        pieces = self._pieces(supervisor, made, session, turn, asked, messages)
        headers = ((SESSION_HEADER.lower().encode(), session.session_id.encode()),)
        return EventStream(pieces, self._config, turn.leave if turn is not None else _nobody, headers)

    async def _pieces(
        self,
        supervisor: HO2Supervisor,
        made: RunEvents,
        session: SessionManager,
        turn: ServedTurn | None,
        asked: AskedRun,
        messages: Sequence[Mapping[str, object]] | None,
    ) -> AsyncGenerator[bytes, None]:
        yield made.start(self._now_ms(), messages)
        result: TurnResult | None = None
        try:
            if turn is not None:
                async for batch in turn:
                    if piece := b"".join(map(made.add, batch)):
                        yield piece
                result = await turn.result()
            session = await supervisor.session(session.session_id)
            ho2m = self._access.runtime.ledgers(supervisor.agent_class).ho2m
            waiting = waiting_calls(await read_requested(ho2m, session)) if has_waiting(session) else []
            yield made.finish(self._now_ms(), waiting, _added_fields(result, asked, ho2m.position))
        except Exception as error:  # noqa: BLE001  the status is sent, so the stream itself says what went wrong
            if isinstance(error, TurnReplaced) or (isinstance(error, RequestRefused) and error.code == _STOPPED):
                yield made.cancel(self._now_ms())
            else:
                yield made.fail(problem_for(error))

    def _now_ms(self) -> int:
        return self._clock.time_us() // 1_000


async def _answer_all(
    supervisor: HO2Supervisor, given: Sequence[tuple[str, GivenAnswer]], tell: UpdateListener
) -> TurnResult | None:
    """Gives the answers one after the other, and streams the turns that they continue, except for the end of the last one.

    Returns the result of the last one; None: no turn was continued.
    """
    last: TurnResult | None = None
    for approval_id, answer in given:
        result = await supervisor.answer_approval(approval_id, answer, tell)
        if result is not None:
            if last is not None:
                await tell(TurnCompleted(last))
            last = result
    return last


def _added_fields(result: TurnResult | None, asked: AskedRun, position: int) -> dict[str, object] | None:
    """The fields that this server adds to a run; None: no turn has run."""
    if result is None:
        return None
    told = turn_fields(result)
    told["why"] = f"/v1/sessions/{result.session_id}/turns/{result.turn_id}/why"
    told["ledger_position"] = position
    if asked.skipped:
        told["skipped_parts"] = list(asked.skipped)
    return told


async def _once(piece: bytes) -> AsyncGenerator[bytes, None]:
    yield piece


def _nobody() -> None:
    """Nobody has to know that the client has gone."""
