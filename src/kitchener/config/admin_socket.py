"""Defines the settings of the administration socket."""

from collections.abc import Mapping
from typing import ClassVar

from kitchener.config.settings_parser import Seconds, Settings


class AdminConfig(Settings):
    """`[admin]`: the local socket by which commands change a root that a process has open. Only its owner can use it."""

    gone_keys: ClassVar[Mapping[str, str]] = {
        "max_request_bytes": "was removed: a request has at most 4,194,304 bytes",
        "max_connections": "was removed: 8 connections are open at the same time",
        "request_timeout_s": "was removed: a client has 5 seconds to send its request",
    }

    socket: bool | None = None
    """Whether a running process listens. None: `kitchener chat`, `run` and `serve` do, and a program that calls `open_runtime`
    does not, since it did not ask for a socket."""
    deadline_s: Seconds = 60.0
    """Longest run of a request, seconds, including its wait for other requests. A command asks for no more than its own."""
