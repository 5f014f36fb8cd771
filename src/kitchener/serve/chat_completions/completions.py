"""`/v1/models` and `/v1/chat/completions`: an agent as a model of the OpenAI API. Explained in `docs/server.md`."""

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from kitchener.actors.admission.content_checks import MessageContent
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.clock import Clock
from kitchener.config import ServeConfig
from kitchener.ids import split_approval_id
from kitchener.records.prompt import CUT_SHORT
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime
from kitchener.serve.access.callers import Caller
from kitchener.serve.access.guard import caller_of, place_of, subject_of
from kitchener.serve.access.request_names import SESSION_HEADER, named_session
from kitchener.serve.chat_completions.approval_answers import given_answer, told_how
from kitchener.serve.chat_completions.asked_content import checked_content
from kitchener.serve.chat_completions.chat_chunks import Heading, chunks, turn_fields, whole_as_chunks
from kitchener.serve.chat_completions.chat_request import STILL_WAITING, UTILITY, ChatBody, ChatRequest, read_body, read_request
from kitchener.serve.chat_completions.client_functions import read_functions
from kitchener.serve.chat_completions.client_history import spoken_answer
from kitchener.serve.chat_completions.client_outputs import continued_run, read_left, session_of_outputs, waits_for
from kitchener.serve.chat_completions.session_finder import BY_KEY, SessionFinder
from kitchener.serve.chat_completions.utility_calls import UtilityCalls
from kitchener.serve.event_stream import EventStream, until_gone
from kitchener.serve.problems import RequestRefused, json_response
from kitchener.serve.served_turns import ContinuedRun, ServedTurn, ServedTurns
from kitchener.serve.token_usage import TokenUsage

Asking = Callable[..., Awaitable[TurnResult]]
"""Runs the turn of a message, with or without a `listener`."""
TellingHow = Callable[[TurnResult], Awaitable[str]]
"""What to write after a reply about its waiting calls."""
_UNUSED: Final = TokenUsage()


async def _nothing(result: TurnResult) -> str:
    return ""


