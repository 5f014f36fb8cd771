"""Turns settings, references to secrets and addresses into text without secrets, for errors and commands.

Users often paste a key into the wrong place: a reference, an address, a name. An error therefore shows a value only if it
cannot be a key (a number, a switch, a short word), and otherwise only its length. Reading settings, the checks of the router
and the commands all use these rules.
"""

import json
import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple
from urllib.parse import SplitResult, urlsplit

from kitchener.plain_names import counted, is_plain_name, shown_path
from kitchener.small_files import is_file

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PATH = re.compile(r"[^\s\x00][^\x00]*")
_HARMLESS = re.compile(r"[a-z_]{1,24}|[A-Z_]{1,16}|[0-9]{1,6}")
_NOT_IN_ADDRESS = re.compile(r"[\s\x00-\x1f\x7f\\]")
_PATHS: Final = frozenset(
    (
        "plane_root",
        "keyring",
        "signing_key",
        "memory_dir",
        "ho3_memory_dir",
        "prompt_dir",
        "attention_templates",
        "ho1m_path",
        "ho2m_path",
    )
)
"""Settings whose value is a path that may not exist."""
_MAX_BITS: Final = 64
_PRIVATE_NAMES: Final = (".local", ".localhost", ".internal", ".lan", ".home", ".home.arpa", ".corp", ".intranet", ".test")
"""Ends of host names that no public server has."""
HIDDEN: Final = "(not shown)"
"""Replaces a malformed reference, which may be a key."""
REFERENCE: Final = "must be a reference, `env:NAME` or `file:/path`, never the key itself"
"""The expectation in errors about settings that refer to a secret."""


class SecretReference(NamedTuple):
    """Where a secret is."""

    kind: Literal["env", "file"]
    name: str
    """The name of the environment variable, or the path of the file."""


def read_reference(text: str) -> SecretReference | None:
    """Returns what a text of the form `env:NAME` or `file:/path` refers to; None: the text has another form."""
    kind, _, name = text.partition(":")
    if kind == "env":
        return SecretReference("env", name) if _VARIABLE.fullmatch(name) else None
    return SecretReference("file", name) if kind == "file" and _PATH.fullmatch(name) else None


def is_reference(text: str) -> bool:
    """Whether a text has the form of a reference: `env:` with a variable's name, or `file:` with a path."""
    return read_reference(text) is not None


def shown_reference(reference: str) -> str:
    """Returns the reference if it cannot be a secret: an upper-case variable name, or the path of an existing file."""
    found = read_reference(reference)
    if found is None:
        return HIDDEN
    is_harmless = found.name.isupper() and is_plain_name(found.name) if found.kind == "env" else _is_file(found.name)
    return reference if is_harmless else f"{found.kind}:{HIDDEN}"


def address_problem(url: str) -> str | None:
    """Returns what is wrong with the address of an endpoint, without quoting it; None: it is valid."""
    if "@" in url:
        return "must not hold a user or password; use `api_key` with a reference"
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:  # an unclosed bracket
        is_whole = False
    if not is_whole or _NOT_IN_ADDRESS.search(url):
        return "must begin with http:// or https:// and a host, and have no blanks"
    if not _has_possible_port(parts):
        return "must name a port between 1 and 65535, or none"
    rest = "a key goes to `api_key`, as a reference, and other parameters of a provider to `query`"
    return f"must end with its path; {rest}" if any(each in url for each in "?#;") else None


def is_public_address(url: str | None) -> bool:
    """Whether the host of a URL has a name or an address of the internet."""
    host = (urlsplit(url or "").hostname or "").rstrip(".")
    try:
        return ip_address(host).is_global
    except ValueError:
        return "." in host and not host.endswith(_PRIVATE_NAMES)


def shown_address(url: str) -> str:
    """Returns the address of an endpoint if it is valid. A valid address contains no secret."""
    return HIDDEN if address_problem(url) else url


def described(value: object) -> str:
    """Describes a value for an error: its type, and the value itself only if it cannot be a key."""
    if isinstance(value, str):
        return json.dumps(value) if _HARMLESS.fullmatch(value) else f"a text of {counted(len(value), 'character')}"
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return "a number beyond 64 bits"
    return json.dumps(value) if isinstance(value, int | float) else f"a value of type {type(value).__name__!r}"


def described_name(name: str) -> str:
    """Describes an unknown name, such as a provider's: in quotes if it is a short word, otherwise by its length."""
    return repr(name) if _HARMLESS.fullmatch(name) else described(name)


def described_key(key: str) -> str:
    """Describes an unknown key: in quotes if it is a plain name, otherwise by its length."""
    return key if is_plain_name(key) else f"a key of {counted(len(key), 'character')}"


def described_names(names: Iterable[str]) -> str:
    """Lists known names in alphabetical order, each described by `described_key`."""
    return ", ".join(map(described_key, sorted(names)))


