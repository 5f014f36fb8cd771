"""Turns a configuration into the paths of its agent classes' ledgers and of its memories."""

from pathlib import Path
from urllib.parse import unquote

from kitchener.config import HO2Config, HO3MemoryConfig, LedgerConfig, RuntimeConfig
from kitchener.ids import is_agent_class, path_part
from kitchener.memory.reader import OVERLAYS_FILE, SIGNALS_FILE, memory_dir
from kitchener.records.events import SEALED_FIELDS
from kitchener.runtime.loading import load_config
from kitchener.runtime.memories import memory_config
from kitchener.sealing import Keyring, Sealer


def settings_of(config: RuntimeConfig | str | Path | None, root: str | Path | None) -> RuntimeConfig:
    """The complete settings, as `open_runtime` would use them."""
    if not isinstance(config, RuntimeConfig):
        return load_config(config, root=root).config
    named = {name: agent.model_copy(update={"agent_class": name}) for name, agent in config.agents.items()}
    where = Path(root if root is not None else config.plane_root).absolute()
    return config.model_copy(update={"plane_root": str(where), "agents": named})


def sealer_of(config: LedgerConfig) -> Sealer | None:
    """Encrypts and decrypts what subjects said; None: it is stored in plain text."""
    return Sealer(Keyring(Path(config.keyring)), SEALED_FIELDS) if config.keyring else None


def agent_of(config: RuntimeConfig, agent_class: str) -> HO2Config:
    """The settings of an agent class; one that is not configured has the defaults."""
    return config.agents.get(agent_class) or HO2Config(agent_class=agent_class)


def ho2m_path(root: Path, agent: HO2Config) -> Path:
    """The supervisor's ledger of an agent class."""
    return Path(agent.ho2m_path) if agent.ho2m_path else root / "HO2" / path_part(agent.agent_class) / "ho2m.jsonl"


def agent_classes(config: RuntimeConfig) -> list[str]:
    """Every agent class that is configured or has a ledger, in alphabetical order."""
    found = (unquote(path.parent.name) for path in Path(config.plane_root).glob("HO2/*/ho2m.jsonl"))
    return sorted({*config.agents, *filter(is_agent_class, found)})


def supervisors_ledgers(config: RuntimeConfig) -> dict[str, Path]:
    """The existing supervisors' ledgers, by agent class, in alphabetical order."""
    root = Path(config.plane_root)
    found = {name: ho2m_path(root, agent_of(config, name)) for name in sorted({"ADMIN", *agent_classes(config)})}
    return {name: path for name, path in found.items() if path.exists()}


def memories(config: RuntimeConfig) -> dict[Path, HO3MemoryConfig]:
    """The existing memories, by directory, each with the settings of the first agent class that uses it."""
    root, found = Path(config.plane_root), dict[Path, HO3MemoryConfig]()
    for name in sorted({"ADMIN", *agent_classes(config)}):
        own = memory_config(config.memory, agent_of(config, name))
        found.setdefault(memory_dir(root, own), own)
    return {
        where: own for where, own in found.items() if any((where / name).exists() for name in (SIGNALS_FILE, OVERLAYS_FILE))
    }
