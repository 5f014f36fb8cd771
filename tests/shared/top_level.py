"""Fails a test run that leaves a new file or folder in the top level of the repository, and names it.

A program that a test starts without a root of its own writes its ledgers into the working directory. Such a folder was once
committed with the rest. `tests/conftest.py` imports these hooks. They compare names before and after all tests, so they cannot
say which test it was: run parts of the suite to find it.
"""

from pathlib import Path
from typing import Final

import pytest

CACHES: Final = frozenset(
    {"__pycache__", ".coverage", ".hypothesis", ".import_linter_cache", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
"""What pytest and the tools that tests run write there."""
_BEFORE: Final = pytest.StashKey[frozenset[str]]()
_LEFT: Final = pytest.StashKey[list[str]]()


def names_in(folder: Path) -> frozenset[str]:
    """What is in a folder, without caches."""
    return frozenset(each.name for each in folder.iterdir() if not each.name.startswith(".coverage.")) - CACHES


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):  # the process that starts the workers looks before and after all of them
        session.config.stash[_BEFORE] = names_in(session.config.rootpath)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    before = session.config.stash.get(_BEFORE, None)
    if before is not None and (left := sorted(names_in(session.config.rootpath) - before)):
        session.config.stash[_LEFT] = left
        session.exitstatus = session.exitstatus or pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if left := config.stash.get(_LEFT, None):
        terminalreporter.section("new in the top level of the repository", red=True)
        terminalreporter.line(f"{', '.join(left)}: a test must write into its own `tmp_path`, or start programs there")
