"""`kitchener ledger accept-head` (docs/commands.md)."""

import fcntl
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.shared.commands import write_messages

HO2M = Path(".kitchener/HO2/ADMIN/ho2m.jsonl")
REASON = ("--reason", "restored the backup of Monday")


@pytest.fixture
def restored(cli: Cli, tmp_path: Path) -> Cli:
    """The command line, beside ledgers of which one is older than its index."""
    cli("run", write_messages(tmp_path / "in", ("a", "hello")))
    shutil.copy(tmp_path / HO2M, tmp_path / "backup")
    cli("run", write_messages(tmp_path / "in2", ("b", "hello")))
    shutil.copy(tmp_path / "backup", tmp_path / HO2M)
    return cli


def test_a_restored_ledger_is_refused_until_its_head_is_accepted(restored: Cli, tmp_path: Path) -> None:
    messages = write_messages(tmp_path / "in3", ("c", "hello"))
    refused = restored("run", messages)
    assert refused.code == 6
    assert "kitchener ledger accept-head" in refused.err
    before = len((tmp_path / HO2M).read_bytes().splitlines())
    outcome = restored("ledger", "accept-head", *REASON, "--json")
    assert outcome.code == 0
    assert outcome.json["faults"] == []
    (accepted,) = outcome.json["accepted"]
    assert accepted["path"] == str(tmp_path / HO2M)
    assert (accepted["seq"], accepted["missing_from"], accepted["reason"]) == (before, before + 1, REASON[1])
    assert accepted["missing_to"] == accepted["known_head"]["seq"] > before
    entry = restored("ledger", "tail", "-n", "1", "--json").json[0]
    assert entry["entry_type"] == "LEDGER_HEAD_ACCEPTED"
    assert entry["payload"]["missing_to"] == accepted["missing_to"]
    assert restored("run", messages).code == 0
    assert restored("ledger", "verify").code == 0


def test_it_says_what_it_did(restored: Cli, tmp_path: Path) -> None:
    outcome = restored("ledger", "accept-head", str(tmp_path / HO2M), *REASON)
    assert outcome.code == 0
    assert outcome.out.startswith(f"accepted  {tmp_path / HO2M}: ends with entry ")
    again = restored("ledger", "accept-head", *REASON)
    assert (again.code, again.out) == (1, "nothing is missing, so nothing was changed\n")


def test_it_wants_a_reason_and_a_ledger(restored: Cli, tmp_path: Path) -> None:
    for arguments in ((), ("--reason", " "), (str(tmp_path / "none.jsonl"), *REASON)):
        outcome = restored("ledger", "accept-head", *arguments)
        assert outcome.code == 2
        assert len(outcome.err.splitlines()) == 1


def test_what_is_damaged_is_not_accepted(restored: Cli, tmp_path: Path) -> None:
    path = tmp_path / HO2M
    path.write_bytes(path.read_bytes().replace(b"SESSION_START", b"SESSION_STERT", 1))
    outcome = restored("ledger", "accept-head", *REASON)
    assert outcome.code == 6
    assert outcome.out.startswith(f"damaged   {path}: line ")


def test_a_ledger_in_use_is_left_alone(restored: Cli, tmp_path: Path) -> None:
    path = tmp_path / HO2M
    data = path.read_bytes()
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        outcome = restored("ledger", "accept-head", *REASON)
    assert outcome.code == 7
    assert path.read_bytes() == data
