"""Defines the statistics of a process's queues, workers, providers and MCP servers, in memory and as JSON.

`Runtime.statistics` returns them. Monitoring, `kitchener doctor` and the server's metrics read them.
"""

from typing_extensions import TypedDict  # pydantic reads no other on Python 3.11

from kitchener.errors import ProviderReason
from kitchener.gateway.guarded_provider import FailureCounts, ProviderUsage
from kitchener.lanes.durations import DurationCounts
from kitchener.lanes.fair_queue import LaneStatistics
from kitchener.mcp.server import ServerStatistics


class RuntimeStatistics(TypedDict):
    """The present state of a runtime."""

    running_turns: int
    waiting_turns: int
    """Number of turns that wait for a slot."""
    turns: LaneStatistics
    """The queue of turns."""
    pending_consolidations: int
    """Number of consolidations that run or wait."""
    commits: dict[str, DurationCounts]
    """Durations of the ledgers' commit rounds, by agent class."""
    mailboxes: dict[str, dict[str, LaneStatistics]]
    """The lanes of the gateway (`gateway`) and of each agent class, by name."""
    usage: dict[str, ProviderUsage]
    """The tokens and calls of each provider so far."""
    usage_by_model: dict[str, dict[str, ProviderUsage]]
    """The tokens and calls by provider and model."""
    failures_by_model: dict[str, dict[str, dict[ProviderReason, FailureCounts]]]
    """Model calls that failed, and attempts that were retried, by provider, model and reason."""
    open_circuits: dict[str, bool]
    """By provider: whether it failed so often that it is not called now."""
    mcp_servers: dict[str, ServerStatistics]
    """The state of each MCP server, by label."""
