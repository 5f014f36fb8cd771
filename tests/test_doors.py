"""`make doors` runs what this machine has the programs for, and says what it left out (CONTRIBUTING.md, "Checks")."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.doors import GROUPS

ROOT = Path(__file__).resolve().parent.parent
NPM, PAGE = (" ".join(group.tests) for group in GROUPS)
NODE = ("node", "npm")
SKIPPED_NPM = "make doors: skipped, because node, npm is not installed (install Node.js 20 or newer, with npm): " + NPM
SKIPPED_PAGE = (
    "make doors: skipped, because chromium or chromium-browser or google-chrome is not installed"
    f" (install Chromium, for example with: apt-get install chromium): {PAGE}"
)
FAILED = "make doors: not run, because their programs could not be installed (see above): "


@pytest.mark.parametrize(
    ("programs", "broken", "code", "told", "runs"),
    [
        (NODE, "", 0, [SKIPPED_PAGE], NPM),
        (("google-chrome",), "", 0, [SKIPPED_NPM], PAGE),
        ((*NODE, "chromium"), "", 0, [], f"{NPM} {PAGE}"),
        ((), "", 1, [SKIPPED_NPM, SKIPPED_PAGE], ""),
        ((*NODE, "chromium"), ".doors/python/.stamp", 1, [FAILED + PAGE], NPM),
        (NODE, ".doors/clients/.stamp", 1, [FAILED + NPM, SKIPPED_PAGE], ""),
    ],
)
def test_what_can_run_is_run_and_the_rest_is_named(
    tmp_path: Path, programs: tuple[str, ...], broken: str, code: int, told: list[str], runs: str
) -> None:
    """`make` and pytest are replaced: the one installs nothing, the other says what it was given."""
    for name in programs:
        (tmp_path / name).write_text("#!/bin/sh\n")
    (tmp_path / "make").write_text(f'#!/bin/sh\ncase " $* " in *" {broken or "nothing"} "*) exit 2;; esac\n')
    for each in tmp_path.iterdir():
        each.chmod(0o700)
    (tmp_path / "pytest.py").write_text("import sys\nprint('given', *sys.argv[1:])\n")
    environment = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.doors", "-q"], check=False, capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert (done.returncode, done.stderr.splitlines()) == (code, told)
    assert done.stdout == (f"given {runs} -q\n" if runs else "")


def test_the_groups_name_tests_that_exist_and_the_makefile_installs_what_they_need() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for group in GROUPS:
        assert all((ROOT / each).is_file() for each in group.tests)
        assert all(f"\n{each}: " in makefile for each in group.stamps)
