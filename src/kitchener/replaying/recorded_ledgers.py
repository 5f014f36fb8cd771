"""Finds and opens the ledgers of a session for reading. Takes no lock and writes nothing."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kitchener.config import HO2Config, HO3MemoryConfig, RuntimeConfig
from kitchener.errors import CallerError, UnknownSession
from kitchener.ids import is_session_id, path_part
from kitchener.ledger import LedgerReader
from kitchener.memory.index import OVERLAYS, SIGNALS, overlay_keys, signal_keys
from kitchener.memory.reader import memory_dir
from kitchener.records.events import SESSION_START, index_keys
from kitchener.runtime.ledger_paths import agent_of, ho2m_path, sealer_of
from kitchener.runtime.memories import memory_config
from kitchener.sealing import Sealer


@dataclass(frozen=True, slots=True)
class RecordedLedgers:
    """The open readers of one agent class, by ledger id; a ledger that was never made is left out."""

    agent: HO2Config
    memory: HO3MemoryConfig | None
    """The memory's settings as the class uses it; None: it is off."""
    ho1m: str
    ho2m: str
    context: str
    """Ledger ids."""
    readers: Mapping[str, LedgerReader]
    sealer: Sealer | None

    async def sessions(self) -> list[str]:
        """The sessions there are, oldest first."""
        reader = self.readers.get(self.ho2m)
        if reader is None:
            return []
        return [str(entry.session_id) async for entry in reader.read(key="sessions", entry_type=SESSION_START)]


def memory_of(config: RuntimeConfig, agent: HO2Config) -> HO3MemoryConfig | None:
    """The memory's settings as an agent class uses it; None: its turns do not use it."""
    return memory_config(config.memory, agent) if agent.ho3_enabled else None


@asynccontextmanager
async def open_recorded(config: RuntimeConfig, agent_class: str) -> AsyncIterator[RecordedLedgers]:
    """The ledgers of an agent class, open for reading until the block is left.

    Raises:
        LedgerDamaged: what was written once does not verify
        LedgerPathError: a file cannot be read
    """
    agent = agent_of(config, agent_class)
    root, part, memory = Path(config.plane_root), path_part(agent_class), memory_of(config, agent)
    sealer = sealer_of(config.ledger)
    where = ho2m_path(root, agent)
    ho1m = Path(agent.ho1m_path) if agent.ho1m_path else root / "HO1" / part / "ho1m.jsonl"
    memories = memory_dir(root, memory_config(config.memory, agent))
    files: Sequence[tuple[str, Path, Callable[..., Any] | None]] = (
        (f"HO1M:{part}", ho1m, None),
        (f"HO2M:{part}", where, index_keys),
        (f"CONTEXT:{part}", where.with_name("context.jsonl"), None),
        (SIGNALS, memories / "signals.jsonl", signal_keys),
        (OVERLAYS, memories / "overlays.jsonl", overlay_keys),
    )
    async with AsyncExitStack() as stack:
        readers: dict[str, LedgerReader] = {}
        for ledger_id, path, keys in files:
            if path.exists():
                opened = LedgerReader.open(path, ledger_id=ledger_id, index_dir=root / "index", index_keys=keys, sealer=sealer)
                readers[ledger_id] = await stack.enter_async_context(opened)
        yield RecordedLedgers(agent, memory, f"HO1M:{part}", f"HO2M:{part}", f"CONTEXT:{part}", readers, sealer)


async def class_of(config: RuntimeConfig, session_id: str, classes: Iterable[str]) -> str:
    """The agent class in whose ledger a session stands.

    Raises:
        CallerError: the id has not the form of a session id
        UnknownSession: none of the classes has it
    """
    if not is_session_id(session_id):
        raise CallerError(f"{session_id!r} is not a session id: expected SES- and 8 to 32 lower-case hex digits")
    asked = list(classes)
    for agent_class in asked:
        path = ho2m_path(Path(config.plane_root), agent_of(config, agent_class))
        if path.exists():
            async with LedgerReader.open(path, index_dir=Path(config.plane_root) / "index", index_keys=index_keys) as reader:
                if await reader.last(session_id=session_id):
                    return agent_class
    raise UnknownSession(session_id, asked[0] if asked else "ADMIN")
