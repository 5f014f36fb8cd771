"""Turns JSON types into settings, or raises an error that names the source, the wrong key and the expected value.

Of an unknown key the error says which setting is meant. An agent class's settings are laid over those that it inherits.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, TypeVar, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic_core import ErrorDetails, PydanticSerializationError, to_json

from kitchener.config.field_docstrings import DescribedModel
from kitchener.config.shown import described, described_key, shown_settings
from kitchener.errors import ConfigError
from kitchener.plain_names import shown_path

MAX_COUNT: Final = 1_000_000_000_000
"""Largest count in settings, and largest number of results that a caller or a command may ask for."""
Positive = Annotated[int, Field(ge=1, le=MAX_COUNT)]
TokenCount = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Seconds = Annotated[float, Field(gt=0, le=86_400, allow_inf_nan=False)]
Name = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class Settings(DescribedModel):
    """Base of all settings: frozen, no unknown keys, no secrets in errors."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, hide_input_in_errors=True
    )
    gone_keys: ClassVar[Mapping[str, str]] = {}
    """Keys of earlier versions, each with its replacement."""

    def __init__(self, **given: object) -> None:
        """Raises a `ConfigError` for a wrong value or an unknown key, as `parse_settings` does for a file."""
        try:
            super().__init__(**given)
        except ValidationError as error:
            raise _refusal(error, type(self), type(self).__name__) from None

    # Otherwise pydantic would call `__init__` for each table of a file, whose errors would then not name the file.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]


def without_secrets(config: Settings) -> dict[str, object]:
    """The settings as JSON types. References and addresses of providers are shown without secrets."""
    return shown_settings(config.model_dump(mode="json"))


_Model = TypeVar("_Model", bound=Settings)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SECRET_KEY = re.compile(r"key|token|secret|password", re.IGNORECASE)
_SUBJECT_OF_MESSAGE = re.compile(r"^\w+ should\b")
_UNQUOTED_AGENT = re.compile(r"^[ \t]*+\[agents\.RESIDENT:", re.MULTILINE)
MAX_SETTINGS_BYTES: Final = 1_048_576
"""Largest settings file, bytes."""
MAX_SETTINGS_DEPTH: Final = 32
"""Deepest nesting of tables and lists in settings, including dotted keys. The schema needs fewer than ten levels."""
_KEY_PART = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')[ \t]*"""
# Searched before parsing, because the parser's time and memory grow with the square of the number of a key's parts.
_DEEP_KEY = re.compile(rf"(?:^|[\[{{,])[ \t]*(?:{_KEY_PART}\.[ \t]*){{{MAX_SETTINGS_DEPTH}}}", re.MULTILINE)
_TOO_DEEP: Final = f"nests deeper than {MAX_SETTINGS_DEPTH} tables and lists"
_NAMED_IN_SYNTAX_ERROR = re.compile(r"""\(['"].*\)(?= \w)|(['"]).{4,}\1""", re.DOTALL)
_SHOWN_KEY_CHARS: Final = 64
"""Characters of a key that are compared: the time grows with the product of the lengths, and no key is longer."""
_LIKE_ENOUGH: Final = 0.5
"""The least likeness of the key that is suggested for an unknown one, 0 to 1."""
_SYNONYMS: Final[Mapping[str, str]] = {
    "api_base": "base_url",
    "context_window": "context_budget",
    "default_headers": "headers",
    "default_query": "query",
    "endpoint": "base_url",
    "extra_headers": "headers",
    "extra_query": "query",
    "functions": "tools",
    "llm": "model",
    "max_completion_tokens": "max_tokens",
    "max_iterations": "tool_turn_limit",
    "max_output_tokens": "max_tokens",
    "max_steps": "tool_turn_limit",
    "max_turns": "tool_turn_limit",
    "memory": "ho3_enabled",
    "model_id": "model",
    "model_kwargs": "extra_body",
    "model_name": "model",
    "persona": "instructions",
    "prompt": "instructions",
    "recursion_limit": "tool_turn_limit",
    "role": "instructions",
    "stop_sequences": "stop",
    "system": "instructions",
    "system_message": "instructions",
    "system_prompt": "instructions",
    "token": "api_key",
    "url": "base_url",
}
"""What other programs call a setting, and its name here."""

SettingPath = tuple[str | int, ...]
"""The path to a value: keys and list positions."""


def parse_settings(
    model: type[_Model], data: Mapping[str, object], source: str, *, origins: Mapping[SettingPath, str] | None = None
) -> _Model:
    """Returns the settings that `data` describes. Types are strict: neither `true` nor `"5"` is a number.

    Args:
        model: the settings model
        data: JSON types, as read from a settings file
        source: the file or argument to name in errors
        origins: other sources of single values, by path; errors name the longest match instead of `source`

    Raises:
        ConfigError: names the first wrong value or unknown key, and shows no secret
    """
    try:
        check_values(data, source)
        # Through JSON, because strict types accept a list for a tuple only there.
        return model.model_validate_json(to_json(data, inf_nan_mode="constants"), strict=True)
    except ValidationError as error:
        raise _refusal(error, model, source, origins) from None


