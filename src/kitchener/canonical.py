"""Turns a JSON value into its RFC 8785 (JCS) bytes, and those bytes into SHA-256 digests.

A fast encoder gives exactly the JCS bytes for most values. A walk over the value's types proves that it does; all other
values go through the reference implementation. A value without a canonical form, or that would be read back as another value,
raises `EntryRefused`. Explained in `docs/ledger.md`.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Any, Final

import orjson
import rfc8785

from kitchener.errors import EntryRefused

MAX_DEPTH = 64
MAX_INTEGER = 2**53 - 1
_DEPTH_AROUND: Final = 8
"""Levels that may stand around a list whose parts are not looked at again."""

# An unterminated string matches to the end of the text, so that no part of it is scanned twice.
_BRACKET_OR_STRING: Final = re.compile(r'[\[\]{}]|"(?:[^"\\]++|\\.)*+"?', re.DOTALL)

# Integers outside ±(2^53−1) make the fast encoder fail instead of being written.
_OPTIONS = orjson.OPT_SORT_KEYS | orjson.OPT_STRICT_INTEGER


class ExactList(list[object]):
    """A list of which it is known that the fast encoder gives its JCS bytes; made by `exact_list`, and never changed."""


_SCALARS = frozenset((str, bool, type(None), int, orjson.Fragment, ExactList))
_CONTAINERS = frozenset((dict, list, tuple))


def canonical_bytes(value: object, *, at: str = "") -> bytes:
    """The RFC 8785 form of a JSON value.

    Args:
        value: dicts with text keys, lists or tuples, text, integers within ±(2^53−1), finite floats, booleans, None;
            and `orjson.Fragment` for parts that are already canonical
        at: the name of the value in error messages, e.g. `payload`

    Raises:
        EntryRefused: the value has no canonical form; the error names the place and the problem
    """
    encoded = _fast_bytes(value)
    if encoded is not None:
        return encoded
    plain = _plain(value, at, 0)
    try:
        return rfc8785.dumps(plain)
    except (TypeError, ValueError, RecursionError) as error:
        raise EntryRefused(at, str(error)) from error


def exact_list(values: Iterable[object]) -> list[object]:
    """The values as a list that is encoded often and never changed: its parts are looked at now, and not each time."""
    found = list(values)
    outer: object = found
    for _ in range(_DEPTH_AROUND):
        outer = [outer]
    return ExactList(found) if _fast_bytes(outer) is not None else found


def parse_json(text: str) -> Any:
    """The value of a foreign JSON text. Accepts unescaped line breaks and tabs inside strings, which models write.

    Takes linear time for any text, and at most `MAX_DEPTH` levels of the stack.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply
    """
    try:
        return orjson.loads(text)  # has a depth limit of its own, without recursion in Python
    except orjson.JSONDecodeError:
        if "\n" not in text:
            raise
    if is_deep(text):
        raise ValueError(f"nested deeper than {MAX_DEPTH} levels")
    return json.loads(text, strict=False)


def is_deep(text: str) -> bool:
    """Whether brackets outside the strings of a JSON text nest deeper than `MAX_DEPTH`. The text need not be valid."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    depth = 0
    for found in _BRACKET_OR_STRING.finditer(text):
        first = found[0][0]
        if first in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                return True
        elif first in "]}":
            depth -= 1
    return False


def plain_json(value: object) -> str | None:
    """The JSON that every key-sorting encoder writes for a value; None: encoders may differ."""
    encoded = _fast_bytes(value)
    return encoded.decode() if encoded is not None else None


