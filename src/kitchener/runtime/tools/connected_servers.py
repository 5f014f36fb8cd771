"""Opens the MCP servers of a runtime, and gives their tools to the agent classes that name them.

A class names tools as `mcp:LABEL` or `mcp:LABEL.TOOL`. The servers belong to the runtime, so that all classes share one
connection to each. `kitchener.mcp` runs them. Explained in `docs/mcp.md`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from kitchener.actors.tools.registry import ToolRegistry
from kitchener.cancellation import start_apart
from kitchener.config import HO2Config, McpServerConfig, RuntimeConfig
from kitchener.config.settings_parser import dotted_key
from kitchener.config.shown import address_problem, described_key, described_names
from kitchener.errors import ConfigError
from kitchener.gateway.providers.factory import read_secret
from kitchener.logs import get_logger
from kitchener.mcp.connection import Secrets, library_of_protocol
from kitchener.mcp.definitions import source_of
from kitchener.mcp.server import McpServer, ServerReport, ServerStatistics
from kitchener.records.tools.runnable_tool import ToolSource
from kitchener.records.tools.server_tools import ServerTool

_log = get_logger(__name__)

PREFIX: Final = "mcp:"
"""Prefix of the names of servers' tools in the setting `tools`."""


@dataclass(frozen=True, slots=True)
class McpServers:
    """The servers of a runtime."""

    servers: Mapping[str, McpServer] = field(default_factory=dict)
    """The servers, by label."""

    async def settle(self) -> None:
        """Returns when the servers that start with the runtime are connected, or their `connect_timeout_s` has passed."""
        await _settle_all(each for each in self.servers.values() if each.settings.start == "runtime")

    def reports(self) -> dict[str, ServerReport]:
        """The present state of each server, by label."""
        return {label: each.report() for label, each in self.servers.items()}

    def statistics(self) -> dict[str, ServerStatistics]:
        """The state of each server, by label, for monitoring."""
        return {
            label: {
                "state": each.state,
                "problem": each.problem,
                "running": each.running,
                "waiting": each.waiting,
                "starts": each.starts,
                "tools": len(each.tools),
                "refused": len(each.refused),
            }
            for label, each in self.reports().items()
        }

    def attach(self, tools: ToolRegistry, wanted: Mapping[str, Sequence[str]]) -> None:
        """Keeps the registry of an agent class up to date with the servers' tools, now and whenever they change.

        Args:
            tools: the registry
            wanted: the result of `wanted_tools`
        """
        taken = frozenset(each["tool_id"] for each in tools.definitions())
        for label, patterns in wanted.items():
            self.servers[label].attach(_Attachment(tools, source_of(label), patterns, taken).put)

    def let_wait(self, tools: ToolRegistry, wanted: Iterable[str]) -> None:
        """Makes the first turn with these tools wait for servers that start at their first use."""
        lazy = [self.servers[label] for label in wanted if self.servers[label].settings.start == "first_use"]
        if lazy:
            tools.let_wait(partial(_settle_all, lazy))


async def _settle_all(servers: Iterable[McpServer]) -> None:
    async with anyio.create_task_group() as tasks:
        for each in servers:
            tasks.start_soon(each.settle)


@dataclass(frozen=True, slots=True)
class _Attachment:
    """Connects a server's tools with a registry."""

    tools: ToolRegistry
    source: ToolSource
    patterns: Sequence[str]
    taken: frozenset[str]

    def put(self, found: Sequence[ServerTool]) -> None:
        """Adds the tools that the class names."""
        chosen = [each for each in found if any(fnmatchcase(_own_name(each), pattern) for pattern in self.patterns)]
        clashing = [each.tool_id for each in chosen if each.tool_id in self.taken]
        if clashing:
            _log.warning("MCP tools left out: functions have their names", source=self.source, tools=clashing)
        self.tools.replace(self.source, [each for each in chosen if each.tool_id not in self.taken])


def _own_name(tool: ServerTool) -> str:
    return tool.policy_name.partition(".")[2]


def wanted_tools(config: HO2Config, settings: RuntimeConfig) -> dict[str, list[str]]:
    """The servers' tools of an agent class: patterns of the servers' own names for them, by label.

    Raises:
        ConfigError: the class names a server that `[mcp]` lacks
    """
    if config.tools is None:
        return {} if settings.classes else {label: ["*"] for label in settings.mcp}
    found: dict[str, list[str]] = {}
    for name in config.tools:
        if not name.startswith(PREFIX):
            continue
        label, _, tool = name.removeprefix(PREFIX).partition(".")
        if label not in settings.mcp:
            known = f"one of the servers {described_names(settings.mcp)}" if settings.mcp else "a server; [mcp] has none"
            expected = f"expected `mcp:` with {known}"
            raise ConfigError(f"agents.{config.agent_class}", "tools", described_key(name), expected)
        found.setdefault(label, []).append(tool or "*")
    return {label: found[label] for label in settings.mcp if label in found}


async def open_servers(settings: Mapping[str, McpServerConfig], tasks: TaskGroup) -> McpServers:
    """Starts a task for each server, which connects to those that start with the runtime.

    Args:
        settings: the servers by label
        tasks: the task group that runs their tasks

    Raises:
        ConfigError: the extra `mcp` is missing, or a reference cannot be resolved
    """
    if not settings:
        return McpServers()
    await anyio.to_thread.run_sync(library_of_protocol)
    servers = {label: McpServer(label, each, secrets_of(label, each)) for label, each in settings.items()}
    for label, server in servers.items():
        start_apart(tasks, server.run, f"MCP server {label}")
    return McpServers(servers)


async def look_at_servers(servers: Mapping[str, McpServerConfig]) -> list[ServerReport]:
    """Starts or connects to each server once, and returns its state. Calls no tool.

    Raises:
        ConfigError: the extra `mcp` is missing, or a reference points to nothing
    """
    once = {label: each.model_copy(update={"start": "runtime", "max_restarts": 1}) for label, each in servers.items()}
    async with anyio.create_task_group() as tasks:
        opened = await open_servers(once, tasks)
        await opened.settle()
        for each in opened.servers.values():
            await each.is_decided()
        reports = list(opened.reports().values())
        tasks.cancel_scope.cancel()
    return reports


def secrets_of(label: str, settings: McpServerConfig) -> Secrets:
    """The values of a server's references to secrets.

    Raises:
        ConfigError: a reference cannot be resolved
    """

    def value(reference: str, *at: str) -> str:
        return read_secret(reference, dotted_key(("mcp", label, *at))) or ""

    env = {name: value(each, "env", name) for name, each in settings.env.items()}
    headers = {name: value(each, "headers", name) for name, each in settings.headers.items()}
    if settings.token is not None:
        headers["Authorization"] = f"Bearer {value(settings.token, 'token')}"
    return Secrets(env, headers)


def check_servers(config: RuntimeConfig, source: str) -> None:
    """Checks the settings of the servers without connecting to them.

    Raises:
        ConfigError: an address is wrong, a reference cannot be resolved, or a class names a server that is not configured
    """
    for label, server in config.mcp.items():
        problem = address_problem(server.url) if server.url is not None else None
        if problem is not None:
            raise ConfigError(source, dotted_key(("mcp", label, "url")), "", problem.replace("`api_key`", "`token`"))
        try:
            secrets_of(label, server)
        except ConfigError as error:
            raise ConfigError(source, error.key, error.value, error.expected) from None
    for agent in config.agents.values():
        wanted_tools(agent, config)


__all__ = ["McpServers", "check_servers", "look_at_servers", "open_servers", "secrets_of", "wanted_tools"]
