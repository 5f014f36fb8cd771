"""Changing a line of policy code is caught by replay: simple mutants of the pure modules, replayed over a recorded root.

`make soak` tries a large sample of all. Figures are in `docs/replay.md`.
"""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.replay.mutated.mutants import mutants_of
from tests.replay.mutated.mutation_run import NO_POLICY, POLICY

ROOT = Path(__file__).parents[3]


def test_every_pure_module_is_mutated() -> None:
    """What is named pure in pyproject.toml, or stands in `context`, is tried or left out for a reason."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    pure = next(each["source_modules"] for each in tools["importlinter"]["contracts"] if each["id"] == "pure")
    package = ROOT / "src/kitchener"
    files = (package / "context").rglob("*.py")
    context = {".".join(path.relative_to(package).with_suffix("").parts) for path in files if path.stem != "__init__"}
    assert {each.removeprefix("kitchener.") for each in pure} | context <= set(POLICY) | NO_POLICY.keys()
    assert set(POLICY).isdisjoint(NO_POLICY)


def test_mutants_of_a_function() -> None:
    """One change each: comparisons, constants, conditions, operators, results, statements; texts of errors are left alone."""
    source = '''
LIMIT = 3
NAME = "left alone"

@cache
def chosen(items: list[str], most: int = 5) -> list[str]:
    """Left alone."""
    found = [each for each in items if each != "x"]
    if len(found) + 1 < most and not found:
        found.sort()
        raise ValueError("left alone")
    return found
'''
    tree = ast.parse(source)
    found = mutants_of(tree)
    assert [(each.line, each.kind) for each in found] == [
        (2, "constant"),
        (6, "constant"),
        (8, "condition"),
        (8, "comparison"),
        (8, "constant"),
        (9, "condition"),
        (9, "condition"),
        (9, "comparison"),
        (9, "comparison"),
        (9, "operator"),
        (9, "constant"),
        (9, "condition"),
        (10, "statement"),
        (12, "result"),
    ]
    assert {each.function for each in found} == {0, 5}
    texts = {ast.unparse(each.applied(tree)) for each in found}
    assert len(texts) == len(found)
    assert ast.unparse(tree) not in texts


@pytest.mark.soak
def test_most_mutants_are_caught(recorded_root: Path) -> None:
    """A sample of all mutants, fixed for one text of the code: most of those that a recorded session reaches are told.

    Samples of three versions of the code had 64, 68 and 72 %.
    """
    script = "import sys; from tests.replay.mutated.mutation_run import share_caught; print(share_caught(sys.argv[1], 600))"
    run = subprocess.run(
        [sys.executable, "-c", script, str(recorded_root)], cwd=ROOT, capture_output=True, text=True, timeout=3_000, check=False
    )
    assert run.returncode == 0, run.stderr
    assert float(run.stdout.splitlines()[-1]) > 0.6
