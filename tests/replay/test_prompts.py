"""What a model was asked is rebuilt word for word from the ledgers, whatever is configured now (`docs/prompts.md`)."""

import json
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, cast

import anyio
import pytest
from pydantic import AfterValidator

from kitchener.actors.sources import RequestSources
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.tool import tool
from kitchener.canonical import canonical_bytes
from kitchener.config import HO2Config, LedgerConfig, RuntimeConfig
from kitchener.errors import CallerError, NotOnRecord
from kitchener.ledger import LedgerReader
from kitchener.records import events
from kitchener.records.entries import SourceKind
from kitchener.records.prompt import PromptRequest
from kitchener.replaying import RecordedPrompt, TurnPrompts, read_prompts
from kitchener.replaying.on_record.recorded_sources import RecordedSources, changed_sources
from kitchener.runtime import open_runtime
from kitchener.runtime.erasure import erase_subject
from kitchener.runtime.root_layout import agent_classes, ledger_paths, settings_of
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import QUICK, open_scripted, scripted_config
from tests.cli.shared.commands import finish, start
from tests.replay.corpus import SETTINGS
from tests.replay.golden_roots import FOLDER, VERSION_1, unpacked
from tests.replay.shared.recorded_sessions import KEY, MESSAGES, TOOLS, cut_off, model, record

CLASSES: Final = ("ADMIN", *(f"RESIDENT:{name}" for name in ("ask", "bridge", "declare", "off", "recall", "shadow")))
OTHER: Final = HO2Config(instructions="You are somebody else.", standing_rules=("Shout.",), classify_recent_turns=9)
SEALED: Final = QUICK.model_copy(update={"keyring": "keys"})


def elsewhere(root: Path, **ledger: Any) -> RuntimeConfig:
    """The root's ledgers under settings that have nothing in common with the recorded ones."""
    others = {name: OTHER.model_copy(update={"agent_class": name}) for name in CLASSES}
    return settings_of(RuntimeConfig(agents=others, ledger=LedgerConfig(**ledger)), root)


async def entries(settings: RuntimeConfig, agent_class: str, ledger: Any, *types: str) -> list[Any]:
    """All entries of these types in one ledger."""
    async with LedgerReader.open(ledger_paths(settings, agent_class)[ledger]) as reader:
        return [each async for each in reader.read(entry_type=types)]


async def asked_of(settings: RuntimeConfig, agent_class: str, each_of: slice = slice(None)) -> list[TurnPrompts]:
    """The requests of every turn and every consolidation of an agent class, or of some of them."""
    started = await entries(settings, agent_class, "ho2m", events.TURN_STARTED, events.WO_PLANNED)
    named = [each for each in started if each.entry_type == events.TURN_STARTED or "consolidates" in each.payload]
    return [await read_prompts(each.entity_id, config=settings, agent_class=agent_class) for each in named[each_of]]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("turns", [slice(2, None, 7), pytest.param(slice(None), marks=pytest.mark.soak)], ids=["some", "all"])
async def test_every_call_of_a_varied_corpus_is_rebuilt_byte_for_byte(recorded_root: Path, turns: slice) -> None:
    """Tools, retries, failed criteria, judged replies, lessons, direct calls, cut-off turns: the hash proves each request.

    `make test` reads every seventh turn, which has calls of all kinds, and `make soak` reads all.
    """
    settings, calls = elsewhere(recorded_root, keyring=str(recorded_root / "keys")), list[RecordedPrompt]()
    for agent_class in CLASSES:
        prompts = await asked_of(settings, agent_class, turns)
        of_class = [call for each in prompts for call in each.calls]
        assert [each.problem for each in prompts if each.problem is not None] == []
        verified = Counter(call.is_verified for call in of_class)[True]
        assert verified > 2, agent_class
        if turns == slice(None):
            assert verified == len(await entries(settings, agent_class, "ho1m", events.LLM_CALL)) > 20, agent_class
        assert all(call.is_verified is not False for call in of_class), agent_class
        assert all(call.tokens == sum(part.tokens for part in call.parts) > 0 for call in of_class), agent_class
        calls += of_class
    # All kinds of calls are there, or else the above would say little.
    assert {call.request.wo_type for call in calls} == {"classify", "synthesize", "verify", "consolidate"}
    assert any(call.request.contract_id == "PRC-DIRECT-002" for call in calls)
    assert any(call.request.tools for call in calls)
    assert any(message.role == "tool" for call in calls for message in call.request.messages)
    assert any(call.answer is None for call in calls)
    names = {part.name for call in calls for part in call.parts}
    assert names >= {"contract", "instructions", "history", "learned lines", "message", "tool schemas", "tool results"}


