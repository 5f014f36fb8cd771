"""The examples whose agents act: their stories on trio, their settings, and what their READMEs say to type."""

import importlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest

from examples.git_historian.main import make_repository
from kitchener.records.turn import TurnResult
from kitchener.runtime import load_config, open_runtime
from kitchener.runtime.setting_checks import check_config
from tests.cli.shared.commands import environment, finish, start

EXAMPLES = Path(__file__).parents[2] / "examples"
AGENTS = {
    "file_assistant": ("ASSISTANT", "I need your approval"),
    "git_historian": ("HISTORIAN", "HEAD is v0.0.1 now"),
    "support_desk": ("FRONT", "I need your approval"),
}
"""Of each example the agent that people talk with, and what it answers to the last line of the README."""


@pytest.fixture(params=AGENTS)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """An example, whose modules are found beside its settings as the commands find them."""
    monkeypatch.syspath_prepend(str(EXAMPLES / request.param))
    monkeypatch.setenv("HISTORIAN_REPOSITORY", str(make_repository(tmp_path / "work")))
    if request.param == "support_desk":
        monkeypatch.setitem(importlib.import_module("invoices").INVOICES["4711"], "state", "paid twice")
    return str(request.param)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=[pytest.mark.soak] if each == "file_assistant" else []) for each in AGENTS], indirect=True
)
def test_the_story_of_an_example_holds_on_trio_too(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On asyncio it runs in a process of its own, in `test_examples.py`.

    `make soak` adds the one whose server loads the library of MCP in each of three processes.
    """
    story: Callable[[Path], Coroutine[Any, Any, None]] = importlib.import_module(f"examples.{name}.main").main
    (tmp_path / "home").mkdir()
    anyio.run(story, tmp_path / "home", backend="trio")
    told = capsys.readouterr().out
    assert "identical" in told
    assert "changed since" not in told


def with_all_alternatives(settings: str) -> str:
    """Settings of which the comments that are settings are in force, each in place of the same key of its table."""
    lines = list[str]()
    for line in settings.splitlines():
        commented = re.match(r"# ((\w+) = .*|\[.*\])$", line)
        if commented is not None and commented[2]:
            table = max(at for at, each in enumerate(lines) if each.startswith("["))
            lines[table:] = [each for each in lines[table:] if not each.startswith(f"{commented[2]} = ")]
        lines.append(line if commented is None else commented[1])
    return "\n".join(lines)


def test_the_settings_of_an_example_and_what_stands_there_as_comments_are_right(name: str, tmp_path: Path) -> None:
    """A real model is one setting away, also in the environment."""
    file = EXAMPLES / name / "kitchener.toml"
    check_config(load_config(file, root=tmp_path, environ={"KITCHENER_ROUTER__DEFAULT_PROVIDER": "ollama"}).config)
    changed = tmp_path / "kitchener.toml"
    changed.write_text(with_all_alternatives(file.read_text(encoding="utf-8")), encoding="utf-8")
    config = load_config(changed, overrides={"router": {"default_provider": "openai"}}).config
    check_config(config, environ={"OPENAI_API_KEY": "a key"})
    shipped = load_config(file).config
    assert shipped.router.default_provider == "offline"
    assert (config.mcp, config.agents) != (shipped.mcp, shipped.agents) or name == "support_desk"


async def typed(name: str, folder: Path) -> list[TurnResult]:
    """The results of the lines that the README says to type, with the settings of the example as they are."""
    lines = re.findall(r"^you> (.+)$", (folder / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    interpreter = {"mcp": {"files": {"command": sys.executable}}} if name == "file_assistant" else {}
    config = load_config(folder / "kitchener.toml", root=folder / "ledgers", overrides=interpreter).config
    async with open_runtime(config) as runtime:
        agent = runtime.supervisor(AGENTS[name][0])
        session_id = await agent.start_session(subject_id="ada")
        return [await agent.handle_turn(line, session_id=session_id) for line in lines]


def test_each_line_that_a_readme_says_to_type_makes_the_offline_model_use_a_tool(name: str, tmp_path: Path) -> None:
    results = anyio.run(typed, name, shutil.copytree(EXAMPLES / name, tmp_path / "example"))
    for result in results:
        assert result.error is None
        assert result.cost_summary["tool_calls"] >= 1 or result.pending_approval, result.response
        assert "failed" not in result.response
    assert AGENTS[name][1] in results[-1].response


def test_a_file_is_written_by_the_process_in_which_a_person_allows_it(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES / "file_assistant", tmp_path / "example")
    env = environment(PATH=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))
    asked = finish(start("chat", cwd=folder, env=env), 'write a file "todo.txt" with "call the plumber"\n')
    (row,) = finish(start("approval", "list", "--json", cwd=folder, env=env)).json
    assert row["approval_id"] in asked.out
    assert not (folder / "documents" / "todo.txt").exists()
    assert finish(start("approval", "approve", row["approval_id"], cwd=folder, env=env)).code == 0
    assert (folder / "documents" / "todo.txt").read_text(encoding="utf-8") == "call the plumber"
    assert finish(start("replay", "last", cwd=folder, env=env)).code == 0
    assert finish(start("ledger", "verify", cwd=folder, env=env)).code == 0
