"""Turns entries of the supervisor's ledger into the events that context decisions use.

Only life-cycle entries and turns become events; all other entry types are ignored, including unknown ones. An event keeps
only the facts that later decisions need, not the payload, so that a long session uses little memory. Another program may have
written a payload: a missing or malformed field reads as absent and is never an error. This module knows no policy; the fold
is in `state.py`.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol

from kitchener.records.ref import Ref

INTENT_DECLARED: Final = "INTENT_DECLARED"
INTENT_SUPERSEDED: Final = "INTENT_SUPERSEDED"
INTENT_REOPENED: Final = "INTENT_REOPENED"
INTENT_CLOSED: Final = "INTENT_CLOSED"
INTENT_ABANDONED: Final = "INTENT_ABANDONED"
INTENT_DEFERRED: Final = "INTENT_DEFERRED"
INTENT_FORKED: Final = "INTENT_FORKED"
WO_OPENED: Final = "WO_OPENED"
WO_CLOSED: Final = "WO_CLOSED"
WO_SUPERSEDED: Final = "WO_SUPERSEDED"
WO_ABANDONED: Final = "WO_ABANDONED"
WO_DEFERRED: Final = "WO_DEFERRED"
TURN_STARTED: Final = "TURN_STARTED"
TURN_COMPLETED: Final = "TURN_COMPLETED"
TURN_ABORTED: Final = "TURN_ABORTED"
LIFECYCLE_VOIDED: Final = "LIFECYCLE_VOIDED"

ERASED: Final = "[erased]"
"""Stands for text whose key is gone."""

EventKey = tuple[str, str, str]
"""The total order of events: timestamp, entry id, ledger id."""


class SourceEntry(Protocol):
    """What an entry must have to become an event; an entry of the ledger does."""

    @property
    def entry_type(self) -> str: ...
    @property
    def entity_id(self) -> str: ...
    @property
    def timestamp(self) -> str: ...
    @property
    def payload(self) -> Mapping[str, Any]: ...
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
    """None: the ledger does not say; it counts as this session's."""
    adopts_turns: bool
    """The session's earlier turns that have no intent belong to this one."""


class Superseded(NamedTuple):
    """An intent or a work order gives way to another."""

    by: str | None
    detail: str


class Ended(NamedTuple):
    """Any other change of an intent or a work order that needs no more than a reason."""

    detail: str


class Forked(NamedTuple):
    """An intent continues in children, of which at most one is active."""

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
    """A work order came to its end."""

    is_failed: bool
    detail: str


class Deferred(NamedTuple):
    """A work order or an intent waits."""

    detail: str
    blocked_by: tuple[str, ...]


class Asked(NamedTuple):
    """A turn's message; None: the turn is over without a reply."""

    message: str | None


class Answered(NamedTuple):
    """A completed turn."""

    intent_id: str | None
    message: str | None
    """None: it stands in the turn's first entry."""
    response: str
    is_failed: bool | None
    """None: it was answered without a model, so that nothing could succeed or fail."""
    session_id: str | None


class Voided(NamedTuple):
    """Another entry is declared void."""

    target: Ref


Facts = Declared | Superseded | Ended | Forked | Opened | Closed | Deferred | Asked | Answered | Voided
"""What an event says, by kind."""


class SourceEvent(NamedTuple):
    """One event, as the fold takes it."""

    kind: str
    """What happened, in the words of this module."""
    entity_id: str
    """To whom."""
    timestamp: str
    """ISO time, UTC, microseconds."""
    ref: Ref
    """The entry it was read from."""
    facts: Facts
    """What else it says."""

    @property
    def key(self) -> EventKey:
        """Its place in the order of all events."""
        return (self.timestamp, self.ref.entry_id, self.ref.ledger_id)


def read_event(entry: SourceEntry) -> SourceEvent | None:
    """The event that a ledger entry stands for, or None if its type means nothing here."""
    # Asked first, because looking at an entry's payload may mean decoding it.
    if entry.entry_type not in _READERS:
        return None
    return make_event(entry.entry_type, entry.entity_id, entry.timestamp, entry.payload, entry.ref)


def make_event(entry_type: str, entity_id: str, timestamp: str, payload: Mapping[str, Any], ref: Ref) -> SourceEvent | None:
    """The same from its parts, for an entry that is just being written."""
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
    """The time in the one form that sorts as text; what is no time stays as it is."""
    if len(timestamp) == _FULL_LENGTH and timestamp.endswith("+00:00"):
        return timestamp
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return timestamp
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment.isoformat(timespec="microseconds")


_FULL_LENGTH: Final = len("2026-01-01T00:00:00.000000+00:00")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return ERASED if isinstance(value, Mapping) and "$sealed" in value else ""


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _names(value: Any) -> tuple[str, ...]:
    return tuple([each for each in value if isinstance(each, str)]) if isinstance(value, list | tuple) and value else ()


def _declared(payload: Mapping[str, Any]) -> Declared:
    scope = payload.get("scope")
    return Declared(
        _name(payload.get("parent_intent_id")),
        scope.upper() if isinstance(scope, str) and scope else "SESSION",
        _text(payload.get("objective")),
        _names(payload.get("targets")),
        _name(payload.get("session_id")),
        payload.get("adopts_turns") is True,
    )


