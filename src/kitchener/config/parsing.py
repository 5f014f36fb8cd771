"""Turns JSON types into settings, or into an error that says which key of which source is wrong and what was expected."""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, to_json

from kitchener.errors import ConfigError


class Settings(BaseModel):
    """Base of all settings: frozen, no unknown keys, field docstrings become descriptions."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True)


def without_secrets(config: Settings) -> dict[str, Any]:
    """The settings as JSON types. API keys appear as the references they are; nothing else can hold a secret."""
    return config.model_dump(mode="json")


_Model = TypeVar("_Model", bound=Settings)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SECRET_KEY = re.compile(r"key|token|secret|password", re.IGNORECASE)
_SUBJECT_OF_MESSAGE = re.compile(r"^\w+ should\b")
_UNQUOTED_AGENT = re.compile(r"^[ \t]*+\[agents\.(RESIDENT:[^\]\s]*)\]", re.MULTILINE)
_SHOWN_CHARS = 60

Location = tuple[str | int, ...]
"""Where a value stands: the keys and list positions that lead to it."""


def parse_settings(
    model: type[_Model], data: Mapping[str, Any], source: str, *, origins: Mapping[Location, str] | None = None
) -> _Model:
    """The settings that `data` describes. Types are strict: `true` is not a number and `"5"` is not one either.

    Args:
        model: the settings model
        data: JSON types, as a settings file gives them
        source: the file or argument that errors name
        origins: other sources of single values, by location; the longest match is named instead of `source`

    Raises:
        ConfigError: the first value that is wrong, or the first key that is unknown; no secret is shown
    """
    try:
        # By way of JSON, because only there is a list good for a tuple although types are strict.
        return model.model_validate_json(to_json(data, inf_nan_mode="constants"), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = tuple(part for part in first["loc"] if part != "[key]")
        ends = (at[:end] for end in range(len(at), 0, -1))
        named = next((origins[end] for end in ends if end in origins), source) if origins else source
        raise ConfigError(named, dotted_key(at), _shown(first, at), _expected(first, model, at)) from None


def read_settings_file(path: str | Path) -> dict[str, Any]:
    """The content of a settings file: JSON where its name ends in `.json`, else TOML.

    Raises:
        ConfigError: it cannot be read, or its syntax is wrong; names file, line and column
    """
    try:
        text = Path(path).read_bytes().decode("utf-8-sig")  # some editors begin every file with a byte order mark
    except OSError as error:
        raise ConfigError(str(path), "", "", f"cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), "", "", f"is not UTF-8 text (byte {error.start})") from error
    try:
        if str(path).endswith(".json"):
            data = json.loads(text)
        else:
            return tomllib.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(str(path), "", "", f"{where}: not valid JSON: {error.msg}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(str(path), "", "", f"not valid TOML: {error}{_quoting_hint(text)}") from error
    if not isinstance(data, dict):
        raise ConfigError(str(path), "", "", "must hold one JSON object")
    return data


def dotted_key(at: Location) -> str:
    """The location as one would write it in a file: `agents."RESIDENT:bo".tools[0]`."""
    text = ""
    for part in at:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False)
            text += f".{key}" if text else key
    return text


def _quoting_hint(text: str) -> str:
    bare = _UNQUOTED_AGENT.search(text)
    return f'; write [agents."{bare[1]}"], a class with a colon needs quotes' if bare else ""


def _shown(error: ErrorDetails, at: Location) -> str:
    """The value found, shortened. Not the value of an unknown key: it may be a misspelt secret."""
    if error["type"] in ("extra_forbidden", "missing") or any(_SECRET_KEY.search(str(part)) for part in at[-1:]):
        return ""
    value = error["input"]
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _expected(error: ErrorDetails, model: type[Settings], at: Location) -> str:
    if error["type"] == "extra_forbidden":
        known = list(_fields_at(model, at[:-1]))
        # Comparing takes the product of the lengths, and no key is longer than this.
        closest = difflib.get_close_matches(str(at[-1])[:_SHOWN_CHARS], known, n=1, cutoff=0.0)
        return f"unknown key; the closest known one is {closest[0]!r}" if closest else "unknown key"
    if error["type"] == "literal_error":
        return f"must be {error.get('ctx', {}).get('expected', '')}"
    if error["type"] == "missing":
        return "is required"
    return _SUBJECT_OF_MESSAGE.sub("must", error["msg"])


def _fields_at(model: type[Settings], at: Location) -> Iterator[str]:
    """The keys that the table at this location may hold."""
    annotation = annotation_at(model, at)
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield from annotation.model_fields


def annotation_at(model: type[Settings], at: Location) -> Any:
    """The declared type of the value at this location, or None where the model has no such place."""
    here: Any = model
    for part in at:
        if isinstance(here, type) and issubclass(here, Settings):
            field = here.model_fields.get(str(part))
            here = field.annotation if field else None
        elif get_origin(here) in (dict, tuple):
            here = get_args(here)[1 if get_origin(here) is dict else 0]
        else:
            return None
    return here
