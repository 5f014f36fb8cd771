"""The reference servers of the protocol that need Node.js, over both transports. `make doors` installs them and runs this.

MCP_DOORS=.doors   the folder where `npm` has installed them
"""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import pytest

from kitchener.config import ApprovalConfig, McpServerConfig
from kitchener.records.turn import ToolProgress, TurnCompleted
from kitchener.replaying import replay_session
from kitchener.runtime import Runtime
from tests.mcp.shared.servers import offered, open_desk, say, settings_of, until

DOORS: Final = os.environ.get("MCP_DOORS", "")
PACKAGES: Final = Path(DOORS or ".").resolve() / "node_modules" / "@modelcontextprotocol"
LOOPBACK: Final = Path(__file__).with_name("doors") / "loopback.cjs"
ASKING: Final = ApprovalConfig()
"""What holds unless somebody sets something else."""

pytestmark = [
    pytest.mark.skipif(not DOORS, reason="MCP_DOORS names no folder with MCP servers of npm; `make doors` makes one"),
    # On trio, the HTTP client of the library leaves generators of unread answers to the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def program(name: str) -> str:
    return str(PACKAGES / f"server-{name}" / "dist" / "index.js")


def command(name: str, *args: str, **settings: Any) -> McpServerConfig:
    return McpServerConfig(command="node", args=(program(name), *args), connect_timeout_s=40.0, **settings)


class Everything:
    """The server `everything` over HTTP, in a process that can be killed and started again."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process: subprocess.Popen[str]

    def start(self) -> None:
        node = shutil.which("node")
        assert node is not None
        self.process = subprocess.Popen(
            [node, "--require", str(LOOPBACK), program("everything"), "streamableHttp"],
            env={"PORT": str(self.port), "PATH": os.environ["PATH"]},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for _ in range(4_000):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None, "it ended at once"
            time.sleep(0.01)
        raise AssertionError("it does not listen")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def settings(self, **settings: Any) -> McpServerConfig:
        given = {"connect_timeout_s": 40.0, "backoff_max_s": 0.2, "max_restarts": 1_000}
        return McpServerConfig(url=f"http://127.0.0.1:{self.port}/mcp", **{**given, **settings})


@contextmanager
def everything() -> Iterator[Everything]:
    server = Everything()
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def reached(transport: str) -> Iterator[McpServerConfig]:
    if transport == "stdio":
        yield command("everything", "stdio")
        return
    with everything() as server:
        yield server.settings()


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_each_kind_of_result_reaches_the_model_and_the_turn_replays(tmp_path: Path, transport: str) -> None:
    asked: dict[str, dict[str, Any]] = {
        "ev__echo": {"message": "hello"},
        "ev__get-sum": {"a": 2, "b": 3},
        "ev__get-structured-content": {"location": "Chicago"},
        "ev__get-tiny-image": {},
        "ev__get-resource-links": {"count": 2},
        "ev__trigger-long-running-operation": {"duration": 0.2, "steps": 2},
        "ev__trigger-elicitation-request": {},
        "ev__get-sum ": {"a": "two"},
    }
    message = " then ".join(f"{tool.strip()} {json.dumps(arguments)}" for tool, arguments in asked.items())
    with reached(transport) as server:
        async with open_desk(tmp_path, {"ev": server}) as (runtime, _):
            supervisor = runtime.supervisor()
            session_id = await supervisor.start_session(subject_id="ada")
            updates = [each async for each in supervisor.stream_turn(message, session_id=session_id)]
        progress = [(each.value, each.total) for each in updates if isinstance(each, ToolProgress)]
        (done,) = [each.result for each in updates if isinstance(each, TurnCompleted)]
        replies = done.response.split(" | ")
        assert progress == [(1.0, 2.0), (2.0, 2.0)]
        report = await replay_session(session_id, config=settings_of(tmp_path, {"ev": server}))
        assert report.is_identical, report.text()
    echo, total, weather, image, links, long, elicitation, wrong = replies
    assert "hello" in echo
    assert "5" in total
    assert "temperature" in weather
    assert "[an 'image', 'image/png', " in image
    assert "[a link: " in links
    assert "Long running operation completed" in long
    assert "declined" in elicitation.lower()
    assert "cannot take these arguments" in wrong


async def test_a_file_assistant_reads_unasked_and_writes_after_a_restart_and_a_yes(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    (folder / "a.txt").write_text("the first line")
    server = command("filesystem", str(folder), trust_annotations=True)
    write = f"fs__write_file {json.dumps({'path': str(folder / 'b.txt'), 'content': 'new'})}"
    async with open_desk(tmp_path, {"fs": server}, approval=ASKING) as (runtime, provider):
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session(subject_id="ada")
        read = await supervisor.handle_turn(
            f"fs__read_text_file {json.dumps({'path': str(folder / 'a.txt')})}", session_id=session_id
        )
        assert "the first line" in read.response
        outside = await supervisor.handle_turn(
            f"fs__read_text_file {json.dumps({'path': '/etc/passwd'})}", session_id=session_id
        )
        assert "Access denied" in outside.response
        waiting = await supervisor.handle_turn(write, session_id=session_id)
        assert "fs__write_file" in offered(provider)
    assert not (folder / "b.txt").exists()
    async with open_desk(tmp_path, {"fs": server}, approval=ASKING) as (runtime, _):
        done = await runtime.supervisor().approve(waiting.pending_approval[0])
        assert done is not None
        assert "Successfully wrote" in done.response
    assert (folder / "b.txt").read_text() == "new"
    report = await replay_session(session_id, config=settings_of(tmp_path, {"fs": server}, approval=ASKING))
    assert report.is_identical, report.text()
    assert len(report.turns) == 4


async def test_a_call_is_unknown_where_its_server_is_killed_and_the_next_finds_the_server_that_was_started_again(
    tmp_path: Path,
) -> None:
    """The server knows nothing of the session that it had begun before."""

    async def long(runtime: Runtime) -> None:
        told.append(await say(runtime, 'ev__trigger-long-running-operation {"duration": 30, "steps": 30}'))

    told: list[str] = []
    with everything() as server:
        async with open_desk(tmp_path, {"ev": server.settings()}) as (runtime, _):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(long, runtime)
                await until(lambda: runtime.statistics()["mcp_servers"]["ev"]["running"] == 1)
                await anyio.to_thread.run_sync(server.kill)
            assert "outcome unknown" in told[0]
            await anyio.to_thread.run_sync(server.start)
            assert "hello" in await say(runtime, 'ev__echo {"message": "hello"}')
            await anyio.to_thread.run_sync(server.kill)
            await anyio.to_thread.run_sync(server.start)
            assert "again" in await say(runtime, 'ev__echo {"message": "again"}')