class Opening:
    """The common first bytes of many contents. Their hash state is computed once and continued for each content.

    The system messages are 5 of the 38 kB that a turn hashes. Hashing them again would add 3.6 % to its instructions on a
    processor without SHA instructions, and 0.6 % to its CPU time on one with them (by the shares in `docs/turn-costs.md`).
    """

    __slots__ = ("_hashed", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._hashed = hashlib.sha256(data)

    def digest(self, rest: bytes) -> str:
        """`sha256:` and the hex SHA-256 of these bytes followed by `rest`."""
        sha = self._hashed.copy()
        sha.update(rest)
        return "sha256:" + sha.hexdigest()


NOTHING: Final = Opening(b"")
"""The empty opening."""


def digest(data: bytes) -> str:
    """`sha256:` and the hex SHA-256 of the bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def canonical_digest(value: object, *, at: str = "") -> str:
    """`sha256:` and the hex SHA-256 of the value's canonical bytes."""
    return digest(canonical_bytes(value, at=at))


def _fast_bytes(value: object) -> bytes | None:
    """The fast encoder's bytes, if they are known to be the JCS form; None: they may differ from it, or there are none."""
    try:
        encoded = orjson.dumps(value, option=_OPTIONS)
    except TypeError:  # the value has a type, key or integer without JSON form, or contains itself
        return None
    return encoded if type(value) is str or (_is_exact(value) and (encoded.isascii() or _sorts_alike(value))) else None


def _is_exact(value: Any, levels: int = MAX_DEPTH) -> bool:
    """Whether an acyclic value has at most so many levels, and the fast encoder gives its JCS bytes but for the order of keys.

    The encoder does for the exact JSON types, and for floats of medium size with a fraction: every encoder writes their
    shortest digits, without an exponent.
    """
    kind = type(value)
    for item in value.values() if kind is dict else value if kind in _CONTAINERS else (value,):
        if type(item) in _SCALARS:
            continue
        if type(item) in _CONTAINERS:
            if levels == 1 or (item and not _is_exact(item, levels - 1)):
                return False
        elif type(item) is not float or not 1e-3 <= abs(item) < 1e9 or item.is_integer():
            return False
    return True


def _sorts_alike(value: object) -> bool:
    """Whether both encoders sort the keys alike; always true for ASCII."""
    if type(value) is dict:
        # orjson sorts by UTF-8 bytes, JCS by UTF-16 units: they differ only above U+FFFF.
        keys = "".join(value)
        return (keys.isascii() or max(keys) <= "\uffff") and all(map(_sorts_alike, value.values()))
    return all(map(_sorts_alike, value)) if type(value) is list or type(value) is tuple else True


def _plain(value: object, at: str, depth: int) -> Any:
    """The value in types that the reference implementation accepts; raises EntryRefused with the place."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _well_formed(str(value), at)
    if isinstance(value, int):
        if not -MAX_INTEGER <= value <= MAX_INTEGER:
            shown = str(value) if value.bit_length() <= 256 else f"of {value.bit_length()} bits"
            raise EntryRefused(at, f"integer {shown} is outside ±(2^53−1); store it as text")
        return int(value)
    if isinstance(value, float):
        return _finite(value, at)
    if depth >= MAX_DEPTH and isinstance(value, dict | list | tuple):
        raise EntryRefused(at, f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, dict):
        plain = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise EntryRefused(at, f"key {key!r} is not text")
            plain[_well_formed(key, at)] = _plain(item, f"{at}.{key}" if at else key, depth + 1)
        return plain
    if isinstance(value, orjson.Fragment):
        return orjson.loads(orjson.dumps(value))
    if isinstance(value, list | tuple):
        return [_plain(item, f"{at}[{n}]", depth + 1) for n, item in enumerate(value)]
    raise EntryRefused(at, f"{type(value).__name__} is not a JSON type")


def _well_formed(text: str, at: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise EntryRefused(at, "text holds a lone surrogate") from None
    return text


def _finite(value: float, at: str) -> float | int:
    if value != value or value in (float("inf"), float("-inf")):
        raise EntryRefused(at, f"{value} has no JSON form; store None or text")
    # JCS prints such a float as an integer that readers refuse.
    if value.is_integer() and MAX_INTEGER < abs(value) < 1e21:
        raise EntryRefused(at, f"float {value!r} prints as an integer outside ±(2^53−1); store it as text")
    return value
