"""What of a setting may be shown: turns values, references to secrets and addresses into text that holds no secret.

A key is often pasted where something else belongs: into a reference, an address, a name. So an error shows a value only where
its type cannot hold a key, and otherwise says how long it is. `kitchener.config.parsing` and the router's checks speak by these
rules, and so do the commands.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*|file:[^\s\x00][^\x00]*")
_WORD = re.compile(r"[A-Za-z]{0,20}|(?=.{1,8}$)[A-Za-z]*[0-9]{1,3}[A-Za-z]*")
"""A part of a name that a person chose: letters, or few characters with few digits. Keys are longer and mixed."""
_MAX_NAME: Final = 64
_MAX_DIGITS: Final = 20
HIDDEN: Final = "(not shown)"
"""Stands for a reference that does not look like one."""
REFERENCE: Final = "must be a reference, `env:NAME` or `file:/path`, never the key itself"
"""What is expected of every setting that leads to a secret."""


def is_reference(text: str) -> bool:
    """Whether a text has the form of a reference: `env:` and the name of a variable, or `file:` and a path."""
    return _REFERENCE.fullmatch(text) is not None


def is_plain_name(text: str) -> bool:
    """Whether a name looks as if a person chose it, not as if it were a key: words between underscores."""
    return len(text) <= _MAX_NAME and text != "" and all(_WORD.fullmatch(word) for word in text.split("_"))


def shown_reference(reference: str) -> str:
    """The reference where it can be nothing else: an upper-case variable's name, or the path of a file that is there."""
    kind, _, name = reference.partition(":")
    if not is_reference(reference):
        return HIDDEN
    if kind == "env":
        return reference if name.isupper() and is_plain_name(name) else f"env:{HIDDEN}"
    return reference if _is_file(name) else f"file:{HIDDEN}"


def shown_address(url: str) -> str:
    """Scheme, host, port and path of an address. Users, passwords, queries and fragments are left out."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return HIDDEN
    if "@" in parts.path:  # a password with a slash in it moves the rest of itself there
        return HIDDEN
    return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}{parts.path}"


def described(value: object) -> str:
    """What kind of value this is, as an error may tell it; the value itself only where it is a number, a switch or nothing."""
    if isinstance(value, str):
        return f"a text of {_counted(len(value), 'character')}"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > _MAX_DIGITS * 3:
        return f"a number beyond {_MAX_DIGITS - 2} digits"
    return json.dumps(value) if value is None or isinstance(value, bool | int | float) else f"a value of type {type(value).__name__}"


def described_key(key: str) -> str:
    """An unknown key, or what may be said of it."""
    return key if is_plain_name(key) else f"a key of {_counted(len(key), 'character')}"


def shown_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as JSON types, as `kitchener config show` prints them: references and addresses without what may be secret."""
    router = settings["router"]
    providers = {name: _shown_provider(each) for name, each in router["providers"].items()}
    return {**settings, "router": {**router, "providers": providers}}


def _shown_provider(provider: Mapping[str, Any]) -> dict[str, Any]:
    shown = dict(provider)
    if provider["api_key"] is not None:
        shown["api_key"] = shown_reference(provider["api_key"])
    if provider["base_url"] is not None:
        shown["base_url"] = shown_address(provider["base_url"])
    return shown


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
