"""One character of any prompt pack, contract or template of the package: told by its hash, or by a replay."""

import json
import shutil
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import pytest

from kitchener.actors.attention.templates import write_manifest
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.config import RuntimeConfig
from kitchener.errors import ConfigError, PromptError
from kitchener.replaying import open_replays
from kitchener.runtime.root_layout import settings_of
from tests.replay import corpus

ASSETS = files("kitchener.actors") / "assets"
FILES = sorted(each.name for each in (ASSETS / "prompts").iterdir() if each.name.endswith((".json", ".txt")))
PACKS = [name for name in FILES if name.startswith("PRM-")]
OF_OLD_TURNS = ("PRM-SYNTHESIZE-001.txt", "PRM-DIRECT-001.txt")
"""By these, turns replied before version 4 of the policy."""
SHOWN_BY = {"PRM-VERIFY-001.txt": "RESIDENT:ask", "PRM-DIRECT-002.txt": "RESIDENT:off"}
"""The agent class whose sessions ask with a pack; ADMIN asks with all others. HO1 breaks in a session of RESIDENT:off."""
PLACES = 24
"""Characters of each file that are changed, one at a time."""


pytestmark = pytest.mark.timeout(300)  # recording the root takes some seconds of CPU, on a busy machine many


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Recorded on asyncio; see `test_mutated_settings.py`."""
    return "trio"


def copied(to: Path, name: str) -> Path:
    """The package's files in a directory of their own."""
    with as_file(ASSETS / name) as shipped:
        shutil.copytree(shipped, to)
    return to


def test_the_package_ships_what_is_changed_here() -> None:
    """A pack or contract more is changed too."""
    assert len(PACKS) == 7
    assert len(FILES) == 2 * len(PACKS) + 1


@pytest.mark.parametrize("name", FILES)
def test_changed_character_breaks_the_hash(tmp_path: Path, name: str) -> None:
    """Nothing runs or replays with a file that is not the one of the manifest, nor with a manifest that is not the files'."""
    packs = copied(tmp_path / "packs", "prompts")
    text = (packs / name).read_text(encoding="utf-8")
    places = [at for at in range(0, len(text), max(1, len(text) // PLACES)) if text[at].isalnum()]
    assert len(places) >= PLACES // 3
    for at in places:
        (packs / name).write_text(text[:at] + ("x" if text[at] != "x" else "y") + text[at + 1 :], encoding="utf-8")
        with pytest.raises(PromptError):
            PromptLibrary.load(str(packs))


async def diverged(settings: RuntimeConfig, agent_class: str) -> Any:
    """The first divergence of the class's sessions and consolidations."""
    async with open_replays(settings, agent_class, verify=False) as replays:
        for session_id in [*await replays.sessions(), *await replays.consolidations()]:
            if (found := (await replays.replay(session_id)).divergence) is not None:
                return found
    return None


def with_agents(root: Path, **change: Any) -> RuntimeConfig:
    """The settings of the recorded root with another value for every agent class."""
    settings = settings_of(root / corpus.SETTINGS.name, None)
    agents = {name: agent.model_copy(update=change) for name, agent in settings.agents.items()}
    return settings.model_copy(update={"agents": agents})


@pytest.mark.parametrize("name", [name for name in PACKS if name not in OF_OLD_TURNS])
async def test_changed_pack_diverges(recorded_root: Path, tmp_path: Path, name: str) -> None:
    """With a manifest that fits, a pack with one other character is another pack: the request is another one."""
    packs = copied(tmp_path / "packs", "prompts")
    text = (packs / name).read_text(encoding="utf-8")
    at = next(n for n, char in enumerate(text) if char.islower())
    (packs / name).write_text(text[:at] + text[at].upper() + text[at + 1 :], encoding="utf-8")
    PromptLibrary.write_manifest(str(packs))
    found = await diverged(with_agents(recorded_root, prompt_dir=str(packs)), SHOWN_BY.get(name, "ADMIN"))
    assert (found.entry_type, found.field) == ("LLM_CALL", "request_hash")
    assert name.removesuffix(".txt") in found.stems_from


@pytest.mark.parametrize("part", ["max_tokens", "temperature", "output_schema"])
async def test_changed_contract_diverges(recorded_root: Path, tmp_path: Path, part: str) -> None:
    """With a manifest that fits, what a contract says of calls and answers is part of each request."""
    packs = copied(tmp_path / "packs", "prompts")
    path = packs / "PRC-CLASSIFY-001.json"
    contract = json.loads(path.read_text(encoding="utf-8"))
    if part == "output_schema":
        contract[part]["title"] = "another"
    else:
        contract["boundary"][part] = 1
    path.write_text(json.dumps(contract), encoding="utf-8")
    PromptLibrary.write_manifest(str(packs))
    found = await diverged(with_agents(recorded_root, prompt_dir=str(packs)), "RESIDENT:off")
    assert found is not None
    assert found.field in ("request_hash", "constraints.temperature")


async def test_changed_attention_template_diverges(recorded_root: Path, tmp_path: Path) -> None:
    """A template's bounds decide what is gathered."""
    templates = copied(tmp_path / "templates", "attention")
    path = templates / "ATT-DEFAULT-001.json"
    template = json.loads(path.read_text(encoding="utf-8"))
    template["budget"]["max_context_tokens"] = 30
    path.write_text(json.dumps(template), encoding="utf-8")
    with pytest.raises(ConfigError, match="has changed"):
        await diverged(with_agents(recorded_root, attention_templates=str(templates)), "RESIDENT:off")
    write_manifest(str(templates))
    found = await diverged(with_agents(recorded_root, attention_templates=str(templates)), "RESIDENT:off")
    assert found.entry_type == "WO_PLANNED"
    assert found.field.startswith("attention.")
    template["budget"]["max_context_tokens"] = "many"
    path.write_text(json.dumps(template), encoding="utf-8")
    write_manifest(str(templates))
    with pytest.raises(ConfigError, match="max_context_tokens"):
        await diverged(with_agents(recorded_root, attention_templates=str(templates)), "RESIDENT:off")
