"""Turns a configuration into the paths of its agent classes' ledgers and of its memories, and opens the ledgers for reading.

Readers take no lock and write nothing.
"""

import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal
from urllib.parse import unquote

import anyio.to_thread

from kitchener.actors.sessions.fresh_ids import check_session_id
from kitchener.config import DEFAULT_AGENT, INHERITED, HO2Config, HO3MemoryConfig, RuntimeConfig
from kitchener.errors import SigningError, UnknownSession
from kitchener.ids import is_agent_class, path_part
from kitchener.ledger import LedgerReader
from kitchener.ledger.format.lines import IndexKeys
from kitchener.ledger.index.index_dirs import index_dir_of
from kitchener.memory.reader import OVERLAYS_FILE, SIGNALS_FILE, memory_dir
from kitchener.memory.subject_cache import OVERLAYS, SIGNALS, overlay_keys, signal_keys
from kitchener.records.events import SEALED_FIELDS
from kitchener.records.index_keys import index_keys
from kitchener.runtime.loading import LoadedConfig, checked_root, load_config
from kitchener.runtime.memories import memory_config
from kitchener.sealing import Keyring, Sealer
from kitchener.signing import Signer, load_signer
from kitchener.small_files import is_directory, is_there

LedgerName = Literal["ho2m", "ho1m", "context", "signals", "overlays"]
"""The ledgers of one agent class. Several classes may share the ledgers of the memory, `signals` and `overlays`."""

INDEX_KEYS: Final[Mapping[LedgerName, IndexKeys]] = {"ho2m": index_keys, "signals": signal_keys, "overlays": overlay_keys}
"""The index keys of each ledger's entries. The other ledgers have none."""
_ANY_IDS: Final[Mapping[LedgerName, str]] = {}


def settings_of(config: RuntimeConfig | str | Path | None, root: str | Path | None) -> RuntimeConfig:
    """The complete settings that `open_runtime` would use."""
    return loaded_settings(config, root).config


def loaded_settings(config: LoadedConfig | RuntimeConfig | str | Path | None, root: str | Path | None) -> LoadedConfig:
    """The complete settings that `open_runtime` would use, and their source: a file, the defaults or an object."""
    if isinstance(config, LoadedConfig):
        return config if root is None else replace(config, config=settings_of(config.config, root))
    if not isinstance(config, RuntimeConfig):
        return load_config(config, root=root)
    named = {name: agent.model_copy(update={"agent_class": name}) for name, agent in config.agents.items()}
    where = checked_root(root if root is not None else config.plane_root).absolute()
    whole = config.model_copy(update={"plane_root": str(where), "agents": named})
    return LoadedConfig(whole, "RuntimeConfig", Path.cwd())


def keyring_dir(config: RuntimeConfig) -> Path:
    """The directory of the subjects' keys, even if it does not exist. By default it lies outside the root."""
    return Path(config.ledger.keyring or f"{os.path.abspath(config.plane_root)}.keys")


def sealer_of(config: RuntimeConfig) -> Sealer | None:
    """Encrypts and decrypts content; None: content is stored in plain text, and nothing was ever sealed."""
    directory, seals = keyring_dir(config), config.ledger.seal
    return Sealer(Keyring(directory), SEALED_FIELDS, seals=seals) if seals or is_there(directory) else None


def signer_of(loaded: LoadedConfig) -> Signer | None:
    """Signs heads and projections; None: no key is set.

    Raises:
        SigningError: the key cannot be used; names the setting and its source
    """
    path = loaded.config.ledger.signing_key
    try:
        return load_signer(path) if path is not None else None
    except SigningError as error:
        raise SigningError(f"{loaded.source}: ledger.signing_key: {error}") from error


def agent_of(config: RuntimeConfig, agent_class: str) -> HO2Config:
    """The settings of an agent class. A class without a table has the settings of `[agents.default]`, or the defaults."""
    if (found := config.agents.get(agent_class)) is not None:
        return found
    inherited = config.agents.get(INHERITED, HO2Config())
    return inherited.model_copy(update={"agent_class": agent_class})


def ledger_paths(config: RuntimeConfig, agent_class: str) -> dict[LedgerName, Path]:
    """The files of an agent class's ledgers, even if they do not exist."""
    agent, root, part = agent_of(config, agent_class), Path(config.plane_root), path_part(agent_class)
    ho2m = Path(agent.ho2m_path) if agent.ho2m_path else root / "HO2" / part / "ho2m.jsonl"
    memory = memory_dir(root, memory_config(config.memory, agent))
    return {
        "ho2m": ho2m,
        "ho1m": Path(agent.ho1m_path) if agent.ho1m_path else root / "HO1" / part / "ho1m.jsonl",
        "context": ho2m.with_name("context.jsonl"),
        "signals": memory / SIGNALS_FILE,
        "overlays": memory / OVERLAYS_FILE,
    }


def ledger_ids(agent_class: str) -> dict[LedgerName, str]:
    """The ledger ids in the entries of an agent class's ledgers."""
    part = path_part(agent_class)
    return {
        "ho1m": f"HO1M:{part}",
        "ho2m": f"HO2M:{part}",
        "context": f"CONTEXT:{part}",
        "signals": SIGNALS,
        "overlays": OVERLAYS,
    }