class CompletionEndpoints:
    """Answers the requests of chat clients.

    Args:
        runtime: runs the agents
        config: the settings of the server
        turns: runs the turns of requests
        clock: the time of day
        sessions: finds the sessions
    """

    def __init__(
        self,
        runtime: Runtime,
        config: ServeConfig,
        turns: ServedTurns,
        clock: Clock,
        sessions: SessionFinder,
    ) -> None:
        self._runtime, self._config, self._turns, self._clock = runtime, config, turns, clock
        self._sessions = sessions
        self._utility = UtilityCalls(runtime, config)
        self._numbers, self._began = count(1), clock.time_us()

    async def models(self, request: Request) -> Response:
        """The agents that the caller reaches, and each as a plain model."""
        caller = caller_of(request)
        agents = [each for each in self._runtime.config.class_names if caller.reaches(each)]
        kinds = ("", UTILITY) if self._utility.is_offered else ("",)
        names = [f"{each}{kind}" for each in agents for kind in kinds]
        return json_response({"object": "list", "data": [self._model(name) for name in names]})

    async def model(self, request: Request) -> Response:
        """One model of the caller."""
        name: str = request.path_params["model"]
        self._agent(caller_of(request), name)
        return json_response(self._model(name))

    async def complete(self, request: Request) -> ASGIApp:
        """The reply to a conversation."""
        caller = caller_of(request)
        body = read_body(await request.body())
        supervisor, subject_id = self._agent(caller, body.model), subject_of(request)
        if self._utility.is_asked(request, body):
            return await self._plain_call(request, body, supervisor, subject_id)
        place_of(request).check_turn()
        asked, name = read_request(body), named_session(request, self._config)
        answer = spoken_answer(asked.message)
        if answer is not None:
            caller.check("approve")
            session_id, give = await given_answer(supervisor, subject_id, answer)
            place_of(request).check_continuation()
            return await self._answered(request, body, supervisor, session_id, answer.approval_id, give)
        functions = read_functions(body.tools, body.tool_choice, allowed=supervisor.config.client_tools == "allow")
        content = await checked_content(request, supervisor, asked.message, asked.parts, functions, asked.output)
        if asked.outputs is not None:
            continued = await self._continued(request, supervisor, subject_id, asked, content, name)
            if continued is not None:
                place_of(request).check_continuation()
                call_id = next(iter(asked.outputs.outputs))
                return await self._answered(request, body, supervisor, asked.outputs.session_id, call_id, continued)
        if name is None and self._config.cache_key_names_session:
            name = body.prompt_cache_key
        key = request.headers.get("idempotency-key")
        if name is None and key is not None:
            name = f"{BY_KEY}{key}"
        async with self._sessions.chosen(place_of(request), supervisor, subject_id, name, asked.earlier, key) as session_id:
            ask = self._asking(supervisor, subject_id, session_id, asked, content, key)
            turn = self._begin(request, supervisor.agent_class, ask, session_id, body)
        heading = self._heading(body, session_id)
        if not body.stream:
            result = await until_gone(request.receive, turn.result, turn.leave)
            assert result is not None
            return await self._whole(heading, result, self._told_how(caller, supervisor))
        pieces = chunks(heading, turn, includes_usage=body.includes_usage, after=self._told_how(caller, supervisor))
        headers = ((SESSION_HEADER.lower().encode(), session_id.encode()),)
        return EventStream(pieces, self._config, turn.leave, headers, turn.wait_begun)

    def _asking(
        self,
        supervisor: HO2Supervisor,
        subject_id: str,
        session_id: str,
        asked: ChatRequest,
        content: MessageContent,
        key: str | None,
    ) -> Asking:
        """Runs the turn of a message."""
        return partial(
            supervisor.handle_turn,
            asked.message,
            session_id=session_id,
            subject_id=subject_id,
            idempotency_key=key,
            **content._asdict(),
        )

    def _begin(self, request: Request, agent_class: str, ask: Asking, session_id: str, body: ChatBody) -> ServedTurn:
        if body.stream:
            return self._turns.begin(place_of(request), agent_class, session_id, lambda listener: ask(listener=listener))
        return self._turns.begin_whole(place_of(request), agent_class, session_id, ask)

    async def _continued(
        self,
        request: Request,
        supervisor: HO2Supervisor,
        subject_id: str,
        asked: ChatRequest,
        content: MessageContent,
        name: str | None,
    ) -> ContinuedRun | None:
        """Gives outputs of functions, and runs the turn of the message after them; None: they were given before the message.

        Raises:
            RequestRefused: the request brings nothing but outputs, and the subject has no such calls
        """
        outputs = asked.outputs
        assert outputs is not None
        if not asked.message:
            await session_of_outputs(supervisor, subject_id, outputs, name)
            return continued_run(supervisor, outputs)
        try:
            session = await session_of_outputs(supervisor, subject_id, outputs, name)
        except RequestRefused:
            return None
        if not waits_for(session, outputs):
            return None
        key = request.headers.get("idempotency-key")
        ask = self._asking(supervisor, subject_id, session.session_id, asked, content, key)
        return continued_run(supervisor, outputs, lambda listener: ask(listener=listener))

    async def _answered(
        self, request: Request, body: ChatBody, supervisor: HO2Supervisor, session_id: str, request_id: str, give: ContinuedRun
    ) -> ASGIApp:
        """The reply of the turn that continues after an answer about a tool call, or with outputs of functions."""
        heading, headers = self._heading(body, session_id), {SESSION_HEADER: session_id}
        result, told = None, self._told_how(caller_of(request), supervisor)
        if body.stream:
            turn = self._turns.begin(place_of(request), supervisor.agent_class, session_id, give)
            has_turn = await until_gone(request.receive, turn.wait_begun, turn.leave)
        else:
            turn = self._turns.begin_whole(place_of(request), supervisor.agent_class, session_id, partial(give, None))
            result = await until_gone(request.receive, turn.result, turn.leave)
            has_turn = result is not None
        if not has_turn:
            session = await supervisor.session(session_id)
            ledger = self._runtime.ledgers(supervisor.agent_class).ho2m
            calls = (await read_left(ledger, session, split_approval_id(request_id)[1])).calls
            if not body.stream:
                return json_response(heading.whole(STILL_WAITING, _UNUSED, calls=calls), headers=headers)
            pieces = whole_as_chunks(heading, STILL_WAITING, _UNUSED, includes_usage=body.includes_usage, calls=calls)
        elif result is not None:
            return await self._whole(heading, result, told)
        else:
            pieces = chunks(heading, turn, includes_usage=body.includes_usage, after=told)
        sent = tuple((name.lower().encode(), value.encode()) for name, value in headers.items())
        return EventStream(pieces, self._config, turn.leave, sent)

    async def _plain_call(self, request: Request, body: ChatBody, supervisor: HO2Supervisor, subject_id: str) -> ASGIApp:
        work = partial(self._utility.answer, request, body, supervisor, subject_id)
        response = await until_gone(request.receive, work, lambda: None)
        used = TokenUsage.of_call(response.usage)
        heading, truncated = self._heading(body, "utility"), response.finish_reason in CUT_SHORT
        if not body.stream:
            return json_response(heading.whole(response.text, used, truncated=truncated))
        pieces = whole_as_chunks(heading, response.text, used, includes_usage=body.includes_usage, truncated=truncated)
        return EventStream(pieces, self._config, lambda: None)

    def _told_how(self, caller: Caller, supervisor: HO2Supervisor) -> TellingHow:
        """Tells how to answer about waiting calls, if the caller may answer."""
        if "approve" in caller.settings.rights:
            return partial(told_how, self._runtime, supervisor.agent_class)
        return _nothing

    async def _whole(self, heading: Heading, result: TurnResult, told_how: TellingHow) -> Response:
        told, used, text = turn_fields(result), TokenUsage.of_turn(result), result.response + await told_how(result)
        sent = heading.whole(text, used, told, result.client_calls, truncated=result.truncated)
        return json_response(sent, headers={SESSION_HEADER: result.session_id})

    def _agent(self, caller: Caller, model: str) -> HO2Supervisor:
        """The agent that a model's name means. Raises RequestRefused if the caller has none of this name."""
        agent_class = model.removesuffix(UTILITY) if self._utility.is_offered else model
        caller.check_agent(agent_class)
        known = self._runtime.config.class_names
        if agent_class not in known:
            raise caller.unknown_agent(agent_class)
        return self._runtime.supervisor(agent_class)

    def _heading(self, body: ChatBody, of: str) -> Heading:
        return Heading(f"chatcmpl-{of}-{next(self._numbers)}", self._clock.time_us() // 1_000_000, body.model)

    def _model(self, name: str) -> dict[str, object]:
        return {"id": name, "object": "model", "created": self._began // 1_000_000, "owned_by": "kitchener"}
