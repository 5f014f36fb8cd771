"""The options and ids that all commands share, and what they lead to: settings, ledgers, agent classes, the newest turn.

An id is a position of the command line and an option too: `session show SES-…` is `session show --session SES-…`.
"""

import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, get_args, get_type_hints
from urllib.parse import unquote

import anyio
from cyclopts import Parameter

from kitchener.config import HO2Config, HO3MemoryConfig, RuntimeConfig
from kitchener.errors import CallerError, ConfigError, NotOnRecord
from kitchener.ids import AGENT_CLASS_FORM, is_agent_class
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.plain_names import quoted
from kitchener.records import events
from kitchener.records.entries import CommonPayload, payload_as
from kitchener.runtime.ledger_paths import (
    LedgerName,
    agent_of,
    class_of,
    ledger_paths,
    open_reader,
    sealer_of,
)
from kitchener.runtime.loading import DEFAULT_FILE, LoadedConfig, check_config, load_config
from kitchener.runtime.memories import memory_config
from kitchener.sealing import Sealer

_DEFAULT_AGENT: Final = "ADMIN"
_WINDOWS: Final = (64, 4_096)
"""Newest entries of a ledger that are searched for a turn, before all of them are."""


@Parameter(name="*", group="Common options")
@dataclass(frozen=True)
class Options:
    """Where a command finds its settings and ledgers, and whose sessions it means."""

    root: Annotated[Path | None, Parameter(help="Directory of the ledgers. Overrides `plane_root` of the settings.")] = None
    config: Annotated[
        Path | None,
        Parameter(help=f"Settings file. Default: `./{DEFAULT_FILE}` if it exists, else the built-in defaults."),
    ] = None
    named_agent: Annotated[
        str | None,
        Parameter(name="--agent", help="Agent class, as `[agents.<class>]` names it. Default: ADMIN, or the only class."),
    ] = None

    @property
    def agent(self) -> str:
        """The agent class that is meant: the named one, else ADMIN if it or no class is configured, else the only class.

        Raises:
            ConfigError: the settings are wrong, or they have several classes and none is ADMIN
        """
        first, config = self.first_agent, self.load().config
        if self.named_agent is None and len(config.classes) > 1 and first not in config.classes:
            raise ConfigError("--agent", "", "", f"name one of the configured classes: {', '.join(sorted(config.classes))}")
        return first

    @property
    def first_agent(self) -> str:
        """The agent class whose ledgers are searched first for a session that has an id; those of all others follow."""
        if self.named_agent is not None:
            return self.named_agent
        classes = self.load().config.classes
        return _DEFAULT_AGENT if len(classes) != 1 else next(iter(classes))

    def load(self) -> LoadedConfig:
        """The settings these options mean.

        Raises:
            ConfigError: the settings or the agent class are wrong
        """
        if self.named_agent is not None and not is_agent_class(self.named_agent):
            raise ConfigError("--agent", "", repr(self.named_agent), f"must be {AGENT_CLASS_FORM}")
        return load_config(self.config, root=self.root)

    def load_checked(self) -> LoadedConfig:
        """As `load`, and what the settings refer to is there: for commands that are about to run an agent."""
        loaded = self.load()
        check_config(loaded.config, source=loaded.source)
        if str(loaded.base_dir) not in sys.path:
            # `tools = ["my_bot.tools:list_packages"]` means a module beside the settings; installed ones go first.
            sys.path.append(str(loaded.base_dir))
        return loaded

    def paths(self, *, must_exist: bool = False) -> "LedgerPaths":
        """The ledgers these options mean. Raises as `load`; with `must_exist` also where `--root` is no directory."""
        found = LedgerPaths(self.load().config)
        if must_exist and self.root is not None and not found.root.is_dir():
            raise ConfigError("--root", "", repr(str(self.root)), "is not a directory")
        return found

    def as_text(self) -> str:
        """These options as one would type them again, with a leading blank, or nothing."""
        text = f" --root {self.root}" if self.root else ""
        return text + (f" --config {self.config}" if self.config else "")


def listens(config: RuntimeConfig) -> bool:
    """Whether a command that serves turns listens for other commands: unless the settings say no."""
    return config.admin.socket is not False


LAST: Final = "last"
"""Stands for the newest session or turn of `--agent`, or of all agent classes, wherever a command expects an id of one."""


_PREFIXES: Final = {"session": ("SES-", "CONS-"), "turn": ("T-", "WO-")}
"""How ids begin. In some commands the pseudo-session of a consolidation stands for a session, and its work order for a turn."""


class MayBeLast(NamedTuple):
    """Marks a parameter that takes the id of a session or turn, or `last`."""

    what: Literal["session", "turn"]


SessionArgument = Annotated[str, Parameter(help="A session id, such as SES-0a1b2c3d, or `last`."), MayBeLast("session")]
SessionChoice = Annotated[str | None, Parameter(help="Only this session. `last`: the newest one."), MayBeLast("session")]
TurnArgument = Annotated[str, Parameter(help="A turn id, such as T-0a1b2c3d-000002, or `last`."), MayBeLast("turn")]
TurnChoice = Annotated[str | None, Parameter(help="A turn id, such as T-0a1b2c3d-000002, or `last`."), MayBeLast("turn")]
JsonFlag = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON value and nothing else.")]
OUTPUT_NAMES: Final = ("--out", "--output", "-o")
"""The option that names a file or folder to write."""
ReasonOption = Annotated[str, Parameter(name="--reason", help="The reason. It is recorded.")]


