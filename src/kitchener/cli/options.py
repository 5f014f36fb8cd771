"""Defines the options and ids that all commands share, and finds what they name: settings, ledgers, agent class, newest turn.

An id can be given by position or as an option: `session show SES-…` equals `session show --session SES-…`.
"""

import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple, get_args, get_type_hints

import anyio
from cyclopts import Parameter, Token
from cyclopts.validators import Number

from kitchener.config import DEFAULT_AGENT, RuntimeConfig
from kitchener.config.settings_parser import MAX_COUNT
from kitchener.errors import CallerError, ConfigError, NotOnRecord
from kitchener.ids import AGENT_CLASS_FORM, is_agent_class
from kitchener.inspection.ledger_files import LAST, LedgerPaths
from kitchener.plain_names import quoted, shown_path
from kitchener.runtime.loading import DEFAULT_FILE, LoadedConfig, load_config
from kitchener.runtime.root_layout import agent_classes
from kitchener.runtime.setting_checks import check_config
from kitchener.small_files import is_directory, is_there


@Parameter(name="*", group="Common options")
@dataclass(frozen=True)
class Options:
    """Chooses the settings, the ledgers and the agent class of a command."""

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
        """The chosen agent class: the named one, else ADMIN if it or no class is configured, else the only class.

        Raises:
            ConfigError: the settings are wrong, or they have several classes and none is ADMIN
        """
        if not self.has_agent:
            classes = ", ".join(sorted(self.load().config.classes))
            raise ConfigError("--agent", "", "", f"name one of the configured classes: {classes}")
        return self.first_agent

    @property
    def has_agent(self) -> bool:
        """Whether an agent class is chosen, by name or as the default. False: there are several, and none is ADMIN."""
        classes = self.load().config.classes
        return self.named_agent is not None or len(classes) <= 1 or self.first_agent in classes

    @property
    def first_agent(self) -> str:
        """The agent class whose ledgers are searched first for a session id. The ledgers of all other classes follow."""
        if self.named_agent is not None:
            return self.named_agent
        classes = self.load().config.classes
        return DEFAULT_AGENT if len(classes) != 1 else next(iter(classes))

    def load(self) -> LoadedConfig:
        """The settings that these options choose.

        Raises:
            ConfigError: the settings or the agent class are wrong
        """
        if self.named_agent is not None and not is_agent_class(self.named_agent):
            raise ConfigError("--agent", "", repr(self.named_agent), f"must be {AGENT_CLASS_FORM}")
        with named_argument("--config", self.config), named_argument("--root", self.root, "argument root"):
            loaded = load_config(self.config, root=self.root)
        if self.root is not None:
            self._check_root(Path(loaded.config.plane_root))
        return loaded

    def load_checked(self) -> LoadedConfig:
        """Like `load`, and also checks what the settings refer to. For commands that run an agent."""
        loaded = self.load_importing()
        check_config(loaded.config, source=loaded.source)
        return loaded

    def load_importing(self, *, reads: bool = False) -> LoadedConfig:
        """Like `load`, and from then on modules beside the settings can be imported. For commands that need the tools.

        Args:
            reads: whether the command only reads what is on record; then it is like `load_recorded`
        """
        loaded = self.load_recorded() if reads else self.load()
        if str(loaded.base_dir) not in sys.path:
            # `tools = ["my_bot.tools:list_packages"]` may name a module beside the settings; installed modules come first.
            sys.path.append(str(loaded.base_dir))
        return loaded

    def paths(self) -> LedgerPaths:
        """The ledgers that these options choose, to be read. Raises as `load_recorded`."""
        return LedgerPaths(self.load_recorded().config)

    async def class_of(self, session_id: str | None, paths: LedgerPaths) -> str:
        """The agent class in whose ledger a session stands; without a session, the chosen one.

        Args:
            session_id: which session; None: none is named
            paths: the ledgers that these options choose

        Raises:
            CallerError, ConfigError: as `agent`, or the id has not the form of a session id
            UnknownSession: no class has it
        """
        return self.agent if session_id is None else await paths.class_of(session_id, self.first_agent)

    def load_recorded(self) -> LoadedConfig:
        """Like `load`. For commands that only read what is on record.

        Raises:
            ConfigError: as `load`, or `--root` names a directory that does not exist
            NotOnRecord: the agent class is neither configured nor on record
        """
        loaded = self.load()
        if self.root is not None and not is_directory(Path(loaded.config.plane_root)):
            expected = (
                "there is no such directory; name the one with the ledgers, or leave it out for the settings' `plane_root`"
            )
            raise ConfigError("--root", "", repr(str(self.root)), expected)
        if self.named_agent is not None:
            known = sorted({*agent_classes(loaded.config), *(() if loaded.config.classes else (DEFAULT_AGENT,))})
            if self.named_agent not in known:
                told = f"--agent {quoted(self.named_agent)} is neither configured nor on record"
                raise NotOnRecord(f"{told}; there {'is' if len(known) == 1 else 'are'}: {', '.join(known)}")
        return loaded

    def _check_root(self, root: Path) -> None:
        """Raises ConfigError if `--root` names a file, or a directory below a file."""
        there = next(each for each in (root, *root.parents) if is_there(each))
        if not is_directory(there):
            where = "is a file" if there == root else f"{str(there)!r} is a file"
            raise ConfigError("--root", "", repr(str(self.root)), f"{where}; name a directory")

    def as_text(self) -> str:
        """These options as a command line, with a leading blank; empty if there are none."""
        text = f" --root {self.root}" if self.root else ""
        return text + (f" --config {self.config}" if self.config else "")


