"""Every file that Kitchener writes is for its owner alone, and none goes through somebody else's link (docs/commands.md)."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, cli, memory_root, taught  # noqa: F401  the fixtures
from tests.cli.shared.commands import read_lines, write_messages


@pytest.fixture(autouse=True)
def careless_umask() -> Iterator[None]:
    """The umask of somebody who never thought of it, and worse."""
    before = os.umask(0)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def open_to_others(root: Path) -> list[str]:
    """What below a directory somebody else can reach: files that are open, in directories that are."""
    found = []
    for path in root.iterdir():
        if path.is_symlink() or not mode(path) & 0o077:
            continue
        found += open_to_others(path) if path.is_dir() else [str(path)]
    return found


def make_everything(cli: Cli, directory: Path) -> None:  # noqa: F811
    """Has every command write what it writes."""
    path = write_messages(directory / "in", ("a", "which packages are installed?"), ("b", "hello"))
    path.chmod(0o600)
    assert cli("ledger", "key", "--new", "keys/signing.pem").code == 0
    assert cli("init").code == 0
    settings = directory / "kitchener.toml"
    settings.write_text(f'{settings.read_text()}\n[ledger]\nkeyring = "keyring"\nsigning_key = "keys/signing.pem"\n')
    assert cli("run", path, "-o", "results.jsonl").code == 0
    turn = read_lines(directory / "results.jsonl")[0]["turn_id"]
    assert cli("ledger", "checkpoint").code == 0
    assert cli("ledger", "proof", turn, "-o", "bundle.json").code == 0
    assert cli("ledger", "proof", turn).code == 0
    assert cli("context", "explain", turn, "--html").code == 0
    assert cli("memory", "export", "-o", "learned.jsonl").code == 0
    assert cli("memory", "import", "learned.jsonl").code == 0
    cli("replay", "--all")
    assert cli("doctor").code == 0
    assert cli("subject", "erase", "of b", "--yes").code == 0
    assert cli("chat", stdin=b"hello\n").code == 0


def test_nothing_that_the_commands_write_can_be_read_by_others(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    make_everything(cli, tmp_path)
    names = {path.name for path in tmp_path.rglob("*")}
    assert {"results.jsonl", "bundle.json", "learned.jsonl", "kitchener.toml", "signing.pem", "index", "ho2m.jsonl"} <= names
    assert open_to_others(tmp_path) == []


def test_nor_where_the_directory_of_the_ledgers_was_made_open(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / ".kitchener").mkdir(mode=0o755)
    make_everything(cli, tmp_path)
    assert open_to_others(tmp_path) == []


def test_no_file_is_written_for_what_was_typed(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    """No history: what a person said is in the ledger, sealed by the keys beside it, and nowhere else."""
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cli("chat", "--root", "root", stdin=b"a secret of mine\n").code == 0
    assert list((tmp_path / "home").iterdir()) == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["home", "root", "root.keys"]
    files = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert [each for each in files if b"a secret of mine" in each.read_bytes()] == []


OUTPUTS = ("run", "memory", "proof")


def write(cli: Cli, which: str, output: Path) -> int:  # noqa: F811
    if which == "run":
        return cli("run", write_messages(output.parent.parent / "in", ("a", "hello")), "-o", output).code
    if which == "memory":
        return cli("memory", "export", "-o", output).code
    cli("run", write_messages(output.parent.parent / "in", ("a", "hello")))
    (row,) = (each for each in cli("session", "list", "--json").json if each.get("external_id", "a") == "a")
    turn = cli("session", "show", row["session_id"], "--json").json["turns"][0]["turn_id"]
    return cli("ledger", "proof", turn, "-o", output).code


@pytest.mark.parametrize("which", OUTPUTS)
def test_a_link_in_place_of_the_output_is_replaced_and_not_followed(cli: Cli, tmp_path: Path, which: str) -> None:  # noqa: F811
    (tmp_path / "shared").mkdir()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    output = tmp_path / "shared" / "out.json"
    output.symlink_to(victim)
    assert write(cli, which, output) == 0
    assert victim.read_text() == "precious"
    assert not output.is_symlink()
    assert mode(output) == 0o600


@pytest.mark.parametrize("which", OUTPUTS)
def test_a_file_that_was_open_to_all_is_not_so_afterwards(cli: Cli, tmp_path: Path, which: str) -> None:  # noqa: F811
    (tmp_path / "shared").mkdir()
    output = tmp_path / "shared" / "out.json"
    output.write_text("old")
    output.chmod(0o666)
    with output.open() as held:
        assert write(cli, which, output) == 0
        assert mode(output) == 0o600
        assert held.read() == "old"  # who had it open reads the old one on
    assert sorted(each.name for each in output.parent.iterdir()) == ["out.json"]


@pytest.mark.parametrize("which", OUTPUTS)
def test_what_is_no_file_is_refused(cli: Cli, tmp_path: Path, which: str) -> None:  # noqa: F811
    (tmp_path / "shared").mkdir()
    pipe = tmp_path / "shared" / "pipe"
    os.mkfifo(pipe)
    assert write(cli, which, pipe) == 2
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    assert write(cli, which, tmp_path / "shared") == 2


def test_init_overwrites_a_link_and_not_what_it_leads_to(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "kitchener.toml").symlink_to(tmp_path / "victim")
    assert cli("init").code == 2
    assert cli("init", "--force").code == 0
    assert (tmp_path / "victim").read_text() == "precious"
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "kitchener.toml").symlink_to(tmp_path / "nowhere")
    assert cli("init", "new").code == 2
    assert not (tmp_path / "nowhere").exists()
