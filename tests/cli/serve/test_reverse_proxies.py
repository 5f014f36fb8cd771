"""Caddy and nginx with the files of `operations` in front of a real server (docs/operations.md).

Skipped where the program is missing. One event loop: the command has its own. The model endpoint and the clients are threads.
"""

import http.client
import json
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import MappingProxyType

import anyio
import pytest

from tests.cli.serve.real_proxies import OPERATIONS, PUBLIC, Kind, caddy, in_front, is_there, nginx, told, write_nginx
from tests.cli.serve.rollout import LIMIT_S, Clients, serve_on
from tests.cli.serve.test_rolling_restart import KEYS, SETTINGS, check, restart, started
from tests.gateway.shared.secured_server import certificates

each_proxy = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.skipif(not is_there(kind), reason=f"{kind} is not on this machine"))
        for kind in ("caddy", "nginx")
    ],
)
BEHIND = """
plane_root = "root"

[agents.ADMIN]
classify = "off"

[serve]
allowed_hosts = ["chat.example"]
trusted_proxies = ["127.0.0.1"]
wrong_keys_per_minute = 3

[serve.clients.ada]
key = "env:ADA_KEY"
subject = "ada"

[router]
default_provider = "slow"

[router.providers.slow]
base_url = "http://127.0.0.1:{port}/v1"
model = "m"
"""


