"""`kitchener session` (docs/commands.md)."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.shared.commands import write_messages


@pytest.fixture
def session(cli: Cli, tmp_path: Path) -> Any:
    """A session of two turns, as `session list` gives it."""
    cli("run", write_messages(tmp_path / "in", ("a chat", "hello"), ("a chat", "what can you do?")))
    (row,) = cli("session", "list", "--json").json
    return row


def test_nothing_there_is_an_empty_list(cli: Cli) -> None:
    outcome = cli("session", "list", "--json")
    assert (outcome.code, outcome.json) == (0, [])
    assert cli("session", "list").out == "no sessions of ADMIN\n"


def test_the_list_says_whose_how_long_and_when(cli: Cli, session: Any) -> None:
    assert session.keys() == {
        "session_id",
        "agent_class",
        "subject_id",
        "external_id",
        "started_at",
        "last_at",
        "turns",
        "ended",
    }
    assert (session["agent_class"], session["subject_id"], session["external_id"]) == ("ADMIN", "of a chat", "a chat")
    assert (session["turns"], session["ended"]) == (2, False)
    assert session["started_at"] < session["last_at"]
    header, row = cli("session", "list").out.splitlines()
    assert header.split() == ["session", "id", "subject", "id", "external", "id", "turns", "last", "at", "state"]
    assert row.startswith(f"{session['session_id']}  of a chat   a chat           2  ")


def test_the_list_can_be_limited_to_the_newest(cli: Cli, tmp_path: Path) -> None:
    cli("run", write_messages(tmp_path / "in", *((name, "hello") for name in "abcd")), "--concurrency", "1")
    names = [each["external_id"] for each in cli("session", "list", "--limit", "2", "--json").json]
    assert names == ["c", "d"]


def test_show_tells_the_turns_with_message_reply_and_work_orders(cli: Cli, session: Any) -> None:
    shown = cli("session", "show", session["session_id"], "--json").json
    assert [each["message"] for each in shown["turns"]] == ["hello", "what can you do?"]
    assert [each["state"] for each in shown["turns"]] == ["completed", "completed"]
    assert all(each["response"] for each in shown["turns"])
    work_orders = [each for turn in shown["turns"] for each in turn["work_orders"]]
    assert [each["wo_type"] for each in work_orders] == ["classify", "synthesize"] * 2
    assert {each["state"] for each in work_orders} == {"completed"}
    text = cli("session", "show", session["session_id"]).out
    assert "  > what can you do?\n" in text
    assert f"  < {shown['turns'][1]['response']}\n" in text
    assert f"{session['session_id']} of of a chat (ADMIN), named 'a chat', started " in text


def test_what_was_said_cannot_drive_the_terminal(cli: Cli, tmp_path: Path) -> None:
    cli("run", write_messages(tmp_path / "in", ("a", "hello \x1b[2J\x9b there")))
    (row,) = cli("session", "list", "--json").json
    text = cli("session", "show", row["session_id"]).out
    assert "  > hello �[2J� there\n" in text
    assert "\x1b" not in text


def test_end_closes_a_session_once(cli: Cli, session: Any) -> None:
    session_id = session["session_id"]
    outcome = cli("session", "end", session_id, "--json")
    assert (outcome.code, outcome.json) == (0, {"session_id": session_id, "agent_class": "ADMIN", "ended": True})
    assert cli("session", "list", "--json").json[0]["ended"] is True
    assert cli("session", "list", "--json").json[0]["turns"] == 2
    assert cli("session", "show", session_id, "--json").json["ended_at"] is not None
    again = cli("session", "end", session_id)
    assert again.code == 1
    assert "has ended" in again.err


def test_a_session_of_another_class_is_found_without_naming_the_class(cli: Cli, tmp_path: Path) -> None:
    cli("run", write_messages(tmp_path / "in", ("a", "hello")), "--agent", "RESIDENT:bo o")
    (row,) = cli("session", "list", "--agent", "RESIDENT:bo o", "--json").json
    assert cli("session", "list", "--json").json == []
    shown = cli("session", "show", row["session_id"], "--json").json
    assert (shown["agent_class"], len(shown["turns"])) == ("RESIDENT:bo o", 1)
    assert cli("ledger", "tail", "--session", row["session_id"]).code == 0
    assert cli("session", "end", row["session_id"], "--json").json["agent_class"] == "RESIDENT:bo o"


@pytest.mark.parametrize("command", ["show", "end"])
def test_a_session_that_is_nowhere_is_said_to_be_unknown(cli: Cli, command: str, session: Any) -> None:
    outcome = cli("session", command, "SES-00000000")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("kitchener: session 'SES-00000000' is not known")


def test_a_turn_that_did_not_finish_is_shown_with_what_it_had_planned(cli: Cli, tmp_path: Path) -> None:
    settings = "[ledger]\nseal = false\n[agents.ADMIN]\nturn_deadline_s = 1e-9\n"  # no wait for a key before it begins
    (tmp_path / "kitchener.toml").write_text(settings, encoding="utf-8")
    outcome = cli("run", write_messages(tmp_path / "in", ("a", "hello")), "-o", "out")
    assert outcome.code == 1
    (row,) = cli("session", "list", "--json").json
    (turn,) = cli("session", "show", row["session_id"], "--json").json["turns"]
    assert (turn["state"], turn["response"]) == ("aborted: timeout", None)
