"""Turns entries of the supervisor's ledger into the events that context decisions use.

Only life-cycle entries and turns become events; all other entry types are ignored, including unknown ones. An event keeps
only the facts that later decisions need, not the payload, so that a long session uses little memory. Another program may have
written a payload, so each field is read as an unknown value: a missing or malformed one reads as absent and is never an error.
This module knows no policy; the fold is in `state.py`.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final, NamedTuple, Protocol, get_args

from kitchener.records import events
from kitchener.records.entries import IntentCloser, MessageImportedPayload, TurnErrorKind, WorkOrderState, payload_as, text_of
from kitchener.records.parts import StoredPart
from kitchener.records.ref import Ref
from kitchener.records.spoken import told_reply
from kitchener.times import as_utc, iso_text

WO_OPENED: Final = "WO_OPENED"
"""The kind of `WO_PLANNED`, and a type of entry that only other programs write."""
WO_CLOSED: Final = "WO_CLOSED"
"""The kind of `WO_COMPLETED` and `WO_FAILED`, and a type of entry that only other programs write."""

COMPLETED: Final = "completed"
"""The outcome of an intent that a model's reply closed, under version 1 of the policy."""
CLOSED_BY_MESSAGE: Final = "closed by the user's message"
"""The outcome of an intent that the classification of a message closed."""
_CLOSERS: Final[tuple[IntentCloser, ...]] = get_args(IntentCloser)
_FAILED: Final[WorkOrderState] = "failed"
"""The `result` of a `WO_CLOSED` that counts as a failure; every other one counts as a success."""

EventKey = tuple[str, str, str]
"""The total order of events: timestamp, entry id, ledger id."""


class SourceEntry(Protocol):
    """The parts of a ledger entry from which an event is made."""

    @property
    def entry_type(self) -> str: ...
    @property
    def entity_id(self) -> str: ...
    @property
    def timestamp(self) -> str: ...
    @property
    def payload(self) -> Mapping[str, object]: ...
    @property
    def ref(self) -> Ref: ...


class Declared(NamedTuple):
    """An intent's declaration."""

    parent_id: str | None
    scope: str
    """`SESSION`, `ARTIFACT`, `PROJECT` or `GLOBAL`."""
    objective: str
    targets: tuple[str, ...]
    session_id: str | None
    """None: not recorded; the intent counts as this session's."""
    adopts_turns: bool
    """The session's earlier turns that have no intent belong to this one."""

    @property
    def is_shared(self) -> bool:
        """Whether other sessions of the subject work under the intent too."""
        return self.scope != events.SESSION_SCOPE


class Superseded(NamedTuple):
    """Another intent or work order replaces this one."""

    by: str | None
    """The replacement; None: not recorded."""
    detail: str


class Ended(NamedTuple):
    """An intent was closed, or an intent or a work order was reopened, abandoned or retired."""

    detail: str
    closed_by: IntentCloser | None = None
    """Who closed the intent; None: it was not closed, or its record does not tell."""


class Forked(NamedTuple):
    """An intent continues in child intents, at most one of them active."""

    children: tuple[str, ...]
    active: str | None


class Opened(NamedTuple):
    """A work order was planned."""

    intent_id: str | None
    wo_type: str
    targets: tuple[str, ...]
    acceptance: tuple[str, ...]
    blocked_by: tuple[str, ...]


class Closed(NamedTuple):
    """A work order was completed or failed."""

    is_failed: bool
    detail: str
    evidence: tuple[Ref, ...] = ()
    """The entries that prove the result, as the event names them."""


class Deferred(NamedTuple):
    """A work order or an intent was deferred."""

    detail: str
    blocked_by: tuple[str, ...]


class Asked(NamedTuple):
    """A turn started, or was aborted."""

    message: str | None
    """The user's message; None: the turn was aborted."""
    speaker: str | None = None
    """The name of the person who said it; None: the user."""


class Brought(NamedTuple):
    """A turn's message brought an image or a file."""

    turn_id: str
    part: StoredPart


class Answered(NamedTuple):
    """A completed turn."""

    intent_id: str | None
    message: str | None
    """The user's message; None: only the turn's `TURN_STARTED` contains it."""
    response: str
    is_failed: bool | None
    """None: the turn was answered without a model, so it neither succeeded nor failed."""
    session_id: str | None


class Said(NamedTuple):
    """A message of an imported conversation."""

    text: str
    is_reply: bool
    """Whether an assistant said it."""
    speaker: str | None
    said_at: str
    """When it was said, ISO time; "": not known."""
    session_id: str | None
    intent_id: str | None = None
    """No intent: nobody declared one for it."""


class Voided(NamedTuple):
    """Another entry no longer counts."""

    target: Ref


Facts = Declared | Superseded | Ended | Forked | Opened | Closed | Deferred | Asked | Brought | Answered | Said | Voided
"""The facts of an event, by kind."""


