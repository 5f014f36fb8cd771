"""`kitchener serve` as a process: it says where it listens, takes requests, and ends by signals (docs/server.md).

One event loop: the command has its own.
"""

import json
import re
import signal
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest

from tests.cli.commands import read_lines, start
from tests.cli.conftest import Cli


def asked(url: str, body: object = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


def test_it_serves_the_offline_agent_until_a_signal_and_exits_with_0(tmp_path: Path) -> None:
    process = start("serve", "--port", "0", cwd=tmp_path)
    assert process.stdout is not None
    line = process.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+/v1", line)
    assert found is not None, line
    body = {"model": "ADMIN", "messages": [{"role": "user", "content": "hello"}]}
    reply = asked(f"{found[0]}/chat/completions", body)
    assert reply["choices"][0]["message"]["content"].startswith("Hello!")
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_port_that_somebody_has_is_refused_in_one_line(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        outcome = cli("serve", "--port", str(other.getsockname()[1]))
    assert (outcome.code, len(outcome.err.splitlines()), "serve.port" in outcome.err) == (2, 1, True)


class Hanging:
    """A server whose model takes a request and never answers; in it, a client waits for its reply.

    Args:
        folder: its directory
        grace_s: `limits.shutdown_grace_s`
    """

    def __init__(self, folder: Path, grace_s: float) -> None:
        self.model = socket.create_server(("127.0.0.1", 0))
        (folder / "kitchener.toml").write_text(
            f"""
            plane_root = "root"
            limits = {{ shutdown_grace_s = {grace_s} }}
            agents.ADMIN.classify = "rules"
            [router]
            default_provider = "local"
            [router.providers.local]
            base_url = "http://127.0.0.1:{self.model.getsockname()[1]}/v1"
            model = "m"
            """
        )
        self.process = start("serve", "--port", "0", cwd=folder)
        self.refused: tuple[int, Any] = (0, None)
        self._client = threading.Thread(target=self._ask)

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[2].rstrip(";")
        self._client.start()
        self.model.settimeout(30)
        self._taken = self.model.accept()[0]
        return self

    def __exit__(self, *_: object) -> None:
        self._client.join()
        self._taken.close()
        self.model.close()

    def _ask(self) -> None:
        try:
            asked(f"{self.url}/v1/chat/completions", {"model": "ADMIN", "messages": [{"role": "user", "content": "hello"}]})
        except urllib.error.HTTPError as error:
            with error:
                self.refused = (error.code, json.loads(error.read())["error"]["code"])
        except OSError:
            pass


def test_a_server_that_had_to_abort_turns_is_drained_says_so_and_exits_with_0(tmp_path: Path) -> None:
    with Hanging(tmp_path, grace_s=0.01) as server:
        server.process.send_signal(signal.SIGTERM)
        _, err = server.process.communicate(timeout=30)
    assert (server.process.returncode, server.refused) == (0, (503, "shutting_down"))
    assert "aborted on record" in err
    found = [each["entry"]["entry_type"] for each in read_lines(tmp_path / "root/HO2/ADMIN/ho2m.jsonl")]
    assert found[-1] == "TURN_ABORTED"


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with Hanging(tmp_path, grace_s=1_000) as server:
        server.process.send_signal(signal.SIGTERM)
        while True:
            try:
                urllib.request.urlopen(f"{server.url}/readyz", timeout=20).close()
            except urllib.error.HTTPError as error:
                error.close()
                if error.code == 503:
                    break
                raise
        server.process.send_signal(signal.SIGTERM)
        server.process.communicate(timeout=30)
    assert server.process.returncode == 130


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--host", "0.0.0.0"), "serve.clients"),
        (("--port", "70000"), "port"),
    ],
)
def test_an_address_that_cannot_be_is_refused_in_one_line(cli: Cli, arguments: tuple[str, ...], told: str) -> None:
    outcome = cli("serve", *arguments)
    assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (2, "", 1)
    assert told in outcome.err