async def test_what_a_sealed_turn_asked_is_rebuilt_until_its_subject_is_erased(tmp_path: Path) -> None:
    """No word of the sources is readable in the root; another subject's turns stay rebuildable."""
    ledger = SEALED.model_copy(update={"keyring": str(tmp_path / "keys")})
    config, (session_id,) = await record(
        tmp_path / "root", ("tool please", "hello"), ledger=ledger, instructions="Be as kind as moss."
    )
    other, (second,) = await _of_grace(config)
    settings = elsewhere(tmp_path / "root", keyring=str(tmp_path / "keys"))
    first, last = f"T-{session_id[4:]}-000001", f"T-{second[4:]}-000001"
    prompts = await read_prompts(first, config=settings)
    assert [call.is_verified for call in prompts.calls] == [True, True, True]
    assert "Be as kind as moss." in prompts.calls[1].request.messages[0].content
    assert b"kind as moss" not in b"".join(path.read_bytes() for path in (tmp_path / "root").rglob("*") if path.is_file())
    await erase_subject("ada", config=other)
    gone = await read_prompts(first, config=settings)
    assert gone.calls == ()
    assert "erased" in str(gone.problem)
    assert len(gone.missing) == 3
    assert all(call.is_verified for call in (await read_prompts(last, config=settings)).calls)


async def _of_grace(config: RuntimeConfig) -> tuple[RuntimeConfig, list[str]]:
    async with open_runtime(config, providers={"scripted": ScriptedProvider(model)}, tools=TOOLS) as runtime:
        done = await runtime.supervisor().handle_turn("hello", subject_id="grace")
    return config, [done.session_id]


async def test_without_the_key_of_the_sources_it_says_so(tmp_path: Path) -> None:
    """The key of what is configured belongs to nobody who could be erased, but it can be lost."""
    ledger = SEALED.model_copy(update={"keyring": str(tmp_path / "keys")})
    config, (session_id,) = await record(tmp_path / "root", ("hello",), ledger=ledger)
    with pytest.raises(CallerError, match="cannot be erased"):
        await erase_subject("kitchener-operator", config=config)
    async with open_runtime(config, providers={"scripted": ScriptedProvider(model)}, tools=TOOLS) as runtime:
        with pytest.raises(CallerError, match="choose another id"):
            await runtime.supervisor().handle_turn("hello", subject_id="kitchener-operator")
        with pytest.raises(CallerError, match="cannot be erased"):
            await runtime.erase_subject("kitchener-operator")
    for path in (tmp_path / "keys").glob("*.key"):
        path.unlink()
    found = await read_prompts(f"T-{session_id[4:]}-000001", config=config)
    assert found.calls == ()
    assert "is missing here and no erasure is on record: restore the keys" in str(found.problem)


@pytest.mark.parametrize("name", ["nowhere.to_be_found:write", "given_by_a_program"])
async def test_tools_that_are_not_here_keep_nobody_from_reading_what_was_asked(tmp_path: Path, name: str) -> None:
    """Their definitions are on record. Settings may name modules of another folder, or functions that a program gives."""
    config, (session_id,) = await record(tmp_path, ("tool please",))
    settings = config.model_copy(update={"agents": {"ADMIN": OTHER.model_copy(update={"tools": (name,)})}})
    found = await read_prompts(f"T-{session_id[4:]}-000001", config=settings)
    assert [call.is_verified for call in found.calls] == [True, True, True]
    assert found.problem is None


async def test_a_cut_off_turn_shows_what_was_asked_until_then(tmp_path: Path) -> None:
    """Of a request without an answer no hash is on record, and that is said."""
    config, (session_id,) = await record(tmp_path, ("hello",))
    await cut_off(tmp_path, config, session_id, "cut off")
    found = await read_prompts(f"T-{session_id[4:]}-000002", config=elsewhere(tmp_path))
    assert [call.is_verified for call in found.calls] in ([None], [True, None])
    assert found.calls[-1].usage is None
    assert "cut off" in found.calls[-1].request.messages[-1].content
    assert found.problem is None