class SourceEvent(NamedTuple):
    """One event, the input of the fold."""

    kind: str
    """The type of the entry, or `WO_OPENED` or `WO_CLOSED`."""
    entity_id: str
    """The intent, work order or turn of the event."""
    timestamp: str
    """ISO time, UTC, microseconds."""
    ref: Ref
    """The event's ledger entry."""
    facts: Facts
    """The facts that the kind has."""

    @property
    def key(self) -> EventKey:
        """The event's sort key in the total order of events."""
        return (self.timestamp, self.ref.entry_id, self.ref.ledger_id)


def read_event(entry: SourceEntry) -> SourceEvent | None:
    """The event of a ledger entry; None: entries of this type are not events."""
    # Checked first, because reading an entry's payload may decode it.
    if entry.entry_type not in _READERS:
        return None
    return make_event(entry.entry_type, entry.entity_id, entry.timestamp, entry.payload, entry.ref)


def make_event(entry_type: str, entity_id: str, timestamp: str, payload: Mapping[str, object], ref: Ref) -> SourceEvent | None:
    """The event of an entry that is being written, from its parts; None as in `read_event`."""
    reader = _READERS.get(entry_type)
    if reader is None:
        return None
    kind, id_field, read = reader
    facts = read(payload)
    if facts is None:
        return None
    named = payload.get(id_field)
    return SourceEvent(kind, named if isinstance(named, str) and named else entity_id, _utc(timestamp), ref, facts)


def _utc(timestamp: str) -> str:
    """The time in the one form that sorts as text; text that is not a time stays unchanged."""
    if len(timestamp) == _FULL_LENGTH and timestamp.endswith("+00:00"):
        return timestamp
    try:
        time = datetime.fromisoformat(timestamp)
    except ValueError:
        return timestamp
    return iso_text(as_utc(time))


_FULL_LENGTH: Final = len("2026-01-01T00:00:00.000000+00:00")


