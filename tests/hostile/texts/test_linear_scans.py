"""Whatever a user, a model or a file says, reading it takes work in proportion to its length."""

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import kitchener
from tests.hostile.texts.linear_scans import (
    EXPRESSIONS,
    FRAMES,
    REACHED,
    SAMPLE,
    SCANS,
    UNITS,
    UNITS_ONE_IN,
    Scan,
    cases_of,
    offenders,
)
from tests.hostile.texts.text_functions import NOT_MEASURED, functions, is_scan, text_functions

SOURCE = Path(kitchener.__file__).parent
HAS_HIDDEN_COSTS = frozenset(("difflib", "unicodedata", "fnmatch"))
TAKES_MORE_THAN_IT_SEEMS = {
    "kitchener.actors.tools.approval_policy": ("fnmatch", "a tool's name and a pattern"),
    "kitchener.actors.tools.call_limits": ("fnmatch", "a tool's name and a pattern"),
    "kitchener.cli.config.init": ("difflib", "a provider's name"),
    "kitchener.cli.ledger.ledger": ("difflib", "a type of entries"),
    "kitchener.cli.usage": ("difflib", "a command that does not exist"),
    "kitchener.config.settings_parser": ("difflib", "a key that does not exist"),
    "kitchener.context.lexical.words": ("unicodedata", "words"),
    "kitchener.gateway.providers.library.vendors": ("difflib", "a vendor"),
    "kitchener.mcp.definitions": ("fnmatch", "a tool of a server"),
    "kitchener.memory.learned_lines": ("unicodedata", "tidy a line"),
    "kitchener.replaying.comparison": ("difflib", "diff of sources"),
    "kitchener.runtime.setting_checks": ("difflib", "an agent class"),
    "kitchener.runtime.tools.connected_servers": ("fnmatch", "a tool's name and a pattern"),
    "kitchener.serve.chat_completions.utility_calls": ("fnmatch", "a client's prompt for a title"),
}
"""Modules of libraries whose work may grow with the square of a text, who uses them, and the scan that measures it."""


GROUPS = (*SCANS, EXPRESSIONS)


@pytest.mark.timeout(300)
def test_eight_times_the_text_takes_about_eight_times_the_work() -> None:
    """Measured in processor time of a process of its own: nothing counts the steps of an expression."""
    check_is_linear(SAMPLE, *GROUPS)


@pytest.mark.soak
@pytest.mark.parametrize("group", GROUPS)
def test_it_does_so_in_every_frame(group: str) -> None:
    """The long run: each frame with each unit, also of scans of which a sample has a third of the units."""
    check_is_linear(group)


def check_is_linear(*arguments: str) -> None:
    """Measures in a process of its own, which finds nothing."""
    command = [sys.executable, "-m", "tests.hostile.texts.linear_scans", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3], check=False)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"it ended while it measured {said[-1:]}: {done.stderr[-2_000:]}"
    assert [each for each in said if "ratio" in each] == []
    assert said[-1]["cases"] > 500


def test_a_sample_has_each_frame_of_every_scan_and_each_unit_in_many() -> None:
    """A scan of few units has each of them; of many it has a third, and another scan another third."""
    met = Counter[str]()
    for scan in (each for scans in SCANS.values() for each in scans):
        cases = cases_of(scan, is_sample=True)
        assert {frame for frame, _ in cases} == {*scan.frames}
        units = {unit for _, unit in cases}
        assert units == {*scan.units} or len(units) >= len(scan.units) // UNITS_ONE_IN >= 20
        met.update(units)
    assert min(met[unit] for unit in UNITS) >= 20


WIDE = "\U0001f600"
"""A character that takes four bytes, whose copies take measurable time."""


def _backtracks(text: str) -> None:
    re.search("a+b", text)


def _searches_a_list(text: str) -> None:
    seen: list[int] = []
    for at in range(0, len(text), 4):
        if at not in seen:
            seen.append(at)


def _slices_again_and_again(text: str) -> None:
    while text:
        text = text[1:].lower()


def _puts_in_front(text: str) -> None:
    turned = ""
    for char in text:
        turned = (char + turned).lower()


def _searches_again_and_again(text: str) -> None:
    for at in range(0, len(text), 2):
        text.find("ab", at)


