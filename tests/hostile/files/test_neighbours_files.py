"""Somebody who can write beside Kitchener's files puts there what is no file, or no sensible one.

Nothing waits for it, and each command says which path is wrong (docs/ledger.md, docs/erasure.md). What the second verifier
prints of a file is text, its name included.
"""

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Final

import orjson
import pytest

from kitchener.canonical import canonical_bytes
from kitchener.errors import LedgerDamaged, SealingError, SigningError
from kitchener.ledger import LedgerClient, LedgerEntry, LedgerReader, verify_file
from kitchener.sealing import Keyring
from kitchener.signing import load_signer, make_key
from tests.cli.conftest import Cli, cli  # noqa: F401  the fixture
from tests.cli.shared.commands import COMMAND
from tests.ledger.support import segments_of
from tests.shared.keyrings import as_file, key_at
from tests.verifier.kit import needs_node, run


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, mode=0o600)


def deep(path: Path) -> None:
    path.write_bytes(b"[" * 60_000)


def sparse(path: Path) -> None:
    os.truncate(path, 1 << 42)  # a file of 4 TiB that takes no room


def no_text(path: Path) -> None:
    path.write_bytes(b'{"kid": 1, "key": 5}')


def put(what: str, path: Path) -> None:
    """Puts at a free path what is no file, or no sensible one."""
    if what == "pipe":
        os.mkfifo(path, mode=0o600)
    elif what == "directory":
        path.mkdir()
    elif what in ("device", "link"):
        path.symlink_to("/dev/zero")
    elif what == "huge file":
        path.touch()
        sparse(path)
    else:
        path.write_text("no such thing\n", encoding="utf-8")


WAYS: Final = {each.__name__: each for each in (pipe, deep, no_text)}


@pytest.mark.parametrize("way", WAYS)
def test_a_key_that_is_none_is_named_by_every_command_and_nothing_waits_for_it(
    cli: Cli,  # noqa: F811
    tmp_path: Path,
    way: str,
) -> None:
    Path("kitchener.toml").write_text('[ledger]\nkeyring = "keys"\n', encoding="utf-8")
    assert cli("chat", "--subject", "ada", stdin=b"hello\n").code == 0
    key = Path("keys") / f"{hashlib.sha256(b'ada').hexdigest()}.key"
    as_file(Path("keys"), "ada")
    WAYS[way](key)
    for command in (["session", "list"], ["chat", "--subject", "ada"], ["subject", "erase", "ada", "--yes"]):
        outcome = cli(*command, stdin=b"hello\n")
        assert outcome.code == 1 or command[0] == "session"
        assert "Traceback" not in outcome.err
        assert key.name in outcome.err or outcome.code == 0
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
    key = as_file(tmp_path, "ada")
    keyring.begin_erasure("ada", "2026-01-01T00:00:00+00:00")
    sparse(key)
    keyring.destroy("ada")
    assert not key.exists()


def test_a_pipe_in_place_of_the_signing_key_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "signing.pem", mode=0o600)
    with pytest.raises(SigningError, match="not a regular file"):
        load_signer(tmp_path / "signing.pem")


@pytest.mark.parametrize("what", ["pipe", "device", "directory"])
@pytest.mark.parametrize(
    ("setting", "name"), [("prompt_dir", "manifest.json"), ("prompt_dir", "PRM-A.txt"), ("attention_templates", "ATT-A.json")]
)
def test_what_is_no_file_among_prompts_and_templates_holds_nothing_up(
    cli: Cli,  # noqa: F811
    setting: str,
    name: str,
    what: str,
) -> None:
    folder = Path("own")
    folder.mkdir()
    (folder / "manifest.json").write_text('{"PRM-A.txt": "sha256:0"}', encoding="utf-8")
    (folder / name).unlink(missing_ok=True)
    put(what, folder / name)
    Path("kitchener.toml").write_text(f'[agents.ADMIN]\n{setting} = "own"\n', encoding="utf-8")
    outcome = cli("chat", stdin=b"hello\n")
    assert outcome.code == 2
    assert f"own/{name}" in outcome.err
    assert "is not a regular file" in outcome.err
    assert "Traceback" not in outcome.err


def test_a_prompt_file_that_was_made_huge_is_refused_in_little_memory(cli: Cli) -> None:  # noqa: F811
    Path("own").mkdir()
    Path("own/manifest.json").touch()
    sparse(Path("own/manifest.json"))
    Path("kitchener.toml").write_text('[agents.ADMIN]\nprompt_dir = "own"\n', encoding="utf-8")
    outcome = cli("chat", stdin=b"hello\n")
    assert outcome.code == 2
    assert "at most 1,048,576 bytes" in outcome.err


@pytest.mark.parametrize("what", ["pipe", "device", "directory", "huge file"])
def test_what_is_no_file_in_place_of_a_providers_key_holds_nothing_up(cli: Cli, what: str) -> None:  # noqa: F811
    put(what, Path("key"))
    Path("kitchener.toml").write_text(
        '[router]\ndefault_provider = "p"\n'
        '[router.providers.p]\nbase_url = "http://127.0.0.1:1/v1"\nmodel = "m"\napi_key = "file:key"\n',
        encoding="utf-8",
    )
    for command in ("chat", "doctor"):
        outcome = cli(command, stdin=b"hello\n")
        assert outcome.code in (1, 2)
        said = outcome.out + outcome.err
        assert ("larger than 65,536 bytes" if what == "huge file" else "is not a regular file") in said
        assert "Traceback" not in said


async def write_segments(root: Path) -> Path:
    path = root / "notes.jsonl"
    async with LedgerClient.open(path, ledger_id="NOTES", config=segments_of(300)) as ledger:
        for number in range(6):
            await ledger.write(LedgerEntry("NOTE", f"N-{number}", {"n": number}))
            await ledger.commit()
    return path