def _id(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _strings(value: object) -> tuple[str, ...]:
    return tuple([each for each in value if isinstance(each, str)]) if isinstance(value, list | tuple) and value else ()


def _declared(payload: Mapping[str, object]) -> Declared:
    scope = payload.get("scope")
    return Declared(
        _id(payload.get("parent_intent_id")),
        scope.upper() if isinstance(scope, str) and scope else events.SESSION_SCOPE,
        text_of(payload.get("objective")),
        _strings(payload.get("targets")),
        _id(payload.get("session_id")),
        payload.get("adopts_turns") is True,
    )


def _superseded_intent(payload: Mapping[str, object]) -> Superseded:
    return Superseded(_id(payload.get("superseded_by_intent_id")), text_of(payload.get("reason")))


def _superseded_work_order(payload: Mapping[str, object]) -> Superseded:
    return Superseded(_id(payload.get("superseded_by_wo_id")), text_of(payload.get("reason")))


def _ended(payload: Mapping[str, object]) -> Ended:
    return Ended(text_of(payload.get("reason")) or text_of(payload.get("outcome")))


def _closed_intent(payload: Mapping[str, object]) -> Ended:
    return _ended(payload)._replace(closed_by=_closer(payload))


def _closer(payload: Mapping[str, object]) -> IntentCloser | None:
    """Who closed an intent. Version 1 of the policy did not record it; then the fixed outcomes of a turn tell."""
    said = payload.get("closed_by")
    if said is not None:
        return next((each for each in _CLOSERS if each == said), None)
    if "reason" in payload:  # only a call of the user or the program gave one
        return "user" if "turn_id" not in payload else None
    outcome = payload.get("outcome")
    return "reply" if outcome == COMPLETED else "classification" if outcome == CLOSED_BY_MESSAGE else None


def _forked(payload: Mapping[str, object]) -> Forked:
    return Forked(_strings(payload.get("child_intent_ids")), _id(payload.get("active_child_intent_id")))


def _opened(payload: Mapping[str, object]) -> Opened:
    return Opened(
        _id(payload.get("intent_id")),
        text_of(payload.get("wo_type")),
        _strings(payload.get("targets")),
        _strings(payload.get("acceptance")),
        _strings(payload.get("blocked_by")),
    )


def _completed(payload: Mapping[str, object]) -> Closed:
    return _SUCCEEDED if "evidence_refs" not in payload else Closed(False, "", _refs(payload["evidence_refs"]))


_SUCCEEDED: Final = Closed(is_failed=False, detail="")


def _failed(payload: Mapping[str, object]) -> Closed:
    error = payload.get("error")
    detail = text_of(error)
    if isinstance(error, Mapping) and not detail:
        detail = text_of(error.get("detail")) or text_of(error.get("message"))
    why = ": ".join([part for part in (text_of(payload.get("reason")), detail) if part])
    return Closed(True, why, _refs(payload.get("evidence_refs")))


def _closed(payload: Mapping[str, object]) -> Closed:
    return _failed(payload) if payload.get("result") == _FAILED else _completed(payload)


def _refs(value: object) -> tuple[Ref, ...]:
    found = [_ref(each) for each in value] if isinstance(value, list | tuple) and value else ()
    return tuple([each for each in found if each is not None])


def _ref(value: object) -> Ref | None:
    parts = [value.get(each) for each in Ref._fields] if isinstance(value, Mapping) else []
    texts = [each for each in parts if isinstance(each, str)]
    return Ref(*texts) if len(texts) == len(Ref._fields) else None


def _deferred(payload: Mapping[str, object]) -> Deferred:
    return Deferred(text_of(payload.get("reason")), _strings(payload.get("blocked_by")))


def _asked(payload: Mapping[str, object]) -> Asked:
    speaker = payload.get("speaker")
    return Asked(text_of(payload.get("user_message")), None if speaker is None else text_of(speaker))


def _said(payload: Mapping[str, object]) -> Said:
    speaker, said_at = payload.get("speaker"), payload.get("said_at")
    return Said(
        text_of(payload.get("text")),
        payload_as(MessageImportedPayload, payload).get("role") == "assistant",
        None if speaker is None else text_of(speaker),
        _utc(said_at) if isinstance(said_at, str) else "",
        _id(payload.get("session_id")),
    )


def _brought(payload: Mapping[str, object]) -> Brought:
    return Brought(_id(payload.get("turn_id")) or "", StoredPart.from_payload(payload))


def _aborted(payload: Mapping[str, object]) -> Asked:
    return Asked(None)


def _answered(payload: Mapping[str, object]) -> Answered:
    message, error = payload.get("user_message"), payload.get("error")
    return Answered(
        _id(payload.get("intent_id")),
        None if message is None else text_of(message),
        told_reply(payload),
        None if isinstance(error, Mapping) and error.get("kind") in _OWN_ANSWERS else _is_failed(payload),
        _id(payload.get("session_id")),
    )


def _is_failed(payload: Mapping[str, object]) -> bool:
    passed = payload.get("quality_gate_passed")
    return not passed if isinstance(passed, bool) else payload.get("error") is not None


_OWN_ANSWERS: Final[tuple[TurnErrorKind, ...]] = ("UNCLEAR_INTENT", "CONFLICT", "INVALID_LIFECYCLE")
"""Errors of turns that asked the user, or could show nothing to a model."""


def _voided(payload: Mapping[str, object]) -> Voided | None:
    ref = _ref(payload.get("ref"))
    return Voided(ref) if ref is not None else None  # without a reference it voids nothing


_Reader = Callable[[Mapping[str, object]], Facts | None]
_READERS: Final[Mapping[str, tuple[str, str, _Reader]]] = {
    events.INTENT_DECLARED: (events.INTENT_DECLARED, "intent_id", _declared),
    events.INTENT_SUPERSEDED: (events.INTENT_SUPERSEDED, "intent_id", _superseded_intent),
    events.INTENT_REOPENED: (events.INTENT_REOPENED, "intent_id", _ended),
    events.INTENT_CLOSED: (events.INTENT_CLOSED, "intent_id", _closed_intent),
    events.INTENT_ABANDONED: (events.INTENT_ABANDONED, "intent_id", _ended),
    events.INTENT_RETIRED: (events.INTENT_RETIRED, "intent_id", _ended),
    events.INTENT_DEFERRED: (events.INTENT_DEFERRED, "intent_id", _deferred),
    events.INTENT_FORKED: (events.INTENT_FORKED, "parent_intent_id", _forked),
    events.WO_PLANNED: (WO_OPENED, "wo_id", _opened),
    WO_OPENED: (WO_OPENED, "wo_id", _opened),
    events.WO_COMPLETED: (WO_CLOSED, "wo_id", _completed),
    events.WO_FAILED: (WO_CLOSED, "wo_id", _failed),
    WO_CLOSED: (WO_CLOSED, "wo_id", _closed),
    events.WO_SUPERSEDED: (events.WO_SUPERSEDED, "wo_id", _superseded_work_order),
    events.WO_ABANDONED: (events.WO_ABANDONED, "wo_id", _ended),
    events.WO_RETIRED: (events.WO_RETIRED, "wo_id", _ended),
    events.WO_REOPENED: (events.WO_REOPENED, "wo_id", _ended),
    events.WO_DEFERRED: (events.WO_DEFERRED, "wo_id", _deferred),
    events.TURN_STARTED: (events.TURN_STARTED, "turn_id", _asked),
    events.PART_ATTACHED: (events.PART_ATTACHED, "", _brought),
    events.TURN_COMPLETED: (events.TURN_COMPLETED, "turn_id", _answered),
    events.TURN_ABORTED: (events.TURN_ABORTED, "turn_id", _aborted),
    events.MESSAGE_IMPORTED: (events.MESSAGE_IMPORTED, "turn_id", _said),
    events.LIFECYCLE_VOIDED: (events.LIFECYCLE_VOIDED, "entity_id", _voided),
}
"""Entry type to the kind of event, the payload field with the entity's id, and the function that reads the facts."""

FOLDED_TYPES: Final = frozenset(_READERS)
"""The entry types that become events."""
