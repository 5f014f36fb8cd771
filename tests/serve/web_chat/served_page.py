"""A server with the web chat in a thread of this process, a model that a test plays, and a wire that a test can cut."""

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from signal import SIGTERM, Signals
from typing import Any, Final

import anyio
from anyio.abc import SocketStream, TaskStatus
from anyio.from_thread import BlockingPortal, start_blocking_portal

from kitchener import ClientTool, ToolContext, tool
from kitchener.config import HO3MemoryConfig, LimitsConfig, ServeConfig
from kitchener.records.prompt import PromptRequest, PromptResponse, TextPiece
from kitchener.runtime import Runtime, open_runtime
from kitchener.serve.application import open_listener, open_server
from kitchener.serve.uvicorn_server import listen
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import echo, scripted_config

HOSTILE: Final = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
"""What must never become markup."""
MARKDOWN: Final = """\
## Two ways to brew

Water just off the boil is **hot enough** for black tea; for green tea let it *cool* a little. See \
[the guide](https://example.org/tea "x") or <https://example.org>.

1. Warm the pot
2. Steep for `240` seconds
   - stir once
   - no more

> Tea is a drink of patience.

| leaf | water | time |
|---|---|---|
| black | 95 °C | 4 min |
| green | 80 °C | 2 min |

```python
def steep(leaf: str) -> int:
    return {"black": 240, "green": 120}[leaf]
```
"""
REPLIES: Final[Mapping[str, str]] = {
    "markdown": MARKDOWN,
    "hostile": f"{HOSTILE}\n\n**{HOSTILE}**\n\n[click](javascript:document.title='owned') ![{HOSTILE}](https://evil.example/x.png)\n\n"
    f"`{HOSTILE}`\n\n```{HOSTILE}\n{HOSTILE}\n```\n\n| {HOSTILE} |\n|---|\n| {HOSTILE} |\n\nright\u202eleft",
    "brackets": "".join(each * 20_000 for each in "[*_`~!<(") + " end",
}
"""What the model says to some messages; it repeats all others."""


@tool(requires_approval=True)
def send_letter(to: str, text: str = "") -> str:
    """Sends a letter."""
    return f"sent to {to}"


MAP: Final = ClientTool("show_on_map", "Shows a place.", {"type": "object", "properties": {"place": {"type": "string"}}})
"""A function of the program that says "map" in a conversation."""


@tool(read_only=True)
async def copy_files(context: ToolContext) -> str:
    """Copies."""
    await context.progress(1, 3, f"file 1 {HOSTILE}")
    return f"copied {HOSTILE}"


class PlayedModel(ScriptedProvider):
    """A model that stops within its reply to "wait" until the test lets it go on, and takes text back after "withdraw"."""

    def __init__(self) -> None:
        super().__init__(_answer, record=False)
        self.goes_on = anyio.Event()

    def hold(self) -> None:
        """Stops again within the next such reply."""
        self.goes_on = anyio.Event()

    async def stream(self, request: PromptRequest) -> AsyncIterator[TextPiece | PromptResponse]:
        """The reply in pieces."""
        response, message = await self.complete(request), str(request.variables.get("user_message"))
        if message == "withdraw":
            yield TextPiece(1, "This was wrong. ")
            await anyio.sleep(0.3)
        elif message.startswith("wait"):
            yield TextPiece(1, response.text[:12])
            await self.goes_on.wait()
            yield TextPiece(1, response.text[12:])
        elif response.text:
            yield TextPiece(1, response.text)
        yield response


def _answer(request: PromptRequest) -> Any:
    if request.wo_type != "synthesize":
        return echo(request)
    message = str(request.variables["user_message"])
    results = [each.content for each in request.messages if each.role == "tool"]
    for word, call in (
        ("map", use_tool(MAP.name, place=f"Graz {HOSTILE}")),
        ("letter", use_tool("send_letter", to="ada", text=f"Dear Ada, {HOSTILE}")),
        ("copy", use_tool("copy_files")),
    ):
        if word in message:
            return {"response_text": f"It is done: {results[-1]}"} if results else call
    return {"response_text": REPLIES.get(message) or f"You said: {message}"}