@pytest.mark.parametrize("what", ["pipe", "directory"])
@pytest.mark.parametrize("place", ["000001.seal", "000001.segment"])
async def test_a_seal_that_is_no_file_is_damage_as_a_segment_is(tmp_path: Path, place: str, what: str) -> None:
    path = await write_segments(tmp_path)
    file = tmp_path / "notes.jsonl.segments" / place
    file.unlink()
    put(what, file)
    report = verify_file(path)
    assert report.fault is not None
    assert (report.fault.path, report.fault.field, report.fault.found) == (str(file), "file", "something else")
    with pytest.raises(LedgerDamaged, match=place):
        async with LedgerReader.open(path):
            pass


@pytest.mark.parametrize("what", ["pipe", "directory", "link"])
def test_what_is_no_ledger_hides_no_ledger_behind_it(cli: Cli, what: str) -> None:  # noqa: F811
    """Every ledger is looked at, and signed, whatever stands at a path that comes before it."""
    make_key(Path("signing.pem"))
    Path("kitchener.toml").write_text('[ledger]\nsigning_key = "signing.pem"\n', encoding="utf-8")
    assert cli("chat", stdin=b"hello\n").code == 0
    put(what, Path(".kitchener/AAA.jsonl"))
    verified = cli("ledger", "verify")
    assert verified.code == 6
    assert verified.out.startswith("damaged  ")
    assert "AAA.jsonl" in verified.out.splitlines()[0]
    assert [line.split()[0] for line in verified.out.splitlines()] == ["damaged", "ok", "ok", "ok"]
    found = json.loads(cli("ledger", "verify", "--json").out)["ledgers"]
    assert [each["ok"] for each in found] == [False, True, True, True]
    assert found[0]["fault"]["field"] == "file"
    signed = cli("ledger", "checkpoint")
    assert signed.code == 6
    assert [line.split()[0] for line in signed.out.splitlines()] == ["signed", "signed", "damaged"]


def test_a_directory_without_a_ledger_does_not_pass_for_one_that_verifies(cli: Cli) -> None:  # noqa: F811
    Path("empty").mkdir()
    outcome = cli("ledger", "verify", "empty")
    assert (outcome.code, outcome.out) == (1, "no ledgers in empty\n")
    told = cli("ledger", "verify", "empty", "--json")
    assert (told.code, told.json["ok"], told.json["ledgers"]) == (1, False, [])
    assert cli("ledger", "verify", "nowhere").code not in (0, 6)
    assert cli("ledger", "verify").code == 0  # a root where nothing was written yet


@pytest.mark.parametrize("what", ["pipe", "directory", "text"])
def test_doctor_reads_signed_heads_too(cli: Cli, what: str) -> None:  # noqa: F811
    make_key(Path("signing.pem"))
    Path("kitchener.toml").write_text('[ledger]\nsigning_key = "signing.pem"\n', encoding="utf-8")
    assert cli("chat", stdin=b"hello\n").code == 0
    assert cli("ledger", "checkpoint").code == 0
    fine = cli("doctor")
    assert fine.code == 0
    assert fine.out.count("signed by ed25519:") == 2  # the third ledger has no entry
    (head,) = Path(".kitchener").rglob("ho2m.jsonl.checkpoint")
    head.unlink()
    put(what, head)
    outcome = cli("doctor")
    assert outcome.code == 1
    assert any(line.startswith("fail") and head.name in line for line in outcome.out.splitlines())
    assert cli("ledger", "verify").code == 6


@pytest.mark.parametrize("content", ["another's", "a copy"])
def test_a_note_whose_name_does_not_fit_erases_nobody(cli: Cli, content: str) -> None:  # noqa: F811
    """A note has its subject's key destroyed, so one that somebody made up, or copied, is refused by name."""
    Path("kitchener.toml").write_text('[ledger]\nkeyring = "keys"\n', encoding="utf-8")
    assert cli("chat", "--subject", "ada", stdin=b"hello\n").code == 0
    key = Path("keys") / f"{hashlib.sha256(b'ada').hexdigest()}.key"
    kid = json.loads(key_at(key))["kid"]
    name = f"{'0' * 64}.json" if content == "another's" else f"{key.stem} (copy).json"
    note = Path("keys/erasing") / name
    note.parent.mkdir()
    told = {"v": 1, "subject_id": "ada", "kid": kid, "begun_at": "2026-01-01T00:00:00+00:00"}
    note.write_text(json.dumps(told), encoding="utf-8")
    outcome = cli("chat", "--subject", "ada", stdin=b"hello\n")
    assert outcome.code == 1
    assert name in outcome.err
    assert "Traceback" not in outcome.err
    assert key.is_symlink()
    note.unlink()
    assert cli("chat", "--subject", "ada", stdin=b"hello\n").code == 0


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
    assert "the current directory: no longer exists" in done.stderr
    assert "Traceback" not in done.stderr


FORGED: Final = "\u2028ok       everything is fine\u2029\x1b[2J\u202e"


@needs_node
@pytest.mark.parametrize("where", ["content", "name"])
def test_the_second_verifier_prints_text_only(tmp_path: Path, where: str) -> None:
    content: dict[str, object] = {"entries": 0, "format": FORGED, "ledgers": [], "session_id": "", "turn_id": FORGED}
    path = tmp_path / (f"a{FORGED}.json" if where == "name" else "a.json")
    path.write_bytes(canonical_bytes(content) + b"\n")
    assert orjson.loads(path.read_bytes()) == content
    done = run(str(path))
    assert done.status == 1
    assert not set(done.stdout) & set("\u2028\u2029\x1b\u202e")
