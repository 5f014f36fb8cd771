"""Runs the examples, `make demo` and `kitchener run`, and keeps the ledgers that they write, each with its settings as a file.

    python -m tests.replay.shared.programs ROOT [NAME …] --backend trio

Makes `ROOT/<name>/` for each, or for those that are named. The programs themselves know nothing of it: their directories are
given to them, and the settings with which they open their runtime are written down beside the ledgers, as `kitchener replay`
wants them.
"""

import argparse
import os
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, redirect_stdout
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import anyio
from starlette.testclient import TestClient

import examples.admin_bot.main
import examples.companion_bot.main
import examples.custom_provider.main
import examples.demo
import examples.hello_bot.main
import examples.web_app.app
from examples.admin_bot.tools import directory_tools
from kitchener import RuntimeConfig, open_runtime
from kitchener.cli.config.toml import toml_lines

SETTINGS: Final = "settings.toml"
GARDEN: Final = "examples.companion_bot.main:garden_calendar"
TOOLS: Final[dict[str, tuple[str, ...]]] = {
    "admin_bot": tuple(f"{__name__}:{each}" for each in ("list_files", "read_file", "list_packages")),
    "companion_bot": (GARDEN,),
    "custom_provider": (),
    "demo": (GARDEN,),
    "hello_bot": (),
    "web_app": (),
}
"""The programs, and the tools that they give to their runtimes: a replay needs what these say of themselves."""

# The tools of `admin_bot` are made for a directory; what a model is told of them is the same for any.
list_files, read_file, list_packages = directory_tools(".")


def noting(root: Path) -> Callable[..., Any]:
    """`open_runtime`, with the settings written down."""

    @asynccontextmanager
    async def opened(config: RuntimeConfig | None = None, **parts: Any) -> AsyncIterator[Any]:
        settings = config.model_dump(mode="json", exclude_unset=True, exclude={"plane_root"}) if config is not None else {}
        root.mkdir(parents=True, exist_ok=True)
        (root / SETTINGS).write_text("\n".join(toml_lines({"plane_root": ".", **settings})) + "\n", encoding="utf-8")
        async with open_runtime(config, **parts) as runtime:
            yield runtime

    return opened


def run_all(root: Path, names: Collection[str], backend: Any) -> None:
    """The programs of these names, one after the other."""
    home = root / "home"
    home.mkdir(parents=True)
    (home / "notes.txt").write_text("The backup runs at 02:00.\n", encoding="utf-8")
    (root / "secret.txt").write_text("the secret\n", encoding="utf-8")
    scripts: dict[str, tuple[ModuleType, Any]] = {
        "hello_bot": (examples.hello_bot.main, lambda place: examples.hello_bot.main.main(place)),
        "admin_bot": (examples.admin_bot.main, lambda place: examples.admin_bot.main.main(str(home), place)),
        "companion_bot": (examples.companion_bot.main, lambda place: examples.companion_bot.main.main(place)),
        "custom_provider": (examples.custom_provider.main, lambda place: examples.custom_provider.main.main(place)),
        "demo": (examples.demo, lambda place: examples.demo.main(place)),
    }
    for name, (module, main) in scripts.items():
        if name not in names:
            continue
        vars(module)["open_runtime"] = noting(root / name)
        anyio.run(partial(main, str(root / name)), backend=backend)
    if "web_app" in names:
        serve(root, backend)


def serve(root: Path, backend: Any) -> None:
    """A conversation with the web app."""
    vars(examples.web_app.app)["open_runtime"] = noting(root / "web_app")
    os.environ["BOT_ROOT"] = str(root / "web_app")
    with TestClient(examples.web_app.app.app, backend=backend) as client:
        session_id = client.post("/sessions", json={"subject_id": "ada"}).json()["session_id"]
        for message in ("hello", "which packages are there?", "bye"):
            answer = client.post(
                f"/sessions/{session_id}/messages", json={"message": message}, headers={"Idempotency-Key": message}
            )
            assert answer.status_code == 200


def main() -> None:
    """Runs them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", type=Path)
    parser.add_argument("names", nargs="*", default=list(TOOLS))
    parser.add_argument("--backend", default="asyncio", choices=("asyncio", "trio"))
    given = parser.parse_args()
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        run_all(given.root.absolute(), given.names, given.backend)


if __name__ == "__main__":
    main()
