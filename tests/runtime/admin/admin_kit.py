"""A runtime that listens for commands, clients that ask it, and clients that misbehave."""

import struct
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson

from kitchener.config import AdminConfig, RuntimeConfig
from kitchener.runtime import Runtime, open_runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo, scripted_config
from tests.cli.shared.commands import Outcome, finish, start


def listening_config(root: Path, admin: Mapping[str, Any] | None = None, **config: Any) -> RuntimeConfig:
    """A configuration as `scripted_config` makes it, with these settings of `[admin]`; its runtime listens."""
    settings = scripted_config(root, **{"tools": ("*",), "context_mode": "enforce", **config})
    return settings.model_copy(update={"admin": AdminConfig(**{"socket": True, **(admin or {})})})


@asynccontextmanager
async def listening(
    root: Path,
    provider: ScriptedProvider | None = None,
    *,
    tools: Sequence[Callable[..., Any]] = (),
    admin: Mapping[str, Any] | None = None,
    **config: Any,
) -> AsyncIterator[Runtime]:
    """A runtime around a scripted model (None: the echo) that listens for commands."""
    settings, providers = listening_config(root, admin, **config), {"scripted": provider or ScriptedProvider(echo)}
    async with open_runtime(settings, providers=providers, tools=tools) as runtime:
        yield runtime


async def command(cwd: Path, *arguments: str | Path) -> Outcome:
    """What a command says that runs in a process of its own."""
    outcome = await anyio.to_thread.run_sync(lambda: finish(start(*arguments, cwd=cwd)))
    assert "Traceback" not in outcome.out + outcome.err
    return outcome


def socket_of(root: Path) -> Path:
    """Where the socket of a root is."""
    return root / "admin" / "socket"


async def raw(root: Path, data: bytes) -> Any:
    """The answer to these bytes as JSON, or None where the connection is closed without one."""
    async with await anyio.connect_unix(socket_of(root)) as stream:
        found = b""
        with suppress(anyio.BrokenResourceError):  # refused by its length; the answer is there
            await stream.send(data)
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                found += await stream.receive()
    return orjson.loads(found[4:]) if found else None


def framed(message: object) -> bytes:
    """A request's bytes."""
    body = message if isinstance(message, bytes) else orjson.dumps(message)
    return struct.pack(">I", len(body)) + body


def request(op: str = "statistics", **changes: Any) -> dict[str, Any]:
    """A right request, or one that is wrong in one way."""
    return {"v": 1, "op": op, "args": {}, "deadline_s": 5.0, **changes}