async def test_what_a_tool_said_of_wrong_arguments_is_taken_from_the_record(tmp_path: Path) -> None:
    """The function that checked them is not at hand; a repaired answer and an unknown tool are on record likewise."""

    def clumsy(request: PromptRequest) -> Any:
        results = sum(each.role == "tool" for each in request.messages)
        if request.wo_type == "classify":
            return model(request)
        steps = [use_tool("list_packages", prefix=["no", "text"]), use_tool("nothing"), use_tool("list_packages", prefix="a")]
        return (
            steps[results]
            if results < len(steps) and request.tools
            else '{"response_text": '
            if request.call < 5
            else model(request)
        )

    _, (session_id,) = await record(
        tmp_path, ("hello",), provider=ScriptedProvider(clumsy), tool_turn_limit=3, synthesize_contract_id="PRC-SYNTHESIZE-001"
    )
    found = await read_prompts(f"T-{session_id[4:]}-000001", config=elsewhere(tmp_path))
    assert found.problem is None
    assert len(found.calls) >= 5
    assert all(call.is_verified for call in found.calls)
    told = [message.content for message in found.calls[-1].request.messages if message.role == "tool"]
    assert "prefix" in told[0]
    assert "nothing" in told[1]
    assert any("cannot be used" in message.content for message in found.calls[-1].request.messages)


def _even(number: int) -> int:
    if number % 2:
        raise ValueError("expected an even number")
    return number


@tool(read_only=True)
def half(number: Annotated[int, AfterValidator(_even)]) -> int:
    """Halves an even number."""
    return number // 2


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("numbers", [(1, 2), (2, 1), (2, 2, 2, 2), (2, 1, 2, 2, 2, 2)])
async def test_refused_calls_are_told_from_each_other_without_their_tool(
    tmp_path: Path, numbers: tuple[int, ...], at_once: bool
) -> None:
    """Beside other calls, and where `max_equal_calls` refuses a call whose arguments are as good as before."""

    def answer(request: PromptRequest) -> Any:
        asked = sum(1 for each in request.messages if each.tool_uses)
        rounds = [numbers] if at_once else [(each,) for each in numbers]
        if request.wo_type == "classify" or not request.may_call_tools or asked >= len(rounds):
            return model(request)
        return tuple(use_tool("half", number=each) for each in rounds[asked])

    async with open_scripted(tmp_path, ScriptedProvider(answer), tools=[half]) as runtime:
        turn_id = (await runtime.supervisor().handle_turn("hello")).turn_id
    found = await read_prompts(turn_id, config=elsewhere(tmp_path))
    assert (found.problem, found.missing) == (None, ())
    assert all(call.is_verified for call in found.calls)


async def test_sources_are_written_once_and_only_what_changed_again(tmp_path: Path) -> None:
    """Opening again writes nothing; an edited sentence writes one new configuration."""
    config, _ = await record(tmp_path, ("hello",), instructions="One.")
    once = await entries(config, "ADMIN", "ho2m", events.SOURCE_RECORDED)
    assert len({each.entity_id for each in once}) == len(once)
    await record(tmp_path, ("hello",), instructions="One.")
    assert len(await entries(config, "ADMIN", "ho2m", events.SOURCE_RECORDED)) == len(once)
    await record(tmp_path, ("hello",), instructions="Two.")
    again = await entries(config, "ADMIN", "ho2m", events.SOURCE_RECORDED)
    assert [each.payload["kind"] for each in again[len(once) :]] == ["configuration"]
    started = await entries(config, "ADMIN", "ho2m", events.TURN_STARTED)
    hashes = [each.payload["config_hash"] for each in started]
    assert hashes == [once[-1].entity_id, once[-1].entity_id, again[-1].entity_id]


async def test_tools_are_rebuilt_with_the_keys_of_their_schemas_in_the_order_in_which_the_model_read_them(
    tmp_path: Path,
) -> None:
    """The hash of a request does not cover it, so that nothing else would tell."""

    @tool(read_only=True)
    def plan(where: str, days: int, adults: int = 2) -> str:
        """Plans a journey."""
        return f"{where} {days} {adults}"

    provider = ScriptedProvider(model)
    config = scripted_config(tmp_path)
    async with open_runtime(config, providers={"scripted": provider}, tools=[plan]) as runtime:
        done = await runtime.supervisor().handle_turn("hello")
    found = await read_prompts(done.turn_id, config=elsewhere(tmp_path))
    ((asked,),) = [each.tools for each in provider.requests if each.tools]
    ((rebuilt,),) = [each.request.tools for each in found.calls if each.request.tools]
    assert [*cast(dict[str, object], asked.parameters["properties"])] == ["where", "days", "adults"]
    assert json.dumps(rebuilt.parameters) == json.dumps(asked.parameters)


