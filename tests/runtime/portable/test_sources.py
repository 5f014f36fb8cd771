"""A session's folder brings what shaped the requests of its turns, so that they are rebuilt elsewhere (docs/sessions.md)."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from kitchener import HO2Config, RuntimeConfig, open_runtime
from kitchener.canonical import canonical_bytes, canonical_digest, digest
from kitchener.config import LedgerConfig, RouterConfig
from kitchener.errors import FolderDamaged
from kitchener.ledger import LedgerReader
from kitchener.records import events
from kitchener.records.entries import ToolDefinition
from kitchener.replaying import TurnPrompts, read_prompts, replay_session
from kitchener.runtime import export_session, import_session
from kitchener.runtime.erasure import erase_subject
from kitchener.runtime.portable.source_file import imported_sources
from kitchener.runtime.root_layout import ledger_paths, sealer_of
from kitchener.sealing import Keyring
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUICK
from tests.replay.shared.recorded_sessions import MESSAGES, TOOLS, model, record, say_all
from tests.replay.test_replay_identical import LEARNING

INSTRUCTIONS = "Answer as a gardener would."
SEALED = QUICK.model_copy(update={"keyring": "keys"})


def elsewhere(root: Path, ledger: LedgerConfig = QUICK) -> RuntimeConfig:
    """Another root, whose settings have nothing in common with the recorded ones."""
    agent = HO2Config(instructions="You are somebody else.", standing_rules=("Shout.",), classify_recent_turns=9)
    return RuntimeConfig(plane_root=str(root), agents={"ADMIN": agent}, ledger=ledger)


async def prompts(config: RuntimeConfig, session_id: str, turns: int, step: int = 1) -> list[TurnPrompts]:
    """The rebuilt requests of a session's first turns, or of every so many of them."""
    return [await read_prompts(f"T-{session_id[4:]}-{number:06}", config=config) for number in range(1, turns + 1, step)]


async def asked(config: RuntimeConfig, session_id: str, turns: int, step: int = 1) -> list[tuple[object, ...]]:
    """What models read in them, and whether the recorded hash proves it."""
    return [
        (call.request.messages, call.request.tools, call.request_hash, call.ref, call.is_verified, each.problem)
        for each in await prompts(config, session_id, turns, step)
        for call in each.calls
    ]


async def sources(config: RuntimeConfig) -> dict[str, Any]:
    """The recorded sources by hash."""
    async with LedgerReader.open(ledger_paths(config, "ADMIN")["ho2m"], sealer=sealer_of(config)) as ho2m:
        return {each.entity_id: each.payload async for each in ho2m.read(entry_type=events.SOURCE_RECORDED)}


async def test_a_turn_that_gave_an_object_is_replayed_and_rebuilt_elsewhere(tmp_path: Path) -> None:
    """The schema moves along, and once more."""
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}, "title": "Count"}
    config = RuntimeConfig(plane_root=str(tmp_path / "a"), router=RouterConfig(default_provider="scripted"), ledger=QUICK)
    provider = ScriptedProvider(lambda asked: {"speech_act": "question"} if asked.wo_type == "classify" else {"n": 7})
    async with open_runtime(config, providers={"scripted": provider}) as runtime:
        done = await runtime.supervisor().handle_turn("how many?", subject_id="ada", output=schema)
    there = await asked(config, done.session_id, 1)
    for name in ("b", "c"):
        folder, other = tmp_path / f"to {name}", config.model_copy(update={"plane_root": str(tmp_path / name)})
        await export_session(done.session_id, folder, config=config, with_key=True)
        await import_session(folder, config=other)
        assert await asked(other, done.session_id, 1) == there
        assert "output_schema" in {each["kind"] for each in (await sources(other)).values()}
        assert (await replay_session(done.session_id, config=other)).turns == (done.turn_id,)
        config = other
    assert [each[4] for each in there] == [True, True]


@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.soak)], ids=["first and last turn", "all turns"])
@pytest.mark.parametrize(("memory", "roots"), [({}, "b"), (LEARNING, "bc")], ids=["forgetful", "learning"])
async def test_requests_of_imported_turns_are_rebuilt_byte_for_byte(
    tmp_path: Path, memory: dict[str, Any], roots: str, step: int
) -> None:
    """With learned lines, history and tools, under the settings of the root where they ran; also after a second move."""
    config, sessions = await record(tmp_path / "a", sessions=2, instructions=INSTRUCTIONS, context_mode="enforce", **memory)
    before = [await asked(config, each, len(MESSAGES), step) for each in sessions]
    for to in roots:
        there = elsewhere(tmp_path / to)
        for session_id in sessions[::-1]:
            made = await export_session(session_id, tmp_path / f"{session_id} to {to}", config=config, with_key=True)
            assert made.has_sources
            await import_session(tmp_path / f"{session_id} to {to}", config=there)
        assert [await asked(there, each, len(MESSAGES), step) for each in sessions] == before
        config = there
    calls = [call for each in before for call in each]
    assert len(calls) > 2 * len(MESSAGES[::step])
    assert {call[-2:] for call in calls} == {(True, None)}


