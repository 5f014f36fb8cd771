"""`kitchener serve` as a process: it says where it listens, takes requests, and ends by signals (docs/server.md).

One event loop: the command has its own.
"""

import json
import re
import signal
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import start
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
