"""One code base, many agent classes: each gets its own template, its own ledgers, and nothing of another's."""

from pathlib import Path

import pytest

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.errors import CallerError
from tests.acceptance.conftest import OpenRuntime
from tests.acceptance.stack import read_all


async def test_factory_admin_config(scripted: OpenRuntime, tmp_path: Path) -> None:
    """ADMIN: served by its own template, recorded under its own path, with the settings of its table."""
    async with scripted(instructions="You look after this machine.") as runtime:
        supervisor = runtime.supervisor("ADMIN")
        assert isinstance(supervisor, HO2Supervisor)
        assert runtime.supervisor("ADMIN") is supervisor
        assert (supervisor.agent_class, supervisor.config.instructions) == ("ADMIN", "You look after this machine.")
        assert supervisor.attention.template_id == "ATT-ADMIN-001"
        result = await supervisor.handle_turn("hello")
        assert (runtime.ledgers("ADMIN").ho2m.path, runtime.ledgers("ADMIN").ho2m.ledger_id) == (
            tmp_path / "HO2" / "ADMIN" / "ho2m.jsonl",
            "HO2M:ADMIN",
        )
    assert result.session_id in (tmp_path / "HO2" / "ADMIN" / "ho2m.jsonl").read_text()


async def test_factory_resident_config(scripted: OpenRuntime, tmp_path: Path) -> None:
    """RESIDENT:bo: the default template, and ledgers of its own."""
    async with scripted(agents={"RESIDENT:bo": {"instructions": "You are Bo."}}) as runtime:
        supervisor = runtime.supervisor("RESIDENT:bo")
        assert (supervisor.agent_class, supervisor.config.instructions) == ("RESIDENT:bo", "You are Bo.")
        assert supervisor.attention.template_id == "ATT-DEFAULT-001"
        result = await supervisor.handle_turn("hello")
        assert runtime.ledgers("RESIDENT:bo").ho2m.ledger_id == "HO2M:RESIDENT%3Abo"
    recorded = (tmp_path / "HO2" / "RESIDENT%3Abo" / "ho2m.jsonl").read_text()
    assert result.session_id in recorded
    assert (tmp_path / "HO1" / "RESIDENT%3Abo" / "ho1m.jsonl").exists()


async def test_factory_isolated_ho2m(scripted: OpenRuntime) -> None:
    """Two stacks of one runtime talk in turn; no entry of one is in a ledger of the other."""
    async with scripted(agents={"RESIDENT:bo": {}, "RESIDENT:cy": {}}) as runtime:
        sessions: dict[str, set[str]] = {"ADMIN": set(), "RESIDENT:bo": set(), "RESIDENT:cy": set()}
        for n in range(2):
            for agent_class, known in sessions.items():
                known.add((await runtime.supervisor(agent_class).handle_turn(f"message {n}")).session_id)
        for agent_class, known in sessions.items():
            ledgers = runtime.ledgers(agent_class)
            for ledger in (ledgers.ho2m, ledgers.ho1m):
                entries = await read_all(ledger)
                assert {entry.payload["session_id"] for entry in entries} == known
                assert all(agent_class.replace(":", "%3A") in ledger_id for ledger_id in {e.ledger_id for e in entries})


@pytest.mark.parametrize("wrong", ["default", "RESIDENT:", "a b", "", "RESIDENT:a/b", "RESIDENT:a|b", "..", "x" * 65])
async def test_a_wrong_agent_class_is_a_callers_error(scripted: OpenRuntime, wrong: str) -> None:
    """What is no name of a class is refused by name, and leaves nothing behind."""
    async with scripted() as runtime:
        with pytest.raises(CallerError, match="RESIDENT:<name>"):
            runtime.supervisor(wrong)
