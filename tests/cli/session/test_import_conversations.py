"""`kitchener session import FILE` (docs/commands.md, docs/sessions.md)."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli


@pytest.fixture
def chats(tmp_path: Path) -> str:
    """One conversation of two people."""
    said = [
        {"role": "user", "content": "The choir sings on Mondays", "speaker": "Ada", "time": "2024-05-08T13:56Z"},
        {"role": "assistant", "content": "In tune?"},
    ]
    (tmp_path / "chats.jsonl").write_text(json.dumps({"session": "chat-1", "title": "Choir", "messages": said}) + "\n")
    return "chats.jsonl"


def test_a_file_is_checked_then_imported_and_every_command_knows_its_sessions(cli: Cli, chats: str) -> None:
    looked = cli("session", "import", chats, "--subject", "ada", "--dry-run")
    assert looked.code == 0
    assert looked.out.startswith("would import 1 conversation with 2 messages for ada (ADMIN)\n")
    assert cli("session", "list", "--json").json == []
    made = cli("session", "import", chats, "--subject", "ada", "--json").json
    assert not made["is_dry_run"]
    (one,) = made["conversations"]
    assert cli("session", "import", chats, "--subject", "ada").out == (
        "imported 0 conversations with 0 messages for ada (ADMIN)\n1 conversation of the file is already there\n"
    )
    shown = cli("session", "show", one["session_id"]).out
    assert "2024-05-08" in shown
    assert "imported\n  > Ada: The choir sings on Mondays\n" in shown
    assert "  < In tune?\n" in shown
    turns = cli("session", "show", one["session_id"], "--json").json["turns"]
    assert [(each["state"], each["speaker"], each["message"], each["response"]) for each in turns] == [
        ("imported", "Ada", "The choir sings on Mondays", None),
        ("imported", None, None, "In tune?"),
    ]
    (row,) = cli("session", "list", "--grep", "MONDAYS", "--json").json
    assert (row["external_id"], row["turns"], row["found"][0]["speaker"]) == ("chat-1", 2, "user")
    explained = cli("context", "explain", turns[0]["turn_id"])
    assert explained.code != 0
    assert "is an imported message" in explained.err
    for command in (("ledger", "verify"), ("audit", "leaks"), ("session", "repair", one["session_id"]), ("replay", "--all")):
        assert cli(*command).code == 0, command
    assert cli("subject", "erase", "ada", "--yes").code == 0
    assert "choir" not in cli("session", "show", one["session_id"]).out


def test_an_imported_conversation_is_listed_with_the_time_when_it_took_place(cli: Cli, chats: str) -> None:
    """Not with that of the import. A turn that follows has its own time."""
    (one,) = cli("session", "import", chats, "--subject", "ada", "--json").json["conversations"]
    assert "  2024-05-08 13:56:00  " in cli("session", "list").out
    (row,) = cli("session", "list", "--grep", "choir", "--json").json
    assert (row["last_at"], row["found"][0]["at"]) == ("2024-05-08T13:56:00.000000+00:00",) * 2
    assert row["started_at"] > row["last_at"]
    for words in (("--grep", "choir"), ()):
        assert cli("session", "list", *words, "--since", "7d").code == 1
        assert cli("session", "list", *words, "--since", "2024-05-08").code == 0
    assert cli("chat", "--session", one["session_id"], "--subject", "ada", stdin=b"hello").code == 0
    (row,) = cli("session", "list", "--since", "7d", "--json").json
    assert row["started_at"] < row["last_at"]


def test_an_imported_conversation_without_times_has_that_of_the_import(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "undated.jsonl").write_text('{"messages": [{"role": "user", "content": "hello"}]}\n')
    assert cli("session", "import", "undated.jsonl", "--subject", "ada").code == 0
    (row,) = cli("session", "list", "--since", "7d", "--json").json
    assert row["started_at"] <= row["last_at"]


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (("chats.jsonl",), "needs --subject"),
        (("chats.jsonl", "--subject", "ada", "--public-key", "0" * 64), "takes no --public-key"),
        ((".", "--subject", "ada"), "is a folder"),
        (("missing.jsonl", "--subject", "ada"), "it does not exist"),
    ],
)
def test_what_does_not_fit_the_path_is_refused(cli: Cli, chats: str, given: tuple[str, ...], problem: str) -> None:
    refused = cli("session", "import", *given)
    assert refused.code != 0
    assert problem in refused.err
