"""Checks MCP servers for `kitchener doctor`: whether the library is installed and, on request, whether they answer."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import anyio.to_thread

from kitchener.config import RuntimeConfig
from kitchener.errors import ConfigError
from kitchener.mcp.connection import library_of_protocol
from kitchener.mcp.server import ServerReport
from kitchener.runtime.tools.connected_servers import look_at_servers


class ServerFinding(NamedTuple):
    """The result of one check, as `doctor` shows it."""

    what: str
    state: Literal["ok", "warn", "fail"]
    detail: str


async def look_at_mcp_servers(config: RuntimeConfig, probe: bool) -> list[ServerFinding]:
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
            return [ServerFinding("mcp", "ok", f"{len(config.mcp)} servers, not asked")]
        return list(_findings(await look_at_servers(config.mcp)))
    except ConfigError as error:
        return [ServerFinding("mcp", "fail", error.expected)]


def _findings(reports: list[ServerReport]) -> Iterator[ServerFinding]:
    for each in reports:
        if each.state != "connected":
            yield ServerFinding("mcp", "fail", f"{each.label}: {each.problem}")
        else:
            left_out = f", {len(each.refused)} left out" if each.refused else ""
            state: Literal["ok", "warn"] = "warn" if each.refused else "ok"
            yield ServerFinding("mcp", state, f"{each.label}: {each.server}, {len(each.tools)} tools{left_out}")
