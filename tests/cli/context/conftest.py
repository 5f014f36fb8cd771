"""A session for the commands that only look at one."""

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.context.contexts import TALK, configure, say


@pytest.fixture(scope="session")
def talked_root(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory in which `TALK` was said, and the session; not to be changed."""
    directory = tmp_path_factory.mktemp("talk")
    configure(directory, context_budget="200", prompt_layout='"block"')
    return directory, say(directory, *TALK)


@pytest.fixture
def session(cli: Cli, talked_root: tuple[Path, str], tmp_path: Path) -> str:
    """A session of five turns under two intents, with room for less than two turns, in a directory of the test's own."""
    directory, session_id = talked_root
    shutil.copytree(directory, tmp_path, symlinks=True, dirs_exist_ok=True)
    return session_id