def _refusal(
    error: ValidationError, model: type[Settings], source: str, origins: Mapping[SettingPath, str] | None = None
) -> ConfigError:
    """The error for the first problem that was found in settings."""
    first = error.errors(include_url=False)[0]
    at = tuple(part for part in first["loc"] if part != "[key]")
    return ConfigError(_source_of(at, source, origins), dotted_key(at), _shown(first, at), _expected(first, model, at))


def read_settings_file(path: str | Path) -> dict[str, object]:
    """Returns the content of a settings file: JSON if its name ends in `.json`, else TOML.

    Raises:
        ConfigError: the file cannot be read, is too large, or has wrong syntax; names file, line and column, but quotes nothing
    """
    source = str(path)
    text = _read_text(path)
    try:
        data = json.loads(text) if source.endswith(".json") else _parse_toml(text, source)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ConfigError(source, "", "", f"{where}: not valid JSON: {error.msg}") from None
    except tomllib.TOMLDecodeError as error:
        problem = _NAMED_IN_SYNTAX_ERROR.sub("a key", str(error))
        raise ConfigError(source, "", "", f"not valid TOML: {problem}{_quoting_hint(text)}") from None
    except RecursionError:
        raise ConfigError(source, "", "", _TOO_DEEP) from None
    except ValueError:  # the only remaining cause: Python does not convert a text of that many digits
        raise ConfigError(source, "", "", "holds a number of more digits than any setting takes") from None
    if not isinstance(data, dict):
        raise ConfigError(source, "", "", "must hold one JSON object")
    check_values(data, source)
    return data


def check_values(value: object, source: str, at: SettingPath = ()) -> None:
    """Raises for values that no setting can have, before any other code walks through the tables.

    Args:
        value: JSON types, or other values from a TOML file or a caller
        source: the file, variable or argument to name in errors
        at: the path of the value in the settings

    Raises:
        ConfigError: the value nests too deep, or contains half a surrogate pair or NUL
    """
    if len(at) > MAX_SETTINGS_DEPTH:
        raise ConfigError(source, "", "", _TOO_DEEP)
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_text(str(key), source, at, "a key with")
            check_values(item, source, (*at, str(key)))
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            check_values(item, source, (*at, number))
    elif isinstance(value, str):
        _check_text(value, source, at, "must not hold")
    elif value is not None and not isinstance(value, int | float):
        try:
            to_json(value)
        except (PydanticSerializationError, ValueError):
            expected = f"{described(value)} has no form in a settings file"
            raise ConfigError(source, dotted_key(at), "", expected) from None


def _check_text(text: str, source: str, at: SettingPath, found: str) -> None:
    if "\0" in text:
        raise ConfigError(source, dotted_key(at), "", f"{found} a character NUL")
    if not text.isascii() and any("\ud800" <= each <= "\udfff" for each in text):
        raise ConfigError(source, dotted_key(at), "", f"{found} bytes that are not UTF-8, or half of a surrogate pair")


