"""Where a library of an extra is missing, the error names the extra."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.shared.commands import finish, start_program
from tests.test_installation import NEEDED_BY_AN_EXTRA

SERVE = sorted(NEEDED_BY_AN_EXTRA["serve"])


def _run_without(library: str, program: str, directory: Path) -> tuple[int, str]:
    """Runs a program as if a library were not installed. Returns its exit code and the end of its standard error.

    The process has the package loaded, and forgets what needs an extra: what it imports of that, it imports anew.
    """
    forgotten = (library, "kitchener.serve", "kitchener.cli.serve", "kitchener.telemetry")
    code = (
        f"import sys\nfor each in [*sys.modules]:\n    if each.startswith({forgotten}):\n        del sys.modules[each]\n"
        f"sys.modules[{library!r}] = None\n{program}"
    )
    done = finish(start_program(code, cwd=directory))
    return done.code, done.err.splitlines()[-1]


def _command(*arguments: str) -> str:
    return f"sys.argv = ['kitchener', *{arguments}]; from kitchener.cli.main import main; main()"


@pytest.mark.parametrize("library", SERVE)
def test_the_server_does_not_start_without_one_of_its_libraries(library: str, tmp_path: Path) -> None:
    """Regression: where another program had brought Starlette and uvicorn but not PyJWT, it ended with a traceback."""
    told = "kitchener: kitchener serve: needs the extra `serve`: pip install 'kitchener[serve]'"
    assert _run_without(library, _command("serve"), tmp_path) == (2, told)


def test_no_command_line_loads_what_needs_an_extra_before_it_knows_its_command(tmp_path: Path) -> None:
    """In an interpreter of its own, unlike above, where the commands are loaded already."""
    code = f"import sys; sys.modules['starlette'] = None; {_command('--version')}"
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    code = f"import sys; sys.modules['starlette'] = None; {_command('serve')}"
    done = subprocess.run([sys.executable, "-c", code], check=False, cwd=tmp_path, capture_output=True, encoding="utf-8")
    assert (done.returncode, "needs the extra `serve`" in done.stderr) == (2, True)


@pytest.mark.parametrize(
    ("module", "name", "extra", "library"),
    [
        ("kitchener.serve", "open_server", "serve", "starlette"),
        ("kitchener.serve", "open_server", "serve", "jwt"),
        ("kitchener.telemetry", "OpenTelemetry", "otel", "opentelemetry"),
    ],
)
def test_a_name_of_a_missing_extra_says_which_one(module: str, name: str, extra: str, library: str, tmp_path: Path) -> None:
    code, told = _run_without(library, f"from {module} import {name}", tmp_path)
    assert code == 1
    assert told.startswith(f"ModuleNotFoundError: {module}.")
    assert f"needs the extra `{extra}`: pip install 'kitchener[{extra}]' (" in told
    assert library in told.partition("(")[2]