async def test_a_replay_names_what_differs_from_where_the_turns_ran(tmp_path: Path) -> None:
    config, (session_id,) = await record(tmp_path / "a", MESSAGES[:1], instructions=INSTRUCTIONS)
    await export_session(session_id, tmp_path / "folder", config=config, with_key=True)
    there = elsewhere(tmp_path / "b")
    await import_session(tmp_path / "folder", config=there)
    report = await replay_session(session_id, config=there, tools=TOOLS)
    changes = {each.name: each.diff for each in report.changes}
    assert f"-{INSTRUCTIONS}" in changes["instructions of ADMIN"]


async def test_each_source_is_carried_and_recorded_once_and_only_where_a_turn_names_it(tmp_path: Path) -> None:
    """Two sessions of one configuration; what another session was asked under stays where it is."""
    config, sessions = await record(tmp_path / "a", MESSAGES[:2], sessions=2, instructions=INSTRUCTIONS)
    own = await sources(config)
    await record(tmp_path / "a", MESSAGES[:1], instructions="Of another session.")
    there = config.model_copy(update={"plane_root": str(tmp_path / "b")})
    for session_id in sessions:
        await export_session(session_id, tmp_path / session_id, config=config, with_key=True)
        carried = orjson.loads((tmp_path / session_id / "sources.json").read_bytes())
        assert carried == {key: each["text"] for key, each in own.items()}
        await import_session(tmp_path / session_id, config=there)
        assert {key: each["text"] for key, each in (await sources(there)).items()} == carried
    async with open_runtime(there, providers={"scripted": ScriptedProvider(model)}, tools=TOOLS) as runtime:
        await say_all(runtime, sessions[0], MESSAGES[:1])
    assert (await sources(there)).keys() == own.keys(), "the same configuration needs nothing new"


async def test_sealed_sources_travel_with_the_key_and_get_the_new_roots_seal(tmp_path: Path) -> None:
    """Without the key the folder shows nothing; a later folder with the key brings both."""
    sealed = SEALED.model_copy(update={"keyring": str(tmp_path / "keys of a")})
    config, (session_id,) = await record(tmp_path / "a", MESSAGES[:2], ledger=sealed, instructions=INSTRUCTIONS)
    before = await asked(config, session_id, 2)
    there = elsewhere(tmp_path / "b", SEALED.model_copy(update={"keyring": str(tmp_path / "keys of b")}))
    made = await export_session(session_id, tmp_path / "locked", config=config)
    assert (made.has_key, made.has_sources) == (False, False)
    assert INSTRUCTIONS.encode() not in b"".join(each.read_bytes() for each in (tmp_path / "locked").iterdir())
    await import_session(tmp_path / "locked", config=there)
    made = await export_session(session_id, tmp_path / "open", config=config, with_key=True)
    assert made.has_sources
    assert (await import_session(tmp_path / "open", config=there)).was_there
    assert await asked(there, session_id, 2) == before
    stored = b"".join(path.read_bytes() for path in (tmp_path / "b").rglob("*.jsonl"))
    assert INSTRUCTIONS.encode() not in stored
    await erase_subject("ada", config=there)
    assert all(not each.calls and "erased" in str(each.problem) for each in await prompts(there, session_id, 2))


def forge(folder: Path, name: str, data: bytes) -> None:
    """Replaces a file and makes the manifest say so."""
    (folder / name).write_bytes(data)
    manifest = orjson.loads((folder / "manifest.json").read_bytes())
    del manifest["digest"]
    manifest["files"][name] = digest(data)
    (folder / "manifest.json").write_bytes(canonical_bytes({**manifest, "digest": canonical_digest(manifest)}) + b"\n")


