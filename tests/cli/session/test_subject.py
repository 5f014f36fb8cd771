"""`kitchener subject erase`, and every other command on what is left of an erased subject (docs/erasure.md)."""

import contextlib
import json
import logging
import os
import pty
import shutil
import traceback
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.errors import KitchenerError
from kitchener.records.events import SEALED_FIELDS
from kitchener.sealing import Keyring, Sealer
from tests.cli.conftest import Cli
from tests.cli.memory.memories import is_one_line
from tests.cli.shared.command_server import Started
from tests.cli.shared.commands import finish, read_lines, start
from tests.erasure.kit import ADA, BO, TALK, fill, found, key_files, running
from tests.shared.keyrings import change_key, key_at
from tests.shared.logs import captured_logs
from tests.verifier.kit import NODE, node

SETTINGS = """
plane_root = "plane"
[ledger]
keyring = "keys"
durability = "os"
[agents.ADMIN]
ho3_enabled = true
ho3_gate_count_threshold = 2
ho3_gate_session_threshold = 2
ho3_gate_window_hours = 87600
context_mode = "enforce"
intent_mode = "classified"
recall_scope = "subject"
[agents."RESIDENT:bo"]
ho3_enabled = true
"""
RECORDING = "[router]\ndefault_provider = 'scripted'\n"
"""What the recording program had besides: replays hold routes against it."""
REPLAY = ("replay", "--all", "--tool", "tests.erasure.kit:fetch", "--config", "recording.toml")
ERASE = ("subject", "erase", ADA, "--yes")


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[str]]]:
    """A root with sealed conversations of Ada and Bo; not to be changed."""
    directory = tmp_path_factory.mktemp("sealed")
    sessions = anyio.run(fill, directory)
    (directory / "kitchener.toml").write_text(SETTINGS, encoding="utf-8")
    (directory / "recording.toml").write_text(SETTINGS + RECORDING, encoding="utf-8")
    return directory, sessions


@pytest.fixture
def sessions(cli: Cli, filled: tuple[Path, dict[str, list[str]]], tmp_path: Path) -> dict[str, list[str]]:
    """The sessions of both, in a root of the test's own."""
    shutil.copytree(filled[0], tmp_path, symlinks=True, dirs_exist_ok=True)
    return filled[1]


def turn(session_id: str, number: int) -> str:
    return f"T-{session_id[4:]}-{number:06d}"


def test_it_says_what_it_did_and_once_more_that_it_is_done(cli: Cli, sessions: dict[str, list[str]], tmp_path: Path) -> None:
    kid = Keyring(tmp_path / "keys").get(ADA).kid
    first = cli(*ERASE)
    assert (first.code, first.err) == (0, "")
    assert first.out.startswith("erased ada: 3 sessions with 7 turns, ")
    assert first.out.endswith(f" withdrawn; key {kid} is destroyed\n")
    again = cli(*ERASE)
    assert again.code == 0
    assert again.out.startswith("ada is erased already, since 20")
    assert again.out.endswith("nothing was left to do\n")
    told = cli(*ERASE, "--json")
    assert told.code == 0
    facts = told.json
    assert facts.pop("erased_at")[:2] == "20"
    assert facts.pop("artifacts") > 0
    assert facts == {
        "subject_id": ADA,
        "key_id": kid,
        "was_erased_before": True,
        "sessions": 3,
        "turns": 7,
        "files": 0,
        "plain_turns": 0,
    }
    assert len(key_files(tmp_path)) == 1
    assert found(tmp_path) == []


def test_who_is_not_known_gives_1(cli: Cli, sessions: dict[str, list[str]]) -> None:
    outcome = cli("subject", "erase", "eve", "--yes")
    assert is_one_line(outcome, 1)
    assert "'eve': is not known: there is no key, no session and no erasure of this subject; nothing was erased" in outcome.err


