"""`kitchener audit leaks`: docs/commands.md and docs/security.md."""

import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import tool
from kitchener.ledger import LedgerClient, LedgerEntry, LedgerReader, StoredEntry
from kitchener.records import events
from kitchener.records.ref import Ref
from kitchener.runtime import open_runtime
from kitchener.runtime.root_layout import INDEX_KEYS, LedgerName
from kitchener.sealing import Keyring, Sealer
from tests.cli.conftest import Cli
from tests.shared.payloads import payload_of

SETTINGS = """
[ledger]
durability = "none"
[memory]
gate_count_threshold = 2
gate_session_threshold = 1
[agents.ADMIN]
tools = ["*"]
ho3_enabled = true
context_mode = "enforce"
[agents."RESIDENT:bo"]
ho3_enabled = true
"""
PLACES: Mapping[LedgerName, str] = {
    "ho2m": "HO2/ADMIN/ho2m.jsonl",
    "ho1m": "HO1/ADMIN/ho1m.jsonl",
    "context": "HO2/ADMIN/context.jsonl",
    "signals": "HOT/memory/signals.jsonl",
    "overlays": "HOT/memory/overlays.jsonl",
}


@tool(read_only=True)
def list_packages(query: str = "") -> list[str]:
    """Lists the installed packages and their versions."""
    return ["anyio 4.9", "trio 0.30"]


@pytest.fixture(scope="module")
def two_subjects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root in which Ada and Bo talk about the same things, are learned from, and are shown what was learned."""
    directory = tmp_path_factory.mktemp("two")
    (directory / "kitchener.toml").write_text(SETTINGS, encoding="utf-8")

    async def fill() -> None:
        opened = open_runtime(directory / "kitchener.toml", root=directory / ".kitchener", tools=[list_packages])
        async with opened as runtime:
            for agent_class, subject in (("ADMIN", "ada"), ("ADMIN", "bo"), ("RESIDENT:bo", "ada")):
                supervisor = runtime.supervisor(agent_class)
                for _ in range(2):
                    session_id = await supervisor.start_session(subject_id=subject)
                    for message in ("which packages are installed?", "and which of them are old?", "thanks, that is all"):
                        await supervisor.handle_turn(message, session_id=session_id)
                        await runtime.drain()

    anyio.run(fill)
    return directory


@pytest.fixture
def audited(cli: Cli, two_subjects: Path, tmp_path: Path) -> Cli:
    """The command line beside a copy of that root."""
    shutil.copytree(two_subjects, tmp_path, symlinks=True, dirs_exist_ok=True)
    return cli


def sealer_of(root: Path) -> Sealer:
    """Opens and seals with the keys beside the root."""
    return Sealer(Keyring(f"{root}.keys"), events.SEALED_FIELDS)


def newest(root: Path, ledger: LedgerName, entry_type: str, subject: str, has: str = "") -> StoredEntry:
    """The last entry of a type about a subject of ADMIN, with some field."""

    async def read() -> StoredEntry:
        async with LedgerReader.open(root / PLACES[ledger], sealer=sealer_of(root)) as reader:
            found = [
                entry
                async for entry in reader.read(entry_type=entry_type)
                if entry.payload["subject_id"] == subject and (not has or has in entry.payload)
                if not payload_of(entry).get("namespace", "ADMIN/").startswith("RESIDENT")
            ]
            return found[-1]

    return anyio.run(read)


def append(root: Path, ledger: LedgerName, like: StoredEntry, *, without: Collection[str] = (), **fields: Any) -> Ref:
    """Appends another entry like this one, with other fields: the chain verifies, as if a bug had written it."""
    kept = {name: value for name, value in like.payload.items() if name not in without}

    async def write() -> Ref:
        path = root / PLACES[ledger]
        opened = LedgerClient.open(
            path,
            ledger_id=like.ledger_id,
            index_dir=root / "index",
            index_keys=INDEX_KEYS.get(ledger),
            sealer=sealer_of(root),
        )
        async with opened as client:
            ref = await client.write(LedgerEntry(like.entry_type, like.entity_id, {**kept, **fields}))
            await client.commit()
            return ref

    return anyio.run(write)


def projection(root: Path) -> None:
    """Bo's projection shows a message of Ada's."""
    ada = newest(root, "ho2m", events.TURN_STARTED, "ada")
    bo = newest(root, "context", events.PROJECTION_COMPUTED, "bo")
    append(root, "context", bo, visible_refs=[ada.ref.as_mapping()])


def edits(root: Path) -> None:
    """Bo's projection is written as a change of one of Ada's."""
    ada = newest(root, "context", events.PROJECTION_COMPUTED, "ada")
    bo = newest(root, "context", events.PROJECTION_COMPUTED, "bo")
    append(root, "context", bo, eligible_refs={"base": ada.ref.as_mapping(), "edits": [[0, 1]]})


def fragment(root: Path) -> None:
    """Bo's prompt was to hold a fragment of Ada's."""
    ada = newest(root, "ho2m", events.TURN_COMPLETED, "ada")
    bo = newest(root, "ho2m", events.WO_PLANNED, "bo", "attention")
    append(root, "ho2m", bo, attention={**payload_of(bo)["attention"], "fragment_refs": [ada.ref.as_mapping()]})


def line(root: Path) -> None:
    """Bo was shown what was learned about Ada."""
    ada = newest(root, "overlays", events.HO3_OVERLAY, "ada")
    bo = newest(root, "ho2m", events.WO_PLANNED, "bo", "attention")
    append(root, "overlays", ada, artifact_id="ART-aaaaaaaaaaaa", overlay_id="OVL-aaaaaaaaaaaa")
    append(root, "ho2m", bo, attention={**payload_of(bo)["attention"], "biases": ["ART-aaaaaaaaaaaa"]})


def shown_result(root: Path) -> None:
    """Bo's projection shows what a tool returned to Ada."""
    ada = newest(root, "ho1m", events.TOOL_CALL, "ada")
    bo = newest(root, "context", events.PROJECTION_COMPUTED, "bo")
    append(root, "context", bo, visible_refs=[ada.ref.as_mapping()])


