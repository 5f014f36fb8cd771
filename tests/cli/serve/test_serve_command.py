"""`kitchener serve` as a process: it says where it listens, takes requests, and ends by signals (docs/server.md).

One event loop: the command has its own.
"""

import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import start
from tests.cli.conftest import Cli

ROOT = Path(__file__).parents[3]


def test_the_five_minutes_of_the_readme_lead_to_a_reply_and_a_session(tmp_path: Path) -> None:
    """The lines of the page as they stand, but for the port and the installation."""
    readme, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/server.md"))
    (steps,) = re.findall(r"^## Serve it in five minutes\n\n```\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert steps in page
    installation, command = steps.splitlines()
    assert installation == 'pip install "kitchener[serve]"'
    (program,) = re.findall(r"^```\n(from openai import .*?)^```$", page, re.MULTILINE | re.DOTALL)
    process = start(*command.split()[1:], "--port", "0", cwd=tmp_path)
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:\d+/v1", process.stdout.readline())
    assert found is not None
    assert "`http://127.0.0.1:8321/v1`" in readme
    script = program.replace("http://127.0.0.1:8321/v1", found[0])
    ran = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout[:6]) == (0, "Hello!"), ran.stderr
    listed = start("session", "list", cwd=tmp_path)
    assert "local" in listed.communicate(timeout=30)[0]
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
