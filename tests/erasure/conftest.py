"""The conversations of `kit.fill`, recorded once on each event loop and copied for each test."""

import json
import shutil
from pathlib import Path

import anyio
import pytest

from tests.erasure.kit import fill
from tests.shared.shared_folders import made_once


@pytest.fixture
def filled(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, anyio_backend_name: str) -> dict[str, list[str]]:
    """The folder of the test has the root that `fill` makes on the test's event loop; its sessions by subject."""

    def record(folder: Path) -> None:
        sessions = anyio.run(fill, folder / "root", backend=anyio_backend_name)
        (folder / "sessions.json").write_text(json.dumps(sessions), encoding="utf-8")

    made = made_once(tmp_path_factory, f"erasure-on-{anyio_backend_name}", record)
    shutil.copytree(made / "root", tmp_path, symlinks=True, dirs_exist_ok=True)
    found: dict[str, list[str]] = json.loads((made / "sessions.json").read_text(encoding="utf-8"))
    return found
