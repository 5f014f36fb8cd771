"""A tool that never returns holds its thread, and no command with it."""

from pathlib import Path

import pytest

from tests.cli.shared.commands import Outcome, finish, read_lines, start, write_messages

ASK = "open the door"
"""A message for which the offline model runs the tool."""

IN_A_THREAD = '''
import threading

from kitchener import tool


@tool(read_only=True)
def open_door() -> str:
    """Open the door."""
    threading.Event().wait()
    return "never"
'''

LEAVES_A_THREAD = '''
import threading

from kitchener import tool


@tool(read_only=True)
def open_door() -> str:
    """Open the door."""
    threading.Thread(target=threading.Event().wait, name="a poller").start()
    return "left"
'''

HANGS = {"in its thread": (IN_A_THREAD, "tool 'open_door'"), "in one of its own": (LEAVES_A_THREAD, "a poller")}


def told(directory: Path, where: str) -> str:
    """The line on standard error, of a directory where the tool hangs there."""
    module, thread = HANGS[where]
    (directory / "hanging.py").write_text(module, encoding="utf-8")
    settings = '[agents.ADMIN]\ntools = ["hanging:open_door"]\ntool_timeout_s = 0.2\n'
    (directory / "kitchener.toml").write_text(settings, encoding="utf-8")
    return f"kitchener: everything is closed; ending the process although this still runs: {thread}\n"


def ran(directory: Path, *arguments: str | Path, text: str | None = None) -> Outcome:
    """What the command left behind; fails where it does not end."""
    process = start(*arguments, cwd=directory)
    try:
        return finish(process, text)
    finally:
        process.kill()


def check_on_record(directory: Path) -> None:
    """The turn has an end, and the ledgers were closed as they should be."""
    entries = [line["entry"] for line in read_lines(directory / ".kitchener" / "HO2" / "ADMIN" / "ho2m.jsonl")]
    assert sum(entry["entry_type"] == "TURN_COMPLETED" for entry in entries) == 1
    assert ran(directory, "ledger", "verify").code == 0


@pytest.mark.parametrize("where", HANGS)
def test_run_ends_although_a_tool_hangs(tmp_path: Path, where: str) -> None:
    """Regression: its results were written, and the process waited for the tool for ever."""
    line = told(tmp_path, where)
    path = write_messages(tmp_path / "in", ("a", ASK))
    outcome = ran(tmp_path, "run", path, "-o", "out", "--json")
    assert (outcome.code, outcome.json["turns"], outcome.json["failed"]) == (0, 1, 0)
    assert outcome.err == line
    (result,) = read_lines(tmp_path / "out")
    assert result["error"] is None
    check_on_record(tmp_path)


@pytest.mark.parametrize("where", HANGS)
def test_chat_ends_although_a_tool_hangs(tmp_path: Path, where: str) -> None:
    line = told(tmp_path, where)
    outcome = ran(tmp_path, "chat", text=f"{ASK}\n")
    assert (outcome.code, outcome.err) == (0, line)
    assert outcome.out
    check_on_record(tmp_path)


def test_a_command_without_such_a_tool_says_nothing(tmp_path: Path) -> None:
    outcome = ran(tmp_path, "chat", text="hello\n")
    assert (outcome.code, outcome.err) == (0, "")