async def test_a_forged_file_of_sources_brings_nothing(tmp_path: Path) -> None:
    """Its hashes are true, but no turn names the text, or a configuration lacks a part, or it is another class's."""
    config, (session_id,) = await record(tmp_path / "a", MESSAGES[:1], instructions=INSTRUCTIONS)
    await export_session(session_id, tmp_path / "folder", config=config, with_key=True)
    true: dict[str, str] = orjson.loads((tmp_path / "folder" / "sources.json").read_bytes())
    text = canonical_bytes({"said by": "bo"}).decode()
    whole = next(key for key, each in true.items() if '"prompts":' in each)
    part = next(key for key in true if key != whole)
    forged: list[object] = [
        {**true, digest(text.encode()): text},
        {**true, part: "another text"},
        {key: each for key, each in true.items() if key != part},
        {key: each for key, each in true.items() if key != whole},
        {**true, whole: 1},
        [*true],
    ]
    for each in forged:
        forge(tmp_path / "folder", "sources.json", canonical_bytes(each) + b"\n")
        with pytest.raises(FolderDamaged, match=r"sources\.json"):
            await import_session(tmp_path / "folder", config=elsewhere(tmp_path / "b"))
    forge(tmp_path / "folder", "sources.json", b"[" * 100_000)
    with pytest.raises(FolderDamaged, match=r"sources\.json"):
        await import_session(tmp_path / "folder", config=elsewhere(tmp_path / "b"))
    assert not (tmp_path / "b").exists()
    forge(tmp_path / "folder", "sources.json", canonical_bytes(true) + b"\n")
    await import_session(tmp_path / "folder", config=elsewhere(tmp_path / "b"))
    assert (await sources(elsewhere(tmp_path / "b"))).keys() == true.keys()


@pytest.mark.parametrize("form", ["settings", "prompts", "tools", "attention_templates", "class", "name"])
async def test_a_forged_configuration_that_a_forged_turn_names_is_checked_for_its_form(tmp_path: Path, form: str) -> None:
    """Whoever makes a folder can make its turns name anything; what is recorded must be readable as sources."""
    good: dict[str, Any] = {
        "settings": {"agent_class": "ADMIN"},
        "prompts": [],
        "attention_templates": [],
        "tools": [],
    }
    text = canonical_bytes({"said by": "bo"}).decode()
    named = [{"name": "x", "hash": digest(text.encode())}]
    forged = {**good, form: named} if form != "class" else {**good, "settings": {"agent_class": "RESIDENT:other"}}
    if form == "name":
        text = canonical_bytes(dict.fromkeys(ToolDefinition.__required_keys__, "x")).decode()
        forged = {**good, "tools": [{"name": 5, "hash": digest(text.encode())}]}
    if form == "prompts":
        text = "no JSON"
        forged = {**good, "prompts": [{"name": "PRC-X", "hash": digest(text.encode())}]}
    whole = canonical_bytes(forged).decode()
    data = canonical_bytes({digest(each.encode()): each for each in (whole, text)}) + b"\n"
    with pytest.raises(FolderDamaged, match="whole configurations of ADMIN"):
        imported_sources("sources.json", data, [("configuration", digest(whole.encode()))], "ADMIN")


async def test_who_came_back_after_an_erasure_takes_along_only_what_the_present_key_opens(tmp_path: Path) -> None:
    """Turns may recall the subject's other sessions, but those before the erasure are nobody's any more."""
    sealed = SEALED.model_copy(update={"keyring": str(tmp_path / "keys of a")})
    config, (gone,) = await record(tmp_path / "a", MESSAGES[:2], ledger=sealed, context_mode="enforce", recall_scope="subject")
    await erase_subject("ada", config=config)
    async with open_runtime(config, providers={"scripted": ScriptedProvider(model)}, tools=TOOLS) as runtime:
        other = (await runtime.supervisor().handle_turn(MESSAGES[0], subject_id="ada")).session_id
        session_id = (await runtime.supervisor().handle_turn(MESSAGES[1], subject_id="ada")).session_id
    made = await export_session(session_id, tmp_path / "folder", config=config, with_key=True)
    there = config.model_copy(
        update={"plane_root": str(tmp_path / "b"), "ledger": SEALED.model_copy(update={"keyring": str(tmp_path / "keys of b")})}
    )
    done = await import_session(tmp_path / "folder", config=there)
    assert done.is_readable
    assert made.key_id == Keyring(tmp_path / "keys of b").kid_of("ada")
    names = b"".join(each.read_bytes() for each in (tmp_path / "folder").iterdir())
    assert (gone.encode() in names, other.encode() in names) == (False, True)
    for root in (config, there):
        report = await replay_session(session_id, config=root, tools=TOOLS)
        assert report.is_identical, report.text()
        assert len(report.turns) == 1
