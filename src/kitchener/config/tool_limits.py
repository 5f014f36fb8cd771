"""The limits of single tools."""

from typing import Annotated

from pydantic import Field

from kitchener.config.settings import Positive, Seconds, Settings


class ToolLimits(Settings):
    """`[agents.<class>.tool_limits.<name>]`: the limits of the tools of one name, where they are not those of the class."""

    concurrency: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Calls of the tool that run at a time, over all sessions. Further ones wait within their time limit. None: no limit."""
    rate_per_minute: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Calls of the tool that start within any minute, over all sessions. Further ones wait, or are refused where the wait is
    longer than their time limit. None: no limit."""
    timeout_s: Seconds | None = None
    """Longest run of a call, with its waits, seconds. None: the tool's own limit, or `tool_timeout_s`."""
    max_result_bytes: Positive | None = None
    """Largest result, bytes of its JSON. A larger one is cut and marked as cut. None: `tool_result_max_bytes`."""
