"""`kitchener session export` and `import` (docs/commands.md, docs/sessions.md)."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.cli.shared.commands import write_messages


@pytest.fixture
def session_id(cli: Cli, tmp_path: Path) -> str:
    """A session of two turns, beside one of another subject."""
    cli("run", write_messages(tmp_path / "in", ("a chat", "hello"), ("a chat", "what can you do?"), ("another", "hi")))
    rows: list[dict[str, Any]] = cli("session", "list", "--json").json
    return str(next(row["session_id"] for row in rows if row["external_id"] == "a chat"))


def test_a_session_moves_and_every_command_knows_it_there(cli: Cli, session_id: str) -> None:
    made = cli("session", "export", session_id, "--out", "folder", "--with-keys", "--json")
    assert (made.code, made.json["turns"], made.json["path"]) == (0, 2, "folder")
    there = ("--root", "there")
    taken = cli("session", "import", "folder", *there)
    assert (taken.code, taken.out) == (
        0,
        f"imported {session_id}: 2 turns, {made.json['entries']} entries\n"
        "Not every head in the folder was signed, so it proved only that it is complete, not who wrote it.\n",
    )
    shown, before = (cli("session", "show", session_id, "--json", *where).json for where in (there, ()))
    assert shown["turns"] == before["turns"]
    (row,) = cli("session", "list", "--json", *there).json
    assert (row["session_id"], row["external_id"], row["turns"]) == (session_id, "a chat", 2)
    (report,) = cli("replay", "--all", "--json", *there).json["sessions"]
    assert (report["identical"], len(report["turns"])) == (True, 2)
    for command in (("ledger", "verify"), ("audit", "leaks"), ("doctor",), ("session", "repair", session_id)):
        assert cli(*command, *there).code == 0, command
    turn = shown["turns"][0]["turn_id"]
    refused = cli("ledger", "proof", turn, *there)
    assert refused.code == 1
    assert "was imported" in refused.err
    again = cli("session", "import", "folder", *there, "--json")
    assert (again.code, again.json["was_there"]) == (0, True)


def test_a_session_whose_context_was_projected_by_a_command_moves_too(cli: Cli, session_id: str) -> None:
    """Regression: the export refused its own folder, because that projection belongs to no turn."""
    assert cli("context", "project", session_id).code == 0
    made = cli("session", "export", session_id, "--out", "folder", "--with-keys")
    assert (made.code, made.err) == (0, "")
    there = ("--root", "there")
    assert cli("session", "import", "folder", *there).code == 0
    assert cli("replay", "--all", "--json", *there).json["ok"] is True
    for command in (("ledger", "verify"), ("audit", "leaks"), ("context", "project", session_id)):
        assert cli(*command, *there).code == 0, command
    again = cli("session", "export", session_id, "--out", "folder2", "--with-keys", *there)
    assert (again.code, again.err) == (0, "")


def test_an_imported_session_is_listed_with_the_times_that_it_had(cli: Cli, session_id: str) -> None:
    """Also after a second move, which the session's record tells as well."""
    (before,) = [each for each in cli("session", "list", "--json").json if each["session_id"] == session_id]
    places: list[tuple[str, ...]] = [(), ("--root", "there"), ("--root", "further")]
    for number, (here, there) in enumerate(pairwise(places)):
        assert cli("session", "export", session_id, "--out", f"folder{number}", "--with-keys", *here).code == 0
        assert cli("session", "import", f"folder{number}", *there).code == 0
        assert cli("session", "list", "--json", *there).json == [before]


def test_a_session_is_not_exported_into_the_root(cli: Cli, session_id: str, tmp_path: Path) -> None:
    outcome = cli("session", "export", session_id, "--out", ".kitchener/folder")
    assert outcome.code == 2
    assert f"--out = '.kitchener/folder': lies under the root {tmp_path}/.kitchener, which is for ledgers" in outcome.err
    assert not Path(".kitchener/folder").exists()


