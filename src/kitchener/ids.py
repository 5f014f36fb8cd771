"""Defines the types and formats of all ids, and makes them.

Only session ids are random; every other id is derived from the ledger, so that a replay reproduces it.
"""

import hashlib
import re
from collections.abc import Callable
from typing import Final, NewType, Protocol
from urllib.parse import quote, unquote
from uuid import uuid4

from kitchener.canonical import digest as plain_digest
from kitchener.errors import CallerError

SessionId = NewType("SessionId", str)
"""`SES-` and 8 to 32 lower-case hex digits."""
TurnId = NewType("TurnId", str)
"""`T-{session hex}-{n:06d}`, n counted from 1 within the session."""
WorkOrderId = NewType("WorkOrderId", str)
"""`WO-{session_id}-{n:03d}`, n counted from 1 within the session."""
IntentId = NewType("IntentId", str)
"""`INT-` and 16 hex digits derived from session, turn and ordinal."""
SubjectId = NewType("SubjectId", str)
"""The person or team of a conversation and a memory; `anon-{session_id}` if the caller named none."""
EntryId = NewType("EntryId", str)
"""`E-YYYY-MM-DD-{seq:012d}`; sorts as text in append order within a ledger."""

_SESSION = re.compile(r"SES-[0-9a-f]{8,32}")
_TURN = re.compile(r"T-([0-9a-f]{8,32})-\d{6,}")
_APPROVAL = re.compile(r"(WO-(SES-[0-9a-f]{8,32})-\d{3,9})(\.\d{1,6})?")
_ANONYMOUS = "anon-SES-"
_MAX_SUBJECT = 256
_MAX_RECORDED_SUBJECT = 1_024
_AGENT_CLASS = re.compile(r"(?!(?:default|\.\.?)\Z)[A-Za-z0-9._-]{1,64}|RESIDENT:[^\x00-\x1f\x7f/|\ud800-\udfff]{1,64}")
AGENT_CLASS_FORM = "1 to 64 letters, digits, '.', '_' or '-' (not 'default', which all classes inherit), or RESIDENT:<name>"
"""The form of an agent class's name, for errors."""


class IdSource(Protocol):
    """A source of fresh session ids. Tests and replays pass their own."""

    def session_id(self) -> SessionId:
        """Returns a random session id. The caller checks that no session has it yet."""
        ...


class RandomIds:
    """Random session ids, from `uuid4`.

    Args:
        digits: number of hex digits of a session id, 8 to 32
    """

    def __init__(self, digits: int = 8) -> None:
        self._digits = digits

    def session_id(self) -> SessionId:
        """Returns `SES-` and so many random hex digits."""
        return SessionId(f"SES-{uuid4().hex[: self._digits]}")


def is_session_id(text: str) -> bool:
    """Whether `text` has the form of a session id."""
    return _SESSION.fullmatch(text) is not None


def is_agent_class(text: str) -> bool:
    """Whether `text` has the form of an agent class's name (`AGENT_CLASS_FORM`)."""
    return _AGENT_CLASS.fullmatch(text) is not None


def turn_id(session_id: str, number: int) -> TurnId:
    """The id of a session's n-th turn."""
    return TurnId(f"T-{session_id[4:]}-{number:06d}")


def session_of_turn(turn: str) -> SessionId | None:
    """The session that a turn id belongs to, or None if `turn` is not a turn id."""
    found = _TURN.fullmatch(turn)
    return SessionId(f"SES-{found[1]}") if found else None


def session_of_valid_turn(turn: str, option: str = "") -> SessionId:
    """The session that a turn id belongs to.

    Args:
        turn: the turn id
        option: the command-line option that gave it, for the error

    Raises:
        CallerError: `turn` is not a turn id
    """
    found = session_of_turn(turn)
    if found is None:
        given = f"{option} {turn!r}".lstrip()
        raise CallerError(f"{given} is not a turn id: expected T-, the session's hex digits, - and six digits")
    return found


def work_order_id(session_id: str, number: int) -> WorkOrderId:
    """The id of a session's n-th work order."""
    return WorkOrderId(f"WO-{session_id}-{number:03d}")


def approval_id(wo_id: str, call: int) -> str:
    """The id of the request to approve the n-th tool call of a work order."""
    return f"{wo_id}.{call}"


def split_approval_id(text: str) -> tuple[SessionId, str, str | None]:
    """Returns the session and the work order of a request, and the request; None: the text names the work order itself.

    Raises:
        CallerError: the text is neither the id of a request nor of a work order
    """
    found = _APPROVAL.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise CallerError(f"approval_id = {text!r:.80}: expected WO-SES-…-001.1, or WO-SES-…-001 for all its requests")
    return SessionId(found[2]), found[1], text if found[3] else None