class Model(BaseHTTPRequestHandler):
    """A model that says one word, and the next when the client has seen the first."""

    protocol_version = "HTTP/1.1"
    seen: threading.Event

    def do_POST(self) -> None:
        """One streamed answer."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self._say({"delta": {"content": "first"}, "finish_reason": None})
        if self.seen.wait(LIMIT_S):
            self._say({"delta": {"content": " second"}, "finish_reason": None})
            self._say({"delta": {}, "finish_reason": "stop"})
            self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True

    def _say(self, choice: dict[str, object]) -> None:
        chunk = {"id": "1", "object": "chat.completion.chunk", "model": "m", "choices": [{"index": 0, **choice}]}
        self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def served(kind: Kind, folder: Path) -> Iterator[tuple[tuple[str, int], threading.Event]]:
    """The address of a proxy in front of a server, and what lets its model say the second word."""
    seen = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Seen", (Model,), {"seen": seen})) as model:
        threading.Thread(target=model.serve_forever, args=(0.01,)).start()
        (folder / "kitchener.toml").write_text(BEHIND.format(port=model.server_port))
        try:
            with socket.create_server(("127.0.0.1", 0)) as listener:
                server = serve_on(listener, folder, ADA_KEY=KEYS[0])
                try:
                    with in_front(kind, folder / kind, listener.getsockname()[:2]) as address:
                        yield address, seen
                finally:
                    seen.set()
                    server.send_signal(signal.SIGTERM)
                    server.communicate(timeout=LIMIT_S)
        finally:
            model.shutdown()
    assert server.returncode == 0


def send(
    address: tuple[str, int],
    path: str,
    body: bytes | None = None,
    *,
    source: str = "127.0.0.1",
    headers: Mapping[str, str] = MappingProxyType({}),
) -> http.client.HTTPResponse:
    """An answer as far as it has come; reading it closes the connection."""
    connection = http.client.HTTPConnection(*address, timeout=LIMIT_S, source_address=(source, 0))
    given = {"host": PUBLIC, "content-type": "application/json", "connection": "close", **headers}
    connection.request("GET" if body is None else "POST", path, body, given)
    return connection.getresponse()


def with_key(key: str = KEYS[0]) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@each_proxy
def test_each_piece_of_a_reply_passes_at_once(tmp_path: Path, kind: Kind) -> None:
    """The model says its second word only after the client has read the first."""
    body = {"model": "ADMIN", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    with served(kind, tmp_path) as (address, seen):
        answer = send(address, "/v1/chat/completions", json.dumps(body).encode(), headers=with_key())
        assert (answer.status, answer.getheader("content-type", "")[:17]) == (200, "text/event-stream")
        text = b""
        while b"first" not in text:
            line = answer.readline()
            assert line, text
            text += line
        assert b"second" not in text
        seen.set()
        text += answer.read()
        assert b"second" in text
        assert text.rstrip().endswith(b"data: [DONE]")


@each_proxy
def test_wrong_keys_count_for_the_client_whatever_it_says_that_it_is(tmp_path: Path, kind: Kind) -> None:
    with served(kind, tmp_path) as (address, _):
        tried = [
            send(
                address,
                "/v1/models",
                source="127.0.0.2",
                headers={"x-forwarded-for": f"10.0.0.{number}", **with_key("wrong" * 5)},
            ).status
            for number in range(5)
        ]
        assert tried == [401, 401, 401, 429, 429]
        assert send(address, "/v1/models", source="127.0.0.2", headers=with_key()).status == 429
        assert send(address, "/v1/models", source="127.0.0.3", headers=with_key()).status == 200
        assert (
            send(address, "/v1/models", source="127.0.0.3", headers={"x-forwarded-for": "127.0.0.2", **with_key()}).status
            == 200
        )


@each_proxy
def test_the_outside_sees_the_health_no_metrics_and_no_other_host(tmp_path: Path, kind: Kind) -> None:
    with served(kind, tmp_path) as (address, _):
        assert send(address, "/healthz").status == 200
        assert send(address, "/metrics", headers=with_key()).status in (403, 404)
        assert send(address, "/v1/models", headers={**with_key(), "host": "other.example"}).status == 421
        too_large = {"content-length": str(16 * 1_048_576 + 1), **with_key()}
        assert send(address, "/v1/responses", b"", headers=too_large).status == 413


@each_proxy
def test_a_restart_behind_a_real_proxy_answers_every_client_and_loses_no_turn(tmp_path: Path, kind: Kind) -> None:
    """As `test_rolling_restart.py`, with what people have in front of a server."""
    (tmp_path / "kitchener.toml").write_text(SETTINGS)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = started(listener, tmp_path)
        try:
            with (
                in_front(kind, tmp_path / kind, listener.getsockname()[:2]) as address,
                Clients(address, 12, list(KEYS)) as clients,
            ):
                for _ in range(2):
                    clients.wait_for_more(24)
                    server = restart(server, listener, tmp_path)
                clients.wait_for_more(24)
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=LIMIT_S)
    assert (server.returncode, clients.wrong) == (0, [])
    anyio.run(check, tmp_path / "root", clients.acknowledged)


class Restarting(BaseHTTPRequestHandler):
    """A server that answers its first request as one that ends does, and each further one."""

    asked: list[bytes]
    first: str

    def do_POST(self) -> None:
        """One request."""
        self.asked.append(self.rfile.read(int(self.headers.get("content-length", 0))))
        self.close_connection = True
        if len(self.asked) == 1 and self.first == "goes away":
            return
        self.send_response(503 if len(self.asked) == 1 and self.first == "refuses" else 200)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def restarting(first: str, port: int = 0) -> Iterator[tuple[tuple[str, int], list[bytes]]]:
    """The address of such a server, and the bodies that it got."""
    asked = list[bytes]()
    handler = type("RestartingSo", (Restarting,), {"asked": asked, "first": first})
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield ("127.0.0.1", server.server_port), asked
        finally:
            server.shutdown()


@pytest.mark.skipif(not is_there("nginx"), reason="nginx is not on this machine")
@pytest.mark.parametrize("first", ["refuses", "goes away"])
def test_nginx_sends_a_request_again_that_a_server_refused_or_left_without_an_answer(tmp_path: Path, first: str) -> None:
    with restarting(first) as (upstream, asked), in_front("nginx", tmp_path / "nginx", upstream) as address:
        assert send(address, "/v1/responses", b"{}").status == 200
        assert asked == [b"{}"] * 2


@pytest.mark.skipif(not is_there("caddy"), reason="caddy is not on this machine")
def test_requests_wait_at_caddy_while_no_server_listens(tmp_path: Path) -> None:
    """One without a body: earlier versions of Caddy close a body when they try again."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        upstream: tuple[str, int] = ("127.0.0.1", found.getsockname()[1])
    answers = list[int]()
    with in_front("caddy", tmp_path / "caddy", upstream) as address:
        client = threading.Thread(target=lambda: answers.append(send(address, "/v1/models").status))
        client.start()
        client.join(0.5)  # an answer now would be one that nobody gave
        assert answers == []
        with restarting("answers", upstream[1]) as (_, asked):
            client.join(LIMIT_S)
            assert (answers, asked) == ([200], [b""])


@pytest.mark.skipif(not is_there("caddy"), reason="caddy is not on this machine")
def test_caddy_takes_its_file_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "Caddyfile").write_text((OPERATIONS / "Caddyfile").read_text())
    found = told(caddy(tmp_path, "validate"), tmp_path)
    assert (found.returncode, [line for line in found.stderr.splitlines() if "WARN" in line]) == (0, []), found.stderr
    neat = subprocess.run(["caddy", "fmt", tmp_path / "Caddyfile"], capture_output=True, text=True, check=False)
    assert neat.stdout == (OPERATIONS / "Caddyfile").read_text()


@pytest.mark.skipif(not is_there("nginx"), reason="nginx is not on this machine")
def test_nginx_takes_its_file_with_a_certificate(tmp_path: Path) -> None:
    _, chain = certificates(tmp_path)
    text = re.sub(r"/etc/ssl/chat\.example\.(pem|key)", str(chain), (OPERATIONS / "nginx.conf").read_text())
    write_nginx(tmp_path, text.replace("listen 443", "listen 127.0.0.1:8443"))
    found = told(nginx(tmp_path, "-t"), tmp_path)
    assert (found.returncode, "[warn]" in found.stderr) == (0, False), found.stderr