def _sums_up_behind_a_fixed_cost(text: str) -> None:
    sum(range(20_000))
    for at in range(0, len(text), 8):
        sum(map(len, text[:at]))


@pytest.mark.parametrize(
    ("call", "unit", "chars"),
    [
        (_backtracks, "a", 1_000),
        (_searches_a_list, "a", 1_000),
        (_slices_again_and_again, WIDE, 500),
        (_puts_in_front, WIDE, 500),
        (_searches_again_and_again, "a", 1_000),
        (_sums_up_behind_a_fixed_cost, "a", 1_000),
    ],
)
def test_a_sample_finds_what_is_quadratic(call: Callable[[str], None], unit: str, chars: int) -> None:
    """A sample measures shorter texts first, which must leave none of these aside, unless a busy machine disturbs it."""
    scan = Scan("quadratic", call, FRAMES[:1], chars, (unit,))
    assert any([*offenders(scan, is_sample=True)] for _ in range(3))


@pytest.mark.soak
def test_each_function_that_scans_a_text_is_measured() -> None:
    """What takes a text, and loops over it or searches it, gets a long one from a scan, or says why it need not."""
    command = [sys.executable, "-m", "tests.hostile.texts.linear_scans", REACHED]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[3], check=False)
    assert done.returncode == 0, done.stderr[-2_000:]
    measured, found = set(json.loads(done.stdout)), set(text_functions())
    assert len(found) > 80
    assert sorted(found - measured - NOT_MEASURED.keys()) == []
    assert sorted(NOT_MEASURED.keys() - (found - measured)) == []


@pytest.mark.parametrize(
    ("source", "is_found"),
    [
        ("def f(text: str):\n    return [each for each in text]", True),
        ("def f(text: str | None):\n    parts = text.split()\n    for part in parts: pass", True),
        ("def f(self, data: bytes):\n    self.held += data\n    while self.held: del self.held[0]", True),
        ("def f(text: str, wanted: list[str]):\n    return [text.find(each) for each in wanted]", True),
        ("async def f(text: str, rest: str):\n    for _ in range(9): rest = text[1:] + rest", True),
        ("def f(text: str):\n    return _EXPRESSION.search(text)", True),
        ("def f(read: ReadBytes):\n    while piece := read(1, 2): pass", True),
        ("def f(text: str):\n    return text.split()[0]", False),
        ("def f(session_id: str):\n    return [each for each in session_id]", False),
        ("def f(number: int):\n    return [each for each in range(number)]", False),
    ],
)
def test_the_rule_knows_a_scan_when_it_sees_one(source: str, *, is_found: bool) -> None:
    assert [name for name, function in functions(ast.parse(source)) if is_scan(function)] == ["f"] * is_found


def test_each_expression_is_compiled_where_it_is_measured() -> None:
    """At the top of a module, under a name: all of these are found and measured, so that no new one slips by."""
    found = []
    for path in SOURCE.rglob("*.py"):
        if path.name == "redaction.py":  # alternatives of literal keys, which no text makes backtrack
            continue
        source = path.read_text("utf-8")
        if not re.search(r"\bre\b", source):
            continue
        tree = ast.parse(source)
        named = {id(each) for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) for each in ast.walk(node)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module == "re":
                found.append(f"{path.name}:{node.lineno}: from re import")
            if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name) or node.value.id != "re":
                continue
            if node.attr.islower() and not (id(node) in named and node.attr == "compile"):
                found.append(f"{path.name}:{node.lineno}: re.{node.attr}")
    assert found == []


def test_whoever_uses_a_library_of_hidden_costs_is_measured() -> None:
    found: dict[str, str] = {}
    for path in SOURCE.rglob("*.py"):
        name = ".".join(("kitchener", *path.relative_to(SOURCE).with_suffix("").parts))
        source = path.read_text("utf-8")
        if not any(library in source for library in HAS_HIDDEN_COSTS):
            continue
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imported = {each.name for each in node.names} if isinstance(node, ast.Import) else {node.module or ""}
                for library in imported & HAS_HIDDEN_COSTS:
                    found[name] = library
    measured = {scan.name for scans in SCANS.values() for scan in scans}
    assert found == {name: library for name, (library, _) in TAKES_MORE_THAN_IT_SEEMS.items()}
    assert {scan for _, scan in TAKES_MORE_THAN_IT_SEEMS.values()} <= measured
