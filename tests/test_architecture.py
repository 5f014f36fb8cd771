"""Rules about the source text that neither ruff, mypy nor import-linter holds.

The import contracts stand in `pyproject.toml` and are checked by `lint-imports`.
"""

import ast
import importlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import kitchener

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))

MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 80

PUBLIC_STUB = ROOT / "src" / "kitchener" / "__init__.pyi"
PUBLIC_NAMES = [
    "AttentionContext",
    "AttentionRetriever",
    "CallerError",
    "ConfigError",
    "ContextFragment",
    "ContextProvider",
    "DegradedCall",
    "ErasureReport",
    "GateResult",
    "HO1Executor",
    "HO1ExecutorProtocol",
    "HO2Config",
    "HO2Supervisor",
    "HO3Memory",
    "HO3MemoryConfig",
    "InvalidLifecycle",
    "InvalidSignal",
    "InvalidTimestamp",
    "KitchenerError",
    "LLMGateway",
    "LedgerClient",
    "LedgerConfig",
    "LedgerDamaged",
    "LedgerEntry",
    "LedgerError",
    "LedgerLocked",
    "Ledgers",
    "LimitsConfig",
    "Overlay",
    "OverlayRefused",
    "Overloaded",
    "PromptGateway",
    "PromptRequest",
    "PromptResponse",
    "ProvenanceError",
    "Provider",
    "ProviderConfig",
    "ProviderError",
    "QualityGate",
    "QualityGateResult",
    "Ref",
    "ReplayDivergence",
    "ReplayReport",
    "Route",
    "RouterConfig",
    "Runtime",
    "RuntimeConfig",
    "SessionBusy",
    "SessionEnded",
    "SessionManager",
    "SessionMismatch",
    "SignalAccumulator",
    "SubjectErased",
    "TextDelta",
    "TextRetracted",
    "TokenBudgeter",
    "ToolCall",
    "ToolRan",
    "TurnCompleted",
    "TurnError",
    "TurnReplaced",
    "TurnResult",
    "TurnTimeout",
    "TurnUpdate",
    "UnknownArtifact",
    "UnknownSession",
    "UnknownSubject",
    "Usage",
    "WorkOrder",
    "WorkOrderFinished",
    "WorkOrderPlanned",
    "compute_artifact_id",
    "compute_trace_hash",
    "erase_subject",
    "open_runtime",
    "replay_session",
    "select_biases",
    "tool",
    "tune_gc",
]
"""What `kitchener` exports. A name is added or removed here in the same change, with a line in the changelog."""

TESTED_ELSEWHERE = {
    "actors/turn": "a turn is seen from outside: tests/acceptance",
    "replaying": "tests/replay",
}
"""Folders of the source whose tests stand in a folder of another name, and where."""

UNLISTED_DIRECTORIES = {".git", ".venv", "__pycache__", "build", "dist", "node_modules"}

# Put together at run time, so that this file does not contain them.
FORBIDDEN = {
    "the host of a package registry": re.compile(
        "|".join(
            re.escape(".".join(parts))
            for parts in [
                ("pypi", "org"),
                ("pypi", "python", "org"),
                ("pythonhosted", "org"),
                ("npmjs", "org"),
                ("npmjs", "com"),
                ("yarnpkg", "com"),
                ("crates", "io"),
            ]
        )
    ),
    "a path of somebody's machine": re.compile(r"(?<![\w.})])/" + r"(?:work|opt/pypi)" + r"/"),
    "a path out of the repository": re.compile(re.escape("../") + r"(?:shared|work)\b"),
}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def repository_files() -> Iterator[Path]:
    """Yield what is or could be committed; without git, everything but environments, caches and build results."""
    try:
        listing = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        for directory, names, files in os.walk(ROOT):
            names[:] = [n for n in names if n not in UNLISTED_DIRECTORIES and not n.endswith(("_cache", ".egg-info"))]
            yield from (Path(directory, file) for file in files)
    else:
        paths = (ROOT / os.fsdecode(name) for name in listing.split(b"\0") if name)
        yield from (path for path in paths if path.is_file())


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def modules(folder: Path) -> list[Path]:
    return [path for path in folder.glob("*.py") if path.name != "__init__.py"]


def test_every_public_name_resolves_and_is_listed_once_and_in_order() -> None:
    names = list(kitchener.__all__)
    assert [name for name in names if not hasattr(kitchener, name)] == []
    # The order in which ruff keeps `__all__`: constants, then classes, then functions.
    assert names == sorted(set(names), key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def test_the_public_surface_is_the_pinned_one() -> None:
    assert sorted(kitchener.__all__) == sorted(PUBLIC_NAMES)


def test_type_checkers_are_told_the_same_names_as_programs() -> None:
    """`__init__.pyi` has the names; `__init__.py` reads them there, and imports each when it is first asked for."""
    stub = ast.parse(PUBLIC_STUB.read_text(encoding="utf-8"))
    told = {name.name: each.module for each in stub.body if isinstance(each, ast.ImportFrom) for name in each.names}
    assert sorted(told) == sorted(PUBLIC_NAMES)
    for name, module in told.items():
        assert module is not None
        assert getattr(kitchener, name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        kitchener.Nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_of_the_repository_names(what: str) -> None:
    pattern = FORBIDDEN[what]
    found = [
        f"{relative(path)}:{number}: {line.strip()[:100]}"
        for path in repository_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == [], f"these lines name {what}"


def test_source_files_stay_short_enough_to_read_in_one_go() -> None:
    lengths = {relative(path): len(path.read_text(encoding="utf-8").splitlines()) for path in SOURCES}
    assert {path: length for path, length in lengths.items() if length >= MAX_FILE_LINES} == {}


def test_functions_fit_on_a_screen() -> None:
    lengths = {
        f"{relative(path)}:{function.lineno} {function.name}": (function.end_lineno or 0) - function.lineno + 1
        for path in SOURCES
        for function in functions(path)
    }
    assert {where: length for where, length in lengths.items() if length >= MAX_FUNCTION_LINES} == {}


def test_nothing_in_the_source_is_left_to_do() -> None:
    unfinished = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b")
    found = [
        f"{relative(path)}:{number}: {line.strip()[:100]}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if unfinished.search(line)
    ]
    assert found == []


def test_tests_stand_in_a_folder_of_the_name_that_the_source_has() -> None:
    """A folder of more than two modules has tests of its own, or says where they are."""
    package, tests = ROOT / "src" / "kitchener", ROOT / "tests"
    folders = (folder.relative_to(package).as_posix() for folder in package.rglob("*") if len(modules(folder)) > 2)
    assert {folder for folder in folders if not any((tests / folder).glob("test_*.py"))} == TESTED_ELSEWHERE.keys()


def test_no_folder_of_tests_is_named_after_source_that_has_gone() -> None:
    package, tests = ROOT / "src" / "kitchener", ROOT / "tests"
    found = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    rooms = {folder.name for folder in package.iterdir() if folder.is_dir()}
    below = (folder.as_posix() for folder in found if folder.parts[:1] and folder.parts[0] in rooms)
    assert [folder for folder in below if not (package / folder).is_dir()] == []
