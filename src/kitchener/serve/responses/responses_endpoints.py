"""`/v1/responses`: create, retrieve, stream again, cancel. A response is a turn. Explained in `docs/server.md`."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.types import ASGIApp

from kitchener.actors.admission.content_checks import MessageContent
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.clock import Clock
from kitchener.config import ServeConfig
from kitchener.ids import split_approval_id
from kitchener.ledger import LedgerGroup
from kitchener.records.prompt import CUT_SHORT
from kitchener.records.turn import TextDelta, TextRetracted, TurnCompleted, TurnResult, TurnUpdate, UpdateListener
from kitchener.serve.access.guard import caller_of, place_of, subject_of
from kitchener.serve.access.request_names import SESSION_HEADER, named_session
from kitchener.serve.chat_completions.approval_answers import given_answer
from kitchener.serve.chat_completions.asked_content import checked_content
from kitchener.serve.chat_completions.chat_request import UTILITY
from kitchener.serve.chat_completions.client_functions import read_functions
from kitchener.serve.chat_completions.client_outputs import continued_run, read_left, session_of_outputs, waits_for
from kitchener.serve.chat_completions.session_finder import BY_KEY, SessionFinder
from kitchener.serve.chat_completions.utility_calls import UtilityCalls
from kitchener.serve.event_stream import EventStream, until_gone
from kitchener.serve.native.event_feed import LAST_NUMBER
from kitchener.serve.native.session_access import FoundSession, SessionAccess
from kitchener.serve.native.session_calls import flag, number
from kitchener.serve.problems import RequestRefused, json_response, problem_for
from kitchener.serve.responses.recorded_response import (
    STOPPED,
    RecordedResponse,
    completed_response,
    named_response,
    read_response,
    read_response_head,
    turn_of_update,
)
from kitchener.serve.responses.response_log import ResponseLog, ResponseLogs
from kitchener.serve.responses.response_objects import ResponseHead, call_item, reply_status, turn_of_response
from kitchener.serve.responses.responses_request import (
    ResponsesBody,
    ResponsesRequest,
    as_chat_body,
    read_responses_body,
    read_responses_request,
)
from kitchener.serve.served_turns import ServedTurn, ServedTurns, StreamedRun, joined_text
from kitchener.serve.token_usage import TokenUsage

MessageRun = Callable[[UpdateListener | None], Awaitable[TurnResult]]
"""Runs the turn of a message, and awaits its argument with each update; None: nobody takes its updates."""


class _Continuation(NamedTuple):
    """A turn that continues after answers about tool calls or with outputs of functions."""

    session_id: str
    wo_id: str
    """The work order of the last one."""
    give: StreamedRun
    """Gives them, and runs the turn; one turn of the server for all of them, so a client that leaves has given them all."""


class ResponseEndpoints:
    """Answers the requests of clients of the Responses API.

    Args:
        access: finds sessions by their id
        config: the settings of the server
        turns: runs the turns of requests
        clock: the time of day
        sessions: finds the sessions that stateless clients mean
    """

    def __init__(
        self, access: SessionAccess, config: ServeConfig, turns: ServedTurns, clock: Clock, sessions: SessionFinder
    ) -> None:
        self._access, self._config, self._turns, self._clock = access, config, turns, clock
        self._sessions, self._logs = sessions, ResponseLogs()
        self.forget_ended = self._logs.forget_ended
        """Drops what is kept of ended turns, because a subject was erased."""
        self._utility = UtilityCalls(access.runtime, config)
        self._servers = access.runtime.config.mcp

    async def create(self, request: Request) -> ASGIApp:
        """A response to a message, or to answers about tool calls that wait."""
        caller = caller_of(request)
        body = read_responses_body(await request.body())
        agent = body.model.removesuffix(UTILITY) if body.model is not None else None
        supervisor, subject_id = self._access.supervisor(caller, agent), subject_of(request)
        if self._utility.is_asked(request, as_chat_body(body, body.model or "")):
            return await self._plain_call(request, body, supervisor, subject_id)
        place_of(request).check_turn()
        asked = read_responses_request(body)
        if asked.answers:
            caller.check("approve")
        functions = read_functions(body.tools, body.tool_choice, allowed=supervisor.config.client_tools == "allow")
        content = await checked_content(request, supervisor, asked.message, asked.parts, functions, asked.output)
        continuation = await self._continued(request, body, supervisor, subject_id, asked, content)
        if continuation is not None:
            place_of(request).check_continuation()
            session_id = continuation.session_id
            log = self._begin(request, body, supervisor, session_id, continuation.give)
        else:
            async with self._chosen(request, body, supervisor, subject_id, asked) as session_id:
                ask = self._asking(request, subject_id, session_id, supervisor, asked, content)
                log = self._begin(request, body, supervisor, session_id, ask)
        turn = log.turn
        assert turn is not None
        if not body.stream and not body.background:
            if await until_gone(request.receive, log.wait_complete, turn.leave):
                return json_response(log.response, headers={SESSION_HEADER: session_id})
        # What is wrong with the request shows before the first event, and can still have a status of its own.
        elif await until_gone(request.receive, log.wait_begun, _nobody if body.background else turn.leave):
            assert log.head is not None
            if not body.stream:
                return await self._recorded(request, log.head.response_id)
            return self._stream(log.after(-1), session_id, _nobody if body.background else turn.leave)
        assert continuation is not None
        return await self._left(request, body, continuation)

    async def retrieve(self, request: Request) -> ASGIApp:
        """A response, or its events after a number."""
        response_id: str = request.path_params["response_id"]
        after = number(request, "starting_after", -1, most=LAST_NUMBER)
        if not flag(request, "stream", default=False):
            return await self._recorded(request, response_id)
        found, turn_id = await named_response(self._access, request, response_id)
        log = self._log(found, response_id)
        if log is None:
            for each in self._turns.of_session(found.session.session_id):  # another operation began it
                await until_gone(request.receive, each.done.wait, _nobody)
            log = _log_of(await read_response(found, turn_id, self._servers), after)
        return self._stream(log.after(after), found.session.session_id, _nobody)

    async def cancel(self, request: Request) -> ASGIApp:
        """The response, whose turn is aborted if it runs."""
        response_id: str = request.path_params["response_id"]
        found, turn_id = await named_response(self._access, request, response_id)
        log = self._log(found, response_id)
        turn = log.turn if log is not None else None
        if turn is not None:
            turn.stop(RequestRefused(409, "turn_stopped", "the turn was stopped by another request; it is recorded as aborted"))
            await turn.done.wait()
            await self._access.wait_ended(found.session, turn_id)
        recorded = await read_response(found, turn_id, self._servers)
        if recorded.status == "in_progress":
            path = f"/v1/sessions/{found.session.session_id}/stop"
            raise RequestRefused(409, "response_running", f"another operation began this turn; POST {path} stops it")
        return _answer(recorded)

    async def delete(self, request: Request) -> ASGIApp:
        """Refuses: a response is a turn on record, and a record keeps its turns."""
        response_id: str = request.path_params["response_id"]
        found, turn_id = await named_response(self._access, request, response_id)
        await read_response_head(found.ledgers.ho2m, turn_id, found.supervisor.agent_class)
        raise RequestRefused(
            405,
            "cannot_delete",
            "a response is a recorded turn, which is kept; POST /v1/subject/erase erases all that the subject said",
        )

    @asynccontextmanager
    async def _chosen(
        self, request: Request, body: ResponsesBody, supervisor: HO2Supervisor, subject_id: str, asked: ResponsesRequest
    ) -> AsyncIterator[str]:
        """The id of the session; the block begins the turn."""
        key, said, name = request.headers.get("idempotency-key"), body.conversation_name, named_session(request, self._config)
        if body.previous_response_id is not None:
            found, turn_id = await named_response(self._access, request, body.previous_response_id)
            agent = found.supervisor.agent_class
            if agent != supervisor.agent_class:
                raise RequestRefused(400, "invalid_request", f"model: the previous response is one of the agent {agent!r}")
            await read_response_head(found.ledgers.ho2m, turn_id, agent)
            async with self._sessions.after(place_of(request), supervisor, found.session, turn_id, name, key) as session_id:
                yield session_id
            return
        name = name or said
        if name is None and self._config.cache_key_names_session:
            name = body.prompt_cache_key
        if name is None and key is not None:
            name = f"{BY_KEY}{key}"
        # The items of a request that names its `conversation` are new ones; other clients send all of them each time.
        claimed = asked.earlier if said is None or asked.earlier else None
        async with self._sessions.chosen(place_of(request), supervisor, subject_id, name, claimed, key) as session_id:
            yield session_id

    def _asking(
        self,
        request: Request,
        subject_id: str,
        session_id: str,
        supervisor: HO2Supervisor,
        asked: ResponsesRequest,
        content: MessageContent,
    ) -> MessageRun:
        """Runs the turn of a message."""

        def ask(listener: UpdateListener | None) -> Awaitable[TurnResult]:
            return supervisor.handle_turn(
                asked.message,
                session_id=session_id,
                subject_id=subject_id,
                idempotency_key=request.headers.get("idempotency-key"),
                listener=listener,
                **content._asdict(),
            )

        return ask

    def _begin(
        self, request: Request, body: ResponsesBody, supervisor: HO2Supervisor, session_id: str, run: StreamedRun
    ) -> ResponseLog:
        """Begins a turn, whose events the log gets."""
        log, before = ResponseLog(), self._access.runtime.ledgers(supervisor.agent_class).ho2m.position
        read = partial(self._write, log, body, supervisor, before)
        log.turn = self._turns.begin_kept(place_of(request), supervisor.agent_class, session_id, run, read)
        return log

    async def _write(
        self, log: ResponseLog, body: ResponsesBody, supervisor: HO2Supervisor, before: int, turn: ServedTurn
    ) -> None:
        """Writes the events of a turn into its log."""
        ledgers = self._access.runtime.ledgers(supervisor.agent_class)
        try:
            async for batch in turn:
                if log.head is None:
                    log.begin(await self._head(ledgers, supervisor, turn.session_id, batch[0], before, body))
                    self._logs.keep(log)
                for update in joined_text(batch):
                    if isinstance(update, TextDelta):
                        log.add_text(update.text)
                    elif isinstance(update, TextRetracted):
                        log.retract()
                    elif isinstance(update, TurnCompleted):
                        assert log.head is not None
                        recorded = await completed_response(ledgers.ho2m, log.head, update.result, self._servers)
                        log.complete(update.result.response, recorded.requests, **recorded.completed_fields)
        except Exception as error:  # noqa: BLE001  the client may have its status, so the log itself says what went wrong
            if log.head is not None:
                is_stopped = turn.is_stopped  # by a request, by the server or with its client
                text = STOPPED if is_stopped else problem_for(error).message
                log.fail(log.head.response("cancelled" if is_stopped else "failed", error=text))
        finally:
            log.close()

    async def _head(
        self,
        ledgers: LedgerGroup,
        supervisor: HO2Supervisor,
        session_id: str,
        update: TurnUpdate,
        before: int,
        body: ResponsesBody,
    ) -> ResponseHead:
        turn_id = await turn_of_update(ledgers.ho2m, session_id, update, before)
        head, _ = await read_response_head(ledgers.ho2m, turn_id, supervisor.agent_class)
        if body.stream or body.background:
            await ledgers.commit()  # a crash must not take back a response whose id a client was told
        return head._replace(previous_id=body.previous_response_id, is_background=bool(body.background))

    async def _continued(
        self,
        request: Request,
        body: ResponsesBody,
        supervisor: HO2Supervisor,
        subject_id: str,
        asked: ResponsesRequest,
        content: MessageContent,
    ) -> "_Continuation | None":
        """What gives the answers and outputs of a request, and continues the turn; None: there is just a message."""
        given = [await given_answer(supervisor, subject_id, each) for each in asked.answers]
        request_id = asked.answers[-1].approval_id if asked.answers else ""
        if asked.outputs is not None:
            name = named_session(request, self._config) or body.conversation_name
            if body.previous_response_id is not None:
                name, _ = turn_of_response(body.previous_response_id)
            request_id = next(iter(asked.outputs.outputs))
            try:
                session = await session_of_outputs(supervisor, subject_id, asked.outputs, name)
            except RequestRefused:
                if asked.message:  # then the outputs are only part of the history
                    return None
                raise
            ask = self._asking(request, subject_id, session.session_id, supervisor, asked, content) if asked.message else None
            if ask is not None and not waits_for(session, asked.outputs):
                return None
            given.append((session.session_id, continued_run(supervisor, asked.outputs, ask)))
        if not given:
            return None

        async def give_all(tell: UpdateListener) -> TurnResult | None:
            result = None
            for _, give in given[:-1]:
                result = await give(None) or result
            return await given[-1][1](tell) or result

        return _Continuation(given[-1][0], split_approval_id(request_id)[1], give_all)

    async def _left(self, request: Request, body: ResponsesBody, continuation: "_Continuation") -> ASGIApp:
        """The response of the turn that asked, with the calls that still wait."""
        found = await self._access.named(request, continuation.session_id)
        left = await read_left(found.ledgers.ho2m, found.session, continuation.wo_id)
        recorded = await read_response(found, left.turn_id, self._servers)
        waiting = {*left.requests, *(call_item(each)["id"] for each in left.calls)}
        recorded = recorded._replace(requests=[each for each in recorded.requests if each["id"] in waiting])
        if not body.stream:
            return _answer(recorded)
        return self._stream(_log_of(recorded, -1).after(-1), continuation.session_id, _nobody)

    async def _plain_call(self, request: Request, body: ResponsesBody, supervisor: HO2Supervisor, subject_id: str) -> ASGIApp:
        """The answer of a model without an agent. It is no turn, so it cannot be retrieved."""
        agent = supervisor.agent_class
        work = partial(self._utility.answer, request, as_chat_body(body, agent), supervisor, subject_id)
        answer = await until_gone(request.receive, work, _nobody)
        now_us = self._clock.time_us()
        log = ResponseLog()
        log.begin(ResponseHead(f"resp_utility_{now_us}", now_us // 1_000_000, body.model or agent, None))
        log.complete(
            answer.text,
            (),
            status=reply_status(truncated=answer.finish_reason in CUT_SHORT),
            completed_at=self._clock.time_us() // 1_000_000,
            used=TokenUsage.of_call(answer.usage),
        )
        log.close()
        return self._stream(log.after(-1), None, _nobody) if body.stream else json_response(log.response)

    async def _recorded(self, request: Request, response_id: str) -> ASGIApp:
        found, turn_id = await named_response(self._access, request, response_id)
        recorded, log = await read_response(found, turn_id, self._servers), self._log(found, response_id)
        if log is not None and log.head is not None:
            recorded = recorded._replace(head=log.head)
        return _answer(recorded)

    def _log(self, found: FoundSession, response_id: str) -> ResponseLog | None:
        """The kept events of a response; None: read the record instead, also if its subject was erased meanwhile."""
        if found.session.state.is_erased:
            self._logs.forget_ended()
        return self._logs.of(response_id)

    def _stream(self, pieces: AsyncGenerator[bytes, None], session_id: str | None, gone: Any) -> ASGIApp:
        headers = ((SESSION_HEADER.lower().encode(), session_id.encode()),) if session_id is not None else ()
        return EventStream(pieces, self._config, gone, headers)


def _answer(recorded: RecordedResponse) -> ASGIApp:
    return json_response(recorded.response(), headers={SESSION_HEADER: recorded.head.session_id or ""})


def _log_of(recorded: RecordedResponse, after: int) -> ResponseLog:
    """The events of a turn on record, numbered after those that the reader has. Its reply is one piece."""
    log = ResponseLog(after + 1)
    if after < 0:
        log.begin(recorded.head)
    else:
        log.go_on(recorded.head)
    if recorded.result is not None:
        log.complete(recorded.result.response, recorded.requests, **recorded.completed_fields)
    elif recorded.aborted is not None:
        log.fail(recorded.response())
    log.close()
    return log


def _nobody() -> None:
    """Nobody has to know that the client has gone."""