@dataclass(frozen=True, slots=True)
class LedgerPaths:
    """The paths of a configuration's ledgers. Reading them takes no lock."""

    config: RuntimeConfig
    root: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.config.plane_root))

    def ledger(self, agent_class: str, name: LedgerName) -> Path:
        """The file of one ledger, whether it exists or not."""
        return ledger_paths(self.config, agent_class)[name]

    def agent(self, agent_class: str) -> HO2Config:
        """The settings of an agent class; one that is not configured has the defaults."""
        return agent_of(self.config, agent_class)

    def memory_config(self, agent_class: str) -> HO3MemoryConfig:
        """The settings of the memory as an agent class uses it."""
        return memory_config(self.config.memory, self.agent(agent_class))

    def sealer(self) -> Sealer | None:
        """Encrypts and decrypts what subjects said; None: it is stored in plain text."""
        return sealer_of(self.config)

    @asynccontextmanager
    async def reader(self, agent_class: str, name: LedgerName = "ho2m") -> AsyncIterator[LedgerReader | None]:
        """A reader of one ledger, or None where there is no such ledger yet. It takes no lock."""
        if not self.ledger(agent_class, name).exists():
            yield None
            return
        async with open_reader(self.config, agent_class, name, sealer=self.sealer()) as reader:
            yield reader

    def agent_classes(self) -> list[str]:
        """Every class that is configured or has a ledger, in order."""
        found = {unquote(path.parent.name) for path in self.root.glob("HO[12]/*/ho[12]m.jsonl")}
        return sorted({*self.config.classes, *filter(is_agent_class, found)})

    def ledgers(self) -> Iterator[Path]:
        """Every ledger file there is: all `*.jsonl` under the root, and those that the settings put elsewhere."""
        found = set(self.root.rglob("*.jsonl"))
        for agent_class in ("ADMIN", *self.config.classes):
            found.update(ledger_paths(self.config, agent_class).values())
        return (path for path in sorted(found) if path.exists())

    async def class_of(self, session_id: str, preferred: str) -> str:
        """The agent class in whose ledger the session stands.

        Args:
            session_id: which session
            preferred: the class to look at first, and the one that the error names

        Raises:
            CallerError: the id has not the form of a session id
            UnknownSession: no class has it
        """
        others = (name for name in self.agent_classes() if name != preferred)
        return await class_of(self.config, session_id, (preferred, *others))

    async def newest(self, what: Literal["session", "turn"], agent_class: str | None) -> str:
        """The id of the session that spoke or began last, or of the turn that began last.

        Args:
            what: what is wanted
            agent_class: of which agent class; None: of all

        Raises:
            NotOnRecord: there is none yet
        """
        kinds = (events.TURN_STARTED,) if what == "turn" else (events.TURN_STARTED, events.SESSION_START)
        found: list[StoredEntry] = []
        for name in {_DEFAULT_AGENT, *self.agent_classes()} if agent_class is None else [agent_class]:
            async with self.reader(name) as reader:
                entry = None if reader is None else await _newest(reader, kinds)
                found += [entry] if entry is not None else []
        if not found:
            whose = "" if agent_class is None else f" of {agent_class}"
            raise NotOnRecord(f"{LAST}: no {what}{whose} is on record yet; `kitchener chat` begins one")
        newest = max(found, key=lambda each: (each.timestamp, each.entity_id))
        return newest.entity_id if what == "turn" else payload_as(CommonPayload, newest.payload)["session_id"]


async def _newest(reader: LedgerReader, kinds: tuple[str, ...]) -> StoredEntry | None:
    """The newest entry of these types."""
    for count in (*_WINDOWS, max(1, reader.position)):
        for entry in reversed(await reader.last(limit=count)):
            if entry.entry_type in kinds:
                return entry
    return None


def resolve_ids(command: Callable[..., object], arguments: dict[str, object]) -> None:
    """Puts ids in the place of `last`, in the arguments by name that a command is about to be called with.

    Raises:
        CallerError: an argument by position is empty, or is no id of a session or turn where one is expected
        ConfigError: the settings or the agent class are wrong
        NotOnRecord: there is no session or turn yet
    """
    if not command.__module__.startswith(f"{__name__.partition('.')[0]}."):
        return  # the help text or the version
    by_option = {name for name, each in inspect.signature(command).parameters.items() if each.kind is each.KEYWORD_ONLY}
    if (empty := next((name for name, value in arguments.items() if value == "" and name not in by_option), None)) is not None:
        raise CallerError(f"{empty.upper()} is empty, as an unset variable of a shell is; name what is meant")
    hints = get_type_hints(command, include_extras=True)
    for name, value in arguments.items():
        for mark in (each for each in get_args(hints.get(name)) if isinstance(each, MayBeLast)):
            if value is None or not isinstance(value, str) or value.startswith(_PREFIXES[mark.what]):
                continue
            if value.casefold() != LAST:
                example = f"{_PREFIXES[mark.what][0]}0a1b2c3d{'-000002' if mark.what == 'turn' else ''}"
                raise CallerError(f"{quoted(value, 80)} is not a {mark.what} id: expected one such as {example}, or `{LAST}`")
            options = arguments.get("options", Options())
            assert isinstance(options, Options)
            arguments[name] = anyio.run(options.paths().newest, mark.what, options.named_agent)
