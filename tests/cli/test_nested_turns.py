"""Turns that tools ran in other sessions, as the commands show and replay them."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import open_runtime
from kitchener.records.prompt import PromptRequest, ToolUse
from kitchener.testing import ScriptedProvider
from tests.cli.conftest import Cli

SETTINGS = """plane_root = "root"
[router]
default_provider = "scripted"
[router.providers.scripted]
kind = "offline"
[agents.ADMIN]
classify = "off"
tools = ["agent:RESEARCHER"]
[agents.RESEARCHER]
classify = "off"
tools = ["agent:CLERK"]
[agents.CLERK]
classify = "off"
"""


def _model(request: PromptRequest) -> Any:
    if request.tools and request.messages[-1].role != "tool":
        return ToolUse("u1", request.tools[0].tool_id, {"message": "roses"})
    return "done"


@pytest.fixture
def asked(cli: Cli, tmp_path: Path) -> tuple[Cli, str]:
    """The command line, and a session whose agent asked another one, which asked a third one."""
    (tmp_path / "kitchener.toml").write_text(SETTINGS, encoding="utf-8")

    async def record() -> str:
        async with open_runtime(tmp_path / "kitchener.toml", providers={"scripted": ScriptedProvider(_model)}) as runtime:
            return (await runtime.supervisor().handle_turn("roses")).session_id

    return cli, anyio.run(record)


def nested(cli: Cli, session_id: str) -> list[dict[str, str]]:
    (turn,) = cli("session", "show", session_id, "--json").json["turns"]
    found: list[dict[str, str]] = turn["nested_turns"]
    return found


def test_a_session_and_a_turn_name_the_turns_that_their_tools_ran(asked: tuple[Cli, str]) -> None:
    cli, session_id = asked
    (turn,) = nested(cli, session_id)
    assert turn["agent_class"] == "RESEARCHER"
    line = f"a tool ran {turn['turn_id']} in {turn['session_id']} of RESEARCHER"
    assert line in cli("session", "show", session_id).out
    explained = cli("context", "explain", f"T-{session_id[4:]}-000001")
    assert line in explained.out
    (further,) = nested(cli, turn["session_id"])
    assert further["agent_class"] == "CLERK"
    assert nested(cli, further["session_id"]) == []


def test_a_replay_says_which_sessions_belong_to_it_and_replays_them_if_asked(asked: tuple[Cli, str]) -> None:
    cli, session_id = asked
    alone = cli("replay", session_id)
    (turn,) = nested(cli, session_id)
    assert alone.code == 0
    assert f"its tools ran turns in {turn['session_id']} of RESEARCHER; --nested replays these too" in alone.out
    assert alone.out.count(" identical, ") == 1
    together = cli("replay", session_id, "--nested")
    assert together.code == 0
    assert together.out.count(" identical, 1 turn") == 3
    assert "3 sessions, 3 turns identical" in together.out
    found = cli("replay", session_id, "--nested", "--json").json["sessions"]
    assert [each["agent_class"] for each in found] == ["ADMIN", "RESEARCHER", "CLERK"]


def test_a_nested_session_that_diverges_fails_the_replay_that_includes_it(asked: tuple[Cli, str], tmp_path: Path) -> None:
    cli, session_id = asked
    changed = SETTINGS.replace("[agents.CLERK]", '[agents.CLERK]\ninstructions = "Be kind."')
    (tmp_path / "kitchener.toml").write_text(changed, encoding="utf-8")
    assert cli("replay", session_id).code == 0
    assert cli("replay", session_id, "--nested").code == 5