def intent_id(session_id: str, turn: str, ordinal: int) -> IntentId:
    """Returns the id of an intent. It is derived, so a replay gets the same id.

    Args:
        session_id: the session that declares the intent
        turn: the turn that declares the intent; "": it is declared outside a turn
        ordinal: the intent's number, from 1, among those of this session and turn
    """
    return IntentId(f"INT-{hashlib.sha256(f'{session_id}|{turn}|{ordinal}'.encode()).hexdigest()[:16]}")


def anonymous_subject(session_id: str) -> SubjectId:
    """Returns the subject of a session that was started without one. No other session has it."""
    return SubjectId(f"anon-{session_id}")


OPERATOR: Final = SubjectId("kitchener-operator")
"""Owner of what an operator configures. Its key seals the recorded sources of requests, so nobody erases it."""


def check_subject_id(subject_id: object) -> None:
    """Raises CallerError unless this can be the id of a subject. All interfaces use this check."""
    if not isinstance(subject_id, str) or not 1 <= len(subject_id) <= _MAX_SUBJECT or not subject_id.isprintable():
        raise CallerError(f"subject_id = {subject_id!r:.80}: expected 1 to {_MAX_SUBJECT} printable characters")


def check_caller(subject_id: str, session_id: str | None) -> None:
    """Raises CallerError unless a caller may name this subject.

    `anon-SES-…` is the subject of a session that was started without one. A caller may name it only together with that session.

    Args:
        subject_id: the subject that the caller names
        session_id: the session that the caller names
    """
    check_subject_id(subject_id)
    if subject_id == OPERATOR:
        raise CallerError(f"subject_id = {subject_id!r}: names the owner of what is configured; choose another id")
    if subject_id.startswith(_ANONYMOUS) and (session_id is None or subject_id != anonymous_subject(session_id)):
        raise CallerError(
            f"subject_id = {subject_id!r:.80}: {_ANONYMOUS!r} begins the ids of anonymous subjects;"
            " name their session, or choose another id"
        )


def check_recorded_subject(subject_id: object) -> None:
    """Raises CallerError unless this can be the id of a recorded subject. Earlier versions did not check ids.

    For operators, who can read and erase all that is recorded about a subject.
    """
    if isinstance(subject_id, str) and 1 <= len(subject_id) <= _MAX_RECORDED_SUBJECT and _is_unicode(subject_id):
        return
    raise CallerError(f"subject_id = {subject_id!r:.80}: expected 1 to {_MAX_RECORDED_SUBJECT} characters of Unicode text")


def check_erasable(subject_id: object) -> None:
    """Raises CallerError unless this can be the id of a subject that may be erased."""
    check_recorded_subject(subject_id)
    if subject_id == OPERATOR:
        raise CallerError(f"subject_id = {subject_id!r}: names the owner of what is configured, which cannot be erased")


def _is_unicode(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)  # half of a surrogate pair has no UTF-8 form


def tool_idempotency_key(
    turn: str, wo_id: str, call: int, tool_id: str, arguments: bytes, digest: Callable[[bytes], str] = plain_digest
) -> str:
    """Returns a stable key for one tool call. Equal arguments of this function give equal keys.

    Args:
        turn, wo_id, call: the position of the call
        tool_id: the tool
        arguments: the tool's arguments as canonical JSON
        digest: returns a hash with a prefix and a colon; keyed if arguments are sealed, because short ones could be guessed
    """
    text = f"{turn}|{wo_id}|{call}|{tool_id}|".encode() + arguments
    return f"TK-{digest(text).partition(':')[2][:32]}"


def path_part(text: str) -> str:
    """Returns `text` percent-encoded, for use as a directory name or inside a ledger id."""
    return quote(text, safe="")


def memory_namespace(agent_class: str, subject_id: str) -> str:
    """Returns the namespace of a subject's memory: `agent_class/subject_id`, both percent-encoded."""
    return f"{path_part(agent_class)}/{path_part(subject_id)}"


def split_namespace(namespace: str) -> tuple[str | None, str]:
    """Returns agent class and subject of a namespace. A namespace without a slash is a subject without an agent class."""
    agent_class, slash, subject = namespace.partition("/")
    return (unquote(agent_class), unquote(subject)) if slash else (None, namespace)


def consolidation_session(namespace: str, signal_id: str, window_key: str) -> SessionId:
    """Returns the session id of a signal's consolidation in a window. It is derived and belongs to no conversation."""
    return SessionId(f"CONS-{hashlib.sha256(f'{namespace}|{signal_id}|{window_key}'.encode()).hexdigest()[:16]}")
