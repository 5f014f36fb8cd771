"""The operations of the server's own API."""

from collections.abc import Callable
from typing import Final

from pydantic import BaseModel

from kitchener.config import ServeConfig, ServeRight
from kitchener.serve.access.guard import Draining
from kitchener.serve.answer_models.session_answers import (
    DeclaredIntentAnswer,
    IntentListAnswer,
    SessionAnswer,
    SessionListAnswer,
    SpokenTurnsAnswer,
    StoppedAnswer,
)
from kitchener.serve.answer_models.subject_answers import ErasureAnswer, MemoryAnswer, MemoryChangeAnswer, OwnRightsAnswer
from kitchener.serve.answer_models.turn_answers import (
    ApprovalListAnswer,
    ResumedTurnAnswer,
    TurnAnswer,
    TurnDiffAnswer,
    TurnReasonsAnswer,
)
from kitchener.serve.native.approval_calls import Approval, ApprovalCalls, Denial
from kitchener.serve.native.event_feed import LAST_NUMBER, EventFeed
from kitchener.serve.native.message_calls import MessageCalls, NewMessage
from kitchener.serve.native.session_access import SessionAccess
from kitchener.serve.native.session_calls import MAX_LISTED, NewSession, SessionCalls, SessionEnding
from kitchener.serve.native.session_intents import IntentChangeBody, IntentRequests, NewIntent
from kitchener.serve.native.subject_calls import (
    ErasureCalls,
    ForgottenLine,
    ForgottenSignal,
    MemoryCalls,
    OwnRights,
    SubjectErasure,
)
from kitchener.serve.native.turn_explanations import ExplanationCalls
from kitchener.serve.operations_table import Answering, Parameter, Served
from kitchener.serve.served_turns import ServedTurns

_ONE: Final = "/v1/sessions/{session_id}"
_SESSION: Final = Parameter(
    "session_id", "path", "a session of the subject", {"type": "string", "pattern": "^SES-[0-9a-f]{8,32}$"}
)
_APPROVAL: Final = Parameter("approval_id", "path", "a request for approval of the session, or its work order")
_INTENT: Final = Parameter("intent_id", "path", "an intent of the session")
_TURN: Final = Parameter("turn_id", "path", "a turn of the session")
_ENTRY: Final = Parameter("entry", "query", "only what became of this entry, intent, work order, turn or learned line")
_BEFORE: Final = Parameter("before", "query", "the turn of the same session to compare with")
_ARTIFACT: Final = Parameter("artifact_id", "path", "a learned line of the subject, `ART-…`")
_KEY: Final = Parameter("Idempotency-Key", "header", "the same key with the same message gets the reply of its one turn")
_AGENT: Final = Parameter("agent", "query", "the agent class; left out: ADMIN, or the only one of the key")
_NUMBER: Final = {"type": "integer", "minimum": 0}
_LIMIT: Final = Parameter("limit", "query", "most of them, the newest", {**_NUMBER, "maximum": MAX_LISTED})
_AFTER: Final = Parameter(
    "after",
    "query",
    "number of the last event that the client has; also as header Last-Event-ID",
    {**_NUMBER, "maximum": LAST_NUMBER},
)
_FOLLOW: Final = Parameter(
    "follow", "query", "`false`: end with the newest event", {"type": "string", "enum": ["true", "false"]}
)
_OF_TURN: Final = (409, 410, 504)


def subject_operations(access: SessionAccess, *forget: Callable[[], object]) -> list[Served]:
    """The operations about a subject: explanations of what a turn was shown, memory, erasure.

    Args:
        access: finds sessions
        *forget: drop what the server itself keeps of what was said
    """
    why, memory, erasure = ExplanationCalls(access), MemoryCalls(access), ErasureCalls(access, *forget)
    turn, of_turn = f"{_ONE}/turns/{{turn_id}}", (_SESSION, _TURN)
    line = "/v1/memory/{artifact_id}/deactivate"
    return [
        Served("GET", "/v1/me", "Show what the key allows", OwnRights(access).show, gives=OwnRightsAnswer),
        _shows(f"{turn}/why", "Explain what a turn was shown", why.why, TurnReasonsAnswer, *of_turn, _ENTRY),
        _shows(f"{turn}/diff", "Compare two turns", why.diff, TurnDiffAnswer, *of_turn, _BEFORE),
        _shows("/v1/memory", "List what was learned", memory.show, MemoryAnswer, _AGENT),
        _does(line, "Forget a learned line", memory.deactivate, ForgottenLine, MemoryChangeAnswer, _ARTIFACT),
        _does("/v1/memory/quarantine", "Forget a signal", memory.quarantine, ForgottenSignal, MemoryChangeAnswer),
        _does(
            "/v1/subject/erase",
            "Erase the subject",
            erasure.erase,
            SubjectErasure,
            ErasureAnswer,
            right="erase",
            errors=(409,),
        ),
    ]


