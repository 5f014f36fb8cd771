"""A turn whose prompt begins differently than the one before says so, with the cause, wherever a user looks."""

from pathlib import Path

import anyio

from kitchener import HO2Config, RuntimeConfig, open_runtime
from kitchener.config import RouterConfig
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo
from tests.cli.conftest import Cli

TOLD = "no cache could serve what the prompt before began with: "


def talk(root: Path, said: str, session_id: str | None = None, **settings: str) -> str:
    """One turn of ada."""

    async def turn() -> str:
        agents = {"ADMIN": HO2Config(**settings)}  # type: ignore[arg-type]  # texts only
        config = RuntimeConfig(plane_root=str(root), router=RouterConfig(default_provider="far"), agents=agents)
        async with open_runtime(config, providers={"far": ScriptedProvider(echo)}) as runtime:
            supervisor = runtime.supervisor("ADMIN")
            found = session_id or await supervisor.start_session(subject_id="ada")
            await supervisor.handle_turn(said, session_id=found)
            return found

    return anyio.run(turn)


def test_a_break_and_its_cause_are_shown(cli: Cli, tmp_path: Path) -> None:
    root = tmp_path / ".kitchener"
    session_id = talk(root, "Is it open?")
    talk(root, "And now?", session_id)
    talk(root, "And today?", session_id, model="scripted-2", instructions="Be brief.")
    turns = cli("session", "show", session_id, "--json").json["turns"]
    assert [each["prefix_break"] for each in turns] == [None, [], ["model", "instructions"]]
    text = cli("session", "show", session_id).out
    causes = f"{TOLD}another model; the instructions, standing rules or criteria changed"
    assert (text.count(causes), text.count(TOLD)) == (1, 1)
    last = turns[-1]["turn_id"]
    assert cli("context", "explain", last, "--json").json["prefix_break"] == ["model", "instructions"]
    assert causes in cli("context", "explain", last).out
    assert causes in cli("chat", "--session", session_id, stdin=b"/why\n").out
    assert TOLD not in cli("context", "explain", turns[1]["turn_id"]).out
