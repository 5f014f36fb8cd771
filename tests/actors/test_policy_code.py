"""The hash of the code that decides: every module of it counts, and a replay tells that a line is another one now."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from kitchener.actors import policy_code as under_test
from kitchener.actors.policy_code import code_hash, policy_code

SOURCES = {"a.b": b"x = 1\n", "a.c": b"y = 2\n"}


def test_any_line_of_any_module_counts() -> None:
    known = code_hash(SOURCES)
    assert known == code_hash(dict(reversed(SOURCES.items())))
    changed = [{**SOURCES, name: source + b"#\n"} for name, source in SOURCES.items()]
    moved = {"a.b": SOURCES["a.c"], "a.c": SOURCES["a.b"]}
    hashes = {known, *map(code_hash, (*changed, moved, {"a.b": SOURCES["a.b"]}))}
    assert len(hashes) == 5


@pytest.mark.parametrize(
    "module", ["kitchener.context.liveness", "kitchener.memory.gate", "kitchener.actors.quality", "kitchener.gateway.routing"]
)
def test_the_modules_that_decide_are_among_it(module: str) -> None:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    read = dict(under_test._sources())
    assert read[module] == Path(spec.origin).read_bytes()
    assert policy_code() == code_hash(read) != code_hash({**read, module: read[module] + b"\n"})


def test_a_replay_tells_that_the_code_was_changed(tmp_path: Path) -> None:
    """A turn recorded by this code, replayed by a copy in which one constant of the gate's module is another comment."""
    source = Path(under_test.__file__).parents[2]
    copy = tmp_path / "src"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    gate = copy / "kitchener" / "memory" / "gate.py"
    gate.write_text(gate.read_text() + "# another line\n")

    def kitchener(code: Path, *arguments: str, said: str = "") -> str:
        done = subprocess.run(
            [sys.executable, "-m", "kitchener", *arguments, "--root", str(tmp_path / "root")],
            input=said,
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(code), "PYTHONDONTWRITEBYTECODE": "1"},
            timeout=50,
            check=True,
        )
        return done.stdout

    kitchener(source, "chat", said="hello\n")
    assert "another policy" not in kitchener(source, "replay", "--all")
    told = kitchener(copy, "replay", "--all")
    assert "was recorded under another policy" in told
    assert "identical, 1 turn" in told
