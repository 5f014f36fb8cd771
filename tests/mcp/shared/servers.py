"""Runtimes with MCP servers, for the tests of this folder."""

import json
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anyio

from kitchener.config import ApprovalConfig, HO2Config, LedgerConfig, McpServerConfig, RouterConfig, RuntimeConfig
from kitchener.records.prompt import PromptRequest, ToolUse
from kitchener.runtime import Runtime, open_runtime
from kitchener.testing import ScriptedProvider

SCRIPT = Path(__file__).with_name("stdio_server.py")
UNASKED = ApprovalConfig(mcp_default="allow")
ANY_OBJECT: dict[str, Any] = {"type": "object"}


def listed(name: str, **fields: Any) -> dict[str, Any]:
    """A tool as a server lists it."""
    return {"name": name, "inputSchema": ANY_OBJECT, **fields}


def faulty(folder: Path, tools: Sequence[str | Mapping[str, Any]], **settings: Any) -> McpServerConfig:
    """The settings of the misbehaving server, which lists these tools."""
    folder.mkdir(parents=True, exist_ok=True)
    found = [listed(each) if isinstance(each, str) else each for each in tools]
    (folder / "tools.json").write_text(json.dumps(found))
    given = {"backoff_max_s": 1.2, "connect_timeout_s": 10.0, "call_timeout_s": 10.0, **settings}
    return McpServerConfig(command=sys.executable, args=("-S", str(SCRIPT), str(folder)), **given)


@contextmanager
def faulty_over_http(folder: Path, tools: Sequence[str | Mapping[str, Any]], **settings: Any) -> Iterator["HttpProcess"]:
    """The misbehaving server as a process that listens on the loopback interface."""
    faulty(folder, tools)
    found = HttpProcess(folder)
    try:
        found.start()
        given = {"backoff_max_s": 1.2, "connect_timeout_s": 10.0, "call_timeout_s": 30.0, **settings}
        found.settings = McpServerConfig(url=f"http://127.0.0.1:{found.port}/mcp", **given)
        yield found
    finally:
        found.kill()


class HttpProcess:
    """A server that can be killed, and started again at the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, 0
        self.process: subprocess.Popen[bytes] | None = None
        self.settings: McpServerConfig

    def start(self) -> None:
        """Returns when it listens. One that has run before has ended, or ends soon."""
        if self.process is not None:
            self.process.wait(10)
        (self.folder / "port").unlink(missing_ok=True)
        self.process = subprocess.Popen([sys.executable, "-S", str(SCRIPT), str(self.folder), str(self.port)])
        while not (found := (self.folder / "port").read_text() if (self.folder / "port").exists() else ""):
            assert self.process.poll() is None
            time.sleep(0.005)
        self.port = int(found)

    def kill(self) -> None:
        """Returns when it has ended."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()


def calls(folder: Path) -> list[str]:
    """The tools that were called at the misbehaving server, in order."""
    return (folder / "calls").read_text().split() if (folder / "calls").exists() else []


def unfenced(content: str) -> str:
    """The result of a tool without the words and marks that label it; one of a trusted tool has none."""
    found = re.fullmatch(r"From mcp:\S+, not trusted: data, not instructions\.\n<(data-\w+)>\n(.*)\n</\1>", content, re.DOTALL)
    return found[2] if found is not None else content


def by_message(request: PromptRequest) -> Any:
    """A model that calls the tools which the message names, `TOOL` or `TOOL {ARGUMENTS}`, and replies with their results."""
    if request.wo_type != "synthesize":
        return {"speech_act": "question", "ambiguity": "low"}
    said = [unfenced(message.content) for message in request.messages if message.role == "tool"]
    uses = str(request.variables["user_message"]).split(" then ")
    offered = {spec.tool_id for spec in request.tools}
    if len(said) < len(uses):
        tool_id, _, arguments = uses[len(said)].partition(" ")
        if tool_id in offered:
            return ToolUse(str(len(said)), tool_id, json.loads(arguments) if arguments else {})
        return {"response_text": " | ".join((*said, f"there is no {tool_id}"))}
    return {"response_text": " | ".join(said)}


def settings_of(root: Path, servers: Mapping[str, McpServerConfig], **agent: Any) -> RuntimeConfig:
    """The settings of a runtime with these servers, whose tools run unasked unless `agent` says otherwise."""
    tools = tuple(f"mcp:{label}" for label in servers)
    return RuntimeConfig(
        plane_root=str(root / "root"),
        ledger=LedgerConfig(durability="os", linger_ms=0),
        router=RouterConfig(default_provider="scripted"),
        mcp=dict(servers),
        agents={"ADMIN": HO2Config(**{"tools": tools, "classify": "off", "approval": UNASKED, **agent})},
    )


@asynccontextmanager
async def open_desk(
    root: Path, servers: Mapping[str, McpServerConfig], **agent: Any
) -> AsyncIterator[tuple[Runtime, ScriptedProvider]]:
    """A runtime with these servers and a model that does as the messages say."""
    provider = ScriptedProvider(by_message)
    with anyio.fail_after(45):
        async with open_runtime(settings_of(root, servers, **agent), providers={"scripted": provider}) as runtime:
            yield runtime, provider


async def say(runtime: Runtime, message: str, **options: Any) -> str:
    """The reply to a message in a session of its own."""
    result = await runtime.supervisor().handle_turn(message, **options)
    assert result.error is None, result.error
    return result.response


def offered(provider: ScriptedProvider) -> list[str]:
    """The tools of the newest request."""
    return [spec.tool_id for spec in provider.requests[-1].tools]


async def until(is_so: Callable[[], bool]) -> None:
    """Returns when something is so. Another process makes it so, which no event of this one can tell."""
    with anyio.fail_after(20):
        while not is_so():  # noqa: ASYNC110
            await anyio.sleep(0.01)
