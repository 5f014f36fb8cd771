"""A `--root` that cannot be the one that is meant is named, with what to do (docs/commands.md)."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.shared.command_list import every_command, examples_of
from tests.runtime.admin.test_commands import READS

NEEDS_NO_ROOT = {"completion", "config check", "config schema", "config show", "doctor", "mcp check", "mcp list"}
"""Reading commands that do without ledgers, or look at a place where there are none yet."""


def examples(names: frozenset[str]) -> Iterator[list[str]]:
    """The command lines in the help texts of commands, without those that name other files in place of a root."""
    for name, function in every_command():
        for words in examples_of(name, function) if name in names else ():
            names_a_folder = name == "ledger verify" and words[2:] not in ([], ["--json"])
            if not names_a_folder and "--root" not in words:
                yield words


READING = frozenset(READS) - NEEDS_NO_ROOT


@pytest.mark.parametrize("words", list(examples(READING)), ids=" ".join)
def test_a_command_that_reads_names_a_root_that_is_not_there(cli: Cli, words: list[str]) -> None:
    """Regression: it said that nothing was on record, with exit code 0, and a misspelt root looked like an empty one."""
    outcome = cli(*words, "--root", "typo")
    assert (outcome.code, not outcome.out or "--json" in words) == (2, True), outcome.err
    assert outcome.err.startswith("kitchener: --root = 'typo': there is no such directory; name the one with the ledgers, or ")


@pytest.mark.parametrize("words", ["chat", "run in.jsonl", "session list", "doctor", "config check", "session end last"])
@pytest.mark.parametrize(
    ("root", "problem"),
    [
        ("a file", "--root = 'a file': is a file; name a directory"),
        ("a file/below", "a file' is a file; name a directory"),
        ("y" * 300, "…: is longer than a path may be; name another directory"),
    ],
)
def test_a_root_that_cannot_be_one_is_named(cli: Cli, words: str, root: str, problem: str) -> None:
    Path("a file").touch()
    Path("in.jsonl").write_text('{"message": "hello"}\n')
    outcome = cli(*words.split(), "--root", root, stdin=b"hello")
    assert outcome.code == (1 if words == "doctor" else 2)
    assert problem in outcome.out + outcome.err
    assert Path("a file").read_bytes() == b""


def test_a_root_that_cannot_be_made_says_so_with_the_remedy(cli: Cli, tmp_path: Path) -> None:
    """Where a part of the path of the settings is a file."""
    Path("a file").touch()
    Path("kitchener.toml").write_text('plane_root = "a file/root"\n')
    outcome = cli("chat", stdin=b"hello")
    assert outcome.code == 2
    assert outcome.err == (
        f"kitchener: {tmp_path}/a file/root: the directory cannot be made: a part of the path is not a directory;"
        " choose another place for the ledgers, with `plane_root` or --root\n"
    )
    outcome = cli("doctor")
    assert f"fail  root              {tmp_path}/a file is a file, not a directory; choose another place" in outcome.out
