"""Telemetry runs if it is asked for, and not otherwise (docs/telemetry.md)."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kitchener.config import TelemetryConfig
from kitchener.errors import ConfigError
from kitchener.logs import FIELDS
from kitchener.runtime import open_runtime
from tests.acceptance.stack import open_scripted, read_all, scripted_config
from tests.telemetry.watch import Watch

UNASKED = """
import sys, anyio
from kitchener import open_runtime
async def main():
    async with open_runtime() as runtime:
        await runtime.supervisor().handle_turn("hello")
anyio.run(main)
print([each for each in sys.modules if each.startswith(("kitchener.telemetry.observ", "kitchener.telemetry.spans"))])
"""


def test_a_runtime_that_is_not_asked_imports_nothing_of_it(tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", UNASKED], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_the_command_of_the_page_hands_its_options_to_kitchener(tmp_path: Path) -> None:
    """`opentelemetry-instrument` takes some of them for abbreviations of its own, unless it is told where they end."""
    page = (Path(__file__).parents[2] / "docs/telemetry.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"^\$ OTEL.* opentelemetry-instrument (.*) kitchener (.*)$", page, re.MULTILINE)
    (tmp_path / "kitchener").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "kitchener").chmod(0o700)
    instrument = Path(sys.executable).parent / "opentelemetry-instrument"
    command = [instrument, *found[0].split(), tmp_path / "kitchener", *found[1].split()]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (run.stdout, "--config" in run.stdout) == (f"{found[1]}\n", True)


async def test_without_the_library_the_setting_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith("kitchener.telemetry.") or each == "opentelemetry"]:
        if name.rpartition(".")[2] not in ("chosen_telemetry", "port"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    settings = scripted_config(tmp_path).model_copy(update={"telemetry": TelemetryConfig(traces=True)})
    with pytest.raises(ConfigError, match=r"telemetry\.traces = true.*kitchener\[otel\]"):
        async with open_runtime(settings):
            pytest.fail("it opened")


async def test_a_runtime_that_is_closed_has_left_nothing_in_the_log(tmp_path: Path) -> None:
    before = list(FIELDS)
    async with open_scripted(tmp_path, telemetry=Watch().telemetry):
        assert len(FIELDS) == len(before) + 1
    assert before == FIELDS


async def test_nothing_of_it_is_on_record(tmp_path: Path) -> None:
    """The files of two runtimes, one of which tells everything, have the same entries but for ids and times."""
    kinds = []
    for name, telemetry in (("with", Watch().telemetry), ("without", None)):
        async with open_scripted(tmp_path / name, telemetry=telemetry) as runtime:
            await runtime.supervisor().handle_turn("hello", subject_id="ada")
            ledgers = runtime.ledgers()
            entries = [*await read_all(ledgers.ho1m), *await read_all(ledgers.ho2m)]
            kinds.append([(each.entry_type, sorted(each.payload)) for each in entries])
    assert kinds[0] == kinds[1]