def test_a_changed_byte_exits_with_6_and_names_the_file(cli: Cli, session_id: str, tmp_path: Path) -> None:
    cli("session", "export", session_id, "--out", "folder")
    path = tmp_path / "folder" / "ho1m.json"
    stored = path.read_bytes()
    path.write_bytes(stored[:-9] + bytes([stored[-9] ^ 1]) + stored[-8:])
    refused = cli("session", "import", "folder", "--root", "there")
    assert refused.code == 6
    assert "ho1m.json: sha256: expected sha256:" in refused.err
    assert not (tmp_path / "there").exists()


def test_a_folder_is_verified_where_it_is(cli: Cli, session_id: str, tmp_path: Path) -> None:
    """Whoever gets a folder checks it before, or without, adding it to a root (docs/sessions.md)."""
    made = cli("session", "export", session_id, "--out", "folder").out
    for named in ("folder", "folder/manifest.json", "folder/ho2m.json"):
        found = cli("ledger", "verify", named)
        assert found.code == 0
        assert f"of session {session_id}" in found.out
        assert "HO2M:ADMIN" in found.out
        assert "NOT signed" in found.out
    facts = cli("ledger", "verify", "folder", "--json").json
    assert (facts["ok"], facts["session_id"], facts["turns"], facts["signed"]) == (True, session_id, 2, False)
    assert f"{facts['entries']:,} entries" in made
    unsigned = cli("ledger", "verify", "folder", "--public-key", "0" * 64)
    assert (unsigned.code, "expected a signature" in unsigned.out) == (6, True)
    assert "the key of" not in found.out
    cli("session", "export", session_id, "--out", "with_key", "--with-keys")
    assert "anybody with the folder can read" in cli("ledger", "verify", "with_key").out
    path = tmp_path / "folder" / "ho1m.json"
    path.write_bytes(path.read_bytes().replace(b"sha256:", b"sha257:", 1))
    damaged = cli("ledger", "verify", "folder", "--json")
    assert (damaged.code, damaged.json["ok"], "ho1m.json: sha256: expected" in damaged.json["fault"]) == (6, False, True)
    assert not (tmp_path / "there").exists()


def test_a_folder_beside_ledgers_hides_none_of_them(cli: Cli, session_id: str, tmp_path: Path) -> None:
    """A manifest of prompts is none of a session, and a ledger's own file is verified as such."""
    cli("session", "export", session_id, "--out", "folder")
    root = tmp_path / ".kitchener"
    (root / "manifest.json").write_text('{"format": "other"}', encoding="utf-8")
    assert "ho2m.jsonl" in cli("ledger", "verify", str(root)).out
    (root / "HO2/ADMIN/manifest.json").write_bytes((tmp_path / "folder/manifest.json").read_bytes())
    assert "ho2m.jsonl: " in cli("ledger", "verify", str(root / "HO2/ADMIN/ho2m.jsonl")).out
    missing = cli("ledger", "verify", "folder/ho3m.json")
    assert (missing.code, "no such file" in missing.err) == (2, True)


def test_what_cannot_be_right_is_refused(cli: Cli, session_id: str, tmp_path: Path) -> None:
    unknown = cli("session", "export", "SES-ffffffff", "--out", "folder")
    assert (unknown.code, "not known" in unknown.err) == (1, True)
    there = cli("session", "export", session_id, "--out", "in")
    assert (there.code, "exists already" in there.err) == (2, True)
    (tmp_path / "kitchener.toml").write_text("[ledger]\nseal = false\n", encoding="utf-8")
    cli("run", "in", "--root", "plain")
    (plain, *_) = cli("session", "list", "--root", "plain", "--json").json
    keyless = cli("session", "export", plain["session_id"], "--root", "plain", "--out", "folder", "--with-keys")
    assert keyless.code == 1
    assert "no key" in keyless.err
    assert not (tmp_path / "folder").exists()
    for missing in (("folder",), ("chats.jsonl", "--subject", "ada")):
        nothing = cli("session", "import", *missing)
        assert (nothing.code, f"{missing[0]}: expected the folder" in nothing.err) == (2, True)
    (tmp_path / "empty").mkdir()
    empty = cli("session", "import", "empty")
    assert (empty.code, "manifest.json" in empty.err) == (6, True)
    cli("session", "export", session_id, "--out", "folder")
    unsigned = cli("session", "import", "folder", "--root", "there", "--public-key", "0" * 64)
    assert (unsigned.code, "expected a signature" in unsigned.err) == (6, True)
