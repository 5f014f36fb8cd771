"""The reference servers of the protocol for time, git and web pages, as their makers publish them, over standard input."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from kitchener.config import McpServerConfig
from kitchener.replaying import replay_session
from tests.mcp.shared.servers import open_desk, settings_of


def server(module: str, *args: str, **settings: Any) -> McpServerConfig:
    given = {"connect_timeout_s": 40.0, "call_timeout_s": 30.0, **settings}
    return McpServerConfig(command=sys.executable, args=("-m", module, *args), **given)


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"<html><body><h1>Opening hours</h1><p>Nine to five.</p></body></html>"
        self.send_response(200 if self.path == "/hours" else 404)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def page() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Page) as httpd:
        thread = Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}/hours"
        httpd.shutdown()
        thread.join()


def repository(folder: Path) -> Path:
    folder.mkdir()
    (folder / "a.txt").write_text("one\n")
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    for command in (("init", "-q"), ("add", "."), (*who, "commit", "-q", "-m", "The first line")):
        subprocess.run(["git", *command], cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("anyio_backend", ["trio"])  # how a server is spoken to on either loop, the other tests show
async def test_a_server_of_other_makers_answers_in_a_turn_that_replays_identical(tmp_path: Path) -> None:
    """The quick sibling of the next test. That a result of text alone is given, `test_stdio.py` shows."""
    servers = {"time": server("mcp_server_time", trust_annotations=True)}
    asked = {"source_timezone": "Europe/Rome", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    async with open_desk(tmp_path, servers) as (runtime, _):
        assert runtime.statistics()["mcp_servers"]["time"]["state"] == "connected"
        session_id = await runtime.supervisor().start_session()
        message = f'time__convert_time {json.dumps(asked)} then time__get_current_time {{"timezone": "Nowhere/Town"}}'
        time, wrong = (await runtime.supervisor().handle_turn(message, session_id=session_id)).response.split(" | ")
    assert "Asia/Tokyo" in time
    assert '"error"' in wrong
    report = await replay_session(session_id, config=settings_of(tmp_path, servers))
    assert report.is_identical, report.text()


@pytest.mark.soak
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_time_git_and_fetch_answer_in_one_turn_that_replays_identical(tmp_path: Path) -> None:
    folder = repository(tmp_path / "work")
    with page() as url:
        servers = {
            "time": server("mcp_server_time", trust_annotations=True),
            "git": server("mcp_server_git", "--repository", str(folder)),
            "fetch": server("mcp_server_fetch", "--ignore-robots-txt", "--allow-private-ips"),
        }
        asked = {
            "time__convert_time": {"source_timezone": "Europe/Rome", "time": "12:00", "target_timezone": "Asia/Tokyo"},
            "git__git_log": {"repo_path": str(folder)},
            "fetch__fetch": {"url": url},
            "time__get_current_time": {"timezone": "Nowhere/Town"},
        }
        message = " then ".join(f"{tool} {json.dumps(arguments)}" for tool, arguments in asked.items())
        async with open_desk(tmp_path, servers) as (runtime, _):
            found = runtime.statistics()["mcp_servers"]
            assert {label: each["state"] for label, each in found.items()} == dict.fromkeys(servers, "connected"), found
            supervisor = runtime.supervisor()
            session_id = await supervisor.start_session()
            reply = (await supervisor.handle_turn(message, session_id=session_id)).response
    time, log, hours, wrong = reply.split(" | ")
    assert "Asia/Tokyo" in time
    assert "The first line" in log
    assert "Nine to five." in hours
    assert '"error"' in wrong
    report = await replay_session(session_id, config=settings_of(tmp_path, servers))
    assert report.is_identical, report.text()
