"""Canonical bytes: four encoders agree, and what has no canonical form is refused with its place (docs/ledger.md)."""

import enum
import hashlib
import json
import math
from decimal import Decimal
from typing import Any

import orjson
import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from kitchener.canonical import (
    MAX_INTEGER,
    NOTHING,
    Opening,
    canonical_bytes,
    canonical_digest,
    digest,
    exact_list,
    is_deep,
    parse_json,
)
from kitchener.errors import EntryRefused

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
keys_below_astral = st.text(st.characters(exclude_categories=["Cs"], max_codepoint=0xFFFF), max_size=6)
integers = st.integers(-MAX_INTEGER, MAX_INTEGER)
floats = st.floats(allow_nan=False, allow_infinity=False).filter(
    lambda value: not (value.is_integer() and MAX_INTEGER < abs(value) < 1e21)
)


def values(leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=12
    )


plain = st.none() | st.booleans() | integers | text


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    ZERO = 0
    ONE = 1


@given(values(plain, keys_below_astral))
def test_four_encoders_agree_where_there_are_no_floats(value: Any) -> None:
    expected = rfc8785.dumps(value)
    assert canonical_bytes(value) == expected
    assert orjson.dumps(value, option=orjson.OPT_SORT_KEYS) == expected
    # Python sorts keys by code point, which is UTF-16 order below the surrogates and above them, not across.
    if not any(letter > "\ud7ff" for letter in json.dumps(value, ensure_ascii=False)):
        assert json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode() == expected


@given(values(plain | floats, text))
@example({"😀": 1, "\uffee": 2, "\ud7ff": 3})
@example([0.001, 0.00099999, 999999999.5, 1e9, 1e21, 1e-7, 5e-324, -0.0, 0.0, 1.5, -1e-3])
def test_floats_and_astral_keys_get_the_reference_form(value: Any) -> None:
    assert canonical_bytes(value) == rfc8785.dumps(value)


@given(floats)
def test_every_float_has_the_reference_form(value: float) -> None:
    assert canonical_bytes(value) == rfc8785.dumps(value)
    assert canonical_bytes({"a": [value]}) == b'{"a":[' + rfc8785.dumps(value) + b"]}"


@given(values(plain | floats, text))
def test_what_is_read_back_is_what_was_written(value: Any) -> None:
    encoded = canonical_bytes(value)
    read = json.loads(encoded)
    assert read == value
    assert canonical_bytes(read) == encoded


@given(values(plain | floats, text))
def test_a_part_made_before_gives_the_same_bytes(value: Any) -> None:
    part = orjson.Fragment(canonical_bytes(value))
    assert canonical_bytes({"a": part, "b": [part, 1.0]}) == canonical_bytes({"a": value, "b": [value, 1.0]})


@given(st.lists(values(plain | floats, text), max_size=4), values(plain | floats, text))
@example([{"a": 1}], "é")
@example(["é"], {"😀": 1, "\uffee": 2})
@example([1e21], 1.0)
@example([{1: "no text"}], None)
def test_a_list_that_was_looked_at_before_gives_the_same_bytes_as_any_list(items: list[Any], beside: Any) -> None:
    """Also beside values that need the reference implementation, and of a list that has no canonical form."""
    known = exact_list(items)
    assert known == items
    if any(isinstance(each, dict) and 1 in each for each in items):
        with pytest.raises(EntryRefused):
            canonical_bytes({"tools": known})
        return
    assert canonical_bytes({"tools": known, "b": beside}) == canonical_bytes({"tools": items, "b": beside})


def test_a_list_that_was_looked_at_before_is_not_too_deep_elsewhere() -> None:
    deep: Any = 1
    for _ in range(63):
        deep = [deep]
    with pytest.raises(EntryRefused):
        canonical_bytes([[exact_list([deep])]])


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        ((1, (2, ())), b"[1,[2,[]]]"),
        ({"k": Colour.RED, "l": Level.ONE}, b'{"k":"red","l":1}'),
        ([Level.ZERO], b"[0]"),
        ({}, b"{}"),
        (True, b"true"),
        ('\x7f\u2028\b\t\n\f\r\x1f"\\/', '"\x7f\u2028\\b\\t\\n\\f\\r\\u001f\\"\\\\/"'.encode()),
        ({"b": 1, "a": 2, "": 3, "10": 4, "9": 5}, b'{"":3,"10":4,"9":5,"a":2,"b":1}'),
        (MAX_INTEGER, b"9007199254740991"),
        (-MAX_INTEGER, b"-9007199254740991"),
        (333333333.33333329, b"333333333.3333333"),
        (1e300, b"1e+300"),
    ],
)
def test_known_forms(value: Any, encoded: bytes) -> None:
    assert canonical_bytes(value) == encoded


