"""Finds and opens the ledgers of a session for reading. Takes no lock and writes nothing."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio.to_thread

from kitchener.actors.executor.reply_contract import with_reply_contract
from kitchener.config import HO2Config, HO3MemoryConfig, RuntimeConfig
from kitchener.ledger import LedgerReader
from kitchener.records import events
from kitchener.records.index_keys import SESSIONS_KEY
from kitchener.runtime.memories import memory_config
from kitchener.runtime.root_layout import (
    agent_of,
    ledger_ids,
    open_readers,
    sealer_of,
)
from kitchener.runtime.sealed_root import missing_key
from kitchener.sealing import Sealer


@dataclass(frozen=True, slots=True)
class RecordedLedgers:
    """The open readers of one agent class. Ledgers that do not exist are left out."""

    agent: HO2Config
    memory: HO3MemoryConfig | None
    """The memory's settings for this class; None: memory is off."""
    ho1m: str
    ho2m: str
    context: str
    """Ledger ids."""
    readers: Mapping[str, LedgerReader]
    sealer: Sealer | None
    sources: LedgerReader | None
    """The ledger with the sources of requests: HO2m of this root, even if `readers` are those before an import."""

    async def sessions(self) -> list[str]:
        """The recorded sessions, oldest first."""
        reader = self.readers.get(self.ho2m)
        if reader is None:
            return []
        return [str(entry.session_id) async for entry in reader.read(key=SESSIONS_KEY, entry_type=events.SESSION_START)]

    async def missing_key(self, session_id: str) -> str:
        """Which key is missing to read a session, with no erasure on record; "": none."""
        readers = [each for each in (self.readers.get(self.ho2m), self.readers.get(self.ho1m)) if each is not None]
        payloads = [entry.payload for reader in readers async for entry in reader.read(session_id=session_id)]
        return await missing_key(self.sources, payloads) if self.sources is not None else ""


def memory_settings(config: RuntimeConfig, agent: HO2Config) -> HO3MemoryConfig | None:
    """The memory's settings for an agent class; None: its turns use no memory."""
    return memory_config(config.memory, agent) if agent.ho3_enabled else None


@asynccontextmanager
async def open_recorded(config: RuntimeConfig, agent_class: str) -> AsyncIterator[RecordedLedgers]:
    """Opens the ledgers of an agent class for reading, until the block ends.

    Raises:
        LedgerDamaged: earlier data does not verify
        LedgerPathError: a file cannot be read
    """
    agent = await anyio.to_thread.run_sync(with_reply_contract, agent_of(config, agent_class))
    ids = ledger_ids(agent_class)
    sealer, memory = sealer_of(config), memory_settings(config, agent)
    async with open_readers(config, agent_class, sealer=sealer, ids=ids) as opened:
        readers = {ids[name]: reader for name, reader in opened.items()}
        yield RecordedLedgers(agent, memory, ids["ho1m"], ids["ho2m"], ids["context"], readers, sealer, opened.get("ho2m"))