def _superseded_intent(payload: Mapping[str, Any]) -> Superseded:
    return Superseded(_name(payload.get("superseded_by_intent_id")), _text(payload.get("reason")))


def _superseded_work_order(payload: Mapping[str, Any]) -> Superseded:
    return Superseded(_name(payload.get("superseded_by_wo_id")), _text(payload.get("reason")))


def _ended(payload: Mapping[str, Any]) -> Ended:
    return Ended(_text(payload.get("reason")) or _text(payload.get("outcome")))


def _forked(payload: Mapping[str, Any]) -> Forked:
    return Forked(_names(payload.get("child_intent_ids")), _name(payload.get("active_child_intent_id")))


def _opened(payload: Mapping[str, Any]) -> Opened:
    return Opened(
        _name(payload.get("intent_id")),
        _text(payload.get("wo_type")),
        _names(payload.get("targets")),
        _names(payload.get("acceptance")),
        _names(payload.get("blocked_by")),
    )


def _completed(payload: Mapping[str, Any]) -> Closed:
    return _SUCCEEDED


_SUCCEEDED: Final = Closed(is_failed=False, detail="")


def _failed(payload: Mapping[str, Any]) -> Closed:
    error = payload.get("error")
    detail = _text(error)
    if isinstance(error, Mapping) and not detail:
        detail = _text(error.get("detail")) or _text(error.get("message"))
    return Closed(True, ": ".join([part for part in (_text(payload.get("reason")), detail) if part]))


def _closed(payload: Mapping[str, Any]) -> Closed:
    return _failed(payload) if payload.get("result") == "failed" else _SUCCEEDED


def _deferred(payload: Mapping[str, Any]) -> Deferred:
    return Deferred(_text(payload.get("reason")), _names(payload.get("blocked_by")))


def _asked(payload: Mapping[str, Any]) -> Asked:
    return Asked(_text(payload.get("user_message")))


def _aborted(payload: Mapping[str, Any]) -> Asked:
    return Asked(None)


def _answered(payload: Mapping[str, Any]) -> Answered:
    message, error = payload.get("user_message"), payload.get("error")
    return Answered(
        _name(payload.get("intent_id")),
        None if message is None else _text(message),
        _text(payload.get("response")),
        None if isinstance(error, Mapping) and error.get("kind") in _OWN_ANSWERS else _is_failed(payload),
        _name(payload.get("session_id")),
    )


def _is_failed(payload: Mapping[str, Any]) -> bool:
    passed = payload.get("quality_gate_passed")
    return not passed if isinstance(passed, bool) else payload.get("error") is not None


_OWN_ANSWERS: Final = ("UNCLEAR_INTENT", "CONFLICT", "INVALID_LIFECYCLE")
"""Errors of turns in which somebody was asked something, or nothing could be shown to a model."""


def _voided(payload: Mapping[str, Any]) -> Voided | None:
    try:
        return Voided(Ref.from_mapping(payload["ref"]))
    except (KeyError, TypeError):
        return None  # it names nothing, so it voids nothing


_Reader = Callable[[Mapping[str, Any]], Facts | None]
_READERS: Final[Mapping[str, tuple[str, str, _Reader]]] = {
    "INTENT_DECLARED": (INTENT_DECLARED, "intent_id", _declared),
    "INTENT_SUPERSEDED": (INTENT_SUPERSEDED, "intent_id", _superseded_intent),
    "INTENT_REOPENED": (INTENT_REOPENED, "intent_id", _ended),
    "INTENT_CLOSED": (INTENT_CLOSED, "intent_id", _ended),
    "INTENT_ABANDONED": (INTENT_ABANDONED, "intent_id", _ended),
    "INTENT_DEFERRED": (INTENT_DEFERRED, "intent_id", _deferred),
    "INTENT_FORKED": (INTENT_FORKED, "parent_intent_id", _forked),
    "WO_PLANNED": (WO_OPENED, "wo_id", _opened),
    "WO_OPENED": (WO_OPENED, "wo_id", _opened),
    "WO_COMPLETED": (WO_CLOSED, "wo_id", _completed),
    "WO_FAILED": (WO_CLOSED, "wo_id", _failed),
    "WO_CLOSED": (WO_CLOSED, "wo_id", _closed),
    "WO_SUPERSEDED": (WO_SUPERSEDED, "wo_id", _superseded_work_order),
    "WO_ABANDONED": (WO_ABANDONED, "wo_id", _ended),
    "WO_DEFERRED": (WO_DEFERRED, "wo_id", _deferred),
    "TURN_STARTED": (TURN_STARTED, "turn_id", _asked),
    "TURN_COMPLETED": (TURN_COMPLETED, "turn_id", _answered),
    "TURN_ABORTED": (TURN_ABORTED, "turn_id", _aborted),
    "LIFECYCLE_VOIDED": (LIFECYCLE_VOIDED, "entity_id", _voided),
}
"""Entry type to the kind of event, the payload's field that names whom it is about, and how the facts are read."""

FOLDED_TYPES: Final = frozenset(_READERS)
"""The entry types that become events; all others are nothing to the fold."""