def deep(levels: int, inner: Any) -> Any:
    for _ in range(levels):
        inner = [inner]
    return inner


@pytest.mark.parametrize("inner", [1, 1.0, "x", None])
def test_sixty_four_levels_are_taken_and_no_more(inner: Any) -> None:
    assert canonical_bytes(deep(64, inner)).startswith(b"[" * 64)
    assert canonical_bytes(deep(62, [1.0, []])).endswith(b"[]" + b"]" * 63)
    for too_deep in (deep(65, inner), deep(64, []), deep(64, {}), deep(63, [1.0, []]), deep(10_000, inner)):
        with pytest.raises(EntryRefused, match="deeper than 64"):
            canonical_bytes(too_deep)


@pytest.mark.parametrize(
    ("value", "place", "problem"),
    [
        (math.nan, "payload", "nan"),
        ({"a": [0, -math.inf]}, "payload.a[1]", "inf"),
        ({"a": {"b": 2**53}}, "payload.a.b", "9007199254740992"),
        ([-(2**53)], "payload[0]", "±"),
        ([2**64], "payload[0]", "±"),
        ([2.0**53], "payload[0]", "prints as an integer"),
        ([1e20], "payload[0]", "prints as an integer"),
        (["\ud800"], "payload[0]", "surrogate"),
        ({"\udc00": 1}, "payload", "surrogate"),
        ({1: 2}, "payload", "not text"),
        ({"a": {None: 2}}, "payload.a", "not text"),
        ({"a": b"x"}, "payload.a", "bytes"),
        ({"a": b""}, "payload.a", "bytes"),
        ({"a": set()}, "payload.a", "set"),
        ({"a": Decimal("1.5")}, "payload.a", "Decimal"),
        ({"a": Decimal(0)}, "payload.a", "Decimal"),
    ],
)
def test_what_has_no_canonical_form_is_refused_with_its_place(value: Any, place: str, problem: str) -> None:
    with pytest.raises(EntryRefused, match=problem) as refused:
        canonical_bytes(value, at="payload")
    assert refused.value.path == place


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(EntryRefused, match="deeper"):
        canonical_bytes(loop)


def test_digests_name_their_algorithm() -> None:
    assert digest(b"abc") == f"sha256:{hashlib.sha256(b'abc').hexdigest()}"
    assert canonical_digest({"b": 1, "a": 2}) == digest(b'{"a":2,"b":1}')


@given(st.binary(max_size=200), st.lists(st.binary(max_size=200), max_size=3))
def test_what_follows_an_opening_is_hashed_as_if_all_were_one(start: bytes, rests: list[bytes]) -> None:
    """One opening serves many contents, in any order, and none of them sees another."""
    opening = Opening(start)
    for rest in (*rests, *rests):
        assert opening.digest(rest) == f"sha256:{hashlib.sha256(start + rest).hexdigest()}"
        assert NOTHING.digest(rest) == digest(rest) == f"sha256:{hashlib.sha256(rest).hexdigest()}"


@pytest.mark.parametrize(("levels", "is_too_deep"), [(64, False), (65, True), (100_000, True)])
@pytest.mark.parametrize("pair", ["[]", "{}", '["a]",]', '["\\"[[",]'])
def test_the_depth_of_a_text_is_known_without_parsing_it(levels: int, is_too_deep: bool, pair: str) -> None:
    opening, closing = pair[:-1], pair[-1]
    assert is_deep(opening * levels + closing * levels) == is_too_deep
    assert is_deep(opening * levels) == is_too_deep, "the text need not be valid"


@pytest.mark.parametrize("text", ["[]" * 100_000, '"' + "[" * 100_000 + '"', '"' + "[" * 100_000, '"\\', "]" * 100_000 + "[["])
def test_what_stands_in_strings_or_is_closed_again_has_no_depth(text: str) -> None:
    assert not is_deep(text)


def test_a_foreign_json_text_is_parsed_or_refused_at_any_depth() -> None:
    assert parse_json('{"a": "b"}') == {"a": "b"}
    assert parse_json('{"a": "line\nbreak\t"}') == {"a": "line\nbreak\t"}
    for levels in (65, 990, 1_100, 100_000):
        with pytest.raises(ValueError, match="nested deeper than 64 levels"):
            parse_json('["line\nbreak"' + ",[" * levels + "]" * levels + "]")
    for text in ("[" * 100_000, "[" * 100_000 + "]" * 100_000, "", "\n", "nul\n", "9" * 5_000 + "\n", '"\ud800"'):
        with pytest.raises(ValueError, match=r"."):
            parse_json(text)
