"""Defines the settings of `[limits]`, and the limits of single tools."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from kitchener.config.settings_parser import Positive, Seconds, Settings


class LimitsConfig(Settings):
    """`[limits]`: the bounds of one process. Every queue has a capacity, every wait a deadline."""

    gone_keys: ClassVar[Mapping[str, str]] = {
        "gateway_concurrency": "was removed: `max_concurrency` of each provider says how many calls are made at a time",
        "restart_window_s": "was removed: `max_restarts` counts the failures within a minute",
        "max_client_tools_bytes": "was removed: definitions of a message's tools have at most 262,144 bytes",
        "max_client_tools": "was removed: a message brings at most 128 tools",
        "executor_queue": "was removed: half as many work orders wait as `executor_concurrency` lets run",
        "background_queue": "was removed: 500 consolidations wait for each that `background_concurrency` lets run",
    }

    max_running_turns: Positive = 512
    """Turns that run at the same time. Raise it where models are slow and many; each running turn takes memory."""
    max_waiting_turns: Positive = 10_000
    """Turns that may wait to run, in a fair order of subjects. A further turn is refused at once with `Overloaded`."""
    max_active_sessions: Positive = 20_000
    """Sessions kept in memory, and names of chat clients' conversations with the ids of their sessions. Beyond it, those idle
    for longest are passivated: they return from the ledger when needed."""
    max_active_chars: Positive = 134_217_728
    """Text that the active sessions of all agent classes hold, characters. Beyond it, those idle for longest are passivated.
    A character of ordinary text takes 4 to 6 bytes with its turn's words; 35 where every word is short and new."""
    executor_concurrency: Positive = 256
    """Interactive work orders of one agent class that run at the same time. More than a slow provider takes, so that its own
    queue fills first. Half as many may wait. When that queue is full, turns wait for room until their deadline, and then end
    as `Overloaded`."""
    background_concurrency: Positive = 2
    """Consolidations of one agent class that run at the same time. Few, so that learning leaves the models to the turns. For
    each of them 500 may wait; a further one is left out until its next signal."""
    gateway_queue: Positive = 64
    """Model calls that may wait for each provider, besides its `max_concurrency`. When it is full, turns wait for room until
    their deadline, and then end as `Overloaded`."""
    max_nesting: Annotated[int, Field(ge=0, le=16)] = 3
    """How deep turns may nest when a tool sends a message to another session. 0: not at all."""
    max_agent_classes: Annotated[int, Field(ge=0, le=1_000_000)] = 16
    """Agent classes without settings that one runtime opens on first use, `ADMIN` aside. A further one is refused, because each
    keeps about 14 files open until the runtime closes."""
    max_restarts: Positive = 100
    """Failures of one actor within a minute that stop the runtime. The last failure is the cause of its error."""
    abort_grace_s: Seconds = 5.0
    """How long a cancelled turn may take to stop its work and record its end, seconds."""
    shutdown_grace_s: Seconds = 10.0
    """How long a shutdown waits for running turns before it aborts them, seconds."""
    max_message_chars: Positive = 100_000
    """Longest message that a turn takes, characters."""
    max_parts: Annotated[int, Field(ge=0, le=1_000)] = 16
    """Most images and files of one message. 0: none are taken."""
    max_part_bytes: Annotated[int, Field(ge=1, le=268_435_456)] = 16 * 1_048_576
    """Largest image or file of a message, bytes."""
    max_content_bytes: Positive = 10 * 1_073_741_824
    """Bytes of all images and files that are stored under `plane_root`. A message with a further one is refused."""
    stream_buffer: Positive = 256
    """Updates that `stream_turn` holds for a slow reader. When it is full, the turn waits for the reader."""

    @property
    def executor_queue(self) -> int:
        """Interactive work orders of one agent class that may wait."""
        return max(1, self.executor_concurrency // 2)

    @property
    def background_queue(self) -> int:
        """Consolidations of one agent class that may wait: many, because each waits only for a place and holds no turn."""
        return 500 * self.background_concurrency


class ToolLimits(Settings):
    """`[agents.<class>.tool_limits.<name>]`: limits of the tools of one name that differ from the class's."""

    concurrency: Annotated[int, Field(ge=1, le=10_000)] | None = None
    """Calls of the tool that run at a time, over all sessions. Further ones wait within their time limit. None: no limit."""
    rate_per_minute: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Calls of the tool that start within any minute, over all sessions. Further ones wait, or are refused where the wait is
    longer than their time limit. None: no limit."""
    timeout_s: Seconds | None = None
    """Longest run of a call, with its waits, seconds. None: the tool's own limit, or `tool_timeout_s`."""
    max_result_bytes: Positive | None = None
    """Largest result, bytes of its JSON. A larger one is cut and marked as cut. None: `tool_result_max_bytes`."""