def test_a_tool_whose_schema_has_its_keys_in_another_order_has_not_changed() -> None:
    """Earlier versions recorded the keys sorted: what they recorded is the same tool."""

    def plan(where: str, days: int) -> str:
        """Plans a journey."""
        return f"{where} {days}"

    found = RequestSources.read(HO2Config(tools=("plan",)), None, ToolRegistry([tool(plan)]))
    texts: dict[tuple[SourceKind, str], str] = {
        (each.kind, each.name): each.text for each in found.texts if each.kind != "configuration"
    }
    texts["tool", "plan"] = canonical_bytes(json.loads(texts["tool", "plan"])).decode()
    assert texts["tool", "plan"] not in [each.text for each in found.texts]
    settings = json.loads(found.texts[-1].text)["settings"]
    assert changed_sources(RecordedSources("sha256:0", "ADMIN", settings, texts, {}), found) == ()
    texts["tool", "plan"] = texts["tool", "plan"].replace("Plans", "Books")
    (change,) = changed_sources(RecordedSources("sha256:0", "ADMIN", settings, texts, {}), found)
    assert change.name == "tool plan"


async def test_a_root_that_moved_has_the_same_configuration(tmp_path: Path) -> None:
    """Paths shape no request, so they are no part of what is recorded."""
    config, _ = await record(tmp_path / "here", ("hello",))
    moved, _ = await record(tmp_path / "there", ("hello",))
    (one, *_), (two, *_) = [await entries(each, "ADMIN", "ho2m", events.TURN_STARTED) for each in (config, moved)]
    assert one.payload["config_hash"] == two.payload["config_hash"]
    assert str(tmp_path).encode() not in ledger_paths(config, "ADMIN")["ho2m"].read_bytes()


def _nothing() -> None:
    """Does nothing, \u201cin\u201d 😀 words."""


async def test_the_smallest_entries_hold_sources_of_long_names(tmp_path: Path) -> None:
    """Otherwise a runtime with such settings could not start."""
    named = "RESIDENT:" + "n" * 50
    small = LedgerConfig(max_entry_bytes=1_024, keyring=str(tmp_path / "keys"))
    agents = {named: HO2Config(agent_class=named, instructions="\u0001\U0001f600" * 200)}
    config = RuntimeConfig(agents=agents, ledger=small)
    async with open_runtime(config, root=tmp_path / "root", tools=[tool(name="x" * 64)(_nothing)]) as runtime:
        assert runtime.ledgers(named).ho2m.position > 1_000


async def test_a_source_that_no_entry_can_hold_stands_in_several(tmp_path: Path) -> None:
    """With the smallest limit, nearly every source is cut into pieces; together they are the text again."""
    small = QUICK.model_copy(update={"max_entry_bytes": 4_096})
    config, (session_id,) = await record(tmp_path, ("hello",), ledger=small, instructions="Say “a\u0001b” — " + "x" * 3_000)
    recorded = await entries(config, "ADMIN", "ho2m", events.SOURCE_RECORDED)
    assert max(each.payload["parts"] for each in recorded) > 5
    found = await read_prompts(f"T-{session_id[4:]}-000001", config=elsewhere(tmp_path))
    assert [call.is_verified for call in found.calls] == [True, True]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("version", "classes"),
    [
        (2, ("ADMIN", "RESIDENT:ask")),
        (3, ("ADMIN", "RESIDENT:ask", "RESIDENT:clerk")),
        (4, ("ADMIN", "RESIDENT:ask", "RESIDENT:clerk")),
        (5, ("ADMIN", "RESIDENT:ask", "RESIDENT:clerk")),
        (6, ("ADMIN", "RESIDENT:ask", "RESIDENT:clerk")),
        (7, ("ADMIN", "RESIDENT:ask", "RESIDENT:clerk")),
        (8, ("ADMIN", "RESIDENT:ask", "RESIDENT:clerk")),
        (9, ("ADMIN", "RESIDENT:ask", "RESIDENT:clerk")),
        (10, ("ADMIN", "RESIDENT:ask", "RESIDENT:clerk")),
        (11, ("ADMIN", "RESIDENT:ask", "RESIDENT:clerk")),
        (12, ("ADMIN", "RESIDENT:ask", "RESIDENT:clerk")),
        (13, ("ADMIN", "RESIDENT:ask", "RESIDENT:clerk")),
        (14, ("ADMIN", "RESIDENT:ask", "RESIDENT:clerk")),
    ],
)
@pytest.mark.parametrize("one_in", [16, pytest.param(1, id="all", marks=pytest.mark.soak)])
def test_a_golden_root_with_sources_rebuilds_its_requests(
    tmp_path: Path, version: int, classes: tuple[str, ...], one_in: int
) -> None:
    """Sealed and packed as the version that recorded it did by default; later versions must still read both.

    Those of every turn, or of every sixteenth, which are others in each version's root: most sessions are in all of them.
    """
    root = unpacked(FOLDER / f"0.1.0-version-{version}.tar.xz", tmp_path / "root")
    settings = elsewhere(root, keyring=str(root / "keys"))
    prompts = [each for name in classes for each in anyio.run(asked_of, settings, name, slice(version % one_in, None, one_in))]
    assert len(prompts) > 30 // one_in
    assert [each.problem for each in prompts if each.problem is not None] == []
    assert Counter(call.is_verified for each in prompts for call in each.calls if call.answer is not None).keys() == {True}
    stored = b"".join(path.read_bytes() for path in root.rglob("*.jsonl"))
    assert b"You look after a garden" not in stored
    assert b"water the roses" not in stored


