"""A turn knows what it did and reads nothing of it back: to open a sealed value again took 6 % of a turn's processor time."""

from pathlib import Path
from typing import Any

import pytest

from kitchener.config import LedgerConfig
from kitchener.runtime import open_runtime
from kitchener.sealing.sealer import Sealer
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUESTION, scripted_config

PLAIN: dict[str, Any] = {}
REMEMBERING: dict[str, Any] = {"context_mode": "enforce", "ho3_enabled": True}
BY_RULES: dict[str, Any] = {**REMEMBERING, "classify": "rules", "intent_mode": "classified"}


@pytest.mark.parametrize("settings", [PLAIN, REMEMBERING, BY_RULES], ids=["plain", "remembering", "by_rules"])
async def test_a_turn_opens_no_sealed_value(tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    opened, open_value = list[str](), Sealer.open

    def noting(self: Sealer, ledger_id: str, entry_type: str, payload: dict[str, object]) -> dict[str, object]:
        opened.append(f"{entry_type} of {ledger_id}")
        return open_value(self, ledger_id, entry_type, payload)

    monkeypatch.setattr(Sealer, "open", noting)
    config = scripted_config(tmp_path, ledger=LedgerConfig(durability="os", linger_ms=0), **settings)
    provider = ScriptedProvider(lambda request: QUESTION if request.wo_type == "classify" else "It is.")
    async with open_runtime(config, providers={"scripted": provider}) as runtime:
        supervisor = runtime.supervisor()
        first = await supervisor.handle_turn("Is the garden wet?", subject_id="ada")
        await supervisor.handle_turn("Is the shed dry?", session_id=first.session_id)
        await runtime.drain()
        assert opened == []
        entries = [entry async for entry in runtime.ledgers().ho2m.read(session_id=first.session_id)]
        assert "Is the shed dry?" in str([each.payload for each in entries])
    assert opened
