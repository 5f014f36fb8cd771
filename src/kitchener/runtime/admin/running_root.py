"""Carries out operations in a running process, through its supervisors, its memories and its open ledgers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import anyio.to_thread

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.clock import Clock
from kitchener.ids import memory_namespace
from kitchener.ledger import LedgerClient, LedgerEntry
from kitchener.memory import HO3Memory
from kitchener.memory.reader import memory_dir
from kitchener.records import events
from kitchener.runtime.admin.runtime_statistics import RuntimeStatistics
from kitchener.runtime.agents.agent import Agent
from kitchener.runtime.agents.shared_components import RuntimeComponents
from kitchener.runtime.content_integrity import remove_orphans_beside
from kitchener.runtime.erasure import ErasureReport
from kitchener.runtime.memories import memory_config
from kitchener.runtime.portable.conversations import ConversationsImport, ConversationsToAdd, check_target
from kitchener.runtime.portable.folder import read_folder
from kitchener.runtime.portable.importer import SessionImport, add_folder
from kitchener.runtime.root_layout import LedgerName, agent_of
from kitchener.times import iso_of


class RunningRoot:
    """Implements `AdminRoot` for a runtime.

    Args:
        shared: the components that all agent classes of the runtime share
        agent: returns the agent class with a name; True: it is known from the ledgers, so it need not be configured
        erase: erases a subject
        statistics: returns the present state of the queues
    """

    def __init__(
        self,
        shared: RuntimeComponents,
        *,
        agent: Callable[[str, bool], Agent],
        erase: Callable[[str], Awaitable[ErasureReport]],
        statistics: Callable[[], RuntimeStatistics],
    ) -> None:
        self._shared, self._agent, self._erase, self.statistics = shared, agent, erase, statistics

    @property
    def directory(self) -> Path:
        """The directory of the ledgers."""
        return Path(self._shared.config.plane_root)

    @property
    def clock(self) -> Clock:
        """The time of day."""
        return self._shared.injected.clock

    @asynccontextmanager
    async def open_supervisor(self, agent_class: str) -> AsyncIterator[HO2Supervisor]:
        """The supervisor that serves the turns of the class."""
        agent = self._agent(agent_class, False)
        await agent.ready()
        yield agent.supervisor

    @asynccontextmanager
    async def open_memory(self, agent_class: str) -> AsyncIterator[HO3Memory]:
        """The memory that turns use. If no class of this runtime uses it, opens its ledgers for the block."""
        config = self._shared.config
        own = memory_config(config.memory, agent_of(config, agent_class))
        opened = self._memory_at(memory_dir(self.directory, own))
        if opened is not None:
            yield opened.configured(own)
            return
        async with (
            self._shared.opening_memory,  # a second one at the same time would find the ledgers in use
            HO3Memory.open(
                self.directory, own, clock=self.clock, ledger_config=config.ledger, sealer=self._shared.sealer
            ) as memory,
        ):
            yield memory

    async def append(self, agent_class: str, session_id: str, ledger_id: str, entries: Sequence[LedgerEntry]) -> None:
        """Appends entries about a session: through the session if Kitchener started it, otherwise directly to the ledger."""
        agent = self._agent(agent_class, True)
        await agent.ready()
        ho2m = agent.ledgers.ho2m
        starts = [each async for each in ho2m.read(session_id=session_id, limit=1)] if session_id else []
        if starts and starts[0].entry_type == events.SESSION_START and "v" in events.read_common(starts[0]):
            await agent.supervisor.outside.append(session_id, entries)
            return
        await ho2m.write_all(list(entries))
        agent.supervisor.outside.wrote(entries)
        await ho2m.commit()

    async def erase_subject(self, subject_id: str) -> ErasureReport:
        """Erases a subject; its running turns are cancelled."""
        return await self._erase(subject_id)

    async def import_session(self, folder: Path, public_key: str | None) -> SessionImport:
        """Adds an exported session while turns of other sessions continue."""
        found = await anyio.to_thread.run_sync(partial(read_folder, folder, public_key=public_key))
        agent_class, subject_id = found.manifest.agent_class, found.manifest.subject_id
        agent = self._agent(agent_class, True)
        await agent.ready()
        opened: dict[LedgerName, LedgerClient] = {
            "ho2m": agent.ledgers.ho2m,
            "ho1m": agent.ledgers.ho1m,
            "context": agent.ledgers.context,
        }
        config = self._shared.config
        memory = self._memory_at(memory_dir(self.directory, memory_config(config.memory, agent_of(config, agent_class))))
        if memory is not None:
            opened |= {"signals": memory.signals, "overlays": memory.overlays}
        try:
            with agent.supervisor.outside.importing(subject_id):
                return await add_folder(found, config=config, sealer=self._shared.sealer, clock=self.clock, opened=opened)
        finally:  # a part of the session may have been written
            if memory is not None:
                await memory.read_again(memory_namespace(agent_class, subject_id))

    async def clean_content(self) -> tuple[Path, ...]:
        """Removes the stored files that no entry names, except those that a turn has just stored."""
        return await remove_orphans_beside(self._shared.config, self._shared.content)

    async def import_conversations(
        self, file: Path, subject_id: str, agent_class: str, *, dry_run: bool
    ) -> ConversationsImport:
        """Adds conversations of other programs while turns continue."""
        config, sealer = self._shared.config, self._shared.sealer
        check_target(config, subject_id, agent_class)
        agent = self._agent(agent_class, False)
        await agent.ready()
        now = iso_of(self.clock.time_us())
        found = ConversationsToAdd(file, subject_id, agent_class, config=config, sealer=sealer, now=now)
        with ExitStack() as stack:
            await found.open(stack)
            if dry_run:
                return await found.look_up(agent.ledgers.ho2m)
            return await add_while_serving(found, agent, subject_id)

    def _memory_at(self, directory: Path) -> HO3Memory | None:
        """The open memory in a directory, whichever class uses it."""
        opened = self._shared.memories.values()
        return next((each for each in opened if each.signals.path.parent == directory), None)


async def add_while_serving(found: ConversationsToAdd, agent: Agent, subject_id: str) -> ConversationsImport:
    """Adds conversations of a subject to an agent class while its turns continue."""
    with agent.supervisor.outside.importing(subject_id):
        return await found.add(agent.ledgers.ho2m)
