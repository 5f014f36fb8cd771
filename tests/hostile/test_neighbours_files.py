"""Somebody who can write beside Kitchener's files puts there what is no file, or no sensible one.

Nothing waits for it, and each command says which path is wrong (docs/ledger.md, docs/erasure.md). What the second verifier
prints of a file is text, its name included.
"""

import os
import subprocess
from pathlib import Path
from typing import Final

import orjson
import pytest

from kitchener.canonical import canonical_bytes
from kitchener.errors import SealingError, SigningError
from kitchener.sealing import Keyring
from kitchener.signing import load_signer
from tests.cli.commands import COMMAND
from tests.cli.conftest import Cli, cli  # noqa: F401  the fixture
from tests.verifier.kit import NODE, SCRIPT, needs_node


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, mode=0o600)


def deep(path: Path) -> None:
    path.write_bytes(b"[" * 60_000)


def sparse(path: Path) -> None:
    os.truncate(path, 1 << 42)  # a file of 4 TiB that takes no room


def no_text(path: Path) -> None:
    path.write_bytes(b'{"kid": 1, "key": 5}')


WAYS: Final = {each.__name__: each for each in (pipe, deep, no_text)}


@pytest.mark.parametrize("way", WAYS)
def test_a_key_that_is_none_is_named_by_every_command_and_nothing_waits_for_it(
    cli: Cli,  # noqa: F811
    tmp_path: Path,
    way: str,
) -> None:
    Path("kitchener.toml").write_text('[ledger]\nkeyring = "keys"\n', encoding="utf-8")
    assert cli("chat", "--subject", "ada", stdin=b"hello\n").code == 0
    (key,) = Path("keys").glob("*.key")
    WAYS[way](key)
    for command in (["session", "list"], ["chat", "--subject", "ada"], ["subject", "erase", "ada", "--yes"]):
        # In a process of its own: a thread that opens a pipe for writing can be ended by nothing else.
        done = subprocess.run([*COMMAND, *command], input=b"hello\n", capture_output=True, timeout=60, check=False)
        assert done.returncode == 1 or command[0] == "session"
        assert b"Traceback" not in done.stderr
        assert str(key.name).encode() in done.stderr or done.returncode == 0
    assert cli("ledger", "verify").code == 0


@pytest.mark.parametrize("way", WAYS)
def test_so_is_the_note_of_an_erasure(tmp_path: Path, way: str) -> None:
    keyring = Keyring(tmp_path)
    keyring.get("ada")
    keyring.begin_erasure("ada", "2026-01-01T00:00:00+00:00")
    (note,) = tmp_path.glob("erasing/*.json")
    WAYS[way](note)
    with pytest.raises(SealingError, match=note.name):
        Keyring(tmp_path).erasures()


def test_a_key_file_that_was_made_huge_is_destroyed_in_little_memory(tmp_path: Path) -> None:
    keyring = Keyring(tmp_path)
    keyring.get("ada")
    (key,) = tmp_path.glob("*.key")
    keyring.begin_erasure("ada", "2026-01-01T00:00:00+00:00")
    sparse(key)
    keyring.destroy("ada")
    assert not key.exists()


def test_a_pipe_in_place_of_the_signing_key_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "signing.pem", mode=0o600)
    with pytest.raises(SigningError, match="not a regular file"):
        load_signer(tmp_path / "signing.pem")


def test_a_loop_of_links_is_no_input_and_no_output(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    Path("loop").symlink_to("loop")
    Path("in.jsonl").write_text('{"conversation": "a", "message": "hello"}\n', encoding="utf-8")
    for messages, output, code in (("loop", "out.jsonl", 2), ("in.jsonl", "loop", 0), ("in.jsonl", "in.jsonl", 2)):
        outcome = cli("run", messages, "-o", output)
        assert "Traceback" not in outcome.err
        assert outcome.code == code


def test_a_directory_that_was_removed_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    there = ["sh", "-c", f'cd "{tmp_path}/gone" && rmdir "{tmp_path}/gone" && exec "$@"', "sh", *COMMAND, "session", "list"]
    done = subprocess.run(there, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "the current directory: is not there any more" in done.stderr
    assert "Traceback" not in done.stderr


FORGED: Final = "\u2028ok       everything is fine\u2029\x1b[2J\u202e"


@needs_node
@pytest.mark.parametrize("where", ["content", "name"])
def test_the_second_verifier_prints_text_only(tmp_path: Path, where: str) -> None:
    content: dict[str, object] = {"entries": 0, "format": FORGED, "ledgers": [], "session_id": "", "turn_id": FORGED}
    path = tmp_path / (f"a{FORGED}.json" if where == "name" else "a.json")
    path.write_bytes(canonical_bytes(content) + b"\n")
    assert orjson.loads(path.read_bytes()) == content
    assert NODE is not None
    done = subprocess.run([NODE, str(SCRIPT), str(path)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert not set(done.stdout) & set("\u2028\u2029\x1b\u202e")