def gathered_result(root: Path) -> None:
    """Attention gathered for Bo what a tool returned to Ada."""
    ada = newest(root, "ho1m", events.TOOL_CALL, "ada")
    bo = newest(root, "ho2m", events.WO_PLANNED, "bo", "attention")
    append(root, "ho2m", bo, attention={**payload_of(bo)["attention"], "fragment_refs": [ada.ref.as_mapping()]})


def kept_result(root: Path) -> None:
    """Bo's turn keeps what a tool returned to Ada, for later turns."""
    ada = newest(root, "ho1m", events.TOOL_CALL, "ada")
    append(root, "ho2m", newest(root, "ho2m", events.TURN_COMPLETED, "bo"), tool_results=[{"ref": ada.ref.as_mapping()}])


def prompt(root: Path) -> None:
    """A part of Ada's went to the model in a call for Bo."""
    ada = newest(root, "ho2m", events.WO_PLANNED, "ada")
    bo = newest(root, "ho1m", events.LLM_CALL, "bo")
    append(root, "ho1m", bo, part_refs=[ada.ref.as_mapping()])


def planned(root: Path) -> None:
    """Bo's work order takes in a message of Ada's."""
    ada = newest(root, "ho2m", events.TURN_STARTED, "ada")
    append(root, "ho2m", newest(root, "ho2m", events.WO_PLANNED, "bo"), input_refs=[ada.ref.as_mapping()])


def signal(root: Path) -> None:
    """What Ada did in her session counts for Bo."""
    ada, bo = (newest(root, "signals", events.HO3_SIGNAL, subject) for subject in ("ada", "bo"))
    seen: dict[str, Any] = {name: ada.payload[name] for name in ("turn_id", "session_id")}
    append(root, "signals", bo, signals={"EVT-1": "intent:question"}, **seen)


def signal_of_a_turn(root: Path) -> None:
    """A turn of Ada's gave a signal of Bo's."""
    ada, bo = (newest(root, "signals", events.HO3_SIGNAL, subject) for subject in ("ada", "bo"))
    append(root, "signals", bo, signals={"EVT-1": "intent:question"}, turn_id=ada.payload["turn_id"])


def signal_of_the_programs_own(root: Path) -> None:
    """A program logged a signal of Bo's and said that a turn of Ada's gave it, as turns did before version 8 of the policy."""
    ada, bo = (newest(root, "signals", events.HO3_SIGNAL, subject) for subject in ("ada", "bo"))
    logged = {"v": 1, "event_id": "EVT-1", "signal_id": "intent:question", "metadata": {"turn_id": ada.payload["turn_id"]}}
    append(root, "signals", bo, without=("signals", "turn_id"), **logged)


def lesson(root: Path) -> None:
    """A line about Bo was learned from an event of Ada's."""
    ada = newest(root, "signals", events.HO3_SIGNAL, "ada")
    bo = newest(root, "overlays", events.HO3_OVERLAY, "bo")
    append(root, "overlays", bo, source_event_ids=[*payload_of(bo)["source_event_ids"], *payload_of(ada)["signals"]])


def consolidation(root: Path) -> None:
    """A consolidation that is paid for by Bo learns about Ada."""
    bo = newest(root, "ho2m", events.WO_PLANNED, "bo", "consolidates")
    append(root, "ho2m", bo, consolidates={**payload_of(bo)["consolidates"], "namespace": "ADMIN/ada"})


def intent(root: Path) -> None:
    """A turn of Bo's serves a goal of Ada's."""
    ada = newest(root, "ho2m", events.INTENT_DECLARED, "ada")
    append(root, "ho2m", newest(root, "ho2m", events.TURN_COMPLETED, "bo"), intent_id=ada.entity_id)


