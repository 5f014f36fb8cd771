"""Turns `kitchener.toml`, the environment and arguments into settings; each later source overrides the earlier ones.

`kitchener.config` has the schema. This module has the sources and their merging. `setting_checks.py` checks what the settings
refer to, and the composition root builds objects from them. Explained in `docs/configuration.md`.
"""

import errno
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter, ValidationError

from kitchener.config import INHERITED, RouterConfig, RuntimeConfig
from kitchener.config.settings_parser import (
    MAX_SETTINGS_BYTES,
    SettingPath,
    annotation_at,
    check_values,
    dotted_key,
    parse_settings,
    read_settings_file,
    replacement_of,
)
from kitchener.config.shown import (
    described,
    described_key,
    described_name,
)
from kitchener.errors import ConfigError
from kitchener.ids import AGENT_CLASS_FORM, is_agent_class
from kitchener.plain_names import first_chars, quoted
from kitchener.small_files import is_there

PREFIX: Final = "KITCHENER_"
"""Prefix of the environment variables that are settings; `__` separates the keys."""

DEFAULT_FILE: Final = "kitchener.toml"
"""The settings file that is used if none is named and the current directory has this one."""

EMBEDDED: Final = "embedded defaults"
"""The value of `LoadedConfig.source` if there is no settings file."""

_PATH_KEYS: Final[tuple[tuple[str, ...], ...]] = (
    ("plane_root",),
    ("ledger", "keyring"),
    ("ledger", "signing_key"),
    ("agents", "*", "prompt_dir"),
    ("agents", "*", "attention_templates"),
    ("memory", "memory_dir"),
    ("agents", "*", "ho2m_path"),
    ("agents", "*", "ho3_memory_dir"),
    ("agents", "*", "ho1m_path"),
    ("mcp", "*", "cwd"),
    ("router", "providers", "*", "ca_file"),
    ("router", "providers", "*", "client_cert"),
    ("router", "providers", "*", "client_key"),
)
_SHOWN_VARIABLE_CHARS: Final = 128
_KEY_FILES: Final = (
    ("router", "providers", "*", "api_key"),
    ("router", "providers", "*", "proxy"),
    ("router", "providers", "*", "headers", "*"),
    ("router", "providers", "*", "query", "*"),
    ("embeddings", "api_key"),
    ("mcp", "*", "token"),
    ("serve", "clients", "*", "key"),
    ("serve", "clients", "*", "subject_secret"),
    ("mcp", "*", "env", "*"),
    ("mcp", "*", "headers", "*"),
)


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """Settings and their source."""

    config: RuntimeConfig
    """The settings; `plane_root` and every other path in them are absolute."""
    source: str
    """The file's path as the caller gave it, or `embedded defaults`."""
    base_dir: Path
    """The base of relative paths: the file's directory, or the current one if there is no file."""


def load_config(
    path: str | Path | None = None,
    *,
    root: str | Path | None = None,
    environ: Mapping[str, str] = os.environ,
    overrides: Mapping[str, object] | None = None,
) -> LoadedConfig:
    """Loads the settings from a file, `KITCHENER_*` variables and arguments; later sources win.

    The library and the commands find the settings file with this function.

    Checks syntax, keys and values; `check_config` checks what they refer to.

    Args:
        path: a settings file; None: `./kitchener.toml`, or if it does not exist the embedded defaults (offline provider,
            ledgers under `./.kitchener`)
        root: overrides `plane_root`; relative to the current directory
        environ: the environment variables, e.g. `KITCHENER_LEDGER__DURABILITY=os`
        overrides: nested tables of settings that override all others; relative paths start at the current directory

    Raises:
        ConfigError: names the file, variable or argument, the key, the value and what was expected
    """
    if isinstance(path, RuntimeConfig):  # from code without types
        raise ConfigError(
            "argument path", "", "", "is a `RuntimeConfig`, which is loaded already; pass the path of a settings file"
        )
    if path is not None and not isinstance(path, str | os.PathLike):
        found = type(path).__name__
        raise ConfigError("argument config", "", "", f"is {found}: expected the path of a settings file, or a `RuntimeConfig`")
    if path == "":
        raise ConfigError("argument config", "", '""', f"must name a settings file; leave it out for ./{DEFAULT_FILE}")
    try:
        here = Path.cwd()
    except FileNotFoundError:
        raise ConfigError("the current directory", "", "", "no longer exists; change to another one") from None
    if path is None and is_there(here / DEFAULT_FILE):
        path = DEFAULT_FILE
    source = str(path) if path is not None else EMBEDDED
    base_dir = _home(path).absolute().parent if path is not None else here
    layers = _Layers()
    if path is not None:
        layers.add(_from_file(_home(path), source, base_dir), base_dir)
    for name, at, value in _from_environment(environ, layers):
        layers.add(_nested(at, value), here, origin=f"environment variable {name}", at=at)
    if overrides:
        check_values(overrides, "argument")
        layers.add(overrides, here, origin="argument", at=())
    if root is not None:
        layers.add({"plane_root": str(checked_root(root))}, here, origin="argument root", at=("plane_root",))
    layers.add({"plane_root": layers.data.get("plane_root", ".kitchener")}, here)
    layers.name_agents(source)
    return LoadedConfig(parse_settings(RuntimeConfig, layers.data, source, origins=layers.origins), source, base_dir)


