"""A message to a session, and the reply: whole, or as the updates of its turn. Explained in `docs/server.md`."""

import base64
import binascii
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import asdict
from functools import partial
from typing import ClassVar, Final

from pydantic import ConfigDict, Field, StrictBool
from starlette.requests import Request
from starlette.types import ASGIApp

from kitchener.config import ServeConfig
from kitchener.config.field_docstrings import DescribedModel
from kitchener.records.parts import FilePart
from kitchener.records.turn import (
    TextDelta,
    TextRetracted,
    ToolProgress,
    ToolRan,
    ToolStarted,
    TurnCompleted,
    TurnResult,
    TurnUpdate,
    WorkOrderFinished,
    WorkOrderPlanned,
)
from kitchener.serve.access.guard import place_of
from kitchener.serve.chat_completions.asked_content import checked_content
from kitchener.serve.chat_completions.client_functions import ClientFunctions
from kitchener.serve.event_stream import EventStream, event, until_gone
from kitchener.serve.native.session_access import SessionAccess
from kitchener.serve.operations_table import read_model
from kitchener.serve.problems import RequestRefused, json_response, problem_for
from kitchener.serve.served_turns import ServedTurn, ServedTurns

UPDATE_NAMES: Final[dict[type[TurnUpdate], str]] = {
    WorkOrderPlanned: "work_order_planned",
    WorkOrderFinished: "work_order_finished",
    ToolStarted: "tool_started",
    ToolProgress: "tool_progress",
    ToolRan: "tool_ran",
    TextDelta: "text",
    TextRetracted: "text_retracted",
    TurnCompleted: "turn_completed",
}
"""The names of events, by the type of the update."""


class SentFile(DescribedModel):
    """An image or a file of a message."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

    data: str
    """The content in base64."""
    media_type: str | None = None
    """Such as `application/pdf`. None: recognised from the content."""
    name: str | None = None
    """The name that the model reads."""


class NewMessage(DescribedModel):
    """A message to a session."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

    message: str
    """What the user says."""
    stream: StrictBool = False
    """Whether the answer is a stream of events."""
    memory: StrictBool = True
    """False: the turn neither reads nor writes long-term memory."""
    deadline_s: float | None = None
    """Longest time for the whole call, seconds. None: the agent's own."""
    acceptance: list[str] = Field(default_factory=list, max_length=1_000)
    """Criteria that the reply must meet."""
    speaker: str | None = None
    """The speaker of the message, in a conversation of several people."""
    output_schema: dict[str, object] | None = None
    """JSON schema of the object that is wanted in place of text."""
    tool_choice: str = "auto"
    """`auto`, `none`, `required` or the name of a tool."""
    files: list[SentFile] = Field(default_factory=list, max_length=1_000)
    """Images and files."""


class MessageCalls:
    """Takes messages.

    Args:
        access: finds sessions
        turns: runs the turns of requests
        config: the settings of the server
    """

    def __init__(self, access: SessionAccess, turns: ServedTurns, config: ServeConfig) -> None:
        self._access, self._turns, self._config = access, turns, config

    async def send(self, request: Request) -> ASGIApp:
        """The reply to a message."""
        place = place_of(request)
        place.check_turn()
        body = read_model(NewMessage, await request.body())
        found = await self._access.of(request)
        session_id, parts = found.session.session_id, [_part(number, each) for number, each in enumerate(body.files, 1)]
        functions = ClientFunctions(choice=body.tool_choice)
        content = await checked_content(request, found.supervisor, body.message, parts, functions, body.output_schema)
        ask: Callable[..., Awaitable[TurnResult]] = partial(
            found.supervisor.handle_turn,
            body.message,
            session_id=session_id,
            subject_id=found.session.subject_id,
            idempotency_key=request.headers.get("idempotency-key"),
            memory=body.memory,
            deadline=body.deadline_s,
            acceptance=body.acceptance,
            speaker=body.speaker,
            **content._asdict(),
        )
        if not body.stream:
            turn = self._turns.begin_whole(place, found.supervisor.agent_class, session_id, ask)
            result = await until_gone(request.receive, turn.result, turn.leave)
            assert result is not None
            return json_response(result_json(result))
        turn = self._turns.begin(place, found.supervisor.agent_class, session_id, lambda listener: ask(listener=listener))
        return EventStream(_events(turn), self._config, turn.leave, ready=turn.wait_begun)


def result_json(result: TurnResult) -> dict[str, object]:
    """A result of a turn as JSON types."""
    return {**result.as_payload(), "output": result.output}


async def _events(turn: ServedTurn) -> AsyncGenerator[bytes, None]:
    try:
        async for batch in turn:
            yield b"".join(map(_event, batch))
    except Exception as error:  # noqa: BLE001  the status is sent, so the stream itself says what went wrong
        yield event(problem_for(error).body(), name="error")


def _event(update: TurnUpdate) -> bytes:
    told = result_json(update.result) if isinstance(update, TurnCompleted) else asdict(update)
    return event(told, name=UPDATE_NAMES[type(update)])


def _part(number: int, sent: SentFile) -> FilePart:
    try:
        return FilePart(base64.b64decode(sent.data, validate=True), sent.media_type, sent.name)
    except (binascii.Error, ValueError):
        raise RequestRefused(400, "invalid_request", f"file {number}: expected `data` in base64") from None
