"""A signal while a command starts: exit code 130 and at most one line, whatever it is doing (docs/commands.md)."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shared.command_server import Started
from tests.cli.shared.commands import environment, finish, start, start_program, write_messages

STOPS = """
import os, runpy, sys
event, name = sys.argv[1:3]
stops = [True]

def stop(found, arguments):
    if stops and found == event and str(arguments[0]).endswith(name):
        stops.clear()
        os.write(2, b"here\\n")
        os.read(0, 1)

sys.addaudithook(stop)
sys.argv[:] = ["kitchener", *sys.argv[3:]]
runpy.run_module("kitchener", run_name="__main__", alter_sys=True)
"""
"""The command, which stops at one event of its interpreter, says so, and goes on when its input ends."""


def interrupted(
    process: "subprocess.Popen[str] | Started", number: signal.Signals = signal.SIGINT
) -> tuple[int | None, str, str]:
    """Its exit code, and what it wrote, when it is interrupted where it stops and then goes on."""
    assert process.stderr is not None
    assert process.stderr.readline() == "here\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    return process.returncode, out, err


@pytest.mark.parametrize(
    "module",
    [
        *("kitchener.cli.app", "cyclopts", "kitchener.cli.run.message_files"),
        *(pytest.param(each, marks=pytest.mark.soak) for each in ("kitchener.errors", "pydantic", "kitchener.runtime")),
    ],
)
def test_an_interrupt_while_modules_are_imported_ends_the_command(tmp_path: Path, module: str) -> None:
    """Before its own command line, in what that needs, and in what only this command needs; `make soak` has more places."""
    write_messages(tmp_path / "in.jsonl", ("a", "hello"))
    assert interrupted(started(tmp_path, "import", module, "run", "in.jsonl")) == (130, "", "kitchener: interrupted\n")


@pytest.mark.parametrize(
    ("module", "number"),
    [
        ("kitchener.cli.app", signal.SIGTERM),
        ("pydantic", signal.SIGHUP),
        ("uvicorn", signal.SIGTERM),
        pytest.param("kitchener.cli.app", signal.SIGHUP, marks=pytest.mark.soak),
        pytest.param("pydantic", signal.SIGTERM, marks=pytest.mark.soak),
        pytest.param("uvicorn", signal.SIGHUP, marks=pytest.mark.soak),
    ],
)
def test_a_server_that_still_starts_ends_by_any_signal_as_later(tmp_path: Path, module: str, number: signal.Signals) -> None:
    """Regression: it ended with 143 or 129, and with 130 only once it had opened its ledgers."""
    process = started(tmp_path, "import", module, "serve", "--port", "0")
    assert interrupted(process, number) == (130, "", "kitchener: interrupted\n")


def started(directory: Path, *arguments: str) -> "subprocess.Popen[str]":
    """The command in an interpreter of its own, which imports everything, with an event, a name and the words of its line."""
    command, pipe = [sys.executable, "-c", STOPS, *arguments], subprocess.PIPE
    return subprocess.Popen(command, cwd=directory, env=environment(), text=True, stdin=pipe, stdout=pipe, stderr=pipe)


@pytest.fixture(scope="module")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with settings and ledgers."""
    path = tmp_path_factory.mktemp("used")
    write_messages(path / "in.jsonl", ("a", "hello"))
    (path / "kitchener.toml").write_text('plane_root = "here"\n')
    assert finish(start("run", "in.jsonl", cwd=path)).code == 0
    return path


@pytest.mark.parametrize(
    ("command", "names"),
    [
        (["run", "in.jsonl"], ["kitchener.toml", "ho2m.jsonl", "ho1m.jsonl"]),
        (["chat"], ["kitchener.toml", "ho2m.jsonl"]),
        (["session", "list"], ["kitchener.toml", "ho2m.jsonl"]),
        (["config", "show"], ["kitchener.toml"]),
        (["doctor"], ["ho1m.jsonl"]),
    ],
)
def test_an_interrupt_while_files_are_opened_ends_the_command(
    used: Path, tmp_path: Path, command: list[str], names: list[str]
) -> None:
    """Settings and ledgers, each file by another signal; and what a runtime has open by then is closed."""
    for name, number in zip(names, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP), strict=False):
        shutil.copytree(used, tmp_path / name, symlinks=True)
        code, _, err = interrupted(start_program(STOPS, "open", name, *command, cwd=tmp_path / name), number)
        assert (code, "Traceback" in err) == (130, False)
        assert len(err.splitlines()) <= 1


def test_a_command_that_was_started_with_interrupts_ignored_goes_on(tmp_path: Path) -> None:
    """As a shell starts what it runs in the background."""
    program = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); os.execv(sys.executable, sys.argv[1:])"
    command = [sys.executable, "-c", program, sys.executable, "-c", "import signal; from kitchener.cli.main import main\n"]
    command[-1] += "import sys; sys.argv[:] = ['kitchener', '--version']\n"
    command[-1] += "try:\n    main()\nfinally:\n    print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    done = subprocess.run(command, cwd=tmp_path, env=environment(), text=True, capture_output=True, check=True)
    assert done.stdout.splitlines()[-1] == "True"


def test_the_command_can_be_interrupted_before_it_has_imported_the_rest(tmp_path: Path) -> None:
    """Loading the entry point loads nothing else, so the time in which Ctrl-C still ends Python itself is short."""
    program = "import sys; before = set(sys.modules); import kitchener.cli.main; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment(), text=True, capture_output=True)
    ours = [name for name in done.stdout.split() if name.startswith("kitchener")]
    assert ours == ["kitchener", "kitchener.cli", "kitchener.cli.exits", "kitchener.cli.main", "kitchener.lazy_names"]
    assert not {"pydantic", "anyio", "structlog", "cyclopts"} & set(done.stdout.split())