def session(root: Path) -> None:
    """A message of Bo's stands in a session of Ada's."""
    ada = newest(root, "ho2m", events.TURN_STARTED, "ada")
    append(root, "ho2m", newest(root, "ho2m", events.TURN_STARTED, "bo"), session_id=ada.session_id)


def record(root: Path) -> None:
    """The result of Bo's turn names a message of Ada's."""
    ada = newest(root, "ho2m", events.TURN_STARTED, "ada")
    append(root, "ho2m", newest(root, "ho2m", events.TURN_COMPLETED, "bo"), user_message_ref=ada.ref.as_mapping())


SEEDS: list[tuple[Callable[[Path], None], set[tuple[str, str]]]] = [
    (projection, {("projection", "visible_refs")}),
    (edits, {("projection", "eligible_refs.base")}),
    (fragment, {("attention", "attention.fragment_refs")}),
    (shown_result, {("projection", "visible_refs")}),
    (gathered_result, {("attention", "attention.fragment_refs")}),
    (kept_result, {("record", "tool_results")}),
    (line, {("attention", "attention.biases")}),
    (prompt, {("prompt", "part_refs")}),
    (planned, {("prompt", "input_refs")}),
    (signal, {("signal", "session_id"), ("signal", "turn_id")}),
    (signal_of_a_turn, {("signal", "turn_id")}),
    (signal_of_the_programs_own, {("signal", "turn_id")}),
    (lesson, {("lesson", "source_event_ids")}),
    (consolidation, {("lesson", "consolidates.namespace")}),
    (intent, {("intent", "intent_id")}),
    (session, {("session", "session_id")}),
    (record, {("record", "user_message_ref")}),
]


def test_subjects_that_talk_about_the_same_things_do_not_leak(audited: Cli) -> None:
    outcome = audited("audit", "leaks", "--json")
    assert outcome.code == 0, outcome.json["leaks"]
    found = outcome.json
    assert (found["ok"], found["leaks"], found["ledgers"], found["subjects"]) == (True, [], 8, 3)
    assert set(found["checked"]) == {"projection", "attention", "prompt", "signal", "lesson", "intent", "session", "record"}
    assert len(found["not_checked"]) == 2, "all references lead somewhere, and every entry has a subject"


@pytest.mark.parametrize(("seed", "expected"), SEEDS, ids=[seed.__name__ for seed, _ in SEEDS])
def test_a_seeded_leak_is_found(
    audited: Cli, tmp_path: Path, seed: Callable[[Path], None], expected: set[tuple[str, str]]
) -> None:
    seed(tmp_path / ".kitchener")
    assert audited("ledger", "verify").code == 0, "nothing else can tell"
    outcome = audited("audit", "leaks", "--json")
    assert outcome.code == 1
    assert not outcome.json["ok"]
    assert {(each["kind"], each["field"]) for each in outcome.json["leaks"]} == expected
    assert {(each["owner"], each["belongs_to"]) for each in outcome.json["leaks"]} == {("ADMIN/bo", "ADMIN/ada")}


def test_a_reader_sees_where_and_whose_and_what_was_not_checked(audited: Cli, tmp_path: Path) -> None:
    prompt(tmp_path / ".kitchener")
    outcome = audited("audit", "leaks")
    assert outcome.code == 1
    first, *rest = outcome.out.splitlines()
    assert first.startswith("prompt: LLM_CALL HO1M:ADMIN E-")
    assert " of ADMIN/bo names HO2M:ADMIN E-" in first
    assert first.endswith(" of ADMIN/ada (part_refs)")
    assert rest[0].startswith("1 leak between 3 subjects in ")
    assert "not checked:" in rest
    assert any("kitchener replay" in each for each in rest)


def test_references_that_lead_nowhere_are_counted_and_no_leak(audited: Cli, tmp_path: Path) -> None:
    root = tmp_path / ".kitchener"
    bo = newest(root, "ho1m", events.LLM_CALL, "bo")
    gone = {"ledger_id": "HO2M:RESIDENT%3Agone", "entry_id": "E-2026-01-01-000000000001", "entry_hash": "sha256:00"}
    append(root, "ho1m", bo, part_refs=[gone])
    outcome = audited("audit", "leaks", "--json")
    assert outcome.code == 0
    assert "1 reference to entries that are not here" in outcome.json["not_checked"]


def test_a_damaged_ledger_is_no_verdict(audited: Cli, tmp_path: Path) -> None:
    path = tmp_path / ".kitchener" / PLACES["ho1m"]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    outcome = audited("audit", "leaks")
    assert (outcome.code, outcome.out) == (6, "")


def test_an_empty_root_has_no_leak_and_a_missing_one_is_named(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert cli("audit", "leaks", "--root", "empty").code == 0
    outcome = cli("audit", "leaks", "--root", "missing")
    assert outcome.code == 2
    assert "--root" in outcome.err