@dataclass(slots=True)
class _Layers:
    """Merges settings: nested tables, and the source of each value that does not come from the file."""

    data: dict[str, object] = field(default_factory=dict)
    origins: dict[SettingPath, str] = field(default_factory=dict)

    def add(
        self, tables: Mapping[str, object], base: Path, *, origin: str | None = None, at: SettingPath | None = None
    ) -> None:
        """Merges `tables` over the present ones. Relative paths in `tables` start at `base`."""
        _merge(self.data, {key: _absolute(value, (key,), base) for key, value in tables.items()})
        if origin is not None:
            for place in [at] if at else _leaves(tables):
                self.origins[place] = origin

    def name_agents(self, source: str) -> None:
        """Fills in the class of each agent's table: the table's name."""
        agents = self.data.get("agents")
        if not isinstance(agents, dict):
            return
        for name, table in agents.items():
            given = table.setdefault("agent_class", name) if isinstance(table, dict) else name
            check_agent_class(name, given, source)


def check_agent_class(name: str, given: object, source: str) -> None:
    """Checks the name of a table `[agents.<class>]`, and `given`, the `agent_class` in it.

    Raises:
        ConfigError: the name cannot be that of an agent class, or the table has another
    """
    if name != INHERITED and not is_agent_class(name):
        expected = f'no such agent class; a name has {AGENT_CLASS_FORM}, as in [agents."RESIDENT:bo"]'
        raise ConfigError(source, dotted_key(("agents", name)), "", expected)
    if given != name:
        expected = f"must be {name!r}, the name of its table, or be left out"
        raise ConfigError(source, dotted_key(("agents", name, "agent_class")), described_name(str(given)), expected)


def _from_file(path: Path, source: str, base_dir: Path) -> dict[str, object]:
    data = read_settings_file(path)
    router = data.get("router")
    if isinstance(router, dict) and "file" in router:
        others = sorted(map(described_key, set(router) - {"file"}))
        if others:
            expected = f"cannot stand beside other keys of [router] ({', '.join(others)}); move them into that file"
            raise ConfigError(source, "router.file", described(router["file"]), expected)
        if not isinstance(router["file"], str):
            raise ConfigError(source, "router.file", described(router["file"]), "must be the path of a JSON or TOML file")
        file = base_dir / _home(router["file"])
        tables = read_settings_file(file)
        parse_settings(RouterConfig, tables, str(file))  # so that an error names this file, not the one that refers to it
        data["router"] = _absolute(tables, ("router",), file.parent)
    return data


def _from_environment(environ: Mapping[str, str], layers: _Layers) -> Iterator[tuple[str, SettingPath, object]]:
    """The name of each variable, the setting that it sets, and its value, ordered by name."""
    for name in sorted(environ):
        if not name.startswith(PREFIX):
            continue
        check_values(name, "an environment variable's name")
        at = _location(name.removeprefix(PREFIX).split("__"), layers.data)
        value = _typed(environ[name], at, name)
        check_values(value, f"environment variable {name}", at)
        yield name, at, value