def shown_settings(settings: Mapping[str, Any]) -> dict[str, object]:
    """Returns settings as JSON types without secrets, of a whole file or of one table.

    In the whole settings, names and paths follow the rules for errors; in the router's table, references and addresses do.
    """
    shown = dict(settings)
    if "router" in settings:
        router = shown_settings(settings["router"])
        shown = {key: _shown_table(value, key) for key, value in settings.items()}
        shown["router"] = {key: _with_shown_names(value) for key, value in router.items()}
        if "embeddings" in shown:
            shown["embeddings"] = _shown_provider(settings["embeddings"])
        if "mcp" in shown:
            shown["mcp"] = {label: _shown_server(each) for label, each in settings["mcp"].items()}
        if "serve" in shown:
            keys = {name: {**each, "key": shown_reference(each["key"])} for name, each in settings["serve"]["clients"].items()}
            shown["serve"] = {**shown["serve"], "clients": _with_shown_names(keys)}
        if "agents" in shown:
            shown["agents"] = _with_shown_names({name: _shown_class(each) for name, each in shown["agents"].items()})
    elif "providers" in settings:
        shown["providers"] = {name: _shown_provider(each) for name, each in settings["providers"].items()}
    return shown


def _shown_table(value: object, key: str = "") -> object:
    """Returns a table with its paths and tool names replaced where they may be secrets."""
    if isinstance(value, Mapping):
        return {name: _shown_table(each, name) for name, each in value.items()}
    if key in _PATHS and isinstance(value, str):
        return shown_path(value)
    return list(map(_shown_tool, value)) if key == "tools" and isinstance(value, list) else value


def _shown_tool(name: str) -> str:
    """Returns the name of a tool, or a pattern such as `*` or `mcp:time.*`, unless it may be a secret."""
    rest = name.replace("*", "")
    return name if not rest or is_plain_name(rest) else described_key(name)


def _with_shown_names(value: object) -> object:
    """Returns a table whose names the user chose. Names that may be secrets are replaced by numbered texts."""
    if not isinstance(value, Mapping):
        return value
    shown: dict[str, object] = {}
    for number, (name, each) in enumerate(value.items(), 1):
        named = described_key(name)
        shown[named if named == name else f"{named} ({number})"] = each
    return shown


def _shown_class(agent: object) -> object:
    if not isinstance(agent, Mapping) or not isinstance(agent.get("agent_class"), str):
        return agent
    return {**agent, "agent_class": described_key(agent["agent_class"])}


def _shown_provider(provider: Mapping[str, Any]) -> dict[str, object]:
    shown = dict(provider)
    if provider["api_key"] is not None:
        shown["api_key"] = shown_reference(provider["api_key"])
    if provider["base_url"] is not None:
        shown["base_url"] = shown_address(provider["base_url"])
    if "proxy" in provider and provider["proxy"] not in ("env", "none"):
        proxy = provider["proxy"]
        shown["proxy"] = shown_reference(proxy) if is_reference(proxy) else shown_address(proxy)
    for key in ("headers", "query"):
        if key in provider:
            shown[key] = _with_shown_names({name: _shown_sent(each) for name, each in provider[key].items()})
    for key in ("stop", "extra_body"):
        if key in provider:
            shown[key] = _shown_json(provider[key])
    return shown


def _shown_sent(value: str) -> str:
    """Returns the value of a header or parameter if it is a plain name, or a reference that cannot be a secret."""
    return value if is_plain_name(value) and not is_reference(value) else shown_reference(value)


def _shown_json(value: object) -> object:
    """Returns a JSON value with each text and name replaced that may be a secret."""
    if isinstance(value, Mapping):
        return _with_shown_names({name: _shown_json(each) for name, each in value.items()})
    if isinstance(value, list):
        return [_shown_json(each) for each in value]
    return f"({described(value)})" if isinstance(value, str) and not is_plain_name(value) else value


def _shown_server(server: Mapping[str, Any]) -> dict[str, object]:
    """The table of an MCP server. Users paste keys into arguments, so arguments are shown only if they are plain names."""
    shown = dict(server)
    shown["args"] = list(map(described_key, server["args"]))
    for key in ("env", "headers"):
        shown[key] = _with_shown_names({name: shown_reference(each) for name, each in server[key].items()})
    if server["token"] is not None:
        shown["token"] = shown_reference(server["token"])
    if server["url"] is not None:
        shown["url"] = shown_address(server["url"])
    if server["cwd"] is not None:
        shown["cwd"] = shown_path(server["cwd"])
    if server["command"] is not None and not is_plain_name(server["command"]):
        shown["command"] = shown_path(server["command"])
    return shown


def _has_possible_port(parts: SplitResult) -> bool:
    try:
        return parts.port != 0
    except ValueError:  # not a number, or above 65535
        return False


def _is_file(path: str) -> bool:
    try:
        return is_file(Path(path))
    except (OSError, ValueError):
        return False