def test_without_sealing_it_says_why_not(cli: Cli) -> None:
    Path("kitchener.toml").write_text('plane_root = "plane"\n[ledger]\nseal = false\n', encoding="utf-8")
    outcome = cli(*ERASE)
    assert is_one_line(outcome, 2)
    assert "seal = false: is off, and there are no keys: everything is stored in plain text" in outcome.err


def test_it_is_not_done_unasked(cli: Cli, sessions: dict[str, list[str]], tmp_path: Path) -> None:
    """Through a pipe there is nobody to ask."""
    outcome = cli("subject", "erase", ADA, stdin=b"y\n")
    assert is_one_line(outcome, 2)
    assert "cannot be undone: run this on a terminal, or pass --yes" in outcome.err
    assert len(key_files(tmp_path)) == 2


@pytest.mark.parametrize(("answer", "code", "keys"), [(b"n\n", 1, 2), (b"\n", 1, 2), (b"\x04", 1, 2), (b"yes\n", 0, 1)])
def test_a_terminal_is_asked(sessions: dict[str, list[str]], tmp_path: Path, answer: bytes, code: int, keys: int) -> None:
    ours, theirs = pty.openpty()
    process = start("subject", "erase", ADA, cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while b"[y/N]" not in shown:
            shown += os.read(ours, 1_000)
        os.write(ours, answer)
        with contextlib.suppress(OSError):  # the terminal is gone when nobody has it open any more
            while more := os.read(ours, 1_000):
                shown += more
        assert process.wait(30) == code, shown
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"unreadable for good" in shown
    assert (b"nothing was erased" in shown) is (code == 1)
    assert len(key_files(tmp_path)) == keys


@pytest.mark.parametrize(("given", "words"), [("", "SUBJECT is empty"), ("x" * 1_025, "subject_id")])
def test_what_is_no_subject_id_is_told(cli: Cli, sessions: dict[str, list[str]], given: str, words: str) -> None:
    outcome = cli("subject", "erase", given, "--yes")
    assert is_one_line(outcome, 2)
    assert words in outcome.err


def _chat_of_another(tmp_path: Path) -> Started:
    process = start("chat", "--subject", BO, cwd=tmp_path)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("hello\n")
    process.stdin.flush()
    assert process.stdout.readline()
    return process


def test_a_chat_that_is_open_erases_somebody_else(cli: Cli, sessions: dict[str, list[str]], tmp_path: Path) -> None:
    process = _chat_of_another(tmp_path)
    outcome = cli(*ERASE)
    ended = finish(process, "are you still there?\n/quit\n")
    assert (outcome.code, outcome.err) == (0, "")
    assert len(key_files(tmp_path)) == 1, "only Bo's is left"
    assert ended.code == 0
    assert ended.out.strip()


def test_a_ledger_in_use_gives_7_and_the_holder(cli: Cli, sessions: dict[str, list[str]], tmp_path: Path) -> None:
    """Nothing is destroyed then; the process that has it goes on. It takes no commands, as its settings say."""
    settings = tmp_path / "kitchener.toml"
    settings.write_text(f"{settings.read_text()}\n[admin]\nsocket = false\n", encoding="utf-8")
    process = _chat_of_another(tmp_path)
    outcome = cli(*ERASE)
    assert is_one_line(outcome, 7)
    assert str(process.pid) in outcome.err
    assert len(key_files(tmp_path)) == 2
    assert finish(process, "/quit\n").code == 0
    assert cli(*ERASE).code == 0


def test_what_was_stored_before_the_keyring_gives_1(cli: Cli, tmp_path: Path) -> None:
    async def talk() -> None:
        for seal in (False, True):
            async with running(tmp_path, seal=seal) as runtime:
                await runtime.supervisor().handle_turn(TALK[0], subject_id=ADA)

    anyio.run(talk)
    Path("kitchener.toml").write_text(SETTINGS, encoding="utf-8")
    outcome = cli(*ERASE)
    assert outcome.code == 1
    assert "1 turn of theirs were stored in plain text, before content was sealed, and stay readable" in outcome.out


def test_every_reading_command_works_on_who_was_erased(cli: Cli, sessions: dict[str, list[str]], tmp_path: Path) -> None:
    """Each tells that it is erased, in clear text; none has a traceback, and none brings a word or a key back."""
    session = sessions[ADA][0]
    artifacts = [each["artifact_id"] for each in cli("memory", "biases", "--subject", ADA, "--json").json["biases"]]
    assert cli(*ERASE).code == 0
    said: dict[tuple[str, ...], tuple[int, str]] = {
        ("session", "list"): (0, "ended"),
        ("session", "show", session): (0, "> [erased]\n  < [erased]"),
        ("intent", "list", "--session", session): (0, "[erased]"),
        ("context", "project", "--session", session): (0, "ERASED, with its subject"),
        ("context", "project", "--session", session, "--dry-run"): (0, "a stub    ERASED"),
        ("context", "explain", "--turn", turn(session, 2)): (0, "[erased]"),
        ("context", "explain", "--turn", turn(session, 2), "--entry", turn(session, 1)): (0, "erased"),
        ("context", "diff", turn(session, 1), turn(session, 3)): (0, "erased"),
        ("memory", "biases", "--subject", ADA, "--all"): (0, "deactivated: its subject was erased"),
        ("memory", "signals", "--subject", ADA): (0, "no signals"),
        ("memory", "explain", artifacts[0], "--subject", ADA): (0, "(erased)"),
        ("memory", "export", "--subject", ADA): (0, '"enabled":false'),
        ("ledger", "tail"): (0, "SUBJECT_ERASED"),
        ("ledger", "proof", turn(session, 2)): (0, "proof.json"),
        ("ledger", "verify"): (0, "ok"),
        ("session", "repair", session): (0, "no invalid entries"),
        ("replay", "--session", session): (0, "5 skipped (5 erased)"),
        REPLAY: (0, "7 turns erased with their subject"),
        ("doctor",): (0, "indexes"),
    }
    for command, (code, text) in said.items():
        outcome = cli(*command)
        assert outcome.code == code, (command, outcome)
        assert text in outcome.out, (command, outcome)
        assert "Traceback" not in outcome.err
        if command[0] not in ("ledger", "doctor"):
            as_json = cli(*command, "--json") if command[:2] not in (("memory", "export"),) else outcome
            assert as_json.code == code, (command, as_json)
            assert "$sealed" not in as_json.out, command
    chat = cli("chat", "--session", session, stdin=b"/why\n/intents\n/memory\n/session\n")
    assert (chat.code, chat.err) == (0, "")
    assert "[erased]" in chat.out
    refused = cli("chat", "--session", session, stdin=b"hello\n")
    assert refused.code == 1
    assert f"session '{session}' is over: its subject 'ada' was erased; start a new session" in refused.err
    assert len(key_files(tmp_path)) == 1, "looking at who was erased gives them no new key"
    Path(f"{turn(session, 2)}.proof.json").unlink()
    assert found(tmp_path) == []


def test_a_replay_counts_them_as_data(cli: Cli, sessions: dict[str, list[str]]) -> None:
    assert cli(*ERASE).code == 0
    told = cli(*REPLAY, "--json")
    assert told.code == 0
    assert (told.json["ok"], told.json["erased"]) == (True, 7)
    by_session = {each["session_id"]: each for each in told.json["sessions"]}
    assert [by_session[each]["erased"] for each in sessions[ADA]] == [5, 1, 1]
    [bo] = sessions[BO]
    assert (by_session[bo]["erased"], by_session[bo]["identical"], len(by_session[bo]["turns"])) == (0, True, 2)


@pytest.mark.skipif(NODE is None, reason="Node is not installed, so its verifier cannot be asked")
def test_the_other_verifier_agrees(cli: Cli, sessions: dict[str, list[str]], tmp_path: Path) -> None:
    assert cli(*ERASE).code == 0
    ledgers = sorted((tmp_path / "plane").rglob("*.jsonl"))
    assert len(ledgers) == 8
    assert [line for line in node(ledgers) if not line.startswith("ok")] == []


def test_a_transcript_with_an_erased_subject_is_not_run_again(cli: Cli, tmp_path: Path) -> None:
    """It would bring back what was erased: their results are errors, those of others are as they were."""
    Path("kitchener.toml").write_text(SETTINGS, encoding="utf-8")
    lines = [
        {"conversation": "one", "subject_id": ADA, "message": "hello from one"},
        {"conversation": "two", "subject_id": BO, "message": "hello from two"},
        {"conversation": "one", "subject_id": ADA, "message": "and more"},
    ]
    Path("in.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    assert cli("run", "in.jsonl", "-o", "out.jsonl").code == 0
    before = read_lines(Path("out.jsonl"))
    assert cli(*ERASE).code == 0
    again = cli("run", "in.jsonl", "-o", "out.jsonl", "--json")
    assert again.code == 1
    assert {key: again.json[key] for key in ("turns", "done_before", "failed")} == {"turns": 0, "done_before": 1, "failed": 2}
    after = read_lines(Path("out.jsonl"))
    assert after[1] == before[1]
    assert [(each["response"], each["error"]["kind"]) for each in (after[0], after[2])] == [
        (None, "SubjectErased"),
        (None, "NOT_RUN"),
    ]
    assert key_files(tmp_path) == key_files(tmp_path)[:1]
    text = b"".join(path.read_bytes() for path in (tmp_path / "plane").rglob("*") if path.is_file())
    assert b"hello from one" not in text


def test_keys_are_never_shown(
    cli: Cli, sessions: dict[str, list[str]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Not in what commands print, not in logs, reprs and tracebacks."""
    secrets = [secret for path in key_files(tmp_path) for secret in _forms(json.loads(key_at(path))["key"])]
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    with captured_logs() as logs:
        for command in (("config", "show"), ("config", "check"), ("config", "schema"), ("doctor",), ("doctor", "--json")):
            outcome = cli(*command)
            shown += [outcome.out, outcome.err]
        keyring = Keyring(tmp_path / "keys")
        key = keyring.get(ADA)
        shown += [repr(key), str(key), repr(keyring), repr(Sealer(keyring, SEALED_FIELDS)), f"{key!r} {[key]} {(key,)}"]
        path = next(path for path in key_files(tmp_path) if json.loads(key_at(path))["kid"] == key.kid)
        stored = key_at(path)
        change_key(path, lambda stored: stored[:-3])  # a damaged key file is told of without its content
        outcome = cli(*ERASE)
        assert outcome.code == 1
        shown += [outcome.out, outcome.err]
        with pytest.raises(KitchenerError) as failure:
            Keyring(tmp_path / "keys").get(ADA)
        frames = traceback.StackSummary.extract(traceback.walk_tb(failure.tb), capture_locals=True)
        shown.append(str([each.locals for each in frames if Path(each.filename).parent.name == "sealing"]))
        assert "path" in shown[-1], "the frames with their variables, as some loggers show them"
        change_key(path, lambda _: stored)
        for more in (("--json",), ()):
            outcome = cli(*ERASE, *more)
            assert outcome.code == 0
            shown += [outcome.out, outcome.err]
    shown += [str(logs), caplog.text]
    assert [secret for secret in secrets if any(secret in text for text in shown)] == []


def _forms(key: Any) -> list[str]:
    """A key as a file holds it, and as it would look printed."""
    from base64 import urlsafe_b64decode

    raw = urlsafe_b64decode(key + "=" * (-len(key) % 4))
    return [key, raw.hex(), repr(raw)[2:-1]]
