"""The top level of the repository: what belongs there, and a test run that adds something to it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BELONGS = {
    "what a reader starts from": "README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md LICENSE docs examples",
    "the library, its tests and its measurements": "src tests benchmarks verify",
    "how it is built, checked and operated": "pyproject.toml requirements Makefile .ci .gitignore operations",
}
"""What is committed in the top level, and why. A name comes or goes here in the same change."""


def test_only_what_belongs_in_the_top_level_is_committed_there() -> None:
    """A folder of ledgers that a test run had left was once committed with the rest."""
    try:
        listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this copy of the source is no repository of git")
    committed = {os.fsdecode(each).partition("/")[0] for each in listing.split(b"\0") if each}
    if not committed:
        pytest.skip("this copy of the source is no part of the repository around it")
    assert committed == {name for names in BELONGS.values() for name in names.split()}


def run_tests(folder: Path, body: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(f"import pathlib\n\ndef test_it():\n    {body}\n")
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "xdist.plugin",
        "-p",
        "tests.shared.top_level",
        *options,
        "test_it.py",
    )
    # Plugins of other libraries, which these runs do not use, take longer to load than the rest.
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["in one process", "with workers"])
def test_a_test_run_that_leaves_something_in_the_top_level_fails_and_names_it(tmp_path: Path, workers: tuple[str, ...]) -> None:
    run = run_tests(tmp_path, "pathlib.Path('ledgers.left').mkdir()", *workers)
    assert run.returncode == pytest.ExitCode.TESTS_FAILED
    assert "1 passed" in run.stdout
    assert "ledgers.left: a test must write into its own `tmp_path`" in run.stdout


def test_a_test_run_that_leaves_nothing_but_caches_passes(tmp_path: Path) -> None:
    run = run_tests(tmp_path, "pathlib.Path('.coverage.host.1').touch()")
    assert run.returncode == pytest.ExitCode.OK, run.stdout
    assert (tmp_path / ".pytest_cache").is_dir()
