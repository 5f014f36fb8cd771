"""Defines the settings of MCP servers, whose tools agents may call."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from kitchener.config.settings_parser import Name, Positive, Seconds, Settings
from kitchener.config.shown import REFERENCE, is_reference

McpLabel = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,24}$")]
"""Our name of a server. It begins the names of its tools."""


class McpServerConfig(Settings):
    """`[mcp.<label>]`: a server of the Model Context Protocol, started as a command or reached at an address.

    Its tools are `<label>__<tool>` for a model and `<label>.<tool>` in rules of approval. Needs the extra `mcp`.
    """

    gone_keys: ClassVar[Mapping[str, str]] = {"backoff_initial_s": "was removed: the first wait is a 120th of `backoff_max_s`"}

    command: str | None = None
    """Program to start, which speaks the protocol on its standard input and output. It gets no environment variables of this
    process but HOME, LOGNAME, PATH, SHELL, TERM, USER and those of `env`. None: the server has a `url`."""
    args: tuple[str, ...] = ()
    """Arguments of `command`."""
    cwd: str | None = None
    """Working directory of `command`. None: this process's directory."""
    env: dict[Name, str] = Field(default_factory=dict)
    """Further environment variables of `command`, each a reference: `env:NAME` or `file:/path`."""
    url: str | None = None
    """Address of a server of streamable HTTP, such as `https://example.org/mcp`. None: the server has a `command`."""
    token: str | None = None
    """Reference to a bearer token for `url`: `env:NAME` or `file:/path`. None: none is sent."""
    headers: dict[Name, str] = Field(default_factory=dict)
    """Further headers for `url`, each value a reference: `env:NAME` or `file:/path`."""
    allow: tuple[Name, ...] = ("*",)
    """Tools that may be used, as the server names them. `*` and `?` stand for any characters."""
    trusted: bool = False
    """Whether results are trusted as if the user had written them. False: they are marked as data of strangers."""
    trust_annotations: bool = False
    """Whether to believe what the server says of the effects of its tools. False: each may change and destroy things."""
    start: Literal["runtime", "first_use"] = "runtime"
    """When to connect: with the runtime, or when the first turn begins that has its tools. Turns wait for it at most
    `connect_timeout_s`, and then continue without its tools until it answers."""
    connect_timeout_s: Seconds = 20.0
    """Longest start of the server until its tools are listed, seconds."""
    call_timeout_s: Seconds = 60.0
    """Longest call of one of its tools, with the wait for a free place, seconds."""
    max_calls: Positive = 16
    """Calls side by side. Further calls wait, within `call_timeout_s`."""
    max_tools: Annotated[int, Field(ge=1, le=10_000)] = 128
    """Most tools. Those that the server lists beyond it are left out."""
    max_definition_bytes: Annotated[int, Field(ge=256, le=1_048_576)] = 32_768
    """Largest description and schema of one tool, bytes of its JSON. A tool with more is left out."""
    max_result_bytes: Annotated[int, Field(ge=1_024, le=1_073_741_824)] = 4 * 1_048_576
    """Largest result, bytes of its JSON. A larger one is an error for the model. `tool_result_max_bytes` cuts it further."""
    backoff_max_s: Seconds = 60.0
    """Longest wait before the server is started or reached again, seconds. The first wait is a 120th of it; it doubles with
    each failure in a row. A server over HTTP lists its tools again after such a wait, so that it is missed when it is gone."""
    max_restarts: Positive = 10
    """Failures in a row after which the server is given up. Its tools then go. A connection that held for `backoff_max_s` ends
    a row. A server over HTTP is still asked each `backoff_max_s`, and its tools come back when it answers."""

    @property
    def backoff_initial_s(self) -> float:
        """Wait after the first failure, seconds."""
        return self.backoff_max_s / 120

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if (self.command is None) == (self.url is None):
            raise ValueError("needs either `command` or `url`")
        references = [*self.env.values(), *self.headers.values(), *([self.token] if self.token is not None else [])]
        if not all(map(is_reference, references)):
            raise ValueError(f"each value of `env` and `headers`, and `token`, {REFERENCE}")
        misplaced = (self.headers or self.token) if self.url is None else (self.args or self.env or self.cwd)
        if misplaced:
            others = "`headers` and `token`" if self.url is None else "`args`, `cwd` and `env`"
            raise ValueError(f"{others} cannot be used with `{'command' if self.url is None else 'url'}`")
        return self
