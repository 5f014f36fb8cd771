"""`kitchener serve` as a process: it says where it listens, takes requests, and ends by signals (docs/server.md).

One event loop: the command has its own.
"""

import json
import re
import shlex
import signal
import socket
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Self

import pytest

from tests.cli.conftest import Cli
from tests.cli.shared.commands import finish, read_lines, start, start_program

ROOT = Path(__file__).parents[3]
_CURL = r"^```\n(curl .*?)^```$"
ONE_BY_ONE = """
import sys

exec(sys.argv[1], {"__name__": "__main__"})
print("\\0")
exec(sys.argv[2], {"__name__": "__main__"})
"""
"""Runs two programs in one process, because loading the client of OpenAI takes most of their time."""
_WITH_FUNCTIONS = r"^```\n(import json\n\nfrom openai import .*?)^```$"


def asked(url: str, body: object) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.loads(answer.read())


def test_the_five_minutes_of_the_readme_lead_to_a_reply_and_a_session(tmp_path: Path) -> None:
    """The lines of both pages as they stand, but for the port and the installation."""
    readme, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/server.md"))
    (steps,) = re.findall(r"^## Serve it in five minutes\n\n```\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    assert steps in page
    installation, command = steps.splitlines()
    assert installation == 'pip install "kitchener[serve]"'
    curl, with_functions = (re.findall(each, page, re.MULTILINE | re.DOTALL) for each in (_CURL, _WITH_FUNCTIONS))
    assert curl == re.findall(_CURL, readme, re.MULTILINE | re.DOTALL)
    programs = [*re.findall(r"^```\n(from openai import .*?)^```$", page, re.MULTILINE | re.DOTALL), *with_functions]
    folder = tmp_path / "a new folder"
    folder.mkdir()
    process = start(*command.split()[1:], "--port", "0", cwd=folder)
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:\d+/v1", process.stdout.readline())
    assert found is not None
    assert "`http://127.0.0.1:8321/v1`" in readme
    _, url, _, kind, _, body = shlex.split(curl[0].replace("\\\n", ""))
    assert kind == "content-type: application/json"
    answer = asked(url.replace("http://127.0.0.1:8321/v1", found[0]), json.loads(body))
    assert answer["choices"][0]["message"]["content"].startswith("Hello!")
    scripts = [program.replace("http://127.0.0.1:8321/v1", found[0]) for program in programs]
    ran = finish(start_program(ONE_BY_ONE, *scripts, cwd=folder))
    assert ran.code == 0, ran.err
    hello, weather = ran.out.split("\0\n")
    assert (hello[:6], weather[:13]) == ("Hello!", "get_weather: ")
    listed, shown = start("session", "list", cwd=folder), start("session", "show", "last", cwd=folder)
    assert "local" in listed.communicate(timeout=30)[0]
    assert "returned by the client" in shown.communicate(timeout=30)[0]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 0


def test_a_port_that_somebody_has_is_refused_in_one_line(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        outcome = cli("serve", "--port", str(port))
    assert (outcome.code, len(outcome.err.splitlines())) == (2, 1)
    assert outcome.err.startswith(f"kitchener: --port = 127.0.0.1:{port}: cannot listen there: ")


class Hanging:
    """A server whose model takes a request and never answers; in it, a client waits for its reply.

    Args:
        folder: its directory
        grace_s: `limits.shutdown_grace_s`
        arguments: further ones of its command
    """

    def __init__(self, folder: Path, grace_s: float, *arguments: str) -> None:
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
        self.process = start("serve", "--port", "0", *arguments, cwd=folder)
        self.refused: tuple[int, Any] = (0, None)
        self._client = threading.Thread(target=self._ask)

    def __enter__(self) -> Self:
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().split()[2].rstrip(";/")
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
    with Hanging(tmp_path, 0.01, "--log-format", "json") as server:
        server.process.send_signal(signal.SIGTERM)
        _, err = server.process.communicate(timeout=30)
    assert (server.process.returncode, server.refused) == (0, (503, "shutting_down"))
    told = [json.loads(line) for line in err.splitlines()]
    assert ["recorded as aborted" in each["event"] for each in told].count(True) == 1
    found = [each["entry"]["entry_type"] for each in read_lines(tmp_path / "root/HO2/ADMIN/ho2m.jsonl")]
    assert found[-1] == "TURN_ABORTED"


def test_a_server_whose_standard_output_is_on_a_full_disk_serves(tmp_path: Path) -> None:
    """Regression: it ended with a traceback, and the unit started it again and again."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no file that is always full")
    with full.open("wb") as output:
        process = start("serve", "--port", "0", cwd=tmp_path, stdout=output.fileno())
    assert process.stderr is not None
    warning = process.stderr.readline()
    found = re.search(r"No space left on device.* (http://127\.0\.0\.1:\d+)/;", warning)
    assert found is not None, warning
    with urllib.request.urlopen(f"{found[1]}/healthz", timeout=20) as answer:
        assert answer.read() == b"ok\n"
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (0, "")


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
        (("--host", "0.0.0.0"), "kitchener: --host = '0.0.0.0': needs [serve.clients.<name>]"),
        (("--host", "nosuchhost.invalid"), "kitchener: --host = 'nosuchhost.invalid': needs [serve.clients.<name>]"),
        (("--port", "70000"), "port"),
        (("--agent", "ADMIN"), "--agent = 'ADMIN': cannot be chosen here: all agent classes are served"),
    ],
)
def test_an_option_that_cannot_be_is_refused_in_one_line(cli: Cli, arguments: tuple[str, ...], told: str) -> None:
    outcome = cli("serve", *arguments)
    assert (outcome.code, outcome.out, len(outcome.err.splitlines())) == (2, "", 1)
    assert told in outcome.err


def test_a_setting_that_cannot_be_is_named_with_its_file(cli: Cli) -> None:
    """Regression: it was said to be in a `configuration`."""
    Path("kitchener.toml").write_text('[serve]\nhost = "0.0.0.0"\n', encoding="utf-8")
    outcome = cli("serve")
    assert outcome.code == 2
    assert outcome.err.startswith("kitchener: kitchener.toml: serve.host = '0.0.0.0': needs [serve.clients.<name>]")
