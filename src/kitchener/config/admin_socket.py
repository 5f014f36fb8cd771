"""Defines the settings of the administration socket."""

from typing import Annotated

from pydantic import Field

from kitchener.config.settings import Positive, Seconds, Settings


class AdminConfig(Settings):
    """`[admin]`: the local socket by which commands change a root that a process has open. Only its owner can use it."""

    socket: bool | None = None
    """Whether a running process listens. None: `kitchener chat` and `kitchener run` do, and a program that calls `open_runtime`
    does not, since it did not ask for a socket."""
    max_request_bytes: Annotated[int, Field(ge=1_024, le=64 * 1_048_576)] = 4 * 1_048_576
    """Largest request, bytes. A larger one is refused, and nothing is done."""
    max_connections: Positive = 8
    """Connections at the same time. A further one is refused, and nothing is done."""
    request_timeout_s: Seconds = 5.0
    """How long a client may take to send its request, and to take the answer, seconds."""
    deadline_s: Seconds = 60.0
    """Longest run of a request, seconds, including its wait for other requests. A command asks for no more than its own."""
