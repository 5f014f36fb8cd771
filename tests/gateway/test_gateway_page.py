"""Every Python block of the gateway's page is a script that runs."""

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest

from kitchener.config import RuntimeConfig
from kitchener.config.router import ProviderKind
from kitchener.gateway.routing import check_router

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gateway.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_of_the_page_runs_and_its_claims_hold(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # its ledgers go to ./.kitchener
    code = compile(BLOCKS[number], f"{PAGE.name}#{number}", "exec")
    exec(code, {"__name__": "__main__"})


def test_the_settings_of_the_page_are_valid() -> None:
    found = re.findall(r"^```toml\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    settings = [RuntimeConfig.model_validate(tomllib.loads(toml)) for toml in found]
    assert len(settings) > 1
    for each in settings:
        check_router(each.router)


def test_the_table_of_providers_lists_every_kind_and_no_other() -> None:
    table = PAGE.read_text(encoding="utf-8").partition("| kind | for | needs |\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| \[`(\w+)`\]", table, re.MULTILINE)) == set(get_args(ProviderKind))
