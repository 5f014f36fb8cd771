"""A command line to call, with a directory and an environment of its own."""

import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kitchener.cli.app import invoke
from tests.cli.memory.memories import fill
from tests.cli.shared.commands import Outcome

Cli = Callable[..., Outcome]


@contextmanager
def as_own_process(directory: Path) -> Iterator[None]:
    """Lets commands run in this process as they would in one of their own, with `directory` as the current one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        for name in list(os.environ):
            if name.startswith("KITCHENER_"):
                patch.delenv(name)
        # Commands that run an agent tune the collector for their whole process, which here is the test suite's.
        for name in ("collect", "freeze", "set_threshold"):
            patch.setattr(gc, name, lambda *_: None)
        yield


@pytest.fixture
def cli(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    """Calls the command line in this process, in an empty current directory; `stdin` is what a pipe brings."""

    def call(*arguments: str | Path, stdin: bytes = b"") -> Outcome:
        capfd.readouterr()
        piped = tmp_path.with_name(f"{tmp_path.name} stdin")
        piped.write_bytes(stdin)
        with piped.open() as file, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdin", file)
            code = invoke([str(each) for each in arguments])
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    with as_own_process(tmp_path):
        yield call


@pytest.fixture(scope="session")
def memory_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root in which something was learned; not to be changed."""
    directory = tmp_path_factory.mktemp("memory")
    fill(directory)
    return directory


@pytest.fixture
def taught(cli: Cli, memory_root: Path, tmp_path: Path) -> Cli:
    """The command line, beside a root of its own in which something was learned; see `memories.py`."""
    shutil.copytree(memory_root, tmp_path, symlinks=True, dirs_exist_ok=True)
    return cli
