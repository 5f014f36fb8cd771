"""Turns settings into TOML text, which the standard library does not write, and says what a setting means."""

import re
from collections.abc import Iterator, Mapping

import orjson

from kitchener.config import Settings
from kitchener.config.field_docstrings import field_docstrings
from kitchener.config.settings_parser import toml_key

_NONE = re.compile(r"\bNone\b")


def toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # A basic string of TOML accepts every escape of JSON. DEL is the one character that JSON does not escape and TOML must.
        return orjson.dumps(value).decode().replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_key((key,))} = {toml_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return repr(value)


def toml_lines(tables: Mapping[str, object], at: tuple[str, ...] = ()) -> Iterator[str]:
    """Nested tables as the lines of a file. Leaves out None, which has no form in TOML."""
    own = {key: value for key, value in tables.items() if value is not None and not isinstance(value, Mapping)}
    inner = {key: value for key, value in tables.items() if isinstance(value, Mapping)}
    if at and (own or not inner):
        yield ""
        yield f"[{toml_key(at)}]"
    for key, value in own.items():
        yield f"{toml_key((key,))} = {toml_value(value)}"
    for key, value in inner.items():
        yield from toml_lines(value, (*at, key))


def meaning(model: type[Settings], key: str) -> str:
    """What a setting's docstring says, on one line, in words of a settings file: there is no `None` in it."""
    return _NONE.sub("Unset", " ".join(field_docstrings(model).get(key, "").split()))