def session_operations(access: SessionAccess, config: ServeConfig, turns: ServedTurns, draining: Draining) -> list[Served]:
    """All operations about sessions.

    Args:
        access: finds sessions
        config: the settings of the server
        turns: the turns that run for requests
        draining: whether the server shuts down
    """
    sessions, messages = SessionCalls(access, turns), MessageCalls(access, turns, config)
    feed, every, of_feed = EventFeed(access, config, draining), "/v1/sessions", (_SESSION, _AFTER, _FOLLOW)
    sent = _does(f"{_ONE}/messages", "Send a message", messages.send, NewMessage, TurnAnswer, _SESSION, _KEY, errors=_OF_TURN)
    return [
        _does(every, "Begin a session", sessions.begin, NewSession, SessionAnswer, status=201, errors=(409, 410)),
        _shows(every, "List the newest sessions", sessions.list_all, SessionListAnswer, _AGENT, _LIMIT),
        _shows(_ONE, "Show a session", sessions.show, SessionAnswer, _SESSION),
        _shows(f"{_ONE}/messages", "Read what was said", sessions.messages, SpokenTurnsAnswer, _SESSION, _LIMIT),
        sent._replace(streams=True),
        Served("GET", f"{_ONE}/events", "Follow a session", feed.follow, "read", None, of_feed, streams=True),
        _does(f"{_ONE}/stop", "Abort the running turns", sessions.stop, None, StoppedAnswer, _SESSION),
        _does(f"{_ONE}/end", "End a session", sessions.end, SessionEnding, SessionAnswer, _SESSION, errors=(410,)),
        *_approval_operations(ApprovalCalls(access, turns)),
        *_intent_operations(IntentRequests(access)),
    ]


def _approval_operations(calls: ApprovalCalls) -> list[Served]:
    one, of_one = f"{_ONE}/approvals/{{approval_id}}", (_SESSION, _APPROVAL)
    allowed = _does(f"{one}/approve", "Allow one", calls.approve, Approval, ResumedTurnAnswer, *of_one, errors=_OF_TURN)
    refused = _does(f"{one}/deny", "Refuse one", calls.deny, Denial, ResumedTurnAnswer, *of_one, errors=_OF_TURN)
    waiting = _shows(f"{_ONE}/approvals", "List the tool calls that wait", calls.waiting, ApprovalListAnswer, _SESSION)
    of_all = _shows("/v1/approvals", "List those of all sessions", calls.all_waiting, ApprovalListAnswer, _AGENT)
    return [each._replace(right="approve") for each in (waiting, of_all, allowed, refused)]


def _intent_operations(calls: IntentRequests) -> list[Served]:
    every, wrong = f"{_ONE}/intents", (409, 410)
    one, of_one = f"{every}/{{intent_id}}", (_SESSION, _INTENT)
    return [
        _shows(every, "List the intents", calls.list_all, IntentListAnswer, _SESSION),
        _does(every, "Declare an intent", calls.declare, NewIntent, DeclaredIntentAnswer, _SESSION, status=201, errors=wrong),
        _does(one, "Change an intent", calls.change, IntentChangeBody, IntentListAnswer, *of_one, errors=wrong),
    ]


def _shows(path: str, summary: str, answer: Answering, gives: type[BaseModel], *parameters: Parameter) -> Served:
    """An operation that changes nothing."""
    return Served("GET", path, summary, answer, "read", None, parameters, gives=gives)


def _does(
    path: str,
    summary: str,
    answer: Answering,
    body: type[BaseModel] | None,
    gives: type[BaseModel],
    *parameters: Parameter,
    right: ServeRight = "chat",
    status: int = 200,
    errors: tuple[int, ...] = (),
) -> Served:
    """An operation that does something."""
    return Served("POST", path, summary, answer, right, body, parameters, status, errors, gives=gives)
