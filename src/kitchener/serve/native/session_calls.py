"""Sessions of a subject: begin, list, show, read back, end, stop. Explained in `docs/server.md`."""

from dataclasses import asdict
from typing import ClassVar, Final

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from kitchener.actors.sessions.active_session import SessionManager
from kitchener.config.field_docstrings import DescribedModel
from kitchener.inspection.shown_text import one_line
from kitchener.ledger import ReadableLedger
from kitchener.records import events
from kitchener.records.entries import MessageImportedPayload, TurnStartedPayload, opened
from kitchener.serve.access.counted_work import LISTED_SESSIONS, READ_TURNS, length_of
from kitchener.serve.access.guard import caller_of, place_of, subject_of
from kitchener.serve.native.session_access import SessionAccess
from kitchener.serve.operations_table import read_model
from kitchener.serve.problems import RequestRefused, json_response
from kitchener.serve.served_turns import ServedTurns

MAX_LISTED: Final = 1_000
_TITLE_CHARS: Final = 80


class NewSession(DescribedModel):
    """What a client says about a session as it begins one."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

    agent: str | None = Field(None, max_length=128)
    """The agent class. None: ADMIN, or the only one of this key."""
    external_id: str | None = None
    """The client's own name for the session."""


class SessionEnding(DescribedModel):
    """Why a session ends."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

    reason: str = "ended"
    """Recorded as it is, never encrypted."""


class SessionCalls:
    """Answers requests about sessions.

    Args:
        access: finds sessions
        turns: the turns that run for requests
    """

    def __init__(self, access: SessionAccess, turns: ServedTurns) -> None:
        self._access, self._turns = access, turns

    async def begin(self, request: Request) -> Response:
        """Starts a conversation with the subject of the request."""
        body = read_model(NewSession, await request.body() or b"{}")
        supervisor = self._access.supervisor(caller_of(request), body.agent)
        subject_id = subject_of(request)
        session_id = await supervisor.start_session(subject_id=subject_id, external_id=body.external_id)
        return json_response(_shown(await supervisor.session(session_id), supervisor.agent_class), 201)

    async def list_all(self, request: Request) -> Response:
        """The subject's sessions, newest first."""
        limit = number(request, "limit", 100, most=MAX_LISTED)
        supervisor = self._access.supervisor(caller_of(request), request.query_params.get("agent"))
        subject_id, name = subject_of(request), supervisor.agent_class
        found = await self._access.runtime.sessions(name, subject_id=subject_id, limit=limit or 1)
        place_of(request).count_more(len(found) // LISTED_SESSIONS)
        ho2m = self._access.runtime.ledgers(name).ho2m
        titles = [await _title(ho2m, each.session_id) for each in found]
        told = [{"agent": name, **asdict(each), "title": title} for each, title in zip(found, titles, strict=True)]
        return json_response({"sessions": told})

    async def show(self, request: Request) -> Response:
        """One session, and the calls that wait in it."""
        found = await self._access.of(request)
        return json_response(_shown(found.session, found.supervisor.agent_class))

    async def messages(self, request: Request) -> Response:
        """The newest turns of a session, oldest first."""
        found, limit = await self._access.of(request), number(request, "limit", 100, most=MAX_LISTED)
        place_of(request).count_more(length_of(found.session) // READ_TURNS)
        told = [each async for each in found.session.read_history()]
        return json_response({"turns": [each._asdict() for each in told[-limit:]] if limit else []})

    async def end(self, request: Request) -> Response:
        """Ends a session after the messages that it has."""
        body = read_model(SessionEnding, await request.body() or b"{}")
        found = await self._access.of(request)
        await found.supervisor.end_session(found.session.session_id, reason=body.reason)
        return json_response(_shown(found.session, found.supervisor.agent_class))

    async def stop(self, request: Request) -> Response:
        """Aborts the turns of a session that requests began, and returns when they have ended."""
        session = (await self._access.of(request)).session
        session_id, open_turn = session.session_id, session.state.open_turn
        turns = self._turns.of_session(session_id)
        for each in turns:
            each.stop(RequestRefused(409, "turn_stopped", "the turn was stopped by another request; it is recorded as aborted"))
        for each in turns:
            await each.done.wait()
        if turns and open_turn is not None:
            await self._access.wait_ended(session, open_turn.turn_id)
        return json_response({"session_id": session_id, "stopped": len(turns)})


def number(request: Request, name: str, default: int, *, most: int, least: int = 0) -> int:
    """A number in the query. Raises RequestRefused unless it is one from `least` to `most`."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > len(str(most)) or not least <= int(text) <= most:
        raise RequestRefused(400, "invalid_request", f"{name}: expected a whole number from {least} to {most}")
    return int(text)


async def _title(ho2m: ReadableLedger, session_id: str) -> str | None:
    """The beginning of the first message of a session; None: there is none, or it cannot be read."""
    said = ho2m.read(session_id=session_id, entry_type=(events.TURN_STARTED, events.MESSAGE_IMPORTED), limit=1)
    async for entry in said:
        if entry.entry_type == events.TURN_STARTED:
            text = opened(events.read_as(TurnStartedPayload, entry).get("user_message"))
        else:
            text = opened(events.read_as(MessageImportedPayload, entry).get("text"))
        return one_line(text[: 2 * _TITLE_CHARS], _TITLE_CHARS) if isinstance(text, str) else None
    return None


def flag(request: Request, name: str, *, default: bool) -> bool:
    """A yes or no in the query. Raises RequestRefused unless it is `true` or `false`."""
    text = request.query_params.get(name, str(default)).casefold()
    if text not in ("true", "false"):
        raise RequestRefused(400, "invalid_request", f"{name}: expected true or false")
    return text == "true"


def _shown(session: SessionManager, agent_class: str) -> dict[str, object]:
    state = session.state
    waiting = state.approvals.open if state.approvals is not None else []
    return {
        "session_id": session.session_id,
        "agent": agent_class,
        "subject_id": session.subject_id,
        "external_id": state.external_id,
        "turns": state.completed_turns,
        "is_ended": state.is_ended,
        "running_turn": state.open_turn.turn_id if state.open_turn is not None else None,
        "pending_approval": [each.approval_id for each in waiting],
        "cost": dict(state.cost),
    }
