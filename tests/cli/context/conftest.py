"""A session for the commands that only look at one."""

import shutil
from pathlib import Path

import anyio
import pytest

from kitchener.runtime import open_runtime
from tests.cli.conftest import Cli
from tests.cli.context.contexts import TALK, configure


@pytest.fixture(scope="session")
def talked_root(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory in which `TALK` was said, and the session; not to be changed."""
    directory = tmp_path_factory.mktemp("talk")
    configure(directory, context_budget="200", prompt_layout='"block"')

    async def say() -> str:
        async with open_runtime(directory / "kitchener.toml", root=directory / ".kitchener") as runtime:
            session = await runtime.supervisor().start_session(subject_id="ada")
            for message in TALK:
                await runtime.supervisor().handle_turn(message, session_id=session)
            return session

    return directory, anyio.run(say)


@pytest.fixture
def session(cli: Cli, talked_root: tuple[Path, str], tmp_path: Path) -> str:
    """A session of five turns under two intents, with room for less than two turns, in a directory of the test's own."""
    directory, session_id = talked_root
    shutil.copytree(directory, tmp_path, symlinks=True, dirs_exist_ok=True)
    return session_id
