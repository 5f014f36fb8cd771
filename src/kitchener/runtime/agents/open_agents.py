"""Holds the agent classes of a runtime, which it creates on first use and closes together.

The name of a class that is not configured may be chosen by a caller, so their number is limited. Explained in
`docs/runtime.md`.
"""

from collections.abc import Mapping
from types import MappingProxyType

import anyio

from kitchener.actors.admission.argument_checks import check_is_text
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.tools.tool import Tool
from kitchener.config import DEFAULT_AGENT
from kitchener.config.settings_parser import toml_key
from kitchener.errors import CallerError
from kitchener.ids import AGENT_CLASS_FORM, is_agent_class
from kitchener.ledger import Ledgers
from kitchener.ledger.client import abandon_ledgers
from kitchener.logs import get_logger
from kitchener.plain_names import quoted
from kitchener.runtime.agents.agent import Agent
from kitchener.runtime.agents.shared_components import RuntimeComponents
from kitchener.runtime.queries.nested_approvals import OpenedClass
from kitchener.runtime.root_layout import agent_of
from kitchener.runtime.setting_checks import check_is_configured, named_class

_log = get_logger(__name__)


class OpenAgents:
    """The agent classes of one runtime.

    Args:
        shared: the components that all of them share
    """

    def __init__(self, shared: RuntimeComponents) -> None:
        self._shared, self._config = shared, shared.config
        self._agents: dict[str, Agent] = {}
        self.by_name: Mapping[str, Agent] = MappingProxyType(self._agents)
        """Those that were used so far."""

    def agent(self, agent_class: str, *, is_on_record: bool = False) -> Agent:
        """The agent class with this name, which is created on first use.

        Args:
            agent_class: its name
            is_on_record: True: it has ledgers, so it need not be configured

        Raises:
            CallerError: this is not a valid name; or it is not among the configured classes; or no class is configured and
                `max_agent_classes` are open
            ConfigError, PromptError, ToolError: the class cannot be built from its settings
        """
        check_is_text("agent_class", agent_class)
        agent = self._agents.get(agent_class)
        if agent is None:
            self._shared.loop.check()  # opening it starts tasks
            if not is_agent_class(agent_class):
                raise CallerError(f"agent class {quoted(agent_class)}: expected {AGENT_CLASS_FORM}")
            if not is_on_record:
                check_is_configured(self._config, agent_class)
                self._check_room(agent_class)
            with named_class(self._shared.source, agent_class):
                agent = Agent(agent_of(self._config, agent_class), self._shared, self.supervisor)
            self._agents[agent_class] = agent
            agent.open()
        return agent

    def supervisor(self, agent_class: str) -> HO2Supervisor:
        """The supervisor of an agent class."""
        return self.agent(agent_class).supervisor

    def ledgers(self, agent_class: str) -> Ledgers:
        """The ledgers of an agent class that is in use.

        Raises:
            CallerError: the class is not configured, or its supervisor was not asked for
        """
        check_is_text("agent_class", agent_class)
        if (agent := self._agents.get(agent_class)) is None:
            check_is_configured(self._config, agent_class)
            raise CallerError(f"agent class {quoted(agent_class)} is not in use; `runtime.supervisor` opens its ledgers")
        return agent.ledgers

    async def opened(self, agent_class: str) -> OpenedClass:
        """An agent class whose ledgers are open, as its requests for approval are read."""
        return await self.agent(agent_class).opened()

    def _check_room(self, agent_class: str) -> None:
        """Refuses another class without settings if `max_agent_classes` of them are open. Callers may choose their names."""
        configured, limit = {DEFAULT_AGENT, *self._config.classes}, self._config.limits.max_agent_classes
        if agent_class not in configured and sum(name not in configured for name in self._agents) >= limit:
            raise CallerError(
                f"agent class {agent_class!r} is not configured, and limits.max_agent_classes = {limit} such classes are open;"
                f" add a table [{toml_key(('agents', agent_class))}] to the settings, or raise the limit"
            )

    async def open_configured(self) -> None:
        """Opens the configured classes. Logs a warning about given tools that no class has."""
        await self._shared.servers.settle()
        for agent_class in self._config.class_names:
            await self.agent(agent_class).ready()
        offered = {tool_id for agent in self._agents.values() for tool_id in agent.tools.tool_ids}
        given = (each if isinstance(each, Tool) else Tool(each) for each in self._shared.injected.tools)
        if unnamed := sorted({each.tool_id for each in given} - offered):
            _log.warning("no agent class has these tools in its setting `tools`", tools=unnamed)

    async def drain(self) -> None:
        """Returns when no turn runs and no consolidation is pending. New ones are still admitted."""
        await self._shared.limiter.wait_idle()
        for agent in self._agents.values():
            await agent.background.wait_idle()

    def abandon(self) -> None:
        """Makes what was written durable and closes all ledgers, without the event loop, which has been closed. Blocks."""
        of_agents = [each for agent in self._agents.values() if agent.is_open for each in agent.ledgers.members]
        abandon_ledgers((*of_agents, *(each for memory in self._shared.memories.values() for each in memory.ledgers)))

    async def close(self) -> None:
        """Admits no more turns, lets running ones finish within the grace periods, aborts the rest, and closes the ledgers."""
        limits, limiter = self._config.limits, self._shared.limiter
        limiter.close()
        self._shared.loop.check()
        can_record = self._shared.write_failure.error is None
        with anyio.move_on_after(limits.shutdown_grace_s if can_record else 0):
            await self.drain()
        limiter.cancel_running()
        for agent in self._agents.values():
            agent.background.cancel()
        with anyio.move_on_after(limits.abort_grace_s):
            await self.drain()
        for agent_class, agent in self._agents.items():
            if staying := agent.tools.running:  # they were cancelled, but no event loop can abandon a task
                _log.error("tools do not end, and the runtime waits for them", agent_class=agent_class, tools=staying)
        for agent in self._agents.values():
            await agent.close()