NO_OPTIONS: Final = Options()
"""The defaults of the common options."""


@contextmanager
def named_argument(name: str, path: Path | None, source: str | None = None) -> Iterator[None]:
    """Makes an error about an unreadable file name the argument that has its path.

    Args:
        name: the argument as a help text calls it, such as `--config`
        path: its value; None: it was not given
        source: what errors of the library about this argument name; None: its path
    """
    try:
        yield
    except ConfigError as error:
        if error.source == source:
            raise ConfigError(name, "", error.value, error.expected) from error.__cause__
        if path is None or error.source != shown_path(str(path)) or not isinstance(error.__cause__, OSError):
            raise
        raise ConfigError(name, "", repr(error.source), error.expected) from error.__cause__


def listens(config: RuntimeConfig) -> bool:
    """Whether a command that serves turns listens for other commands. True unless the settings forbid it."""
    return config.admin.socket is not False


_PREFIXES: Final = {"session": ("SES-", "CONS-"), "turn": ("T-", "WO-")}
"""The prefixes of ids. Some commands accept the pseudo-session of a consolidation for a session, and its work order for a
turn."""


class MayBeLast(NamedTuple):
    """Marks a parameter that takes the id of a session or turn, or `last`."""

    what: Literal["session", "turn"]


def whole_number(text: str, *, name: tuple[str, ...] | None = None, at_least: int = 1, at_most: int = MAX_COUNT) -> Parameter:
    """An option that takes a whole number. Without this, `1.5` would be rounded.

    Args:
        text: its help text
        name: its names; None: that of the argument
        at_least: the smallest number
        at_most: the largest number
    """

    def read(_: object, tokens: Sequence[Token]) -> int:
        try:
            return int(tokens[0].value)
        except ValueError:
            raise ValueError(f"{quoted(tokens[0].value)} is no whole number") from None

    return Parameter(name=name, help=text, validator=Number(gte=at_least, lte=at_most), converter=read)


SessionArgument = Annotated[str, Parameter(help="A session id, such as SES-0a1b2c3d, or `last`."), MayBeLast("session")]
SessionChoice = Annotated[str | None, Parameter(help="Only this session. `last`: the newest one."), MayBeLast("session")]
TurnArgument = Annotated[str, Parameter(help="A turn id, such as T-0a1b2c3d-000002, or `last`."), MayBeLast("turn")]
TurnChoice = Annotated[str | None, Parameter(help="A turn id, such as T-0a1b2c3d-000002, or `last`."), MayBeLast("turn")]
JsonFlag = Annotated[bool, Parameter(name="--json", negative="", help="Print one JSON value and nothing else.")]
OUTPUT_NAMES: Final = ("--out", "--output", "-o")
"""The option that names a file or folder to write."""
ReasonOption = Annotated[str, Parameter(name="--reason", help="The reason. It is recorded.")]


def resolve_ids(command: Callable[..., object], arguments: dict[str, object]) -> None:
    """Replaces `last` by ids in the arguments, by name, of a command that is about to run.

    Raises:
        CallerError: an argument or option is empty, or is no id of a session or turn where one is expected
        ConfigError: the settings or the agent class are wrong
        NotOnRecord: there is no session or turn yet
    """
    if not command.__module__.startswith(f"{__name__.partition('.')[0]}."):
        return  # the help text or the version
    hints = get_type_hints(command, include_extras=True)
    if (empty := next((name for name, value in arguments.items() if value == ""), None)) is not None:
        is_option = inspect.signature(command).parameters[empty].kind is inspect.Parameter.KEYWORD_ONLY
        shown = _option_name(empty, hints[empty]) if is_option else empty.upper()
        raise CallerError(f"{shown} is empty, perhaps because a shell variable is not set; give a value")
    for name, value in arguments.items():
        for mark in (each for each in get_args(hints.get(name)) if isinstance(each, MayBeLast)):
            if value is None or not isinstance(value, str) or value.startswith(_PREFIXES[mark.what]):
                continue
            if value.casefold() != LAST:
                example = f"{_PREFIXES[mark.what][0]}0a1b2c3d{'-000002' if mark.what == 'turn' else ''}"
                raise CallerError(f"{quoted(value, 80)} is not a {mark.what} id: expected one such as {example}, or `{LAST}`")
            options = arguments.get("options", NO_OPTIONS)
            assert isinstance(options, Options)
            arguments[name] = anyio.run(options.paths().newest, mark.what, options.named_agent)


def _option_name(name: str, hint: object) -> str:
    """The first name of an option on the command line."""
    given = (next(iter(each.name), None) for each in get_args(hint) if isinstance(each, Parameter) and each.name)
    return next(filter(None, given), f"--{name.replace('_', '-')}")
