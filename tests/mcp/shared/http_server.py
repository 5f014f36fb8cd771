"""An MCP server over streamable HTTP, written with the vendor's library, in a thread of its own on the loopback interface."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.to_thread
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import ToolAnnotations
from mcp_types import ElicitRequest, ElicitRequestFormParams, InputRequiredResult
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN = "sk-right"
QUESTION = {"type": "object", "properties": {"really": {"type": "boolean"}}, "required": ["really"]}


@dataclass
class HttpServer:
    """The server that runs."""

    url: str
    asked: list[dict[str, Any]] = field(default_factory=list)
    """The answers with which `remove` was called again."""
    begun: threading.Event = field(default_factory=threading.Event)
    """Set once `hold` runs."""
    holding: int = 0
    """Calls of `hold` that have begun."""
    released: threading.Event = field(default_factory=threading.Event)
    """Set it to let `hold` answer."""


def _server(state: HttpServer) -> MCPServer:
    server = MCPServer("web", version="3")

    @server.tool(annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True))
    async def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    @server.tool()
    async def count(to: int, ctx: Context) -> str:
        """Counts, and tells how far it is."""
        for value in range(to):
            await ctx.report_progress(value + 1, to, f"at {value + 1}")
        return "counted"

    @server.tool()
    async def remove(path: str, ctx: Context) -> str | InputRequiredResult:
        """Removes a file, after a question."""
        responses = ctx.input_responses
        if not responses:
            params = ElicitRequestFormParams(message=f"Remove {path}?", requested_schema=QUESTION)
            return InputRequiredResult(
                input_requests={"q1": ElicitRequest(method="elicitation/create", params=params)},
                request_state=f"state of {path}",
            )
        response = responses["q1"]
        state.asked.append({"response": response.model_dump(exclude_none=True), "state": ctx.request_state})
        return f"removed {path}"

    @server.tool()
    async def grow(ctx: Context) -> str:
        """Adds a tool to the server."""
        server.add_tool(_later, name="later")
        await ctx.notify_tools_changed()
        return "grown"

    @server.tool()
    async def hold() -> str:
        """Answers when it is let."""
        state.holding += 1
        state.begun.set()
        with anyio.fail_after(20):
            await anyio.to_thread.run_sync(state.released.wait, abandon_on_cancel=True)
        return "held"

    @server.tool()
    async def drop() -> str:
        """Never answers whole: the doorman ends its connection."""
        return "dropped"

    @server.tool()
    async def crash() -> str:
        """Never answers: the doorman fails."""
        return "crashed"

    return server


async def _later() -> str:
    """Came later."""
    return "later ran"


class _Doorman:
    """Lets in who has the token, and breaks the calls of `crash` and `drop`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        refusal: Response | None = None
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            refusal = PlainTextResponse("who are you?", 401)
        elif request.headers.get("mcp-name") == "crash":
            refusal = PlainTextResponse("bad gateway", 502)
        elif request.headers.get("mcp-name") == "drop":
            headers = [(b"content-type", b"application/json"), (b"content-length", b"1000")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": b"{", "more_body": False})
            return
        await (refusal or self._app)(scope, receive, send)


@contextmanager
def http_server() -> Iterator[HttpServer]:
    """Runs the server until the block ends."""
    state = HttpServer("")
    app = _Doorman(_server(state).streamable_http_app())
    config = uvicorn.Config(app, port=0, log_level="critical", lifespan="on", loop="asyncio", ws="none")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=anyio.run, args=(server.serve,), name="MCP over HTTP")
    thread.start()
    while not server.started and thread.is_alive():
        thread.join(0.01)
    state.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    try:
        yield state
    finally:
        server.should_exit = True
        server.force_exit = True
        thread.join(10)
