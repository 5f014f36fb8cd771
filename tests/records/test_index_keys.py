"""Under which keys entries are found; explained in docs/ledger.md."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.ids import OPERATOR
from kitchener.records import events
from kitchener.records.index_keys import (
    APPROVALS_KEY,
    CONSOLIDATIONS_KEY,
    SEALING_KEY,
    SIGNERS_KEY,
    aborted_index_key,
    bias_index_key,
    erased_index_key,
    external_index_key,
    idempotency_index_key,
    index_keys,
    source_index_key,
    subject_index_key,
    turn_index_key,
)
from tests.records.test_events import ENTRY_TYPES

SESSION, SUBJECT = "SES-00000001", "ada"


def started(subject: str, key: str | None, *, scope: str = "subject", session: str = SESSION) -> dict[str, Any]:
    payload = {"session_id": session, "subject_id": subject}
    return payload if key is None else {**payload, "idempotency_key": key, "idempotency_scope": scope}


def test_sessions_are_found_in_lists_and_by_their_external_id() -> None:
    assert index_keys(events.SESSION_START, {"session_id": SESSION}) == ("sessions",)
    named = {"session_id": SESSION, "subject_id": SUBJECT, "external_id": "chat-7"}
    assert index_keys(events.SESSION_START, named) == ("sessions", external_index_key(SUBJECT, "chat-7"))
    anonymous = {**named, "subject_id": f"anon-{SESSION}"}
    assert index_keys(events.SESSION_START, anonymous) == ("sessions", external_index_key(None, "chat-7"))
    assert external_index_key("a", "b|c") != external_index_key("a|b", "c")
    assert index_keys(events.SESSION_END, {"session_id": SESSION}) == ("ended",)


def test_a_message_is_found_by_its_key_in_its_scope() -> None:
    assert index_keys(events.TURN_STARTED, started(SUBJECT, None)) == ()
    of_subject = index_keys(events.TURN_STARTED, started(SUBJECT, "k"))
    of_session = index_keys(events.TURN_STARTED, started(SUBJECT, "k", scope="session"))
    assert of_subject == (idempotency_index_key("subject", SUBJECT, "k"),)
    assert of_session == (idempotency_index_key("session", SESSION, "k"),)
    assert of_subject != of_session


def test_a_turn_is_found_by_its_id_by_its_subject_and_by_the_lines_it_was_shown() -> None:
    begun = index_keys(events.TURN_STARTED, {**started(SUBJECT, "k"), "turn_id": "T-1"})
    assert begun == (turn_index_key("T-1"), idempotency_index_key("subject", SUBJECT, "k"))
    payload = {"session_id": SESSION, "subject_id": SUBJECT}
    assert index_keys(events.TURN_COMPLETED, payload) == (subject_index_key(SUBJECT),)
    assert index_keys(events.TURN_ABORTED, payload) == (aborted_index_key(SUBJECT),)
    assert index_keys(events.TURN_ABORTED, {}) == ()
    shown = {**payload, "attention": {"biases": ["ART-1", "ART-2"]}}
    assert index_keys(events.WO_PLANNED, shown) == (
        bias_index_key(SUBJECT, "ART-1"),
        bias_index_key(SUBJECT, "ART-2"),
    )


def test_consolidations_are_found_by_being_some() -> None:
    """So that a start finds those that a crash left open, without looking at anything else."""
    payload = {"session_id": "CONS-0000000000000001", "wo_type": "consolidate"}
    assert index_keys(events.WO_PLANNED, payload) == (CONSOLIDATIONS_KEY,)
    assert index_keys(events.WO_DISPATCHED, payload) == ()


def test_the_signers_are_found_by_being_some() -> None:
    assert index_keys(events.SIGNER_DECLARED, {"signer": None, "public_key": None}) == (SIGNERS_KEY,)


def test_where_sealing_starts_is_found_without_a_scan() -> None:
    assert index_keys(events.SEALING_CHANGED, {"is_sealed": True, "key_id": "0a"}) == (SEALING_KEY,)


def test_requests_for_approval_and_their_answers_are_found_by_being_some() -> None:
    """So that the open requests of all sessions are listed without a scan."""
    for entry_type in (events.APPROVAL_REQUESTED, events.APPROVAL_RESOLVED):
        assert index_keys(entry_type, {"session_id": SESSION, "subject_id": SUBJECT}) == (APPROVALS_KEY,)


def test_a_source_is_found_by_its_hash() -> None:
    payload = {"subject_id": OPERATOR, "hash": "sha256:00", "text": "Be kind."}
    assert index_keys(events.SOURCE_RECORDED, payload) == (source_index_key("sha256:00"),)


def test_an_imported_message_is_found_with_the_turns_of_its_subject() -> None:
    payload = {"session_id": SESSION, "subject_id": SUBJECT, "turn_id": "T-1", "role": "user", "text": "hello"}
    assert index_keys(events.MESSAGE_IMPORTED, payload) == (subject_index_key(SUBJECT),)


def test_an_erasure_is_found_by_its_subject() -> None:
    payload = {"subject_id": SUBJECT, "key_id": "0a"}
    assert index_keys(events.SUBJECT_ERASED, payload) == (erased_index_key(SUBJECT),)


KEYED = {
    "APPROVAL_REQUESTED",
    "APPROVAL_RESOLVED",
    "SEALING_CHANGED",
    "SIGNER_DECLARED",
    "SOURCE_RECORDED",
    "SESSION_START",
    "SESSION_END",
    "TURN_STARTED",
    "TURN_COMPLETED",
    "TURN_ABORTED",
    "MESSAGE_IMPORTED",
    "SUBJECT_ERASED",
    "LIFECYCLE_VOIDED",
}


@pytest.mark.parametrize("entry_type", sorted(set(ENTRY_TYPES) - KEYED))
def test_other_entries_are_found_by_their_session_alone(entry_type: str) -> None:
    assert index_keys(entry_type, {"session_id": SESSION, "subject_id": SUBJECT, "external_id": "x"}) == ()


@given(st.lists(st.text("ab:", min_size=1, max_size=2), min_size=3, max_size=4), st.data())
def test_two_keys_are_the_same_only_if_owner_and_key_are(words: list[str], data: st.DataObject) -> None:
    """Regression: subject `a` with key `b|c` was answered with what subject `a|b` with key `c` had been told."""
    cuts = [data.draw(st.integers(1, len(words) - 1)) for _ in range(2)]
    one, other = [("|".join(words[:cut]), "|".join(words[cut:])) for cut in cuts]
    same = idempotency_index_key("subject", *one) == idempotency_index_key("subject", *other)
    assert same == (one == other)