def _location(parts: list[str], data: Mapping[str, object]) -> SettingPath:
    """The setting that a variable names. Keys are lower case, but an existing table is found whatever its case is.

    `AGENTS__ADMIN__…` needs this exception, and so does a provider that the file names `Local`.
    """
    at: list[str] = []
    here: object = data
    for part in parts:
        known = here if isinstance(here, Mapping) else {}
        found = next((key for key in known if key.lower() == part.lower()), None)
        at.append(found or (part if at == ["agents"] and part.lower() != INHERITED else part.lower()))
        here = known.get(at[-1])
    return tuple(at)


def _typed(text: str, at: SettingPath, name: str) -> object:
    """The text itself if the setting is text, otherwise its value as JSON (`5`, `true`, `["a", "b"]`)."""
    annotation = annotation_at(RuntimeConfig, at)
    if annotation is None:
        # Raised here, because otherwise the error about a misspelt variable would name a table that the user did not write.
        known = replacement_of(RuntimeConfig, at) or (
            "is no setting; `kitchener config schema` lists them, with `__` between the keys"
        )
        shown = first_chars(name, _SHOWN_VARIABLE_CHARS)
        raise ConfigError(f"environment variable {shown}", "", "", known)
    try:
        TypeAdapter(annotation).validate_python(text, strict=True)
    except ValidationError:
        return _from_json(text, name)
    return text


def _from_json(text: str, name: str) -> object:
    try:
        return json.loads(text) if len(text) <= MAX_SETTINGS_BYTES else text
    except json.JSONDecodeError:
        return text
    except (ValueError, RecursionError) as error:  # more digits or brackets than Python can parse
        expected = f"holds a value that no setting takes ({type(error).__name__})"
        raise ConfigError(f"environment variable {name}", "", "", expected) from None


def _nested(at: SettingPath, value: object) -> dict[str, object]:
    """The nested tables that contain a value at its position."""
    *tables, last = map(str, at)
    found: dict[str, object] = {last: value}
    for table in reversed(tables):
        found = {table: found}
    return found


def _leaves(tables: Mapping[str, object], at: SettingPath = ()) -> Iterator[SettingPath]:
    for key, value in tables.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*at, key))
        else:
            yield (*at, key)


def _merge(into: dict[str, object], tables: Mapping[str, object]) -> None:
    for key, value in tables.items():
        there = into.get(key)
        if isinstance(value, Mapping) and isinstance(there, dict):
            _merge(there, value)
        else:
            into[key] = value


def _absolute(value: object, at: tuple[str, ...], base: Path) -> object:
    """`value` with every path in it made absolute. The schema refuses values of a wrong type later."""
    if isinstance(value, Mapping):
        return {key: _absolute(item, (*at, key), base) for key, item in value.items()}
    if not isinstance(value, str) or not value:
        return value
    if any(_matches(at, pattern) for pattern in _PATH_KEYS):
        return _join(base, value)
    if any(_matches(at, pattern) for pattern in _KEY_FILES) and value.startswith("file:"):
        return f"file:{_join(base, value.removeprefix('file:'))}"
    return value


def checked_root(root: str | Path) -> Path:
    """The argument `root` with a leading `~` expanded.

    Raises:
        ConfigError: it is no path, or empty, or longer than paths may be, or holds what no setting can have
    """
    if not isinstance(root, str | os.PathLike):
        raise ConfigError("argument root", "", "", f"is {type(root).__name__}: expected a path, as str or Path")
    text = os.fspath(root)
    if not text:
        raise ConfigError("argument root", "", '""', "must name a directory; '.' is the current one")
    check_values(text, "argument root", ("plane_root",))
    path = _home(text)
    try:
        path.lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ConfigError(
                "argument root", "", quoted(text), "is longer than a path may be; name another directory"
            ) from error
    return path


def _home(path: str | Path) -> Path:
    """The path with a leading `~` expanded; unchanged if there is no such home directory."""
    return Path(os.path.expanduser(path))


def _join(base: Path, path: str) -> str:
    # Not `resolve`, which follows symlinks: the ledger decides whether to accept one.
    return os.path.abspath(base / _home(path))


def _matches(at: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    return len(at) == len(pattern) and all(want in ("*", part) for part, want in zip(at, pattern, strict=True))
