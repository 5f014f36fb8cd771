"""`kitchener mcp list` and `check`: servers, tools, and what changed since the newest recorded turn. See docs/mcp.md."""

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.mcp.shared.servers import SCRIPT, listed

SETTINGS = """
plane_root = "root"
[agents.ADMIN]
tools = ["mcp:fs"]
[agents.BARE]
[mcp.fs]
command = "{python}"
args = ["-S", "{script}", "fs"]
max_restarts = 1
"""


@pytest.fixture
def served(cli: Cli, tmp_path: Path) -> Cli:
    """The command line, beside settings of one server."""
    text = SETTINGS.format(python=sys.executable, script=SCRIPT)
    (tmp_path / "kitchener.toml").write_text(text, encoding="utf-8")
    (tmp_path / "fs").mkdir()
    list_tools(tmp_path, "echo", "read")
    return cli


def list_tools(folder: Path, *names: str, **fields: object) -> None:
    (folder / "fs" / "tools.json").write_text(json.dumps([listed(name, **fields) for name in names]), encoding="utf-8")


def test_check_shows_the_tools_and_what_changed_since_the_recorded_turn(served: Cli, tmp_path: Path) -> None:
    first = served("mcp", "check", "--json")
    assert (first.code, first.err) == (0, "")
    (server,) = first.json["servers"]
    assert (server["state"], server["server"], server["refused"]) == ("connected", "faults 1", [])
    assert server["changes"] == {"added": [], "removed": [], "changed": []}
    assert [each["policy_name"] for each in server["tools"]] == ["fs.echo", "fs.read"]
    assert server["tools"][0]["traits"]["destructive"]

    assert served("chat", stdin=b"hello\n").code == 0
    recorded = served("mcp", "list", "--json").json["servers"][0]
    assert recorded["tools"] == server["tools"]
    list_tools(tmp_path, "echo", "write", description="Another one.")
    second = served("mcp", "check")
    assert second.code == 0
    assert "added since the newest recorded turn: fs__write" in second.out
    assert "removed since the newest recorded turn: fs__read" in second.out
    assert "changed since the newest recorded turn: fs__echo" in second.out


def test_check_exits_with_1_where_a_server_fails_or_a_tool_is_left_out(served: Cli, tmp_path: Path) -> None:
    list_tools(tmp_path, "echo", inputSchema={"type": "array"})
    outcome = served("mcp", "check", "fs")
    assert outcome.code == 1
    assert "left out: 'echo': its schema is not one of an object" in outcome.out
    (tmp_path / "fs" / "broken").touch()
    outcome = served("mcp", "check")
    assert outcome.code == 1
    assert "fs: failed" in outcome.out
    assert "no such table: settings" in outcome.out
    assert served("doctor", "--probe").code == 1


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (
            'command = "no-such-server"',
            "the command 'no-such-server' cannot be found: install it, or set `command` to its whole path",
        ),
        ('command = "/dev/null"', "the command '/dev/null' cannot be started: Permission denied"),
        ('command = "sh"\ncwd = "/no/such"', "its `cwd` '/no/such' cannot be entered: No such file or directory"),
        ('command = "true"', "it ended, or closed its output, before it answered"),
        (
            'command = "sh"\nargs = ["-c", "echo no such database >&2"]',
            "it ended, or closed its output, before it answered: its last output: no such database",
        ),
        (
            'command = "sh"\nargs = ["-c", "echo Loading; exit 1"]',
            "it ended, or closed its output, before it answered: its standard output has what is no message: 'Loading'",
        ),
        (
            'command = "sh"\nargs = ["-c", "echo waiting for the database >&2; sleep 60"]\nconnect_timeout_s = 0.5',
            "it did not list its tools within connect_timeout_s = 0.5: its last output: waiting for the database",
        ),
        ('command = "cat"', "it refused the handshake: Method not found (-32601)"),
        (
            'url = "http://127.0.0.1:9/mcp"',
            "cannot connect to 127.0.0.1:9: connection refused",
        ),
    ],
)
def test_a_server_that_is_not_there_is_told_without_names_of_classes(cli: Cli, tmp_path: Path, table: str, told: str) -> None:
    (tmp_path / "kitchener.toml").write_text(f"[mcp.x]\n{table}\n", encoding="utf-8")
    outcome = cli("mcp", "check")
    assert (outcome.code, outcome.out) == (1, f"x: failed: {told}\n")


def test_list_reads_the_settings_only(served: Cli, tmp_path: Path) -> None:
    (tmp_path / "fs" / "broken").touch()
    outcome = served("mcp", "list")
    assert (outcome.code, outcome.err) == (0, "")
    assert "no recorded turn had its tools" in outcome.out
    assert "1 server, not asked; `--probe` asks them" in served("doctor").out


def test_an_unknown_server_is_a_negative_answer(served: Cli) -> None:
    outcome = served("mcp", "check", "gone")
    assert outcome.code == 1
    assert "there is no server 'gone' in [mcp]; it has: fs" in outcome.err


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ("", "needs either `command` or `url`"),
        ('url = "http://a.example/mcp"\ncommand = "x"', "needs either `command` or `url`"),
        ('command = "x"\ntoken = "env:A"', "`headers` and `token` cannot be used with `command`"),
        ('url = "http://a.example/mcp"\nargs = ["x"]', "`args`, `cwd` and `env` cannot be used with `url`"),
        ('url = "http://a.example/mcp"\ntoken = "sk-123"', "never the key itself"),
        ('url = "http://u:p@a.example/mcp"', "must not hold a user or password"),
        ('url = "http://a.example/mcp"\ntoken = "env:NO_SUCH_TOKEN"', "NO_SUCH_TOKEN is not set"),
    ],
)
def test_wrong_settings_are_named(cli: Cli, tmp_path: Path, table: str, problem: str) -> None:
    (tmp_path / "kitchener.toml").write_text(f"[mcp.fs]\n{table}\n", encoding="utf-8")
    outcome = cli("config", "check")
    assert outcome.code == 2
    assert problem in outcome.err
    assert "mcp.fs" in outcome.err
    assert "sk-123" not in outcome.err


def test_shown_settings_hold_no_secret(cli: Cli, tmp_path: Path) -> None:
    table = (
        '[mcp.web]\nurl = "http://a.example/mcp"\ntoken = "env:WEB"\n[mcp.fs]\ncommand = "x"\nargs = ["--key=sk-123456789"]\n'
    )
    (tmp_path / "kitchener.toml").write_text(table, encoding="utf-8")
    outcome = cli("config", "show")
    assert "sk-123456789" not in outcome.out
    assert "env:WEB" in outcome.out
