"""What a user sees of a setting of an MCP server, as in `observed_turns.py`. Most scenes need no process."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from functools import partial, wraps
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import anyio
import anyio.to_thread

from kitchener.config import McpServerConfig
from kitchener.mcp.call_results import McpCallFailed, result_of
from kitchener.mcp.definitions import read_tools
from kitchener.mcp.server import McpServer
from kitchener.records.tools.server_tools import ServerTool
from kitchener.runtime.tools.connected_servers import look_at_servers, secrets_of
from tests.config.observed_turns import CLOCK, until
from tests.mcp.shared.servers import SCRIPT, calls, faulty, listed
from tests.shared.tool_calls import a_call

ABSENT = "no-such-program"
"""A command that fails at once."""


def in_real_time(scene: Callable[..., Awaitable[Hashable]]) -> Callable[..., Awaitable[Hashable]]:
    """The scene in an event loop of its own: who ends a process looks at it again after a while."""

    @wraps(scene)
    async def observe(root: Path, **settings: Any) -> Hashable:
        return await anyio.to_thread.run_sync(lambda: anyio.run(partial(scene, root, **settings), backend="trio"))

    return observe


async def listing(root: Path, **settings: Any) -> Hashable:
    """The tools that are offered, and what is believed of them."""
    told = {"description": "x" * 1_000, "annotations": {"readOnlyHint": True}}
    found, _ = read_tools("fs", McpServerConfig(command="x", **settings), [listed("look", **told), listed("write", **told)])
    return tuple((each.name, str(each.definition["traits"])) for each in found)


async def large_result(root: Path, **settings: Any) -> Hashable:
    """What becomes of a result of 3,000 bytes."""
    answer = {"content": [{"type": "text", "text": "x" * 3_000}]}
    try:
        return str(result_of(answer, McpServerConfig(command="x", **settings).max_result_bytes))
    except McpCallFailed as error:
        return str(error)


@in_real_time
async def started(root: Path, **settings: Any) -> Hashable:
    """What `kitchener mcp check` says of a command that needs its arguments, its folder and its variables."""
    faulty(root, ["look"])
    (root / "program.py").write_text(
        "import os, runpy, sys\n"
        f"sys.argv = ['', {str(root)!r}]\n"
        "if 'KEY' in os.environ: sys.exit('I have a key')\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    )
    given: dict[str, Any] = {"command": sys.executable, **settings}
    if given.get("args") is None:
        given["args"] = ("-S", str(root / "program.py"))
    (report,) = await look_at_servers({"fs": McpServerConfig(**given)})
    return report.state, bool(report.tools)


class _Seen(BaseHTTPRequestHandler):
    """Notes the headers of requests and refuses them."""

    told: list[tuple[str | None, str | None]]

    def do_POST(self) -> None:
        self.told.append((self.headers["authorization"], self.headers["x-desk"]))
        self.send_error(403)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@in_real_time
async def reached(root: Path, url: str | None = "/mcp", **settings: Any) -> Hashable:
    """The headers that a server over HTTP is sent.

    Args:
        root: a folder
        url: a path of the server; None: another server
        settings: `token` or `headers`, which refer to a key
    """
    (root / "key").write_text("sk-1")
    reference = f"file:{root / 'key'}"
    given: dict[str, Any] = {"token": reference} if settings.get("token") else {}
    given["headers"] = dict.fromkeys(settings.get("headers", ()), reference)
    told: list[tuple[str | None, str | None]] = []
    handler = type("Seen", (_Seen,), {"told": told})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            address = f"http://127.0.0.1:{server.server_port}{url}" if url is not None else "http://127.0.0.1:1/mcp"
            await look_at_servers({"web": McpServerConfig(url=address, **given)})
        finally:
            server.shutdown()
            thread.join()
    return tuple(told)


@asynccontextmanager
async def running(settings: McpServerConfig) -> AsyncIterator[tuple[McpServer, list[ServerTool]]]:
    """A server that is kept connected, and its tools."""
    server, tools = McpServer("fs", settings, secrets_of("fs", settings)), list[ServerTool]()

    def publish(found: Any) -> None:
        tools[:] = found

    server.attach(publish)
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run)
        yield server, tools
        tasks.cancel_scope.cancel()


async def waits_for_use(root: Path, **settings: Any) -> Hashable:
    """The state of a server that nobody has used."""
    async with running(McpServerConfig(command=ABSENT, max_restarts=1, **settings)) as (server, _):
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        return server.report().state == "waiting"


async def fails(root: Path, **settings: Any) -> Hashable:
    """Whether a server that never starts has been given up after ten seconds, in steps of two."""
    given: dict[str, Any] = {"backoff_max_s": 480.0, "max_restarts": 3, **settings}
    async with running(McpServerConfig(command=ABSENT, **given)) as (server, _):
        for _ in range(5):
            await until(lambda: server.report().state in ("waiting", "failed"))
            await anyio.wait_all_tasks_blocked()
            CLOCK.jump(2)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
        await until(lambda: server.report().state in ("waiting", "failed"))
        return server.report().state


@in_real_time
async def hangs(root: Path, **settings: Any) -> Hashable:
    """What is said of a server that says nothing."""
    config = faulty(root, ["look"], max_restarts=1, **settings)
    (root / "deaf").touch()
    (report,) = await look_at_servers({"fs": config})
    return report.problem


@in_real_time
async def at_once(root: Path, **settings: Any) -> Hashable:
    """How many of three calls run side by side."""
    async with running(faulty(root, ["hold"], **settings)) as (server, tools):
        await until(lambda: bool(tools))
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(_called, tools[0])
            await until(lambda: server.report().running + server.report().waiting == 3)
            await until(lambda: len(calls(root)) == server.report().running)
            count = len(calls(root))
            tasks.cancel_scope.cancel()
    return count


async def _called(tool: ServerTool) -> None:
    found: Any = tool.prepared({}, a_call())()
    await found


@in_real_time
async def tool_limit(root: Path, **settings: Any) -> Hashable:
    """The longest call of a tool."""
    async with running(faulty(root, ["look"], **settings)) as (_, tools):
        await until(lambda: bool(tools))
        return tools[0].timeout_s
