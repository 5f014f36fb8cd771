"""Turns the setting `tools` of an agent class into a registry of tools: functions, modules, and other agent classes.

`tools/connected_servers.py` adds the tools of MCP servers later. Explained in `docs/tools.md`.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from kitchener.actors.sessions.item_tool import ContextItems
from kitchener.actors.tools.named_tools import load_tools
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.tool import Tool
from kitchener.config import HO2Config, RuntimeConfig
from kitchener.config.settings_parser import dotted_key
from kitchener.config.shown import described_key
from kitchener.errors import CallerError, ConfigError, ToolError
from kitchener.errors.root import CONFIGURATION
from kitchener.mcp.definitions import source_of
from kitchener.runtime.setting_checks import check_is_configured
from kitchener.runtime.tools.agent_tools import AGENT_PREFIX, AgentTool, SupervisorOf, agent_tool
from kitchener.runtime.tools.connected_servers import PREFIX

ALL_GIVEN: Final = "*"
"""In the setting `tools`: all tools that were given to `open_runtime`."""


def check_tools(config: RuntimeConfig, source: str) -> None:
    """Imports the tools that settings name by module. Does not know the tools that a program gives to `open_runtime`.

    Raises:
        ConfigError: a tool cannot be loaded; names the class and the tool
    """
    for agent_class, agent in config.agents.items():
        try:
            load_tools(name for name in agent.tools or () if is_module_name(name))
            for asked in _agents_in(agent.tools or ()):
                agent_tool(asked)
                check_is_configured(config, asked)
        except (ToolError, CallerError) as error:
            raise ConfigError(source, dotted_key(("agents", agent_class, "tools")), "", str(error)) from error


def _agents_in(names: Iterable[str]) -> list[str]:
    """The agent classes that the setting `tools` names."""
    return [name.removeprefix(AGENT_PREFIX) for name in names if name.startswith(AGENT_PREFIX)]


def tools_of(
    config: HO2Config,
    given: Sequence[Callable[..., object]],
    items: ContextItems,
    *,
    is_configured: bool,
    supervisor_of: SupervisorOf | None = None,
    servers: Collection[str] = (),
    kind: Callable[..., ToolRegistry] = ToolRegistry,
    given_by: str = "the argument `tools` of open_runtime",
) -> ToolRegistry:
    """The tools of an agent class.

    Args:
        config: the settings of the class; `tools` names its tools
        given: the tools that the program or the command names
        items: the built-in tool, which needs no permission; left out if it could read nothing
        is_configured: whether any class is configured. If so, a class without the setting `tools` has no tools; otherwise it
            has all given ones
        supervisor_of: finds the supervisors that its tools may ask; None: tools do not run
        servers: labels of the MCP servers whose tools the class has; these tools are added later
        kind: the class of the registry
        given_by: what names the given tools, for errors
    """
    known = {declared.tool_id: declared for declared in (each if isinstance(each, Tool) else Tool(each) for each in given)}
    wanted = config.tools if config.tools is not None else (() if is_configured else (ALL_GIVEN,))
    named = [name for name in wanted if ":" not in name and name != ALL_GIVEN]
    at = dotted_key(("agents", config.agent_class, "tools"))
    for name in named:
        if name not in known:
            given_ones = ", ".join(known) or "none was"
            expected = f"expected `module:attribute`, `mcp:LABEL`, `agent:CLASS`, or a tool given by {given_by}: {given_ones}"
            raise ConfigError(CONFIGURATION, at, described_key(name), expected)
    if ALL_GIVEN in wanted:
        named = list(known)
    try:
        loaded = (*load_tools(filter(is_module_name, wanted)), *map(agent_tool, _agents_in(wanted)))
    except ToolError as error:
        raise ConfigError(CONFIGURATION, at, "", str(error)) from error
    chosen = [*loaded, *(known[name] for name in named)]
    if supervisor_of is not None:
        chosen = [each.bound(supervisor_of) if isinstance(each, AgentTool) else each for each in chosen]
    return kind(
        chosen,
        timeout_s=config.tool_timeout_s,
        max_result_bytes=config.tool_result_max_bytes,
        builtin=(items.tool,) if chosen or servers or config.context_mode == "enforce" else (),
        limits=config.tool_limits,
        replaceable=map(source_of, servers),
    )


def is_module_name(name: str) -> bool:
    """Whether a name in the setting `tools` is a `module:attribute` to import."""
    return ":" in name and not name.startswith((AGENT_PREFIX, PREFIX))