def class_of_ledger(ledger_id: str) -> str:
    """The agent class whose ledger has this id."""
    return unquote(ledger_id.partition(":")[2])


def index_dir(config: RuntimeConfig) -> Path:
    """The directory of the ledgers' indexes."""
    return index_dir_of(config.plane_root)


def agent_classes(config: RuntimeConfig) -> list[str]:
    """Every agent class that is configured or has a ledger, in alphabetical order.

    Raises:
        PermissionError: a directory of the root cannot be read
    """
    found = set[str]()
    for tier, ledger in (("HO1", "ho1m.jsonl"), ("HO2", "ho2m.jsonl")):
        folder = Path(config.plane_root, tier)  # not by `glob`, which leaves out what it may not read
        found |= {unquote(each.name) for each in folder.iterdir() if is_there(each / ledger)} if is_directory(folder) else set()
    return sorted({*config.classes, *filter(is_agent_class, found)})


def supervisors_ledgers(config: RuntimeConfig) -> dict[str, Path]:
    """The existing supervisors' ledgers, by agent class, in alphabetical order."""
    found = {name: ledger_paths(config, name)["ho2m"] for name in sorted({DEFAULT_AGENT, *agent_classes(config)})}
    return {name: path for name, path in found.items() if is_there(path)}


def memories(config: RuntimeConfig) -> dict[Path, HO3MemoryConfig]:
    """The existing memories, by directory, each with the settings of the first agent class that uses it."""
    root, found = Path(config.plane_root), dict[Path, HO3MemoryConfig]()
    for name in sorted({DEFAULT_AGENT, *agent_classes(config)}):
        own = memory_config(config.memory, agent_of(config, name))
        found.setdefault(memory_dir(root, own), own)
    return {where: own for where, own in found.items() if any(is_there(where / name) for name in (SIGNALS_FILE, OVERLAYS_FILE))}


def open_reader(
    config: RuntimeConfig,
    agent_class: str,
    name: LedgerName,
    *,
    sealer: Sealer | None = None,
    ledger_id: str | None = None,
) -> AbstractAsyncContextManager[LedgerReader]:
    """Opens one ledger of an agent class for reading, until the block ends.

    Args:
        config: the complete settings
        agent_class: the agent class
        name: the ledger
        sealer: decrypts sealed values; None: sealed values stay sealed
        ledger_id: the id that the ledger must have; None: the id in its first entry

    Raises:
        LedgerPathError: the file cannot be read
        LedgerDamaged: earlier data does not verify
    """
    path, keys = ledger_paths(config, agent_class)[name], INDEX_KEYS.get(name)
    return LedgerReader.open(path, ledger_id=ledger_id, index_dir=index_dir(config), index_keys=keys, sealer=sealer)


@asynccontextmanager
async def open_readers(
    config: RuntimeConfig, agent_class: str, *, sealer: Sealer | None = None, ids: Mapping[LedgerName, str] = _ANY_IDS
) -> AsyncIterator[dict[LedgerName, LedgerReader]]:
    """Opens the existing ledgers of an agent class for reading, until the block ends; see `open_reader`."""
    async with AsyncExitStack() as stack:
        found = dict[LedgerName, LedgerReader]()
        for name, path in ledger_paths(config, agent_class).items():
            if is_there(path):
                opened = open_reader(config, agent_class, name, sealer=sealer, ledger_id=ids.get(name))
                found[name] = await stack.enter_async_context(opened)
        yield found


async def class_of(config: RuntimeConfig, session_id: str, classes: Iterable[str]) -> str:
    """The agent class whose ledger contains a session; the classes are searched in order.

    Raises:
        CallerError: the session id is malformed
        UnknownSession: none of the classes has the session
    """
    check_session_id(session_id)
    asked = list(classes)
    for agent_class in asked:
        if is_there(ledger_paths(config, agent_class)["ho2m"]):
            async with open_reader(config, agent_class, "ho2m") as reader:
                if await reader.last(session_id=session_id):
                    return agent_class
    raise UnknownSession(session_id, asked[0] if asked else DEFAULT_AGENT, asked[1:])


async def settings_and_class_of(
    session_id: str, config: RuntimeConfig | str | Path | None, root: str | Path | None, agent_class: str | None
) -> tuple[RuntimeConfig, str]:
    """The complete settings, and the agent class whose ledger contains a session.

    Args:
        session_id: the session
        config: path of a `kitchener.toml`, or a `RuntimeConfig`; None: as for `open_runtime`
        root: overrides `plane_root`
        agent_class: the only class whose ledger is searched; None: those of all classes

    Raises:
        ConfigError: the settings are wrong
        CallerError, UnknownSession: as `class_of`
    """
    settings = await anyio.to_thread.run_sync(settings_of, config, root)
    classes = [agent_class] if agent_class is not None else await anyio.to_thread.run_sync(agent_classes, settings)
    return settings, await class_of(settings, session_id, classes)
