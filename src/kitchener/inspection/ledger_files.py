"""Finds the ledgers of a configuration, and reads them without a lock: agent classes, sessions, the newest turn."""

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from kitchener.config import DEFAULT_AGENT, HO2Config, HO3MemoryConfig, RuntimeConfig
from kitchener.errors import NotOnRecord
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.ledger.disk.scan import BESIDE, may_be_ledger
from kitchener.ledger.index.index_dirs import index_dir_of, index_dirs_near, index_path
from kitchener.records import events
from kitchener.records.index_keys import index_keys
from kitchener.runtime.memories import memory_config
from kitchener.runtime.root_layout import (
    LedgerName,
    agent_classes,
    agent_of,
    class_of,
    ledger_ids,
    ledger_paths,
    open_reader,
    sealer_of,
)
from kitchener.sealing import Sealer
from kitchener.small_files import is_there

_NAMES: Final = frozenset(each.name for each in ledger_paths(RuntimeConfig(), DEFAULT_AGENT).values())
"""The names that ledgers have where no setting names another."""
_WINDOWS: Final = (64, 4_096)
"""Newest entries of a ledger that are searched for a turn, before all of them are."""
LAST: Final = "last"
"""Stands for the newest session or turn of `--agent`, or of all agent classes, wherever a command expects an id of one."""


class FilesBelow(NamedTuple):
    """The `*.jsonl` files below a directory."""

    ledgers: list[Path]
    others: list[Path]
    """Files that somebody else put there, such as an export."""


def ledgers_below(directory: Path) -> FilesBelow:
    """The ledgers below a directory, in order.

    A file with the name of a ledger counts as one whatever it holds, so that a damaged one is found. Any other counts if it
    begins as one, or if segments or a signed head lie beside it.

    Raises:
        PermissionError: a directory below it cannot be read
    """
    found = FilesBelow([], [])
    walked = os.walk(directory, onerror=_refuse)
    names = [Path(at, name) for at, folders, files in walked for name in (*folders, *files) if name.endswith(".jsonl")]
    for path in sorted(names):
        is_ledger = path.name in _NAMES or may_be_ledger(path)
        (found.ledgers if is_ledger else found.others).append(path)
    return found


def lost_below(directory: Path) -> list[Path]:
    """The ledgers below a directory whose file is gone, although their segments or their signed head are there, in order.

    Raises:
        PermissionError: a directory below it cannot be read
    """
    ends = tuple(f".jsonl{each}" for each in BESIDE)
    walked = os.walk(directory, onerror=_refuse)
    traces = [Path(at, name) for at, folders, files in walked for name in (*folders, *files) if name.endswith(ends)]
    return sorted({path for path in (each.with_suffix("") for each in traces) if not is_there(path)})


def _refuse(error: OSError) -> None:
    """Raises the error about a directory, unless it is not there, or is the one of the system where a file system begins."""
    if not isinstance(error, FileNotFoundError) and os.path.basename(error.filename or "") != "lost+found":
        raise error


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
        if not is_there(self.ledger(agent_class, name)):
            yield None
            return
        async with open_reader(self.config, agent_class, name, sealer=self.sealer()) as reader:
            yield reader

    @asynccontextmanager
    async def reader_at(self, path: Path, *, is_ho2m: bool = False) -> AsyncIterator[LedgerReader | None]:
        """A reader of a ledger at a path, a supervisor's or another; None where there is none yet. It takes no lock."""
        if not is_there(path):
            yield None
            return
        index_dir = index_dir_of(self.root) if path.is_relative_to(self.root) else None
        keys = index_keys if is_ho2m else None
        async with LedgerReader.open(path, index_dir=index_dir, index_keys=keys, sealer=self.sealer()) as reader:
            yield reader

    @asynccontextmanager
    async def kept_open(self) -> AsyncIterator["LedgerPaths"]:
        """These paths, with readers that stay open until the block ends: each ledger is opened and verified once."""
        async with AsyncExitStack() as opened:
            yield _KeptOpen(self.config, opened)

    def agent_classes(self) -> list[str]:
        """Every class that is configured or has a ledger, in order."""
        return agent_classes(self.config)

    def ledgers(self) -> Iterator[Path]:
        """Every ledger file there is: those under the root, and those that the settings put elsewhere."""
        found = set(ledgers_below(self.root).ledgers)
        for agent_class in (DEFAULT_AGENT, *self.config.classes):
            found.update(ledger_paths(self.config, agent_class).values())
        return (path for path in sorted(found) if is_there(path))

    def lost(self) -> list[Path]:
        """The ledgers whose file is gone, although segments, a signed head or an index show that it was there, in order."""
        found = set(lost_below(self.root))
        for agent_class in self.agent_classes():
            ids = ledger_ids(agent_class)
            for name, path in ledger_paths(self.config, agent_class).items():
                indexes = (index_path(each, ids[name], path) for each in {index_dir_of(self.root), *index_dirs_near(path)})
                if not is_there(path) and any(map(is_there, indexes)):
                    found.add(path)
        return sorted(found)

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
        for name in {DEFAULT_AGENT, *self.agent_classes()} if agent_class is None else [agent_class]:
            async with self.reader(name) as reader:
                entry = None if reader is None else await _newest(reader, kinds)
                found += [entry] if entry is not None else []
        if not found:
            whose = "" if agent_class is None else f" of {agent_class}"
            raise NotOnRecord(f"{LAST}: no {what}{whose} is on record yet; `kitchener chat` begins one")
        newest = max(found, key=lambda each: (each.timestamp, each.entity_id))
        return newest.entity_id if what == "turn" else events.read_common(newest)["session_id"]


@dataclass(frozen=True, slots=True)
class _KeptOpen(LedgerPaths):
    """Paths of ledgers that stay open; one task uses them."""

    opened: AsyncExitStack
    readers: dict[Path, LedgerReader] = field(default_factory=dict)

    @asynccontextmanager
    async def reader(self, agent_class: str, name: LedgerName = "ho2m") -> AsyncIterator[LedgerReader | None]:
        """As `LedgerPaths.reader`."""
        path = self.ledger(agent_class, name)
        yield self.readers.get(path) or await self._keep(path, LedgerPaths.reader(self, agent_class, name))

    @asynccontextmanager
    async def reader_at(self, path: Path, *, is_ho2m: bool = False) -> AsyncIterator[LedgerReader | None]:
        """As `LedgerPaths.reader_at`."""
        yield self.readers.get(path) or await self._keep(path, LedgerPaths.reader_at(self, path, is_ho2m=is_ho2m))

    async def _keep(self, path: Path, opening: AbstractAsyncContextManager[LedgerReader | None]) -> LedgerReader | None:
        reader = await self.opened.enter_async_context(opening)
        if reader is not None:
            self.readers[path] = reader
        return reader


async def _newest(reader: LedgerReader, kinds: tuple[str, ...]) -> StoredEntry | None:
    """The newest entry of these types."""
    for count in (*_WINDOWS, max(1, reader.position)):
        for entry in reversed(await reader.last(limit=count)):
            if entry.entry_type in kinds:
                return entry
    return None
