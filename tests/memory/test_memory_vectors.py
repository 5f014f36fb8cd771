"""The memory's arithmetic, held to numbers that were worked out elsewhere (tests/vectors)."""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kitchener.memory import compute_artifact_id, gate_window_key, select_biases
from kitchener.memory.signals import decay
from kitchener.memory.timestamps import HOUR_US, us_of
from tests.memory.shared.kit import SetClock, open_memory


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop is enough: what the memory knows does not depend on it."""
    return "trio"


VECTORS = Path(__file__).parent.parent / "vectors"


def vectors(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((VECTORS / f"{name}.json").read_text())
    assert found
    return found


@pytest.mark.parametrize("vector", vectors("artifact_ids"), ids=lambda vector: vector["artifact_id"])
def test_artifact_ids(vector: dict[str, Any]) -> None:
    key = gate_window_key(vector["window_end"], vector["gate_window_hours"])
    assert key == vector["gate_window_key"]
    made = compute_artifact_id(vector["source_signal_ids"], key, vector["model"], vector["prompt_pack_version"])
    assert made == vector["artifact_id"]


@pytest.mark.parametrize("vector", vectors("decay"))
def test_decay(vector: dict[str, Any]) -> None:
    hours = (us_of(vector["as_of"], "as_of") - us_of(vector["last_seen"], "last_seen")) / HOUR_US
    assert f"{decay(hours, vector['half_life_hours']):.12g}" == f"{vector['decay']:.12g}"


@pytest.mark.parametrize("vector", vectors("decay"))
async def test_decay_of_what_was_logged(tmp_path: Path, vector: dict[str, Any]) -> None:
    clock = SetClock(us_of(vector["last_seen"], "last_seen"))
    async with open_memory(tmp_path, clock, decay_half_life_hours=vector["half_life_hours"]) as memory:
        await memory.log_signal("tool:read_file", "SES-1")
        found = await memory.read_signals(as_of_ts=vector["as_of"])
    if datetime.fromisoformat(vector["as_of"]) < datetime.fromisoformat(vector["last_seen"]):
        assert found == [], "it was not there yet"
    else:
        assert [f"{each.decay:.12g}" for each in found] == [f"{vector['decay']:.12g}"]


@pytest.mark.parametrize("vector", vectors("bias_selection"))
def test_bias_selection(vector: dict[str, Any]) -> None:
    arguments = vector["turn_labels"], vector["ho3_bias_budget"], vector["as_of_ts"]
    for artifacts in (vector["artifacts"], vector["artifacts"][::-1]):
        chosen = select_biases(artifacts, *arguments)
        assert [each.get("artifact_id") or each["overlay_id"] for each in chosen] == vector["selected"]
