"""Keys are taken out of what an endpoint says, also where one stands across the pieces of a stream."""

import json
import re
from base64 import b64encode
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from kitchener.gateway.providers.redaction import MAX_SECRETS, RedactedPieces, Redaction
from kitchener.gateway.providers.sent_values import SentValues

KEY = "abababab-c"


def redaction_of(*secrets: str) -> Redaction:
    redaction = Redaction()
    for secret in secrets:
        redaction.note(secret)
    return redaction


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"<{KEY}{KEY}>", "<******>"),
        ({KEY: [KEY, 1, None, {"a": f"x{KEY}"}]}, {"***": ["***", 1, None, {"a": "x***"}]}),
        (True, True),
        ("abababab-d", "abababab-d"),
    ],
)
def test_a_key_is_left_out_of_texts_and_values(value: Any, expected: Any) -> None:
    assert Redaction(KEY).value(value) == expected


def test_a_short_key_is_taken_for_a_placeholder() -> None:
    assert Redaction("EMPTY").text("EMPTY words") == "EMPTY words"
    assert Redaction(None).text(KEY) == KEY
    assert not Redaction(None).is_in(KEY)


def test_the_configured_key_is_remembered_whatever_comes_after_it() -> None:
    redaction = Redaction(KEY)
    others = [f"another-key-{number}" for number in range(10)]
    for other in others:
        redaction.note(other)
    shown = redaction.text(" ".join([KEY, *others]))
    assert shown.count("***") == MAX_SECRETS
    assert (KEY in shown, others[-1] in shown) == (False, False)


HARD = "aB3+dE/f =%&é?\\x"


@pytest.mark.parametrize("left", ["", "/", "?/:@!$'()*,"])
@pytest.mark.parametrize("escape", [quote, quote_plus])
def test_a_key_is_left_out_as_addresses_write_it(escape: Callable[..., str], left: str) -> None:
    escaped = escape(HARD, safe=left)
    in_lower = re.sub("%..", lambda found: found[0].lower(), escaped)
    assert Redaction(HARD).text(f"no route /v1?code={escaped}&x=1, code={in_lower}") == "no route /v1?code=***&x=1, code=***"


def test_a_key_is_left_out_as_the_http_client_and_json_write_it() -> None:
    redaction = Redaction(HARD)
    assert redaction.text(str(URL("http://x.example").with_query(code=HARD))) == "http://x.example/?code=***"
    for in_json in (json.dumps(HARD), json.dumps(HARD, ensure_ascii=False), json.dumps(HARD).replace("/", "\\/")):
        assert redaction.text(in_json) == '"***"'


def test_the_password_of_an_address_is_left_out_as_it_is_and_as_a_header_has_it() -> None:
    redaction = Redaction()
    redaction.note_login("http://me:pass%2Dword@x.example/v1")
    for number in range(10):
        redaction.note(f"another-key-{number}")
    coded = b64encode(b"me:pass-word").decode()
    assert redaction.text(f"pass%2Dword pass-word Basic {coded} me") == "*** *** Basic *** me"
    redaction.note_login("http://me:pass%2Dword@[x/")
    redaction.note_login("http://me@x.example/")


def test_the_password_in_a_header_of_ones_own_is_left_out() -> None:
    login = b64encode(b"me:pass-word").decode()
    for header, shown in ((f"Basic {login}", "*** ***"), ("Basic pass-word", f"{login} ***")):
        assert SentValues(secrets=(header,)).redaction().text(f"{login} pass-word") == shown


@given(
    st.lists(st.text("ab-c/%", min_size=8, max_size=12), max_size=3),
    st.lists(st.text("ab-c/%2", max_size=5) | st.sampled_from([KEY, KEY[:4], KEY[4:]]), max_size=12),
)
def test_the_pieces_together_are_what_the_whole_would_be(more: list[str], pieces: list[str]) -> None:
    redaction = redaction_of(KEY, *more)
    in_pieces = RedactedPieces(redaction)
    shown = [in_pieces.take(piece) for piece in pieces] + [in_pieces.rest()]
    assert "".join(shown) == redaction.text("".join(pieces))
    assert not redaction.is_in("".join(shown)) or "*" in KEY


def test_a_piece_that_begins_no_key_is_shown_at_once() -> None:
    pieces = RedactedPieces(Redaction(KEY))
    assert [pieces.take(each) for each in ("hello", " ab", "x", "ab")] == ["hello", " ", "abx", ""]
    assert pieces.rest() == "ab"
