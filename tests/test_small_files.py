"""A small file is replaced whole or not at all, and only its owner can use it (`kitchener.small_files`)."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from kitchener.small_files import is_directory, is_file, is_there, replace_private, replacing
from tests.cli.shared.permissions import deny


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_file_keeps_its_content_if_the_block_that_replaces_it_fails(tmp_path: Path) -> None:
    path = tmp_path / "result"
    path.write_bytes(b"before")

    def write_half() -> None:
        with replacing(path) as file:
            file.write(b"half")
            raise ValueError("half way")

    with pytest.raises(ValueError, match="half way"):
        write_half()
    assert path.read_bytes() == b"before"
    assert [each.name for each in tmp_path.iterdir()] == ["result"]


def test_nothing_appears_at_the_path_before_the_block_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "result"
    with replacing(path) as file:
        file.write(b"whole")
        file.flush()
        assert not path.exists()
        assert Path(file.name).read_bytes() == b"whole"
    assert path.read_bytes() == b"whole"
    assert [each.name for each in tmp_path.iterdir()] == ["result"]


def test_a_file_that_was_open_to_all_is_its_owners_alone_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_bytes(b"before")
    path.chmod(0o666)
    replace_private(path, b"after")
    assert (path.read_bytes(), mode(path)) == (b"after", 0o600)


def test_a_file_for_everybody_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with replacing(tmp_path / "cache", 0o666) as file:
            file.write(b"{}")
    finally:
        os.umask(before)
    assert mode(tmp_path / "cache") == 0o640


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    target, link = tmp_path / "of_somebody_else", tmp_path / "result"
    target.write_bytes(b"theirs")
    link.symlink_to(target)
    replace_private(link, b"mine")
    assert (target.read_bytes(), link.read_bytes(), link.is_symlink()) == (b"theirs", b"mine", False)


def test_a_path_that_leads_to_nothing_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    for name in ("none", "file/below", "loop", "null\0"):
        assert not any(ask(tmp_path / name) for ask in (is_there, is_file, is_directory))
    assert [ask(tmp_path / "file") for ask in (is_there, is_file, is_directory)] == [True, True, False]
    assert [ask(tmp_path) for ask in (is_there, is_file, is_directory)] == [True, False, True]


@pytest.mark.parametrize("ask", [is_there, is_file, is_directory])
def test_what_may_not_be_looked_at_does_not_pass_for_missing(
    ask: Callable[[Path], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`Path.exists` says no then on Python 3.14."""
    deny(monkeypatch, tmp_path, "stat")
    with pytest.raises(PermissionError):
        ask(tmp_path / "key.json")
