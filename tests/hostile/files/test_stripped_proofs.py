"""Who hands out a bundle leaves out what speaks against them, or a tool writes what looks like a reference.

A bundle without the turn's end is refused, what is withheld is named, and references are followed only where Kitchener writes
them (docs/proof.md). Both verifiers say the same of every bundle here.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import orjson
import pytest

from kitchener import tool
from kitchener.canonical import canonical_bytes
from kitchener.cli.app import invoke
from kitchener.errors import EntryRefused
from kitchener.ledger.bundles.bundle import MAX_BUNDLE_BYTES
from kitchener.ledger.bundles.bundle_check import verify_bundle
from kitchener.records.prompt import PromptRequest
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUESTION, echo, open_scripted
from tests.hostile.kit import BYSTANDER, bystander
from tests.shared.payloads import payload_of
from tests.verifier import conftest as proven_root
from tests.verifier.kit import needs_node, node, refused, run
from tests.verifier.proofs import Proven, bundle, shown_rows, strip

pytestmark = needs_node
ZEROS = f"sha256:{'0' * 64}"
proven, good = proven_root.proven, proven_root.good

CALLS = ("TOOL_STARTED", "TOOL_CALL", "LLM_CALL")


def test_a_bundle_without_the_turns_end_is_refused(good: Path, proven: Proven, tmp_path: Path) -> None:
    paths = [
        strip(good, tmp_path / "end.json", "TURN_COMPLETED"),
        strip(good, tmp_path / "end-and-calls.json", "TURN_COMPLETED", *CALLS),
        strip(good, tmp_path / "calls.json", *CALLS),
    ]
    assert refused(paths) == refused(paths, proven.signer.public_key) == paths
    told = node(paths)
    assert all(": end: expected [" in line for line in told[:2])
    assert ": trace_hash: expected " in told[2]


@pytest.mark.parametrize("form", ["path", "chain"])
def test_what_is_withheld_is_named(form: str, proven: Proven, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An entry that nothing refers to may be left out; of which type it was nobody can tell, but that it stood there."""
    good = bundle(proven, proven.turns[-1], tmp_path / "good.json", *(["--chain"] if form == "chain" else []))
    capsys.readouterr()
    stripped = strip(good, tmp_path / "stripped.json", "HO3_SIGNAL", "WO_QUALITY_GATE")
    assert refused([stripped], proven.signer.public_key) == []
    before, after = verify_bundle(good), verify_bundle(stripped)
    missing = before.entries - after.entries
    assert missing > 0
    assert after.withheld_entries == before.withheld_entries + missing
    hidden = _hidden_ids(stripped)
    assert {ledger_id: [*_all_ids(runs)] for ledger_id, runs in after.withheld.items()} == hidden
    assert sum(map(len, hidden.values())) == after.withheld_entries
    assert invoke(["ledger", "verify", str(stripped)]) == 0
    by_python = capsys.readouterr().out
    by_node = run(str(stripped)).stdout
    for ledger_id, runs in after.withheld.items():
        told = ", ".join(first if first == last else f"{first} to {last}" for first, last in runs[:20])
        assert f"withheld: {ledger_id}: {told}" in by_python
        assert f"{ledger_id}: withheld: {told}" in by_node
    assert ", TURN_COMPLETED" in by_python
    assert ", TURN_COMPLETED" in by_node


def _hidden_ids(path: Path) -> dict[str, list[str]]:
    parts = orjson.loads(path.read_bytes())["ledgers"]
    found = {}
    for part in parts:
        ids = {row[0]: row[1] for row in part["rows"]}
        hidden = {*range(part["rows"][0][0], part["head"]["seq"] + 1)} - {row[0] for row in shown_rows(part)}
        found[part["ledger_id"]] = [str(seq) if "path" in part else ids[seq] for seq in sorted(hidden)]
    return {ledger_id: ids for ledger_id, ids in found.items() if ids}


def _all_ids(runs: list[tuple[str, str]]) -> list[str]:
    return [
        f"{first[:13]}{seq:012d}" if first.startswith("E-") else str(seq)
        for first, last in runs
        for seq in range(int(first.rpartition("-")[2]), int(last.rpartition("-")[2]) + 1)
    ]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # a verdict about files
