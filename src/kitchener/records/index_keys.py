"""The index keys of HO2m: under which keys an entry is found without a scan, besides its session.

Keys contain ids only and nothing that is sealed, because an index is not encrypted.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from kitchener.ids import anonymous_subject
from kitchener.records.entries import IdempotencyScope, TurnStartedPayload, WorkOrderPlannedPayload, payload_as
from kitchener.records.events import (
    APPROVAL_REQUESTED,
    APPROVAL_RESOLVED,
    CONTEXT_IMPORTED,
    IMPORTED_TYPES,
    MESSAGE_IMPORTED,
    OF_SHARED_INTENTS,
    SEALING_CHANGED,
    SESSION_END,
    SESSION_START,
    SIGNER_DECLARED,
    SOURCE_RECORDED,
    SUBJECT_ERASED,
    TURN_ABORTED,
    TURN_COMPLETED,
    TURN_STARTED,
    WO_PLANNED,
    is_of_shared_intent,
)

CONSOLIDATIONS_KEY: Final = "consolidations"
"""The index key of every planned consolidation."""
SIGNERS_KEY: Final = "signers"
"""The index key of every declared signer of projections."""
SEALING_KEY: Final = "sealing"
"""The index key of every entry that says that content is sealed from now on, or no longer."""
SESSIONS_KEY: Final = "sessions"
"""The index key of the first entry of every session."""
APPROVALS_KEY: Final = "approvals"
"""The index key of every request for approval and of every answer to one."""
SHARED_INTENTS_KEY: Final = "shared intents"
"""The index key of all entries about intents that belong to a subject."""

_FIXED_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    SIGNER_DECLARED: (SIGNERS_KEY,),
    SEALING_CHANGED: (SEALING_KEY,),
    APPROVAL_REQUESTED: (APPROVALS_KEY,),
    APPROVAL_RESOLVED: (APPROVALS_KEY,),
}
_OF_SUBJECT: Final = (TURN_COMPLETED, MESSAGE_IMPORTED, TURN_ABORTED)
"""Entries with what was said, which the subject's other sessions may recall, and the ends of turns that were cut off."""
_KEYED_TYPES: Final = frozenset(
    (
        SESSION_START,
        TURN_STARTED,
        *_OF_SUBJECT,
        WO_PLANNED,
        SUBJECT_ERASED,
        *_FIXED_KEYS,
        SESSION_END,
        *OF_SHARED_INTENTS,
        *IMPORTED_TYPES,
        SOURCE_RECORDED,
    )
)