class PageServer:
    """A running server. Made by `page_server`."""

    def __init__(self, portal: BlockingPortal, runtime: Runtime, model: PlayedModel, port: int) -> None:
        self._portal, self.runtime, self.model, self.port = portal, runtime, model, port
        self.url = f"http://127.0.0.1:{port}/"
        self.ended = threading.Event()
        """Set when it has stopped listening."""
        self._told: Callable[[Signals], bool | None] | None = None

    def call(self, work: Callable[..., Any], *arguments: object) -> Any:
        """Runs a function in the server's event loop, and gives its result."""
        return self._portal.call(work, *arguments)

    def go_on(self) -> None:
        """Lets the model go on with its reply."""
        self.call(self.model.goes_on.set)

    def drain(self) -> None:
        """Tells the server to stop, as SIGTERM does."""
        assert self._told is not None
        self.call(self._told, SIGTERM)

    @asynccontextmanager
    async def on_signal(self, told: Callable[[Signals], bool | None]) -> AsyncIterator[None]:
        """Keeps what a signal would call."""
        self._told = told
        yield


@contextmanager
def page_server(root: Path, *, port: int = 0, serve: Mapping[str, Any] | None = None, **settings: Any) -> Iterator[PageServer]:
    """A server on the loopback interface, in a thread, until the end of the block.

    Args:
        root: the directory of the ledgers
        port: where it listens; 0: a free one
        serve: settings of `[serve]`
        **settings: of ADMIN
    """
    with start_blocking_portal("asyncio") as portal:
        future, server = portal.start_task(_serve, portal, root, ServeConfig(port=port, **(serve or {})), settings)
        try:
            yield server
        finally:
            portal.call(server.model.goes_on.set)
            if not server.ended.is_set():
                server.drain()
            future.result(20)


async def _serve(
    portal: BlockingPortal, root: Path, serve: ServeConfig, settings: Mapping[str, Any], *, task_status: TaskStatus[PageServer]
) -> None:
    admin = {"classify": "rules", "context_mode": "enforce", "intent_mode": "classified", "ho3_enabled": True, **settings}
    config = scripted_config(root, **admin).model_copy(
        update={"serve": serve, "limits": LimitsConfig(shutdown_grace_s=0.2), "memory": HO3MemoryConfig(enabled=True)}
    )
    model, started = PlayedModel(), list[PageServer]()
    async with (
        open_runtime(config, providers={"scripted": model}, tools=[send_letter, copy_files]) as runtime,
        open_server(runtime) as server,
    ):
        listener = open_listener(serve)
        page = PageServer(portal, runtime, model, listener.getsockname()[1])
        started.append(page)
        await listen(server, listener, config=config, on_signal=page.on_signal, ready=lambda: task_status.started(page))
    started[0].ended.set()


class Wire:
    """Carries bytes between browsers and a server, until it is cut. Made by `open_wire`."""

    def __init__(self, portal: BlockingPortal, server_port: int) -> None:
        self._portal, self._server_port = portal, server_port
        self._ends = set[SocketStream]()
        self.is_cut = False
        self.holds: tuple[bytes, ...] = ()
        """Requests of these methods wait."""
        self.held = set[bytes]()
        """The methods of those that wait or have waited."""
        self.url = ""

    def cut(self) -> None:
        """Ends all connections, and each new one at once."""

        async def end() -> None:
            self.is_cut = True
            for each in list(self._ends):
                await anyio.aclose_forcefully(each)

        self._portal.call(end)

    def mend(self, server_port: int | None = None) -> None:
        """Carries again, to the same server or another one."""
        self._server_port = server_port or self._server_port
        self.is_cut = False

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Listens."""
        async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
            self.url = f"http://127.0.0.1:{listener.listeners[0].extra(anyio.abc.SocketAttribute.local_port)}/"
            task_status.started()
            await listener.serve(self._carry)

    async def _carry(self, client: SocketStream) -> None:
        async with client:
            if self.is_cut:
                return
            try:
                server = await anyio.connect_tcp("127.0.0.1", self._server_port)
            except OSError:
                return
            async with server, anyio.create_task_group() as tasks:
                self._ends |= {client, server}
                tasks.start_soon(self._copy, client, server)
                await self._copy(server, client)
                tasks.cancel_scope.cancel()
            self._ends -= {client, server}

    async def _copy(self, source: SocketStream, target: SocketStream) -> None:
        try:
            async for piece in source:
                while self.holds and piece.startswith(self.holds):
                    self.held.add(piece.partition(b" ")[0])
                    await anyio.sleep(0.01)
                await target.send(piece)
        except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
            pass
        await anyio.aclose_forcefully(target)


@contextmanager
def open_wire(server: PageServer) -> Iterator[Wire]:
    """A wire to a server."""
    with start_blocking_portal("asyncio") as portal:
        wire = Wire(portal, server.port)
        future, _ = portal.start_task(wire.run)
        try:
            yield wire
        finally:
            portal.call(future.cancel)
