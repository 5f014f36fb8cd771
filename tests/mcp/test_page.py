"""docs/mcp.md: each fault has a test in this folder, and the table of settings has the names and defaults of the code."""

import re
from pathlib import Path

from kitchener.config import McpServerConfig

FOLDER = Path(__file__).parent
PAGE = (FOLDER.parents[1] / "docs" / "mcp.md").read_text(encoding="utf-8")


def test_each_fault_of_the_table_names_tests_that_exist() -> None:
    tests = {
        name for file in FOLDER.glob("test_*.py") for name in re.findall(r"def (test_\w+)", file.read_text(encoding="utf-8"))
    }
    rows = [line.rsplit("|", 2) for line in PAGE.partition("| fault |")[2].splitlines() if line.startswith("| ")]
    assert len(rows) > 12
    for fault, named, _ in rows:
        found = re.findall(r"`(test_\w+)`", named)
        assert found, fault
        assert set(found) <= tests, fault


def test_the_table_of_settings_has_each_setting_with_its_default() -> None:
    rows = [line.split(" | ") for line in PAGE.partition("| setting |")[2].partition("\n\n")[0].splitlines()[2:]]
    told = {name: default.split(", ") for names, default, *_ in rows for name in re.findall(r"`(\w+)`", names)}
    assert set(told) == set(McpServerConfig.model_fields)
    for names, default, *_ in rows:
        keys = re.findall(r"`(\w+)`", names)
        values = [McpServerConfig.model_fields[each].default for each in keys]
        if isinstance(values[0], int | float) and not isinstance(values[0], bool) and "MiB" not in default:
            assert [float(each.replace(",", "")) for each in default.split(", ")] == values, names
