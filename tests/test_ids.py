"""The forms of ids, and what is derived from what; explained in docs/ledger-entries.md."""

import hashlib
import re
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.errors import CallerError
from kitchener.ids import (
    RandomIds,
    anonymous_subject,
    check_caller,
    check_recorded_subject,
    check_subject_id,
    is_agent_class,
    is_session_id,
    path_part,
    session_of_turn,
    tool_idempotency_key,
    turn_id,
    work_order_id,
)

hex_digits = st.text("0123456789abcdef", min_size=8, max_size=32)
numbers = st.integers(1, 10**7)


@pytest.mark.parametrize("digits", [8, 16, 32])
def test_a_random_session_id_has_as_many_digits_as_asked_for(digits: int) -> None:
    ids = {RandomIds(digits).session_id() for _ in range(50)}
    assert all(re.fullmatch(rf"SES-[0-9a-f]{{{digits}}}", each) for each in ids)
    assert all(map(is_session_id, ids))
    assert len(ids) > 45


def test_random_session_ids_have_eight_digits_unless_told_otherwise() -> None:
    assert len(RandomIds().session_id()) == len("SES-") + 8


@pytest.mark.parametrize(
    "text",
    [
        "",
        "SES-",
        "SES-1234567",
        "SES-" + "0" * 33,
        "SES-0000000G",
        "SES-0000000A",
        "ses-00000000",
        "SES-00000000\n",
        " SES-00000000",
    ],
)
def test_what_is_no_session_id(text: str) -> None:
    assert not is_session_id(text)


@pytest.mark.parametrize(
    "text",
    [
        "ADMIN",
        "RESIDENT:bo",
        "RESIDENT:Ünal der Große",
        "RESIDENT:a:b",
        "RESIDENT:" + "x" * 64,
        "support",
        "eu.Support_2-x",
        "x" * 64,
        "RESIDENT",
        "admin",
        "...",
    ],
)
def test_what_is_an_agent_class(text: str) -> None:
    assert is_agent_class(text)


@pytest.mark.parametrize(
    "text",
    ["", "ADMIN ", "ADMIN:x", "default", ".", "..", "support\n", "a/b", "ü", "x" * 65, "RESIDENT:", "RESIDENT:" + "x" * 65]
    + [f"RESIDENT:a{each}b" for each in "/|\x00\n\x1f"],
)
def test_what_is_no_agent_class(text: str) -> None:
    assert not is_agent_class(text)


def test_ids_within_a_session_are_made_of_its_id_and_a_number() -> None:
    assert turn_id("SES-0000000a", 1) == "T-0000000a-000001"
    assert turn_id("SES-0000000a", 1_234_567) == "T-0000000a-1234567"
    assert work_order_id("SES-0000000a", 7) == "WO-SES-0000000a-007"
    assert work_order_id("SES-0000000a", 1_000) == "WO-SES-0000000a-1000"
    assert anonymous_subject("SES-0000000a") == "anon-SES-0000000a"


@given(hex_digits, numbers)
def test_a_turn_id_leads_back_to_its_session(digits: str, number: int) -> None:
    assert session_of_turn(turn_id(f"SES-{digits}", number)) == f"SES-{digits}"


@pytest.mark.parametrize(
    "text", ["", "T-0000000a-00001", "T-0000000-000001", "T-0000000A-000001", "WO-SES-0000000a-001", "T-0000000a-000001x"]
)
def test_what_is_no_turn_id_leads_to_no_session(text: str) -> None:
    assert session_of_turn(text) is None


@given(hex_digits, st.lists(numbers, min_size=2, max_size=2, unique=True))
def test_ids_of_different_numbers_differ(digits: str, pair: list[int]) -> None:
    session = f"SES-{digits}"
    assert turn_id(session, pair[0]) != turn_id(session, pair[1])
    assert work_order_id(session, pair[0]) != work_order_id(session, pair[1])


def test_a_tool_call_s_key_is_a_hash_of_where_it_stands_and_what_it_does() -> None:
    key = tool_idempotency_key("T-0000000a-000001", "WO-SES-0000000a-002", 1, "send", b'{"to":"ada"}')
    text = b'T-0000000a-000001|WO-SES-0000000a-002|1|send|{"to":"ada"}'
    assert key == f"TK-{hashlib.sha256(text).hexdigest()[:32]}"


def test_a_tool_call_s_key_changes_with_each_of_its_parts() -> None:
    given_call = ("T-0000000a-000001", "WO-SES-0000000a-002", 1, "send", b"{}")
    others = [
        ("T-0000000a-000002", *given_call[1:]),
        (given_call[0], "WO-SES-0000000a-003", *given_call[2:]),
        (*given_call[:2], 2, *given_call[3:]),
        (*given_call[:3], "mail", given_call[4]),
        (*given_call[:4], b'{"a":1}'),
    ]
    keys = {tool_idempotency_key(*each) for each in [given_call, *others]}
    assert len(keys) == 6
    assert tool_idempotency_key(*given_call) in keys


@given(st.text(min_size=1).filter(lambda text: text.isprintable()))
def test_a_path_part_is_one_plain_name_that_can_be_read_back(text: str) -> None:
    part = path_part(text)
    assert re.fullmatch(r"[A-Za-z0-9_.~%-]+", part)
    assert unquote(part) == text


def test_an_agent_class_as_a_directory() -> None:
    assert path_part("RESIDENT:bo") == "RESIDENT%3Abo"
    assert path_part("ADMIN") == "ADMIN"


@pytest.mark.parametrize("wrong", ["", "a\0b", "a\n", "\ud800", "\u202e", "x" * 257, 7, None])
def test_what_is_no_subject_id_is_refused(wrong: object) -> None:
    with pytest.raises(CallerError, match="1 to 256 printable characters"):
        check_subject_id(wrong)


def test_an_anonymous_subject_speaks_in_its_own_session_only() -> None:
    check_caller("anon-SES-0000000a", "SES-0000000a")
    check_caller("anon-7", None)
    for session_id in (None, "SES-0000000b"):
        with pytest.raises(CallerError, match="anonymous"):
            check_caller("anon-SES-0000000a", session_id)


def test_any_text_that_can_be_stored_may_be_on_record_as_a_subject() -> None:
    for each in ("ada", "a\0b", "\u202e", "x" * 1_024):
        check_recorded_subject(each)
    for wrong in ("", "\ud800", "x" * 1_025, 7):
        with pytest.raises(CallerError):
            check_recorded_subject(wrong)
