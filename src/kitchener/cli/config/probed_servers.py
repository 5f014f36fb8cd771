"""Checks MCP servers for `kitchener doctor`: whether the library is installed and, on request, whether they answer."""

from collections.abc import Iterator

import anyio.to_thread

from kitchener.cli.config.finding import Finding
from kitchener.config import RuntimeConfig
from kitchener.errors import ConfigError
from kitchener.mcp.connection import library_of_protocol
from kitchener.mcp.server import ServerReport
from kitchener.runtime.tools.connected_servers import look_at_servers


async def look_at_mcp_servers(config: RuntimeConfig, probe: bool) -> list[Finding]:
    """Checks the configured servers. Returns no findings if there are none.

    Args:
        config: the settings
        probe: whether to start or reach them
    """
    if not config.mcp:
        return []
    try:
        await anyio.to_thread.run_sync(library_of_protocol)
        if not probe:
            return [Finding("mcp", "ok", f"{len(config.mcp)} servers, not asked")]
        return list(_findings(await look_at_servers(config.mcp)))
    except ConfigError as error:
        return [Finding("mcp", "fail", error.expected)]


def _findings(reports: list[ServerReport]) -> Iterator[Finding]:
    for each in reports:
        if each.state != "connected":
            yield Finding("mcp", "fail", f"{each.label}: {each.problem}")
        else:
            tools = f"{each.label}: {each.server}, {len(each.tools)} tools"
            left_out = f", {len(each.refused)} left out" if each.refused else ""
            yield Finding("mcp", "warn" if each.refused else "ok", tools + left_out)
