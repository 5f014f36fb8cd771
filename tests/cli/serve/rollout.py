"""Servers of one root, one after the other behind a proxy that tries again, and clients that number what they send."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from tests.cli.shared.command_server import Started
from tests.cli.shared.commands import start_program

_LAUNCH: Final = """
import json, os, sys
os.dup2(0, 3)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.environ.update(json.loads(sys.argv.pop(1)), LISTEN_PID=str(os.getpid()), LISTEN_FDS='1')
from kitchener.cli.main import main
main()
"""
LIMIT_S: Final = 60.0
"""Longest wait for anything, seconds."""


def serve_on(listener: socket.socket, cwd: Path, **env: str) -> Started:
    """`kitchener serve` in a process that is handed this socket, as systemd does it."""
    return start_program(_LAUNCH, json.dumps(env), "serve", cwd=cwd, stdin=listener.fileno())


class Retried(BaseHTTPRequestHandler):
    """Passes a request on, again and again while the server is not there, shuts down or goes away before its answer."""

    protocol_version = "HTTP/1.1"
    upstream: tuple[str, int]

    def do_POST(self) -> None:
        """One request."""
        body = self.rfile.read(int(self.headers["content-length"]))
        ends = time.monotonic() + LIMIT_S
        while (found := self._answer(body)) is None and time.monotonic() < ends:
            time.sleep(0.01)
        status, kind, text = found or (504, "text/plain", b"")
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _answer(self, body: bytes) -> tuple[int, str, bytes] | None:
        connection = http.client.HTTPConnection(*self.upstream, timeout=LIMIT_S)
        try:
            connection.request("POST", self.path, body, dict(self.headers))
            answer = connection.getresponse()
            text = answer.read()
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()
        return None if answer.status == 503 else (answer.status, answer.headers["content-type"], text)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class _Proxy(ThreadingHTTPServer):
    request_queue_size = 256
    """All clients at once, several times over."""


@contextmanager
def proxy(upstream: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """Where the proxy of an address listens."""
    handler = type("RetriedThere", (Retried,), {"upstream": upstream})
    with _Proxy(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,)).start()
        try:
            yield ("127.0.0.1", server.server_port)
        finally:
            server.shutdown()


class Clients:
    """Clients that send numbered messages, each in a session of its own, until they are told to stop.

    Args:
        address: where they send them
        count: how many clients
        keys: their subjects' keys, in rotation
    """

    def __init__(self, address: tuple[str, int], count: int, keys: list[str]) -> None:
        self._address, self._keys = address, keys
        self.acknowledged: dict[str, tuple[str, str]] = {}
        """The session and the turn of each message that was answered, by its key."""
        self.wrong: list[Any] = []
        """Answers that are none, and what went wrong in a client."""
        self._stop, self._moved = threading.Event(), threading.Condition()
        self._threads = [threading.Thread(target=self._talk, args=(number,)) for number in range(count)]

    def __enter__(self) -> "Clients":
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for each in self._threads:
            each.join()

    def wait_for_more(self, count: int) -> None:
        """Returns when so many more messages are acknowledged."""
        goal = len(self.acknowledged) + count
        with self._moved:
            assert self._moved.wait_for(lambda: self.wrong or len(self.acknowledged) >= goal, LIMIT_S)
        assert not self.wrong, self.wrong

    def _talk(self, number: int) -> None:
        try:
            session_id = self._post(number, "/v1/sessions", {})["session_id"]
            at = 0
            while not self._stop.is_set():
                at += 1
                key = f"{number}-{at}"
                turn_id = self._send(number, session_id, key)
                with self._moved:
                    self.acknowledged[key] = (session_id, turn_id)
                    self._moved.notify_all()
        except Exception as error:  # noqa: BLE001  the test hears of it
            with self._moved:
                self.wrong.append(error)
                self._moved.notify_all()

    def _send(self, number: int, session_id: str, key: str) -> str:
        """Every other client reads a stream."""
        body = {"message": f"message {key}", "stream": number % 2 == 1}
        found = self._post(number, f"/v1/sessions/{session_id}/messages", body, key)
        return str(found["turn_id"])

    def _post(self, number: int, path: str, body: object, key: str = "") -> Any:
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._keys[number % len(self._keys)]}"}
        connection = http.client.HTTPConnection(*self._address, timeout=LIMIT_S)
        try:
            connection.request("POST", path, json.dumps(body), {**headers, **({"idempotency-key": key} if key else {})})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        assert answer.status < 300, (answer.status, text)
        if answer.headers["content-type"].startswith("text/event-stream"):
            last = [each for each in text.split("\n\n") if "data: " in each][-1]
            assert "event: turn_completed" in last, text
            return json.loads(last.partition("data: ")[2])
        return json.loads(text)