def _read_text(path: str | Path) -> str:
    try:
        with Path(path).open("rb") as file:
            data = file.read(MAX_SETTINGS_BYTES + 1)
        if len(data) > MAX_SETTINGS_BYTES:
            raise ConfigError(str(path), "", "", f"is larger than {MAX_SETTINGS_BYTES:,} bytes, so it is no settings file")
        return data.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as error:
        raise ConfigError(str(path), "", "", f"is not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(shown_path(str(path)), "", "", f"cannot be read: {error.strerror or error}") from error
    except ValueError:
        raise ConfigError(shown_path(str(path)), "", "", "cannot be read: no file has such a name") from None


def _parse_toml(text: str, source: str) -> dict[str, object]:
    if (found := _DEEP_KEY.search(text)) is not None:
        line = text.count("\n", 0, found.end()) + 1
        raise ConfigError(source, "", "", f"line {line}: {_TOO_DEEP}")
    return tomllib.loads(text)


def _source_of(at: SettingPath, source: str, origins: Mapping[SettingPath, str] | None) -> str:
    ends = (at[:end] for end in range(len(at), 0, -1))
    return next((origins[end] for end in ends if end in origins), source) if origins else source


def toml_key(at: SettingPath) -> str:
    """Returns the path as written in a settings file: `agents."RESIDENT:bo".tools[0]`."""
    text = ""
    for part in at:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = part if _BARE_KEY.fullmatch(part) else json.dumps(part, ensure_ascii=False)
            text += f".{key}" if text else key
    return text


def dotted_key(at: SettingPath) -> str:
    """Like `toml_key`, for errors: a name that may be a secret is replaced by its length."""
    return toml_key(tuple(part if isinstance(part, int) else described_key(part) for part in at))


def _quoting_hint(text: str) -> str:
    is_bare = _UNQUOTED_AGENT.search(text)
    return '; write [agents."RESIDENT:bo"] with quotes, which a class with a colon needs' if is_bare else ""


def _shown(error: ErrorDetails, at: SettingPath) -> str:
    """Describes the found value without possible secrets. The value of an unknown key is not shown."""
    if error["type"] in ("extra_forbidden", "missing", "json_invalid") or any(
        _SECRET_KEY.search(str(part)) for part in at[-1:]
    ):
        return ""
    is_of_several = error["type"] == "value_error" and isinstance(error["input"], Mapping)  # the text names which ones
    return described(error["input"]) if not is_of_several else ""


def _expected(error: ErrorDetails, model: type[Settings], at: SettingPath) -> str:
    if error["type"] == "extra_forbidden":
        if (instead := replacement_of(model, at)) is not None:
            return instead
        return meant_key(str(at[-1]), _table_at(model, at[:-1]), model)
    if error["type"] == "literal_error":
        return f"must be {error.get('ctx', {}).get('expected', '')}"
    if error["type"] == "missing":
        return "is required"
    if error["type"] == "value_error":  # of a check in `runtime_config.py`, which says what it expects
        return str(error["ctx"]["error"])
    if "tools" in at and callable(error["input"]):
        return "must be the name of a tool; the function itself goes to `open_runtime(tools=[…])`"
    return _SUBJECT_OF_MESSAGE.sub("must", error["msg"])


def replacement_of(model: type[Settings], at: SettingPath) -> str | None:
    """Returns the replacement of a setting of an earlier version, for an error; None: there was no such setting."""
    table = _table_at(model, at[:-1])
    return table.gone_keys.get(str(at[-1])) if table is not None else None


def _table_at(model: type[Settings], at: SettingPath) -> type[Settings] | None:
    """Returns the table at this path; None: there is another value."""
    annotation = annotation_at(model, at)
    return annotation if isinstance(annotation, type) and issubclass(annotation, Settings) else None


def annotation_at(model: type[Settings], at: SettingPath) -> Any:
    """Returns the declared type of the value at this path; None: the model has no such path."""
    here: object = model
    for part in at:
        if isinstance(here, type) and issubclass(here, Settings):
            field = here.model_fields.get(str(part))
            here = field.annotation if field else None
        elif get_origin(here) in (dict, tuple):
            here = get_args(here)[1 if get_origin(here) is dict else 0]
        else:
            return None
    return here


def meant_key(key: str, table: type[BaseModel] | None, whole: type[BaseModel]) -> str:
    """What an error says about an unknown key.

    Args:
        key: the key, which is in the wrong place or does not exist
        table: the settings of its table; None: no table is there
        whole: all settings, of which the table is a part
    """
    known = list(table.model_fields) if table is not None else []
    folded = key[:_SHOWN_KEY_CHARS].lower().replace("-", "_")
    name = _SYNONYMS.get(folded, folded)
    if name in known:
        return f"unknown key; it is called {name!r} here"
    if (place := next((where for where, each in _tables(whole) if name in each.model_fields), None)) is not None:
        return f"unknown key; {name!r} is a setting of {place}"
    closest = difflib.get_close_matches(folded, known, n=1, cutoff=_LIKE_ENOUGH)
    hint = f"the closest known one is {closest[0]!r}" if closest else "`kitchener config schema` lists the known ones"
    told = f"unknown key; {hint}"
    return f"{told}; a field of requests goes to `extra_body`" if "extra_body" in known else told


def _tables(model: type[BaseModel], name: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every table of the settings with its place, as one writes it; agent classes first, because most are about them."""
    fields = sorted(model.model_fields.items(), key=lambda field: field[0] != "agents")
    for key, field in fields:
        is_named = get_origin(field.annotation) is dict
        for each in get_args(field.annotation) if is_named else (field.annotation,):
            if isinstance(each, type) and issubclass(each, BaseModel):
                place = f"{name}.{key}".lstrip(".") + (".<name>" if is_named else "")
                yield f"[{place}]", each
                yield from _tables(each, place)


def inheriting(own: _Model, inherited: _Model, agent_class: str) -> _Model:
    """Returns the settings of a class, with what it leaves out taken from the inherited ones. Tables inside are merged by key.

    Args:
        own: the settings of the class
        inherited: the settings of `[agents.default]`
        agent_class: the name of the class

    Raises:
        ValueError: the settings do not fit each other; names the class
    """
    try:
        values = _laid_over(own, inherited, except_for="agent_class")
        return type(own)(**{"agent_class": agent_class, **values})
    except ConfigError as error:
        problem = f"{error.key}: {error.expected}" if error.key else error.expected
        raise ValueError(f"agent class {agent_class!r}, with what it inherits: {problem}") from None


def _laid_over(own: Settings, inherited: Settings, *, except_for: str = "") -> dict[str, object]:
    """The values that either table sets. A value that neither sets keeps its default, which `memory_config` can tell."""
    values = {key: getattr(inherited, key) for key in inherited.model_fields_set if key != except_for}
    for key in own.model_fields_set:
        values[key] = _merged(getattr(own, key), values.get(key))
    return values


def _merged(own: object, inherited: object) -> object:
    if isinstance(own, dict) and isinstance(inherited, dict):
        return {**inherited, **{key: _merged(value, inherited.get(key)) for key, value in own.items()}}
    if isinstance(own, Settings) and isinstance(inherited, type(own)):
        return type(own)(**_laid_over(own, inherited))
    return own