@pytest.mark.parametrize("archive", VERSION_1, ids=lambda path: path.name.removesuffix(".tar.xz"))
def test_old_roots_show_what_still_has_the_recorded_hash(tmp_path: Path, archive: Path) -> None:
    """Earlier versions stored hashes only. What the present settings render is shown if the hash proves it."""
    root = unpacked(archive, tmp_path / "root")
    shutil.copy(SETTINGS, root / SETTINGS.name)
    settings = settings_of(root / SETTINGS.name, root)
    settings = settings.model_copy(update={"ledger": settings.ledger.model_copy(update={"signing_key": None})})
    name = next(each for each in agent_classes(settings) if ledger_paths(settings, each)["ho2m"].exists())
    turns = anyio.run(entries, settings, name, "ho2m", events.TURN_COMPLETED)
    same = anyio.run(partial(read_prompts, turns[0].entity_id, config=settings))
    other = anyio.run(partial(read_prompts, turns[0].entity_id, config=elsewhere(root)))
    assert all(call.is_verified for call in (*same.calls, *other.calls) if call.answer is not None)
    assert len(same.calls) > len(other.calls)
    assert other.missing
    assert "not on record" in str(other.problem)


async def test_secrets_are_recorded_as_references_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that is in the environment, and whatever a provider is configured with, is no source of a request."""
    monkeypatch.setenv("SOME_KEY", "sk-secret-words")
    config, _ = await record(tmp_path, ("hello",))
    recorded = b"".join(each.body for each in await entries(config, "ADMIN", "ho2m", events.SOURCE_RECORDED))
    assert b"sk-secret-words" not in recorded
    assert b"api_key" not in recorded
    assert KEY.encode() not in recorded


async def test_ids_that_name_no_turn_are_refused(tmp_path: Path) -> None:
    """Each error says what was expected or where to look."""
    config, (session_id,) = await record(tmp_path, ("hello",))
    with pytest.raises(CallerError, match="expected a turn id"):
        await read_prompts("yesterday", config=config)
    with pytest.raises(NotOnRecord, match="session show"):
        await read_prompts(f"T-{session_id[4:]}-000009", config=config)
    with pytest.raises(NotOnRecord, match="memory explain"):
        await read_prompts("WO-CONS-0000000000000000-001", config=config)


def test_a_fresh_process_with_other_settings_rebuilds_a_turn(tmp_path: Path) -> None:
    """Nothing of the recording process is at hand: neither its tools nor its settings."""
    _, (session_id,) = anyio.run(partial(record, tmp_path, MESSAGES[:2], instructions="Be kind."))
    (tmp_path / "other.toml").write_text('[agents.ADMIN]\ninstructions = "Be rude."\n', encoding="utf-8")
    asked = ("context", "explain", f"T-{session_id[4:]}-000002", "--prompt", "--json")
    told = finish(start(*asked, "--root", tmp_path, "--config", tmp_path / "other.toml", cwd=tmp_path)).json
    assert [call["is_verified"] for call in told["calls"]] == [True, True]
    assert "Be kind." in told["calls"][1]["messages"][0]["content"]
