"""The identity of a policy: it names what decides, not how that is written down, and a replay tells when it has changed."""

import ast
import os
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from kitchener.actors import policy_identity as under_test
from kitchener.actors.attention.templates import write_manifest
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.policy_identity import code_hash, definition_hashes, policy_code, policy_identity
from kitchener.config import HO2Config, HO3MemoryConfig
from kitchener.replaying import replay_session
from tests.acceptance.stack import open_scripted, read_all, scripted_config
from tests.cli.conftest import Cli, cli  # noqa: F401  the fixture
from tests.shared.property_examples import examples

ROOT = Path(__file__).parents[2]

MODULE = '''"""Says what the module is for."""

import math
from collections.abc import Iterable

LIMIT = 3
"""The most there may be."""


# why
def chosen(items: Iterable[str], most: int = LIMIT) -> list[str]:
    """The items that count."""
    found: list[str] = [each for each in items if each != "x"]
    if len(found) > most:
        return found[:most]
    return found


class Kept:
    """What is kept."""

    weight: float = 0.5
    """From 0 to 1."""

    def fits(self, room: float) -> bool:
        return self.weight <= room and f"{room:>{LIMIT}}" != "é"


__all__ = ["chosen"]
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# why\n", ""),
        ('"""Says what the module is for."""', '"""Says it in other words."""'),
        ('    """The items that count."""\n', ""),
        ('    """From 0 to 1."""\n', ""),
        ("import math\n", ""),
        ("from collections.abc import Iterable", "from typing import Iterable"),
        ("items: Iterable[str], most: int = LIMIT) -> list[str]", "items, most=LIMIT)"),
        ("weight: float", "weight: int"),
        ('__all__ = ["chosen"]\n', ""),
        ("LIMIT = 3\n", "\n\n\nLIMIT  =  3\n"),
    ],
)
def test_how_code_is_written_down_is_not_part_of_a_policy(old: str, new: str) -> None:
    assert old in MODULE
    assert code_hash([MODULE.replace(old, new)]) == code_hash([MODULE])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("len(found) > most", "len(found) >= most"),
        ("LIMIT = 3", "LIMIT = 4"),
        ('!= "x"', '== "x"'),
        ("most: int = LIMIT", "most: int = 2"),
        ("self.weight <= room and", "self.weight <= room or"),
        ('!= "é"', '!= "e"'),
        ("0.5", "5"),
        ("room:>", "room:<"),
        ("def chosen", "def taken"),
        ("return found[:most]", "return found[most:]"),
    ],
)
def test_whatever_decides_is_part_of_a_policy(old: str, new: str) -> None:
    assert old in MODULE
    assert code_hash([MODULE.replace(old, new)]) != code_hash([MODULE])


def test_a_definition_counts_wherever_it_stands() -> None:
    """Files may be moved, cut and joined."""
    head, tail = MODULE.split("class Kept:")
    assert code_hash([head, "class Kept:" + tail]) == code_hash(["class Kept:" + tail, head]) == code_hash([MODULE])
    assert code_hash([head]) != code_hash([MODULE])


def test_the_value_is_known_and_so_the_same_on_every_python() -> None:
    assert code_hash([MODULE]) == "sha256:931c2a1f0cc588b45ddb4de3f05d1b925c9bf35b2e066d5c0a882bc81aa0083c"


def test_every_module_called_pure_counts() -> None:
    """What `pyproject.toml` holds to purity is the policy, but for what only measures or writes bytes, and for the rules that
    answer in place of a model: their answers are on record."""
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
    pure = next(each["source_modules"] for each in tools["importlinter"]["contracts"] if each["id"] == "pure")
    no_policy = {"kitchener.ledger.format.lines", "kitchener.gateway.rules"}
    no_policy |= {each for each in pure if each.startswith("kitchener.tuning.")}
    leaves = {"kitchener.canonical", "kitchener.ids"}  # fresh ids are drawn there, beside those that are derived
    assert {*under_test.POLICY_PACKAGES, *under_test.POLICY_MODULES} - leaves == set(pure) - no_policy


@pytest.mark.hypothesis
def test_one_comparison_in_any_policy_module_is_another_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `make test` in every third module."""
    monkeypatch.setattr(under_test, "definition_hashes", cache(definition_hashes))  # all modules but one stay as they were

    class Flip(ast.NodeTransformer):
        done = False

        def visit_Compare(self, node: ast.Compare) -> ast.Compare:
            if not self.done:
                self.done = True
                node.ops = [ast.NotEq() if isinstance(node.ops[0], ast.Eq) else ast.Eq(), *node.ops[1:]]
            return node

    package = ROOT / "src"
    files = {package.joinpath(*name.split(".")).with_suffix(".py") for name in under_test.POLICY_MODULES}
    files |= {file for name in under_test.POLICY_PACKAGES for file in package.joinpath(*name.split(".")).rglob("*.py")}
    sources = [file.read_text(encoding="utf-8") for file in sorted(files)]
    known = code_hash(sources)
    assert known == policy_code()
    flipped, step = 0, examples(few=3, many=1)
    for number, source in [*enumerate(sources)][::step]:
        flip = Flip()
        changed = ast.unparse(flip.visit(ast.parse(source)))
        if flip.done:
            flipped += 1
            assert definition_hashes(changed) != definition_hashes(source)
            assert code_hash([*sources[:number], changed, *sources[number + 1 :]]) != known
    assert flipped > 25 // step


PLAIN = HO2Config()
ASSETS = ROOT / "src/kitchener/actors/assets"


def test_settings_that_decide_are_part_of_a_policy_and_places_are_not() -> None:
    known = policy_identity(PLAIN, None)
    assert policy_identity(HO2Config(recall_scope="session"), None) != known
    assert policy_identity(HO2Config(standing_rules=("Be brief.",)), None) != known
    assert policy_identity(HO2Config(session_queue=9, ho2m_path="elsewhere.jsonl"), None) == known
    learns = HO2Config(ho3_enabled=True)
    assert policy_identity(learns, HO3MemoryConfig()) != policy_identity(learns, HO3MemoryConfig(salience_floor=0.1))
    assert policy_identity(PLAIN, HO3MemoryConfig()) == policy_identity(PLAIN, HO3MemoryConfig(salience_floor=0.1)) == known


def test_prompts_and_templates_are_part_of_a_policy_by_what_they_say(tmp_path: Path) -> None:
    known = policy_identity(PLAIN, None)
    packs, templates = tmp_path / "prompts", tmp_path / "attention"
    shutil.copytree(ASSETS / "prompts", packs)
    shutil.copytree(ASSETS / "attention", templates)
    own = HO2Config(prompt_dir=str(packs), attention_templates=str(templates))
    assert policy_identity(own, None) == known
    pack = next(packs.glob("PRM-SYNTHESIZE-*.txt"))
    pack.write_text(pack.read_text(encoding="utf-8") + "\nBe kind.\n", encoding="utf-8")
    PromptLibrary.write_manifest(str(packs))
    other_pack = policy_identity(own, None)
    template = templates / "ATT-ADMIN-001.json"
    template.write_text(template.read_text(encoding="utf-8").replace("10000", "1"), encoding="utf-8")
    write_manifest(str(templates))
    assert len({known, other_pack, policy_identity(own, None)}) == 3


async def test_a_replay_under_another_template_says_so(tmp_path: Path) -> None:
    """Also where the template decides nothing, because the class is under the Context Authority."""
    templates = tmp_path / "attention"
    shutil.copytree(ASSETS / "attention", templates)
    settings: dict[str, Any] = {"context_mode": "enforce", "attention_templates": str(templates)}
    async with open_scripted(tmp_path, **settings) as runtime:
        result = await runtime.supervisor().handle_turn("hello")
    same = await replay_session(result.session_id, config=scripted_config(tmp_path, **settings))
    assert (same.is_identical, same.policy) == (True, None)
    template = templates / "ATT-ADMIN-001.json"
    template.write_text(template.read_text(encoding="utf-8").replace("10000", "1"), encoding="utf-8")
    write_manifest(str(templates))
    other = await replay_session(result.session_id, config=scripted_config(tmp_path, **settings))
    assert other.is_identical
    assert other.policy is not None
    assert "under another policy" in other.text()


async def test_turn_and_projection_carry_one_value(tmp_path: Path) -> None:
    async with open_scripted(tmp_path, context_mode="enforce") as runtime:
        supervisor = runtime.supervisor()
        result = await supervisor.handle_turn("hello")
        await supervisor.handle_turn("and again", session_id=result.session_id)
        turns = await read_all(runtime.ledgers().ho2m, entry_type="TURN_STARTED")
        projections = await read_all(runtime.ledgers().context, entry_type="PROJECTION_COMPUTED")
        found = {entry.payload["ruleset_hash"] for entry in (*turns, *projections)}
        assert (len(turns), len(projections)) == (2, 2)
        assert found == {policy_identity(supervisor.config, None)}


def _kitchener(code: Path, folder: Path, *arguments: str) -> str:
    """What the command prints, run by the sources in `code`."""
    done = subprocess.run(
        [sys.executable, "-m", "kitchener", *arguments, "--root", str(folder / "root")],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(code), "PYTHONDONTWRITEBYTECODE": "1"},
        timeout=50,
        check=True,
    )
    return done.stdout


def test_a_replay_tells_that_a_comparison_was_changed(cli: Cli, tmp_path: Path) -> None:  # noqa: F811
    assert cli("chat", "--root", "root", stdin=b"hello\n").code == 0
    assert "another policy" not in cli("replay", "--all", "--root", "root").out
    copy = tmp_path / "src"
    shutil.copytree(Path(under_test.__file__).parents[2], copy)  # with what is compiled, which saves compiling all of it
    gate = copy / "kitchener" / "memory" / "gate.py"
    text = gate.read_text(encoding="utf-8")
    assert ">=" in text
    gate.write_text(text.replace(">=", ">", 1), encoding="utf-8")
    told = _kitchener(copy, tmp_path, "replay", "--all")
    assert "was recorded under another policy" in told
    assert "identical, 1 turn" in told
