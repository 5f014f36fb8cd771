"""docs/security.md promises nothing that no test attacks: every test that it names exists."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def _tests_of(path: Path, *mentioned: str) -> set[str]:
    """The tests of a file; none if it has none of the words, which is seen without parsing it."""
    text = path.read_text(encoding="utf-8")
    if mentioned and not any(word in text for word in mentioned):
        return set()
    return {
        node.name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
    }


def test_every_promise_names_a_test_that_exists() -> None:
    named = re.findall(r"`(?:(tests/[\w/]+\.py)(?:::)?)?(test_\w+)?`", PAGE)
    found = [(path, name) for path, name in named if path or name]
    names = [name for _, name in found if name]
    stories = {name for path in (ROOT / "tests").rglob("test_*.py") for name in _tests_of(path, *names)}
    assert len(found) > 40
    missing = [
        name or path
        for path, name in found
        if (path and not (ROOT / path).exists()) or (name and name not in (_tests_of(ROOT / path) if path else stories))
    ]
    assert missing == []


def test_every_promise_has_its_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| cannot")]
    assert len(rows) > 25
    assert [row for row in rows if "test" not in row.rsplit("|", 2)[1]] == []