async def test_a_tool_that_answers_with_a_reference_makes_no_turn_unprovable(tmp_path: Path) -> None:
    """Nor does a model that asks for a tool with one, beside somebody who is served."""
    fake = {"ledger_id": "HO2M:ADMIN", "entry_id": "E-2026-11-22-000000000001", "entry_hash": ZEROS}

    @tool(read_only=True)
    async def look_up(asked: str) -> dict[str, Any]:
        """Looks something up."""
        return {"output_ref": fake, "user_message_ref": {**fake, "ledger_id": "ELSE"}, "asked": asked}

    def answer(request: PromptRequest) -> Mapping[str, Any]:
        if request.subject_id != BYSTANDER and request.wo_type == "classify":
            return {**QUESTION, "speech_act": "command", "tool_request": {"tool_id": "look_up", "arguments": {"asked": "x"}}}
        return echo(request)

    async with open_scripted(tmp_path, ScriptedProvider(answer), tools=[look_up]) as runtime, bystander(runtime):
        result = await runtime.supervisor().handle_turn("look it up", subject_id="mallory")
        assert result.error is None
        done = [entry async for entry in runtime.ledgers().ho1m.read(session_id=result.session_id, entry_type="TOOL_CALL")]
        assert payload_of(done[0])["result"]["output_ref"] == fake
    settings, path = tmp_path / "kitchener.toml", tmp_path / "bundle.json"
    settings.write_text("", encoding="utf-8")
    command = ["ledger", "proof", result.turn_id, "-o", str(path), "--config", str(settings), "--root", str(tmp_path)]
    assert await anyio.to_thread.run_sync(invoke, command) == 0
    assert refused([path]) == []


DEEP = "[" * 100_000 + "]" * 100_000
SHAPES = {
    "nested 100,000 deep": lambda text: text.replace('"entries":', f'"entries":{DEEP},"x":', 1),
    "a head nested 900 deep": lambda text: text.replace('"head":{', '"head":' + '{"a":' * 900 + "{", 1),
    "a number of 5,000 digits": lambda text: text.replace('"entries":', f'"entries":{"9" * 5_000}', 1),
    "an entry id of 5,000 digits": lambda text: text.replace('["', '["' + "9" * 5_000, 1),
    "a reference to an entry of 5,000 digits": lambda text: text.replace(
        '\\"entry_id\\":\\"E-2026-11-22-', '\\"entry_id\\":\\"E-2026-11-22-' + "9" * 5_000
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_bundle_of_an_absurd_shape_gets_a_verdict_and_no_traceback(good: Path, tmp_path: Path, shape: str) -> None:
    path = tmp_path / "absurd.json"
    path.write_text(SHAPES[shape](good.read_text(encoding="utf-8")), encoding="utf-8")
    if path.read_bytes() != good.read_bytes():
        assert refused([path]) == [path]


def test_a_bundle_of_more_than_a_gibibyte_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.json"
    with path.open("wb") as file:
        file.write(b'{"entries":')
        file.truncate(MAX_BUNDLE_BYTES + 1)  # takes no room on the disk
    assert refused([path]) == [path]
    assert str(verify_bundle(path).fault) == "bundle: size: expected at most 1,073,741,824 bytes, found more"
    path.unlink()


WRONG: list[Any] = [None, True, False, 0, -1, 1.5, 2**53, "", "x", [], [[]], {}, {"a": []}, [None], "\ud7ff" * 3, "9" * 5_000]


@pytest.mark.parametrize("one_in", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_no_value_of_another_type_anywhere_in_a_bundle_crashes_a_verifier(good: Path, tmp_path: Path, one_in: int) -> None:
    """Each place of the bundle's frame, and of the first bodies, with one value after the other, or with one in three of them.

    Two ledgers of the bundle share the values, because both are read in the same way.
    """
    content, paths, tried = orjson.loads(good.read_bytes()), list[Path](), count()

    def put(holder: Any, key: Any, wrong: Sequence[Any]) -> None:
        right = holder[key]
        for number, value in enumerate(wrong):
            if (value != right or type(value) is not type(right)) and next(tried) % one_in == 0:
                holder[key] = value
                try:
                    data = canonical_bytes(content) + b"\n"
                except EntryRefused:  # what has no canonical form cannot stand in a bundle at all
                    continue
                finally:
                    holder[key] = right
                paths.append(tmp_path / f"{len(paths)}-{number}.json")
                paths[-1].write_bytes(data)

    for key in content:
        put(content, key, WRONG)
    for at, part in enumerate(content["ledgers"][:2]):
        for key in [*part]:
            put(part, key, WRONG[at::2])
        for holder in (part["head"], part["path"], part["segments"][0], part["rows"][0], part["rows"]):
            for key in [*holder] if isinstance(holder, dict) else range(min(6, len(holder))):
                put(holder, key, WRONG[at::2])
    assert refused(paths) == paths