def index_keys(entry_type: str, payload: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the index keys under which an entry of HO2m is found without a scan, besides its session.

    There are keys for sessions, and for sessions by their subject's external id; for messages by turn and by idempotency key;
    for work orders by the learned lines that they were shown; for consolidations; for shared intents and erasures by subject;
    for sources by their hash; for requests for approval and their answers.
    """
    if entry_type not in _KEYED_TYPES:
        return ()
    if entry_type == WO_PLANNED:
        if payload_as(WorkOrderPlannedPayload, payload).get("wo_type") == "consolidate":
            return (CONSOLIDATIONS_KEY,)
        attention = payload.get("attention")
        biases = attention.get("biases") if attention is not None else None
        return tuple(bias_index_key(str(payload.get("subject_id")), each) for each in biases) if biases else ()
    if entry_type == TURN_STARTED:
        return _keys_of_message(payload)
    subject_id = payload.get("subject_id")  # an entry that another program wrote may lack fields
    if entry_type in _OF_SUBJECT:
        key = aborted_index_key if entry_type == TURN_ABORTED else subject_index_key
        return (key(subject_id),) if isinstance(subject_id, str) else ()
    if entry_type == SESSION_START:
        external = payload.get("external_id")
        if external is None or not isinstance(subject_id, str):
            return (SESSIONS_KEY,)
        is_anonymous = subject_id == anonymous_subject(str(payload.get("session_id")))
        return (SESSIONS_KEY, external_index_key(None if is_anonymous else subject_id, str(external)))
    if entry_type == SUBJECT_ERASED:
        return (erased_index_key(str(subject_id)),)
    if entry_type in _FIXED_KEYS:
        return _FIXED_KEYS[entry_type]
    if entry_type == SOURCE_RECORDED:
        return (source_index_key(str(payload.get("hash"))),)
    if entry_type in OF_SHARED_INTENTS:
        is_shared = is_of_shared_intent(entry_type, payload)
        return (SHARED_INTENTS_KEY, shared_intents_key(subject_id)) if is_shared and isinstance(subject_id, str) else ()
    return ("ended",) if entry_type == SESSION_END else keys_of_imported(index_keys, entry_type, payload)


def keys_of_imported(
    keys: Callable[[str, Mapping[str, Any]], tuple[str, ...]], entry_type: str, payload: Mapping[str, object]
) -> tuple[str, ...]:
    """Returns the index keys of an entry that an import brought; none for every other entry.

    Args:
        keys: gives the keys of the entry that it holds
        entry_type: `ENTRY_IMPORTED`, `CONTEXT_IMPORTED` or any other type
        payload: its payload
    """
    if entry_type not in IMPORTED_TYPES:
        return ()
    held, origin = payload.get("entry"), payload.get("origin")
    if not isinstance(held, dict) or not isinstance(origin, dict):
        return ()  # another program wrote it; reading it is refused
    own = (imported_key(str(payload.get("import_of"))), imported_entry_key(str(origin.get("entry_id"))))
    if entry_type == CONTEXT_IMPORTED or "is_known" in payload:
        return own
    return (*own, *keys(str(held.get("entry_type")), held.get("payload", {})))


def _keys_of_message(payload: Mapping[str, Any]) -> tuple[str, ...]:
    keys = (turn_index_key(payload["turn_id"]),) if "turn_id" in payload else ()
    if "idempotency_key" not in payload:
        return keys
    call = payload_as(TurnStartedPayload, payload)
    scope = call["idempotency_scope"]
    owner = call["session_id"] if scope == "session" else call["subject_id"]
    return (*keys, idempotency_index_key(scope, owner, call["idempotency_key"]))


def subject_index_key(subject_id: str) -> str:
    """The index key of a subject's completed turns and imported messages."""
    return f"turns of:{subject_id}"


def aborted_index_key(subject_id: str) -> str:
    """The index key of a subject's turns that were cut off."""
    return f"aborted of:{subject_id}"


def erased_index_key(subject_id: str) -> str:
    """The index key of a subject's erasures."""
    return f"erased:{subject_id}"


def source_index_key(source_hash: str) -> str:
    """The index key of the entries that hold a source of requests, such as a prompt pack."""
    return f"source:{source_hash}"


def shared_intents_key(subject_id: str) -> str:
    """The index key of the entries about the intents that a subject's sessions share."""
    return f"{SHARED_INTENTS_KEY} of:{subject_id}"


def imported_key(session_id: str) -> str:
    """The index key of the entries that the import of a session brought."""
    return f"import of:{session_id}"


def imported_entry_key(entry_id: str) -> str:
    """The index key of an imported entry by the id that it had where it was written."""
    return f"imported:{entry_id}"


def turn_index_key(turn_id: str) -> str:
    """The index key of the entry that began a turn, which contains the turn's message."""
    return f"turn:{turn_id}"


def bias_index_key(subject_id: str, artifact_id: str) -> str:
    """The index key of the work orders that were shown a learned line of a subject."""
    return f"bias:{len(subject_id)}:{subject_id}|{artifact_id}"


def external_index_key(subject_id: str | None, external_id: str) -> str:
    """The index key of the sessions that a subject started with an external id; None: the sessions without a subject."""
    owner = subject_id or ""
    return f"external of:{len(owner)}:{owner}|{external_id}"


def idempotency_index_key(scope: IdempotencyScope, owner: str, key: str) -> str:
    """The index key of an idempotency key, which belongs to a session or to a subject."""
    # The length separates owner and key, whatever characters they contain.
    return f"idempotency:{scope}:{len(owner)}:{owner}|{key}"
