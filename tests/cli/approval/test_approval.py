"""`kitchener approval` and what `run` and `chat` say of calls that wait (docs/approval.md)."""

from pathlib import Path

import pytest

from tests.cli.chat.terminal import Terminal
from tests.cli.commands import read_lines, write_messages
from tests.cli.conftest import Cli

DESK = '''
from pathlib import Path

from kitchener import tool


@tool(requires_approval=True)
def write_note(text: str) -> str:
    """Writes a note."""
    with Path("notes").open("a") as file:
        file.write(f"{text}\\n")
    return f"noted {text}"
'''
SETTINGS = """
[router]
default_provider = "offline"

[agents.ADMIN]
tools = ["desk_of_cli:write_note"]
"""


@pytest.fixture
def desk(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A request that waits; the offline model asks for the tool that a message names. Returns its id."""
    (tmp_path / "desk_of_cli.py").write_text(DESK)
    (tmp_path / "kitchener.toml").write_text(SETTINGS)
    monkeypatch.syspath_prepend(tmp_path)
    outcome = cli("run", write_messages(tmp_path / "in", ("a", 'write a note "milk"')), "--output", "out")
    (result,) = read_lines(tmp_path / "out")
    assert outcome.code == 0
    (approval_id,) = result["pending_approval"]
    return str(approval_id)


def notes(tmp_path: Path) -> list[str]:
    """What the tool has written."""
    path = tmp_path / "notes"
    return path.read_text().splitlines() if path.exists() else []


def test_what_waits_is_listed_and_shown(cli: Cli, desk: str) -> None:
    (row,) = cli("approval", "list", "--json").json
    assert (row["approval_id"], row["status"], row["tool"], row["rule"]) == (desk, "waiting", "write_note", "tool")
    assert row["arguments"] == {"text": "milk"}
    assert desk in cli("approval", "list", "last").out
    shown = cli("approval", "show", desk)
    assert (shown.code, '{"text":"milk"}' in shown.out) == (0, True)


def test_an_approved_call_is_made_once_and_its_reply_shown(cli: Cli, desk: str, tmp_path: Path) -> None:
    assert notes(tmp_path) == []
    done = cli("approval", "approve", desk, "--by", "ada", "--json")
    assert (done.code, done.json["decision"]) == (0, "approved")
    again = cli("approval", "approve", desk, "--json")
    assert again.json["turn_id"] == done.json["turn_id"]
    assert notes(tmp_path) == ["milk"]
    assert cli("approval", "list").out == "no tool call waits for a person\n"
    (row,) = cli("approval", "list", "--all", "--json").json
    assert row["status"] == "approved"
    assert cli("approval", "show", desk, "--json").json[0]["given_answered_by"] == "ada"
    other = cli("approval", "deny", desk)
    assert (other.code, "is approved" in other.err) == (1, True)


def test_arguments_can_be_edited(cli: Cli, desk: str, tmp_path: Path) -> None:
    assert cli("approval", "approve", desk, "--arguments", "[").code == 2
    assert cli("approval", "approve", desk, "--arguments", '{"words": 1}').code == 2
    assert cli("approval", "approve", desk, "--arguments", '{"text": "bread"}').code == 0
    assert notes(tmp_path) == ["bread"]


def test_a_denied_call_is_not_made(cli: Cli, desk: str, tmp_path: Path) -> None:
    assert cli("approval", "deny", desk, "--message", "not now").code == 0
    assert notes(tmp_path) == []
    unknown = cli("approval", "show", f"{desk}9")
    assert (unknown.code, "is not on record" in unknown.err) == (1, True)


def test_chat_asks_the_person_at_once(desk: str, tmp_path: Path) -> None:
    """`a` also allows later calls in this session; any other line is a message."""
    terminal = Terminal(tmp_path, PYTHONPATH=str(tmp_path))
    try:
        terminal.read_until("> ")
        terminal.type('write a note "one"')
        terminal.read_until("[y]es, [n]o, [a]lways in this session, [e]dit")
        terminal.type("e")
        terminal.read_until("arguments")
        terminal.type('{"text": "two"}')
        terminal.read_until("noted two")
        terminal.type('write a note "three"')
        terminal.read_until("[e]dit")
        terminal.type("n")
        terminal.read_until("did not allow")
        terminal.type('write a note "four"')
        terminal.read_until("[e]dit")
        terminal.type("a")
        terminal.read_until("noted four")
        terminal.type('write a note "five"')
        terminal.read_until("noted five")
        terminal.type("/quit")
        assert terminal.finish() == 0
    finally:
        terminal.close()
    assert notes(tmp_path) == ["two", "four", "five"]
