"""Images and files on the command line: attached in `chat` and `run`, checked, saved and cleaned up (docs/content.md)."""

import os
from pathlib import Path

import orjson
import pytest

from tests.acceptance.replies.content_kit import NOTES, png
from tests.cli.conftest import Cli

TAKES = "KITCHENER_ROUTER__PROVIDERS__OFFLINE__MEDIA_TYPES"


@pytest.fixture
def taking(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """A command line whose offline model takes images and text, beside an image and a text."""
    monkeypatch.setenv(TAKES, '["image/*", "text/*"]')
    monkeypatch.setenv("KITCHENER_ROUTER__PROVIDERS__OFFLINE__KIND", "offline")
    (tmp_path / "photo.png").write_bytes(png())
    (tmp_path / "notes.md").write_bytes(NOTES)
    return cli


def blobs() -> list[Path]:
    return sorted(path for path in Path(".kitchener/blobs").rglob("*") if path.is_file())


def newest_turn(cli: Cli) -> dict[str, object]:
    turn: dict[str, object] = cli("session", "show", "last", "--json").json["turns"][-1]
    return turn


def test_chat_sends_what_was_attached_with_the_next_message_only(taking: Cli) -> None:
    said = b"/attach photo.png\n/attach notes.md\nwhat is this?\nand then?\n"
    assert taking("chat", "--subject", "ada", stdin=said).code == 0
    first, second = taking("session", "show", "last", "--json").json["turns"]
    assert [each["name"] for each in first["parts"]] == ["photo.png", "notes.md"]
    assert second["parts"] == []
    assert f"{first['turn_id']}.1  image photo.png, image/png, " in taking("session", "show", "last").out


def test_chat_says_that_a_path_leads_nowhere_and_goes_on(taking: Cli) -> None:
    outcome = taking("chat", stdin=b"/attach no-such.png\n/attach\nhello\n")
    assert outcome.code == 1
    assert outcome.err.splitlines() == [
        "kitchener: /attach 'no-such.png': no such file",
        "kitchener: /attach needs the path of an image or a file",
    ]
    assert newest_turn(taking)["state"] == "completed"


def test_chat_refuses_at_once_what_is_no_regular_file(taking: Cli, tmp_path: Path) -> None:
    """Regression: a named pipe and a directory were `no such file`."""
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder").mkdir()
    outcome = taking(
        "chat", stdin=b"/attach pipe.png\n/attach folder\n/attach /dev/zero\n/attach a\0b\n/attach photo.png/x\nhello\n"
    )
    assert outcome.code == 1
    assert outcome.err.splitlines() == [
        "kitchener: /attach 'pipe.png': cannot be read: is not a regular file",
        "kitchener: /attach 'folder': cannot be read: is not a regular file",
        "kitchener: /attach '/dev/zero': cannot be read: is not a regular file",
        "kitchener: /attach 'a\\x00b': no such file",
        "kitchener: /attach 'photo.png/x': cannot be read: Not a directory",
    ]
    assert newest_turn(taking)["parts"] == []


def test_a_model_that_takes_no_images_says_so_and_the_message_is_on_record(
    taking: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TAKES, '["text/*"]')
    outcome = taking("chat", stdin=b"/attach photo.png\nlook\n")
    assert outcome.code == 1
    assert "'photo.png' is image/png, and the model that would reply takes text/* only" in outcome.err
    (rejected,) = taking("session", "show", "last", "--json").json["rejected"]
    assert (rejected["message"], rejected["reason"]) == ("look", "unsupported")


def test_run_takes_paths_beside_its_input_and_an_attachment_for_every_conversation(taking: Cli, tmp_path: Path) -> None:
    """Repeating the command runs nothing again."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "own.png").write_bytes(png(seed=3))
    lines = [
        {"conversation": "a", "message": "look", "parts": ["own.png"]},
        {"conversation": "b", "message": "hello"},
        {"conversation": "b", "message": "again"},
    ]
    path = folder / "talk.jsonl"
    path.write_bytes(b"\n".join(map(orjson.dumps, lines)))
    for _ in range(2):
        outcome = taking("run", path, "--attach", "notes.md")
        assert (outcome.code, outcome.err) == (0, "")
    shown = {each["external_id"]: each["session_id"] for each in taking("session", "list", "--json").json}
    turns = {name: taking("session", "show", each, "--json").json["turns"] for name, each in shown.items()}
    found = {name: [[part["name"] for part in turn["parts"]] for turn in each] for name, each in turns.items()}
    assert found == {"a": [["notes.md", "own.png"]], "b": [["notes.md"], []]}


@pytest.mark.parametrize("parts", ["photo.png", [1], [""]])
def test_run_refuses_lines_whose_parts_are_no_paths_before_it_starts(taking: Cli, tmp_path: Path, parts: object) -> None:
    path = tmp_path / "talk.jsonl"
    path.write_bytes(orjson.dumps({"conversation": "a", "message": "look", "parts": parts}))
    outcome = taking("run", path)
    assert outcome.code == 2
    assert "talk.jsonl:1: expected `parts` to be a list of paths" in outcome.err


def test_what_was_sent_is_saved_byte_for_byte_for_its_owner_only(taking: Cli, tmp_path: Path) -> None:
    taking("chat", stdin=b"/attach photo.png\nlook\n")
    part = f"{newest_turn(taking)['turn_id']}.1"
    assert taking("content", "save", part, "-o", "copy.png").out.startswith("image photo.png, image/png, ")
    assert (tmp_path / "copy.png").read_bytes() == png()
    assert (tmp_path / "copy.png").stat().st_mode & 0o077 == 0
    assert taking("content", "save", f"{part}9", "-o", "copy.png").code == 1
    assert taking("content", "save", part, "-o", ".kitchener/x.png").code == 2
    assert taking("subject", "erase", taking("session", "list", "--json").json[0]["subject_id"], "--yes").code == 0
    assert taking("content", "save", part, "-o", "copy.png").code == 1


def test_damage_is_told_by_every_command_that_verifies(taking: Cli) -> None:
    taking("chat", stdin=b"/attach photo.png\n/attach notes.md\nlook\n")
    assert taking("content", "check").out == "ok       2 images and files of messages\n"
    assert "ok       2 images and files of messages" in taking("ledger", "verify").out
    damaged, _ = blobs()
    damaged.write_bytes(b"other")
    part = f"{newest_turn(taking)['turn_id']}."
    outcome = taking("content", "check", "--json")
    assert outcome.code == 6
    (fault,) = outcome.json["faults"]
    assert (fault["path"].endswith(str(damaged)), fault["problem"]) == (True, "the file was changed")
    assert fault["part_id"].startswith(part)
    verified = taking("ledger", "verify", "--json")
    assert (verified.code, verified.json["ok"], verified.json["content_faults"]) == (6, False, [fault])
    assert taking("doctor").code == 1
    assert taking("content", "save", fault["part_id"], "-o", "copy").code == 6


def test_what_a_crash_left_is_told_and_removed(taking: Cli) -> None:
    taking("chat", stdin=b"/attach photo.png\nlook\n")
    (kept,) = blobs()
    kept.with_name(".0a.new").write_bytes(b"half")
    assert "unused   1 file that no entry names" in taking("content", "check").out
    (found,) = [each for each in taking("doctor", "--json").json["findings"] if each["what"] == "content"]
    assert (found["state"], "1 file that no entry names" in found["detail"]) == ("warn", True)
    assert taking("content", "clean").out == "removed 1 file that no entry named\n"
    assert blobs() == [kept]
    assert taking("content", "clean", "--json").json == {"removed": []}


def test_nothing_behind_a_link_is_removed(taking: Cli, tmp_path: Path) -> None:
    """The author of a root that was handed over can link its directory to anything."""
    taking("chat", stdin=b"hello\n")
    precious = tmp_path / "mine" / "precious"
    precious.parent.mkdir()
    precious.write_text("precious")
    Path(".kitchener/blobs").symlink_to(precious.parent)
    refused = taking("content", "clean")
    assert refused.code != 0
    assert "is a link" in refused.err
    assert precious.read_text() == "precious"


def test_the_audit_finds_no_leak_between_two_subjects_with_the_same_image(taking: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KITCHENER_AGENTS__ADMIN__CONTEXT_MODE", "enforce")
    for subject in ("ada", "bo"):
        taking("chat", "--subject", subject, stdin=b"/attach photo.png\nlook\nagain\n")
    assert taking("audit", "leaks").code == 0
    explained = taking("context", "explain", "last")
    assert explained.code == 0
    assert f"{str(newest_turn(taking)['turn_id'])[:-1]}1.1" in taking("context", "explain", "last", "--json").out
