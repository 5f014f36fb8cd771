"""The operations of the server's own API."""

from collections.abc import Callable
from typing import Final

from kitchener.config import ServeConfig
from kitchener.serve.answers.session_answers import (
    DeclaredIntentAnswer,
    IntentListAnswer,
    SessionAnswer,
    SessionListAnswer,
    SpokenTurnsAnswer,
    StoppedAnswer,
)
from kitchener.serve.answers.subject_answers import ErasureAnswer, MemoryAnswer, MemoryChangeAnswer, OwnRightsAnswer
from kitchener.serve.answers.turn_answers import (
    ApprovalListAnswer,
    ResumedTurnAnswer,
    TurnAnswer,
    TurnDiffAnswer,
    TurnReasonsAnswer,
)
from kitchener.serve.guard import Draining
from kitchener.serve.native.approval_calls import Approval, ApprovalCalls, Denial
from kitchener.serve.native.event_feed import LAST_NUMBER, EventFeed
from kitchener.serve.native.memory_calls import ForgottenLine, ForgottenSignal, MemoryCalls
from kitchener.serve.native.message_calls import MessageCalls, NewMessage
from kitchener.serve.native.own_rights import OwnRights
from kitchener.serve.native.session_access import SessionAccess
from kitchener.serve.native.session_calls import MAX_LISTED, NewSession, SessionCalls, SessionEnding
from kitchener.serve.native.session_intents import IntentChangeBody, IntentRequests, NewIntent
from kitchener.serve.native.subject_erasure import ErasureCalls, SubjectErasure
from kitchener.serve.native.turn_explanations import ExplanationCalls
from kitchener.serve.operations_table import Parameter, Served
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
    """The operations about what is known of a subject: why a turn was shown what it was, memory, erasure.

    Args:
        access: finds sessions
        *forget: drop what the server itself keeps of what was said
    """
    why, memory, erasure = ExplanationCalls(access), MemoryCalls(access), ErasureCalls(access, *forget)
    turn = f"{_ONE}/turns/{{turn_id}}"
    line = "/v1/memory/{artifact_id}/deactivate"
    return [
        Served("GET", "/v1/me", "Show what the key allows", OwnRights(access).show, gives=OwnRightsAnswer),
        Served(
            "GET",
            f"{turn}/why",
            "Explain what a turn was shown",
            why.why,
            "read",
            None,
            (_SESSION, _TURN, _ENTRY),
            gives=TurnReasonsAnswer,
        ),
        Served(
            "GET", f"{turn}/diff", "Compare two turns", why.diff, "read", None, (_SESSION, _TURN, _BEFORE), gives=TurnDiffAnswer
        ),
        Served("GET", "/v1/memory", "List what was learned", memory.show, "read", None, (_AGENT,), gives=MemoryAnswer),
        Served(
            "POST",
            line,
            "Forget a learned line",
            memory.deactivate,
            "chat",
            ForgottenLine,
            (_ARTIFACT,),
            gives=MemoryChangeAnswer,
        ),
        Served(
            "POST",
            "/v1/memory/quarantine",
            "Forget a signal",
            memory.quarantine,
            "chat",
            ForgottenSignal,
            gives=MemoryChangeAnswer,
        ),
        Served(
            "POST",
            "/v1/subject/erase",
            "Erase the subject",
            erasure.erase,
            "erase",
            SubjectErasure,
            errors=(409,),
            gives=ErasureAnswer,
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
    feed, approvals, intents = EventFeed(access, config, draining), ApprovalCalls(access, turns), IntentRequests(access)
    answers, intent = f"{_ONE}/approvals/{{approval_id}}", f"{_ONE}/intents"
    of_session, of_approval = (_SESSION,), (_SESSION, _APPROVAL)
    return [
        Served(
            "POST",
            "/v1/sessions",
            "Begin a session",
            sessions.begin,
            "chat",
            NewSession,
            status=201,
            errors=(409, 410),
            gives=SessionAnswer,
        ),
        Served(
            "GET",
            "/v1/sessions",
            "List the newest sessions",
            sessions.list_all,
            "read",
            None,
            (_AGENT, _LIMIT),
            gives=SessionListAnswer,
        ),
        Served("GET", _ONE, "Show a session", sessions.show, "read", None, of_session, gives=SessionAnswer),
        Served(
            "GET",
            f"{_ONE}/messages",
            "Read what was said",
            sessions.messages,
            "read",
            None,
            (_SESSION, _LIMIT),
            gives=SpokenTurnsAnswer,
        ),
        Served(
            "POST",
            f"{_ONE}/messages",
            "Send a message",
            messages.send,
            "chat",
            NewMessage,
            (_SESSION, _KEY),
            200,
            _OF_TURN,
            True,
            TurnAnswer,
        ),
        Served(
            "GET", f"{_ONE}/events", "Follow a session", feed.follow, "read", None, (_SESSION, _AFTER, _FOLLOW), streams=True
        ),
        Served("POST", f"{_ONE}/stop", "Abort the running turns", sessions.stop, "chat", None, of_session, gives=StoppedAnswer),
        Served(
            "POST",
            f"{_ONE}/end",
            "End a session",
            sessions.end,
            "chat",
            SessionEnding,
            of_session,
            errors=(410,),
            gives=SessionAnswer,
        ),
        Served(
            "GET",
            f"{_ONE}/approvals",
            "List the tool calls that wait",
            approvals.waiting,
            "approve",
            None,
            of_session,
            gives=ApprovalListAnswer,
        ),
        Served(
            "GET",
            "/v1/approvals",
            "List those of all sessions",
            approvals.all_waiting,
            "approve",
            None,
            (_AGENT,),
            gives=ApprovalListAnswer,
        ),
        Served(
            "POST",
            f"{answers}/approve",
            "Allow one",
            approvals.approve,
            "approve",
            Approval,
            of_approval,
            200,
            _OF_TURN,
            gives=ResumedTurnAnswer,
        ),
        Served(
            "POST",
            f"{answers}/deny",
            "Refuse one",
            approvals.deny,
            "approve",
            Denial,
            of_approval,
            200,
            _OF_TURN,
            gives=ResumedTurnAnswer,
        ),
        Served("GET", intent, "List the intents", intents.list_all, "read", None, of_session, gives=IntentListAnswer),
        Served(
            "POST",
            intent,
            "Declare an intent",
            intents.declare,
            "chat",
            NewIntent,
            of_session,
            201,
            (409, 410),
            gives=DeclaredIntentAnswer,
        ),
        Served(
            "POST",
            f"{intent}/{{intent_id}}",
            "Change an intent",
            intents.change,
            "chat",
            IntentChangeBody,
            (_SESSION, _INTENT),
            errors=(409, 410),
            gives=IntentListAnswer,
        ),
    ]
