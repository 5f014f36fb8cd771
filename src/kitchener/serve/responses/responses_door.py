"""`/v1/responses`: create, retrieve, stream again, cancel. A response is a turn. Explained in `docs/server.md`."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, cast

import anyio
from starlette.requests import Request
from starlette.types import ASGIApp

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.clock import Clock
from kitchener.config import ServeConfig
from kitchener.ids import split_approval_id
from kitchener.ledger import LedgerGroup
from kitchener.records.turn import TextDelta, TextRetracted, TurnCompleted, TurnResult, TurnUpdate
from kitchener.serve.access.guard import caller_of
from kitchener.serve.access.request_names import SESSION_HEADER, named_session
from kitchener.serve.chat.approval_answers import given_answer
from kitchener.serve.chat.chat_request import UTILITY
from kitchener.serve.chat.session_finder import BY_KEY, SessionFinder
from kitchener.serve.chat.utility_calls import UtilityCalls
from kitchener.serve.event_stream import EventStream, until_gone
from kitchener.serve.native.event_feed import LAST_NUMBER
from kitchener.serve.native.session_access import FoundSession, SessionAccess
from kitchener.serve.native.session_calls import flag, number
from kitchener.serve.problems import RequestRefused, json_response, problem_of
from kitchener.serve.responses.recorded_response import (
    STOPPED,
    RecordedResponse,
    completed_response,
    named_response,
    read_head,
    read_response,
    turn_of_update,
)
from kitchener.serve.responses.response_log import ResponseLog, ResponseLogs
from kitchener.serve.responses.response_objects import ResponseHead
from kitchener.serve.responses.responses_request import (
    ResponsesBody,
    ResponsesRequest,
    as_chat_body,
    read_responses_body,
    read_responses_request,
)
from kitchener.serve.served_turns import ServedTurns
from kitchener.serve.token_usage import TokenUsage


class ResponsesDoor:
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
        supervisor, subject_id = self._access.supervisor(caller, agent), self._access.subject(request)
        if self._utility.is_asked(request, as_chat_body(body, body.model or "")):
            return await self._plain_call(request, body, supervisor, subject_id)
        asked = read_responses_request(body)
        if asked.answers:
            caller.check("approve")
            return await self._answered(request, body, supervisor, subject_id, asked)
        async with self._chosen(request, body, supervisor, subject_id, asked) as session_id:
            log = self._begin(request, body, supervisor, subject_id, session_id, asked)
        turn = log.turn
        assert turn is not None
        if body.background and not body.stream:
            await until_gone(request.receive, log.wait_begun, lambda: None)
            assert log.head is not None
            return await self._recorded(request, log.head.response_id)
        if not body.stream:
            await until_gone(request.receive, turn.result, turn.leave)
            assert log.response is not None
            return json_response(log.response, headers={SESSION_HEADER: session_id})
        # What is wrong with the request shows before the first event, and can still have a status of its own.
        gone = turn.leave if not body.background else _nobody
        await until_gone(request.receive, log.wait_begun, gone)
        return self._stream(log.after(-1), session_id, gone)

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
            turn.stop(RequestRefused(409, "turn_stopped", "the turn was stopped by another request; it is aborted on record"))
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
        await read_head(found.ledgers.ho2m, turn_id, found.supervisor.agent_class)
        raise RequestRefused(
            405,
            "cannot_delete",
            "a response is a turn, and a record keeps its turns; POST /v1/subject/erase erases all that the subject said",
        )

    @asynccontextmanager
    async def _chosen(
        self, request: Request, body: ResponsesBody, supervisor: HO2Supervisor, subject_id: str, asked: ResponsesRequest
    ) -> AsyncIterator[str]:
        """The id of the session; the block begins the turn."""
        key, said = request.headers.get("idempotency-key"), body.conversation_name
        if body.previous_response_id is not None:
            found, turn_id = await named_response(self._access, request, body.previous_response_id)
            agent = found.supervisor.agent_class
            if agent != supervisor.agent_class:
                raise RequestRefused(400, "invalid_request", f"model: the previous response is one of the agent {agent!r}")
            await read_head(found.ledgers.ho2m, turn_id, agent)
            async with self._sessions.after(supervisor, found.session, turn_id, key) as session_id:
                yield session_id
            return
        name = named_session(request, self._config) or said
        if name is None and self._config.cache_key_names_session:
            name = body.prompt_cache_key
        if name is None and key is not None:
            name = f"{BY_KEY}{key}"
        # The items of a request that names its `conversation` are new ones; other clients send all of them each time.
        claimed = asked.earlier if said is None or asked.earlier else None
        async with self._sessions.chosen(supervisor, subject_id, name, claimed, key) as session_id:
            yield session_id

    def _begin(
        self,
        request: Request,
        body: ResponsesBody,
        supervisor: HO2Supervisor,
        subject_id: str,
        session_id: str,
        asked: ResponsesRequest,
    ) -> ResponseLog:
        """Begins the turn, whose events the log gets."""
        started = partial(
            supervisor.stream_turn,
            asked.message,
            session_id=session_id,
            subject_id=subject_id,
            idempotency_key=request.headers.get("idempotency-key"),
            parts=asked.parts,
            output=asked.output,
            tool_choice="none" if body.tool_choice == "none" else "auto",
        )
        log = ResponseLog()
        log.turn = self._turns.begin_whole(session_id, partial(self._run, log, body, supervisor, session_id, started))
        return log

    async def _run(
        self, log: ResponseLog, body: ResponsesBody, supervisor: HO2Supervisor, session_id: str, started: Any
    ) -> TurnResult | None:
        """Runs a turn, and writes its events into the log."""
        ledgers, result, began = self._access.runtime.ledgers(supervisor.agent_class), None, anyio.current_time()
        try:
            before = ledgers.ho2m.position
            async with aclosing(cast(AsyncGenerator[TurnUpdate, None], started())) as updates:
                async for update in updates:
                    if log.head is None:
                        log.begin(await self._head(ledgers, supervisor, session_id, update, before, body))
                        self._logs.keep(log)
                    if isinstance(update, TextDelta):
                        if began:
                            self._turns.counts.first_text_s.add(anyio.current_time() - began)
                            began = 0.0
                        log.add_text(update.text)
                    elif isinstance(update, TextRetracted):
                        log.retract()
                    elif isinstance(update, TurnCompleted):
                        result = update.result
                        assert log.head is not None
                        recorded = await completed_response(ledgers.ho2m, log.head, result, self._servers)
                        log.complete(result.response, recorded.requests, **recorded.told)
        except Exception as error:
            if log.head is not None:
                log.fail(log.head.response("failed", error=problem_of(error).message))
            raise
        except BaseException:  # stopped by a request, by the server or with its client
            if log.head is not None:
                log.fail(log.head.response("cancelled", error=STOPPED))
            raise
        finally:
            log.close()
        return result

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
        head, _ = await read_head(ledgers.ho2m, turn_id, supervisor.agent_class)
        if body.stream or body.background:
            await ledgers.commit()  # a crash must not take back a response whose id a client was told
        return head._replace(previous_id=body.previous_response_id, is_background=bool(body.background))

    async def _answered(
        self,
        request: Request,
        body: ResponsesBody,
        supervisor: HO2Supervisor,
        subject_id: str,
        asked: ResponsesRequest,
    ) -> ASGIApp:
        """The response of the turn that goes on; that of the turn that asked, if other calls of it still wait."""
        given = [await given_answer(supervisor, subject_id, each) for each in asked.answers]
        session_id = given[-1][0]

        async def give_all() -> TurnResult | None:
            result = None
            for _, give in given:
                result = await give() or result
            return result

        # One turn of the server for all of them: a client that leaves meanwhile has given them all.
        turn = self._turns.begin_whole(session_id, give_all)
        result = await until_gone(request.receive, turn.result, turn.leave)
        found = await self._access.named(request, session_id)
        if result is not None:
            turn_id, waiting = result.turn_id, None
        else:
            runtime, agent = self._access.runtime, supervisor.agent_class
            wo_id = split_approval_id(asked.answers[-1].approval_id)[1]
            of_work = [each for each in await runtime.pending_approvals(agent, session_id=session_id) if each.wo_id == wo_id]
            waiting = {each.approval_id for each in of_work if each.status == "waiting"}
            turn_id = of_work[0].turn_id
        recorded = await read_response(found, turn_id, self._servers)
        if waiting is not None:
            recorded = recorded._replace(requests=[each for each in recorded.requests if each["id"] in waiting])
        if not body.stream:
            return _answer(recorded)
        return self._stream(_log_of(recorded, -1).after(-1), session_id, _nobody)

    async def _plain_call(self, request: Request, body: ResponsesBody, supervisor: HO2Supervisor, subject_id: str) -> ASGIApp:
        """The answer of a model without an agent. It is no turn, so it cannot be retrieved."""
        agent = supervisor.agent_class
        work = partial(self._utility.answer, as_chat_body(body, agent), supervisor, subject_id)
        answer = await until_gone(request.receive, work, _nobody)
        now_us = self._clock.time_us()
        log = ResponseLog()
        log.begin(ResponseHead(f"resp_utility_{now_us}", now_us // 1_000_000, body.model or agent, None))
        log.complete(answer.text, (), completed_at=self._clock.time_us() // 1_000_000, used=TokenUsage.of_call(answer.usage))
        log.close()
        return self._stream(log.after(-1), None, _nobody) if body.stream else json_response(log.response)

    async def _recorded(self, request: Request, response_id: str) -> ASGIApp:
        found, turn_id = await named_response(self._access, request, response_id)
        recorded, log = await read_response(found, turn_id, self._servers), self._log(found, response_id)
        if log is not None and log.head is not None:
            recorded = recorded._replace(head=log.head)
        return _answer(recorded)

    def _log(self, found: FoundSession, response_id: str) -> ResponseLog | None:
        """The kept events of a response; None: the record has to do, also where its subject was erased meanwhile."""
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
        log.complete(recorded.result.response, recorded.requests, **recorded.told)
    elif recorded.aborted is not None:
        log.fail(recorded.response())
    log.close()
    return log


def _nobody() -> None:
    """Nobody has to know that the client has gone."""
