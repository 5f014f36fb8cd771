"""The plain installation, `pip install kitchener`, holds all that the library and its command line import."""

import ast
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "kitchener"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NEEDED_BY_AN_EXTRA = {
    "actors/similarity/matrix.py": {"numpy"},
    "gateway/embedding_providers/static.py": {"safetensors", "tokenizers"},
    "gateway/providers": {"httpx", "httpx2", "openai", "pydantic-ai"},
    "serve": {"httptools", "jwt", "starlette", "uvicorn"},
    "mcp/connection.py": {"httpx2", "mcp", "mcp-types"},
    "mcp/http_transport.py": {"httpx2"},
    "telemetry/": {"opentelemetry"},
    "testing/replays.py": {"pytest"},
}
"""What single modules import where an extra such as `models` or `serve`, or the program that uses them, has installed it."""


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements in a piece of source, without the expressions in them, which are most of it."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield each
            yield from _statements(each)


def _imported(path: Path) -> set[str]:
    """The packages of others that a module imports, wherever in the module."""
    found = set[str]()
    for node in _statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found.add(node.module)
    packages = {name.partition(".")[0] for name in found} - sys.stdlib_module_names - {"kitchener"}
    return {name.replace("_", "-") for name in packages}


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None, requirement
    return found[0].lower().replace("_", "-")


def test_what_the_library_and_the_commands_import_is_a_dependency() -> None:
    declared = {_name(each) for each in PROJECT["dependencies"]} | {"pydantic-core"}  # its version is pydantic's own
    missing = {}
    for path in SOURCE.rglob("*.py"):
        place = path.relative_to(SOURCE).as_posix()
        optional = {name for where, names in NEEDED_BY_AN_EXTRA.items() if place.startswith(where) for name in names}
        if undeclared := _imported(path) - declared - optional:
            missing[place] = undeclared
    assert missing == {}


@pytest.mark.parametrize("extra", ["cli", "crypto"])
def test_an_old_name_of_an_extra_still_installs(extra: str) -> None:
    assert PROJECT["optional-dependencies"][extra] == []


def test_a_set_up_takes_exactly_what_is_locked() -> None:
    """With dependencies, pip looks for newer releases of what a package names with an extra, and stops at the first one."""
    makefile = (ROOT / "Makefile").read_text()
    locked = [line for line in makefile.splitlines() if "--require-hashes" in line]
    assert len(locked) >= 5
    assert [line for line in locked if "--no-deps" not in line] == []


def test_the_locked_set_is_complete() -> None:
    """Each package that is installed finds what it needs, in a version that it takes: what `pip check` says in seconds."""
    installed = {canonicalize_name(each.name): each.version for each in distributions()}
    lacking = [
        f"{each.name} needs {needed}"
        for each in distributions()
        for needed in map(Requirement, each.requires or ())
        if needed.marker is None or needed.marker.evaluate({"extra": ""})
        if (version := installed.get(canonicalize_name(needed.name))) is None
        or not needed.specifier.contains(version, prereleases=True)
    ]
    assert len(installed) > 50
    assert lacking == []


@pytest.mark.soak
def test_pip_finds_the_locked_set_complete() -> None:
    """With its own eyes, which takes some seconds; `test_the_locked_set_is_complete` compares the same versions."""
    check = subprocess.run([sys.executable, "-m", "pip", "check"], check=False, capture_output=True, text=True)
    assert check.returncode == 0, check.stdout


def _with_dependencies(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """A distribution and all that it needs without extras, as far as this environment has it."""
    found[name] = distribution(name)
    requirements = PROJECT["dependencies"] if name == "kitchener" else found[name].requires or []
    for each in map(Requirement, requirements):
        extras = ("", *each.extras)
        if _name(each.name) not in found and (
            each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras)
        ):
            _with_dependencies(_name(each.name), found)
    return found


def _plain_environment(directory: Path) -> Path:
    """An environment with the wheel of this project and what the wheel says that it needs, nothing else; its interpreter."""
    venv.create(directory, with_pip=False, symlinks=True)
    (site,) = directory.glob("lib/python*/site-packages")
    wheels = directory / "wheels"
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(wheels)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    for name, found in _with_dependencies("kitchener", {}).items():
        for file in found.files or () if name != "kitchener" else ():
            if ".." not in file.parts and "__pycache__" not in file.parts:
                target = site / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(Path(str(file.locate())).resolve())
    with zipfile.ZipFile(next(wheels.iterdir())) as wheel:
        wheel.extractall(site)
    return directory / "bin" / "python"


@pytest.mark.soak
def test_the_plain_installation_has_a_command_line(tmp_path: Path) -> None:
    python = _plain_environment(tmp_path / "plain")
    probe = subprocess.run([python, "-c", "import httpx"], check=False, capture_output=True, text=True)
    assert "No module named 'httpx'" in probe.stderr, "the environment holds more than the plain installation"

    def kitchener(*arguments: str, typed: str = "") -> str:
        command = [str(python), "-m", "kitchener", *arguments]
        done = subprocess.run(command, input=typed, cwd=tmp_path, check=True, capture_output=True, encoding="utf-8")
        return done.stdout

    assert "Talk to an agent." in kitchener("--help")
    assert "wrote kitchener.toml" in kitchener("init")
    assert kitchener("chat", typed="hello\n").strip()
    assert "cryptography" in kitchener("doctor")
