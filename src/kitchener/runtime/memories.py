"""Opens the long-term memories of a runtime: one pair of ledgers per directory, shared by the agent classes that use it.

An agent class's own `ho3_*` settings override those of `[memory]`.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from kitchener.clock import Clock
from kitchener.config import DEFAULT_AGENT, INHERITED, HO2Config, HO3MemoryConfig, RuntimeConfig
from kitchener.memory import HO3Memory
from kitchener.memory.reader import memory_dir
from kitchener.sealing import Sealer

_OWN = {
    "ho3_memory_dir": "memory_dir",
    "ho3_gate_count_threshold": "gate_count_threshold",
    "ho3_gate_session_threshold": "gate_session_threshold",
    "ho3_gate_window_hours": "gate_window_hours",
}
"""An agent class's setting to the setting of `[memory]` that it overrides."""


@asynccontextmanager
async def open_memories(
    config: RuntimeConfig, *, clock: Clock, sealer: Sealer | None
) -> AsyncIterator[Mapping[str, HO3Memory]]:
    """The memory of each agent class that uses one, by class name, open until the block ends.

    Args:
        config: the whole configuration, with absolute paths
        clock: the time of day
        sealer: encrypts learned lines; None: they are stored in plain text

    Raises:
        LedgerError: a ledger is damaged, locked, or cannot be at its path
    """
    known = config.classes or config.agents  # if no class has a table, all have the settings of `[agents.default]`
    classes = {name: agent for name, agent in known.items() if agent.ho3_enabled}
    if config.memory.enabled:
        classes = {DEFAULT_AGENT: HO2Config(), **known}
    opened: dict[Path, HO3Memory] = {}
    memories: dict[str, HO3Memory] = {}
    async with AsyncExitStack() as stack:
        for name, agent in classes.items():
            own = memory_config(config.memory, agent)
            place = memory_dir(config.plane_root, own)
            memory = opened.get(place)
            if memory is None:
                memory = await stack.enter_async_context(
                    HO3Memory.open(config.plane_root, own, clock=clock, ledger_config=config.ledger, sealer=sealer)
                )
                opened[place] = memory
            memories[name] = memory.configured(own)
        yield memories


def memory_of(memories: Mapping[str, HO3Memory], agent_class: str) -> HO3Memory | None:
    """The memory of an agent class, from those that `open_memories` opened; None: the class uses none."""
    return memories.get(agent_class) or memories.get(INHERITED)


def memory_config(shared: HO3MemoryConfig, agent: HO2Config) -> HO3MemoryConfig:
    """The memory's settings for an agent class: the shared ones, overridden by its own."""
    own = {theirs: getattr(agent, ours) for ours, theirs in _OWN.items() if ours in agent.model_fields_set}
    return shared.model_copy(update=own)
