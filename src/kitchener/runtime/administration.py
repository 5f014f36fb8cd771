"""Carries out an operation: in the process that has the root open, or in this one if no process has it open.

Both ways run the same operation of `admin/operations.py`. Explained in `docs/runtime.md`.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.clock import Clock, SystemClock
from kitchener.config import RuntimeConfig
from kitchener.errors import NotOnRecord
from kitchener.ledger import LedgerClient, LedgerEntry
from kitchener.memory import HO3Memory
from kitchener.runtime.admin.admin_client import NobodyListens, ask
from kitchener.runtime.admin.operation import Operation
from kitchener.runtime.admin.runtime_statistics import RuntimeStatistics
from kitchener.runtime.content_integrity import remove_orphans
from kitchener.runtime.erasure import ErasureReport, erase_subject
from kitchener.runtime.loading import LoadedConfig
from kitchener.runtime.memories import memory_config
from kitchener.runtime.portable.conversations import ConversationsImport, import_conversations
from kitchener.runtime.portable.importer import SessionImport, import_session
from kitchener.runtime.root_layout import INDEX_KEYS, agent_of, index_dir, ledger_paths, loaded_settings, sealer_of
from kitchener.runtime.runtime import open_runtime

R = TypeVar("R")


async def administer(config: RuntimeConfig | LoadedConfig, operation: Operation[R]) -> R:
    """Runs an operation in the process that has the root open, else in this one, and returns its result.

    Args:
        config: the whole configuration, with absolute paths
        operation: the operation

    Raises:
        AdminUnavailable: a process has the root open and cannot accept the request; nothing was done
        AdminRefused: the operation failed in that process
        AdminUnanswered: that process gave no answer in time; the change may have been made
        LedgerLocked: a process has the ledgers open and does not listen
        KitchenerError: the operation failed in this process
    """
    loaded = loaded_settings(config, None)
    try:
        return await ask(loaded.config, operation)
    except NobodyListens:
        return await operation.run(FreeRoot(loaded))


class FreeRoot:
    """Implements `AdminRoot` for a root that no process has open: each call locks what it needs.

    Args:
        loaded: the whole configuration, with absolute paths
    """

    def __init__(self, loaded: LoadedConfig) -> None:
        self._loaded, self._config = loaded, loaded.config
        self.clock: Clock = SystemClock()
        self.directory = Path(loaded.config.plane_root)

    @asynccontextmanager
    async def open_supervisor(self, agent_class: str) -> AsyncIterator[HO2Supervisor]:
        """The supervisor of a runtime that is opened for the block."""
        async with open_runtime(self._loaded, admin_socket=False) as runtime:
            yield runtime.supervisor(agent_class)

    @asynccontextmanager
    async def open_memory(self, agent_class: str) -> AsyncIterator[HO3Memory]:
        """The memory, locked for the block."""
        own = memory_config(self._config.memory, agent_of(self._config, agent_class))
        opened = HO3Memory.open(
            self.directory, own, ledger_config=self._config.ledger, sealer=sealer_of(self._config), clock=self.clock
        )
        async with opened as memory:
            yield memory

    async def append(self, agent_class: str, session_id: str, ledger_id: str, entries: Sequence[LedgerEntry]) -> None:
        """Appends entries about a session.

        Does not use a session of a runtime: the ledger may be another program's, whose sessions no runtime can activate.
        """
        opened = LedgerClient.open(
            ledger_paths(self._config, agent_class)["ho2m"],
            ledger_id=ledger_id,
            config=self._config.ledger,
            index_dir=index_dir(self._config),
            index_keys=INDEX_KEYS["ho2m"],
            sealer=sealer_of(self._config),
        )
        async with opened as ledger:
            await ledger.write_all(list(entries))
            await ledger.commit()

    async def erase_subject(self, subject_id: str) -> ErasureReport:
        """Erases in this process."""
        return await erase_subject(subject_id, config=self._config)

    async def import_session(self, folder: Path, public_key: str | None) -> SessionImport:
        """Adds an exported session."""
        return await import_session(folder, config=self._config, public_key=public_key)

    async def clean_content(self) -> tuple[Path, ...]:
        """Removes the stored files that no entry names."""
        return await remove_orphans(self._config)

    async def import_conversations(
        self, file: Path, subject_id: str, agent_class: str, *, dry_run: bool
    ) -> ConversationsImport:
        """Adds conversations of other programs."""
        return await import_conversations(
            file, subject_id=subject_id, agent_class=agent_class, config=self._config, dry_run=dry_run
        )

    def statistics(self) -> RuntimeStatistics:
        """Raises NotOnRecord, because no process has queues."""
        raise NotOnRecord(f"no process has {self.directory} open and listens, so there are no queues")
