"""A server in this process, and requests to it that a test can leave at any point. Runs on both event loops."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import orjson
from starlette.types import ASGIApp, Message

from kitchener.clock import Clock
from kitchener.config import McpServerConfig, ServeConfig
from kitchener.runtime import Runtime, open_runtime
from kitchener.serve.application import KitchenerServer, open_server
from kitchener.telemetry.port import Telemetry
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo, scripted_config
from tests.serve.shared.described import described

COMPLETIONS = "/v1/chat/completions"


@dataclass
class Asked:
    """A request that runs, and what came back of it so far."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    done: anyio.Event = field(default_factory=anyio.Event)
    gone: anyio.Event = field(default_factory=anyio.Event)
    """Set by the test: the client closes the connection."""
    taking: anyio.Event = field(default_factory=anyio.Event)
    """Until it is set, the client takes nothing of the body."""
    arrived: anyio.Event = field(default_factory=anyio.Event)
    """Set when a piece of the body has come."""

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return orjson.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an error."""
        return str(self.json["error"]["code"])

    @property
    def events(self) -> list[Any]:
        """The data of the server-sent events, without comments."""
        lines = (each.partition("data: ")[2] for each in self.body.decode().split("\n\n") if "data: " in each)
        return [each if each == "[DONE]" else orjson.loads(each) for each in lines]

    @property
    def text(self) -> str:
        """The reply, of a whole answer or of a stream."""
        if not self.body.startswith(b"data: "):
            return str(self.json["choices"][0]["message"]["content"])
        chunks = (each for each in self.events if each != "[DONE]" and each.get("choices"))
        return "".join(each["choices"][0]["delta"].get("content", "") for each in chunks)

    async def send(self, message: Message) -> None:
        """Takes what the server sends."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
            return
        await self.taking.wait()
        self.body += message.get("body", b"")
        if message.get("body"):
            self.arrived.set()


@dataclass
class Client:
    """Sends requests to a server.

    Args:
        server: the server
        runtime: what it serves
        provider: the model
        headers: of every request
    """

    server: KitchenerServer
    runtime: Runtime
    provider: ScriptedProvider
    headers: Mapping[str, str] = field(default_factory=dict)

    def with_headers(self, **headers: str) -> "Client":
        """The same with further headers; `_` in a name stands for `-`."""
        more = {name.replace("_", "-"): value for name, value in headers.items()}
        return Client(self.server, self.runtime, self.provider, {**self.headers, **more})

    async def ask(self, method: str, path: str, json: Any = None, **headers: str) -> Asked:
        """The whole answer to a request."""
        asked = Asked()
        asked.taking.set()
        with anyio.fail_after(20):
            await self.run(asked, method, path, json, **headers)
        return asked

    async def chat(self, *messages: str, stream: bool = False, model: str = "ADMIN", **more: Any) -> Asked:
        """The answer to a conversation: what the user and the assistant said in turn."""
        return await self.ask("POST", COMPLETIONS, chat_body(*messages, stream=stream, model=model, **more))

    async def run(self, asked: Asked, method: str, path: str, json: Any = None, **headers: str) -> None:
        """Runs a request to its end. Its answer must be as described."""
        body = json if isinstance(json, bytes) else b"" if json is None else orjson.dumps(json)
        await run_request(self.server.app, asked, method, path, [body], {**self.headers, **headers})
        if asked.status and not asked.gone.is_set():
            kind = asked.headers.get("content-type", "")
            described(self.server.operations).check(method, path.partition("?")[0], asked.status, kind, asked.body)


async def run_request(
    app: ASGIApp, asked: Asked, method: str, path: str, body: Sequence[bytes], headers: Mapping[str, str]
) -> None:
    """Runs a request whose body comes in these pieces."""
    plain, _, query = path.partition("?")
    given = {name.replace("_", "-").lower(): value for name, value in headers.items()}
    sent = {"host": "localhost", "content-type": "application/json", **given}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": plain,
        "raw_path": plain.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in sent.items()],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 8_321),
        "state": {},
    }
    pieces = list(body)

    async def receive() -> Message:
        if pieces:
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}
        await asked.gone.wait()
        return {"type": "http.disconnect"}

    try:
        await app(scope, receive, asked.send)
    finally:
        asked.done.set()


def chat_body(*messages: str, stream: bool = False, model: str = "ADMIN", **more: Any) -> dict[str, Any]:
    """The body of a chat completions request."""
    said = [{"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(messages)]
    return {"model": model, "messages": said, "stream": stream, **more}


@asynccontextmanager
async def serving(
    root: Path,
    provider: ScriptedProvider | None = None,
    *,
    serve: Mapping[str, Any] | None = None,
    tools: Sequence[Callable[..., Any]] = (),
    mcp: Mapping[str, McpServerConfig] | None = None,
    telemetry: Telemetry | None = None,
    clock: Clock | None = None,
    **config: Any,
) -> AsyncIterator[Client]:
    """A client of a server over a runtime around a scripted model (None: the echo).

    Args:
        root: the directory of the ledgers
        provider: the model
        serve: settings of `[serve]`
        tools: tools of the agent
        mcp: MCP servers by their label, whose tools it has then
        telemetry: of the runtime
        clock: the time of day; None: the system clock
        **config: as for `scripted_config`
    """
    model = provider or ScriptedProvider(echo)
    offered = {"tools": tuple(f"mcp:{label}" for label in mcp)} if mcp else {}
    settings = scripted_config(root, **{"classify": "rules", **offered, **config}).model_copy(
        update={"serve": ServeConfig(**(serve or {})), "mcp": dict(mcp or {})}
    )
    async with (
        open_runtime(settings, providers={"scripted": model}, tools=tools, telemetry=telemetry, clock=clock) as runtime,
        open_server(runtime, clock=clock) as server,
    ):
        yield Client(server, runtime, model)
