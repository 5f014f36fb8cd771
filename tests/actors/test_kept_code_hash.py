"""The hash of policy code is kept from process to process, and never one of other code."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from kitchener.actors.policy_identity import code_hash, kept_code_hash

SOURCES = ("LIMIT = 3\n", "def chosen(items):\n    return items[:3]\n")


class Hashing:
    """The hash of code, and how often somebody wanted it computed."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self, sources: Sequence[str]) -> str:
        self.times += 1
        return code_hash(sources)


@pytest.fixture
def module(tmp_path: Path) -> str:
    """The source file of a module whose compiled form has a folder."""
    tmp_path.joinpath("__pycache__").mkdir()
    file = tmp_path / "hashing.py"
    file.write_text("def code_hash(): ...\n", encoding="utf-8")
    return str(file)


def kept_files(module: str) -> list[Path]:
    return sorted(Path(module).with_name("__pycache__").iterdir())


def test_the_next_process_finds_what_the_first_one_computed(module: str) -> None:
    compute = Hashing()
    assert [kept_code_hash(SOURCES, compute, beside=module) for _ in range(3)] == [code_hash(SOURCES)] * 3
    assert compute.times == 1
    assert len(kept_files(module)) == 1


@pytest.mark.parametrize(
    "others",
    [
        ("LIMIT = 4\n", SOURCES[1]),
        (SOURCES[0],),
        (*SOURCES, "MORE = 1\n"),
        ("".join(SOURCES),),
        (SOURCES[0] + SOURCES[1][:3], SOURCES[1][3:]),
    ],
)
def test_other_code_has_a_hash_of_its_own(module: str, others: tuple[str, ...]) -> None:
    def compute(sources: Sequence[str]) -> str:
        return "sha256:" + f"{tuple(sources) == SOURCES:d}" * 64

    assert kept_code_hash(SOURCES, compute, beside=module) == "sha256:" + "1" * 64
    assert kept_code_hash(others, compute, beside=module) == "sha256:" + "0" * 64
    assert kept_code_hash(SOURCES, compute, beside=module) == "sha256:" + "1" * 64


def test_another_way_to_hash_is_tried_at_once(module: str) -> None:
    before = kept_code_hash(SOURCES, code_hash, beside=module)
    Path(module).write_text("def code_hash(): return 2\n", encoding="utf-8")
    assert kept_code_hash(SOURCES, lambda _: "sha256:" + "2" * 64, beside=module) == "sha256:" + "2" * 64 != before


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\xff\xfe",
        b"[1]",
        b'"sha256:"',
        b"{",
        b'{"sources": 1, "code": 2}',
        b"x" * 4_096,
        b"[" * 1_000,
    ],
)
def test_a_damaged_file_is_written_anew(module: str, damage: bytes) -> None:
    kept_code_hash(SOURCES, code_hash, beside=module)
    (file,) = kept_files(module)
    file.write_bytes(damage)
    compute = Hashing()
    assert (
        kept_code_hash(SOURCES, compute, beside=module) == kept_code_hash(SOURCES, compute, beside=module) == code_hash(SOURCES)
    )
    assert compute.times == 1


@pytest.mark.parametrize(
    "code", [None, 1, "", "sha256:", "sha256:" + "A" * 64, "sha256:" + "a" * 63, "sha256:" + "a" * 64 + "\n"]
)
def test_what_is_no_hash_is_none(module: str, code: object) -> None:
    kept_code_hash(SOURCES, code_hash, beside=module)
    (file,) = kept_files(module)
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), "code": code}), encoding="utf-8")
    assert kept_code_hash(SOURCES, code_hash, beside=module) == code_hash(SOURCES)


def test_where_nothing_can_be_kept_it_is_computed_each_time(module: str) -> None:
    folder = Path(module).with_name("__pycache__")
    folder.rmdir()
    compute = Hashing()
    assert (
        kept_code_hash(SOURCES, compute, beside=module) == kept_code_hash(SOURCES, compute, beside=module) == code_hash(SOURCES)
    )
    assert compute.times == 2
    assert not folder.exists()


def test_nothing_is_kept_if_the_environment_wants_no_compiled_files(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert kept_code_hash(SOURCES, code_hash, beside=module) == code_hash(SOURCES)
    assert kept_files(module) == []
