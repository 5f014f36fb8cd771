"""No word of a subject outlives their erasure, wherever a model, a tool or the subject put it (docs/erasure.md)."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import pytest

from kitchener import HO2Config, Runtime, RuntimeConfig, open_runtime, tool
from kitchener.cli.app import invoke
from kitchener.config import HO3MemoryConfig, LedgerConfig, RouterConfig
from kitchener.errors import ProviderError
from kitchener.ids import memory_namespace
from kitchener.ledger import LedgerEntry
from kitchener.memory import HO3Memory
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.replaying import replay_session
from kitchener.sealing import Keyring, Sealer
from kitchener.testing import ScriptedProvider, use_tool
from tests.hostile.kit import bystander, unless_bystander


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop is enough: what is on disk does not depend on it."""
    return "asyncio"


ADA: Final = "ada"
WORDS: Final = (
    *("hivpositive", "divorcing", "bankrupt", "pregnant", "sectarian", "tattooed", "indicted", "sleepless", "jobless"),
    *("homesick", "allergic", "widowed", "sober", "evicted", "deported", "asthmatic", "orphaned", "insured"),
)
"""One for each place in which a model, a tool or a user can leave a word."""
MESSAGE, DOMAIN, TASK, ACT, AMBIGUITY, SCOPE, PRIOR, ASKED_TOOL, ARGUMENT, EXTRA, REPLY, NO_TOOL, RESULT, ERROR = WORDS[:14]
OBJECTIVE, LINE, VERDICT, OUTAGE = WORDS[14:]
MESSAGES: Final = (f"odd {MESSAGE}", f"tool {MESSAGE}", f"outage {MESSAGE}", f"plain {MESSAGE}")
GATE: Final[Mapping[str, Any]] = {"ho3_gate_count_threshold": 2, "ho3_gate_session_threshold": 2}


@tool
def fetch(what: str) -> str:
    """Fetches something.

    Args:
        what: its name
    """
    if what == "nothing":
        raise LookupError(f"{ERROR} is not there")
    return f"{RESULT} of {len(what)}"


def worded(request: PromptRequest) -> Any:
    """A model that puts the subject's words into every field it can fill."""
    message = str(request.variables.get("user_message"))
    if request.wo_type == "consolidate":
        line = f"Speaks of {LINE}."
        labels = {"domain": [DOMAIN], "task": [TASK]}
        weights = {"salience_weight": 0.9, "decay_modifier": 0.9}
        return {"bias": line, "category": "topic_affinity", "labels": labels, "context_line": line, **weights}
    if request.wo_type == "verify":
        return {"decision": "reject" if message.startswith("outage") else "accept", "reason": VERDICT}
    if request.wo_type == "classify":
        return {
            "speech_act": f"command {ACT}" if message.startswith("odd") else "command",
            "ambiguity": AMBIGUITY,
            "labels": {"domain": DOMAIN, "task": [TASK, EXTRA]},
            "intent": {"action": "supersede", "scope": SCOPE, "prior_intent_id": PRIOR},
            "candidate_objective": f"cope with {OBJECTIVE}",
            "tool_request": {"tool_id": ASKED_TOOL, "arguments": {ARGUMENT: ARGUMENT}},
            EXTRA: {EXTRA: EXTRA},
        }
    tools_run = sum(each.role == "tool" for each in request.messages)
    if message.startswith("outage"):
        raise ProviderError("scripted", "bad_request", f"no {OUTAGE} here")
    if message.startswith("tool") and tools_run < 3:
        return (use_tool("fetch", what=ARGUMENT), use_tool("fetch", what="nothing"), use_tool(NO_TOOL, **{EXTRA: EXTRA}))[
            tools_run
        ]
    return {"response_text": f"{REPLY}.", EXTRA: EXTRA}


def config(root: Path, *, keyring: bool = True, memory: HO3MemoryConfig | None = None, **agent: Any) -> RuntimeConfig:
    """One agent class that learns, everything sealed."""
    decides = {
        "ho3_enabled": True,
        "context_mode": "enforce",
        "intent_mode": "classified",
        "verify_with_model": True,
        "tools": ("*",),
    }
    sealing = {"keyring": str(root / "keys")} if keyring else {"seal": False}
    ledger: Mapping[str, Any] = {"durability": "os", "linger_ms": 0, **sealing}
    return RuntimeConfig(
        plane_root=str(root / "plane"),
        ledger=LedgerConfig(**ledger),
        memory=memory or HO3MemoryConfig(),
        router=RouterConfig(default_provider="scripted"),
        agents={"ADMIN": HO2Config(**{**decides, **GATE, **agent})},
    )


@asynccontextmanager
async def running(settings: RuntimeConfig, model: Callable[[PromptRequest], Any] = worded) -> AsyncIterator[Runtime]:
    """A runtime whose model words what it can; the bystander gets proper answers."""
    providers = {"scripted": ScriptedProvider(unless_bystander(model))}
    async with open_runtime(settings, providers=providers, tools=[fetch]) as runtime:
        yield runtime


async def talk(runtime: Runtime, subject_id: str, *messages: str) -> str:
    """A conversation; returns its session."""
    session_id = await runtime.supervisor().start_session(subject_id=subject_id)
    for message in messages or MESSAGES:
        with anyio.fail_after(20):
            await runtime.supervisor().handle_turn(message, session_id=session_id)
    with anyio.fail_after(20):
        await runtime.drain()
    return session_id


def found(root: Path) -> dict[str, list[str]]:
    """Which of the words stand in plain text in which files: ledgers, segments, indexes, keys."""
    files = {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
    where = {word: [str(path.relative_to(root)) for path, data in files.items() if word.encode() in data] for word in WORDS}
    return {word: paths for word, paths in where.items() if paths}


def stored_signals(root: Path) -> set[str]:
    """The signal ids as they stand in the file."""
    lines = (root / "plane" / "HOT" / "memory" / "signals.jsonl").read_text().splitlines()
    payloads = [json.loads(line)["entry"]["payload"] for line in lines if '"HO3_SIGNAL"' in line]
    return {each for payload in payloads for each in payload["signals"].values()}


async def test_no_word_of_an_erased_subject_is_anywhere_under_the_root(tmp_path: Path) -> None:
    """Labels, kinds of message, names of tools, ids of intents: whatever the model worded is sealed, keyed, or not kept."""
    settings = config(tmp_path)
    async with running(settings) as runtime:
        async with bystander(runtime):
            first, second = await talk(runtime, ADA), await talk(runtime, ADA)
            assert found(tmp_path) == {}
            memory = runtime.memory("ADMIN")
            learned = await memory.read_overlays(namespace="ADMIN/ada")
            assert f"domain:{DOMAIN}" in {each.signal_id for each in learned}, "while the key lives, the words are there"
            report = await runtime.erase_subject(ADA)
            assert report.sessions == 2
        assert not await memory.read_signals(namespace="ADMIN/ada")
        assert {each.context_line for each in await memory.read_overlays(active_only=False, namespace="ADMIN/ada")} == {None}
        assert await memory.read_signals(namespace="ADMIN/bo"), "the other one's are there"
    assert found(tmp_path) == {}
    for session_id in (first, second):
        assert (await replay_session(session_id, config=settings, tools=[fetch])).is_identical


async def test_the_same_words_are_plain_where_nothing_is_sealed(tmp_path: Path) -> None:
    """What the look for words finds without a keyring: every one of them, so it can find."""
    async with running(config(tmp_path, keyring=False)) as runtime:
        await talk(runtime, ADA)
        await talk(runtime, ADA)
    assert set(found(tmp_path)) == set(WORDS)
    assert f"domain:{DOMAIN}" in stored_signals(tmp_path)


async def test_keyed_signals_add_up_and_differ_between_subjects_and_between_keys(tmp_path: Path) -> None:
    """Equal labels of one subject are one signal; another subject's, and the same subject's after an erasure, are others."""
    async with running(config(tmp_path)) as runtime:
        memory = runtime.memory("ADMIN")
        own = {name: memory.stored_id(f"domain:{DOMAIN}", namespace=f"ADMIN/{name}") for name in (ADA, "eve")}
        for subject_id in (ADA, ADA, "eve"):
            await talk(runtime, subject_id, MESSAGES[-1])
        (signal,) = await memory.read_signals(f"domain:{DOMAIN}", namespace="ADMIN/ada")
        assert (signal.signal_id, signal.count, len(signal.session_ids)) == (f"domain:{DOMAIN}", 2, 2)
        (same,) = await memory.read_signals(own[ADA], namespace="ADMIN/ada")
        assert (same.signal_id, same.event_ids) == (signal.signal_id, signal.event_ids), "the stored id means the same"
        assert (await memory.read_signals(f"domain:{DOMAIN}", namespace="ADMIN/eve"))[0].count == 1
        await runtime.erase_subject(ADA)
        await talk(runtime, ADA, MESSAGES[-1])
        own["ada again"] = memory.stored_id(f"domain:{DOMAIN}", namespace="ADMIN/ada")
        assert (await memory.read_signals(f"domain:{DOMAIN}", namespace="ADMIN/ada"))[0].count == 1
    assert len(set(own.values())) == 3
    stored = stored_signals(tmp_path)
    assert set(own.values()) <= stored
    assert {each for each in stored if "~" not in each} == {"intent:command", "outcome:success"}


async def test_a_model_cannot_word_a_keyed_signal(tmp_path: Path) -> None:
    """A label that looks like a keyed one is keyed like any other: hex digits can spell words."""
    spelled = "~" + b"hiv".hex().ljust(32, "0")

    def spelling(request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            return {"speech_act": "question", "labels": {"domain": spelled}}
        return {"decision": "accept", "reason": "", "response_text": "ok"}

    async with running(config(tmp_path), spelling) as runtime, bystander(runtime):
        await talk(runtime, ADA, "hello")
    assert not any(spelled in each for each in stored_signals(tmp_path))


async def test_a_label_outside_the_vocabulary_counts_as_none(tmp_path: Path) -> None:
    """It gives no signal and chooses no learned line; one of the vocabulary does both, in the vocabulary's spelling."""
    told = {"domain": "Travel"}

    def labelled(request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            return {"speech_act": "question", "labels": dict(told)}
        return worded(request) if request.wo_type == "consolidate" else {"decision": "accept", "response_text": "ok"}

    vocabulary = {"domain": ("travel", "system")}
    async with running(config(tmp_path, keyring=False, labels_vocabulary=vocabulary), labelled) as runtime:
        async with bystander(runtime):
            await talk(runtime, ADA, "one")
            told["domain"], told["task"] = DOMAIN, "free"
            await talk(runtime, ADA, "two")
        ids = {each.signal_id for each in await runtime.memory("ADMIN").read_signals(namespace="ADMIN/ada")}
    assert ids == {"intent:question", "outcome:success", "domain:travel", "task:free"}, "a kind without labels has any"


async def test_what_a_program_and_a_person_give_to_the_memory_is_keyed_too(tmp_path: Path) -> None:
    """Signals of kinds of one's own, quarantines, deactivations and imports name signals as well."""
    namespace = memory_namespace("ADMIN", ADA)
    older = {
        "overlay_id": "OVL-old",
        "signal_id": f"domain:{DOMAIN}",
        "salience_weight": 0.5,
        "decay_modifier": 1.0,
        "content": {"bias": f"Speaks of {LINE}.", "category": "x"},
        "source_event_ids": ["EVT-old"],
        "window_start": "2026-01-01T00:00:00+00:00",
        "window_end": "2026-01-02T00:00:00+00:00",
        "created_at": "2026-01-02T00:00:00+00:00",
    }
    settings = config(tmp_path, memory=HO3MemoryConfig(custom_kinds=("mood",)))
    async with running(settings) as runtime:
        await talk(runtime, ADA, MESSAGES[-1])
        await talk(runtime, ADA, MESSAGES[-1])
        memory = runtime.memory("ADMIN")
        await memory.log_signal(f"mood:{ERROR}", "SES-0000000a", namespace=namespace)
        await memory.import_overlays([older], namespace=namespace)
        lost = await memory.quarantine(f"domain:{DOMAIN}", f"{VERDICT} said so", namespace=namespace)
        assert {each.signal_id for each in lost} == {f"domain:{DOMAIN}"}
        assert (await memory.check_gate(f"domain:{DOMAIN}", namespace=namespace)).reason == "quarantined"
        assert (await memory.read_signals(f"mood:{ERROR}", namespace=namespace))[0].count == 1
    assert found(tmp_path) == {}
    async with running(settings) as runtime:  # folded anew from what is stored
        memory = runtime.memory("ADMIN")
        assert (await memory.check_gate(f"domain:{DOMAIN}", namespace=namespace)).reason == "quarantined"
        assert f"domain:{DOMAIN}" in {
            each.signal_id for each in await memory.read_overlays(active_only=False, namespace=namespace)
        }


async def test_plain_labels_of_an_older_root_still_count_beside_keyed_ones(tmp_path: Path) -> None:
    """What was written before labels were keyed reads as it did, and goes on where it stood."""
    sealer = Sealer(Keyring(tmp_path / "keys"), events.SEALED_FIELDS)
    async with HO3Memory.open(tmp_path, sealer=sealer) as memory:
        for number in range(2):
            payload = {
                "v": 1,
                "namespace": "ADMIN/ada",
                "subject_id": ADA,
                "event_id": f"EVT-{number}",
                "signal_id": "domain:travel",
                "session_id": f"SES-0000000{number}",
                "timestamp": "2026-01-01T00:00:00.000000+00:00",
                "metadata": {"turn_id": f"T-0000000{number}-000001"},
            }
            await memory.signals.write(LedgerEntry(events.HO3_SIGNAL, "domain:travel", payload))
        await memory.log_signal("domain:travel", "SES-0000000c", namespace="ADMIN/ada")
    async with HO3Memory.open(tmp_path, sealer=sealer) as memory:
        (signal,) = await memory.read_signals("domain:travel", namespace="ADMIN/ada")
        assert (signal.count, len(signal.session_ids)) == (3, 3)
    ids = [json.loads(line)["entry"]["entity_id"] for line in (tmp_path / "HOT/memory/signals.jsonl").read_text().splitlines()]
    assert ids[:2] == ["domain:travel"] * 2
    assert ids[2].startswith("domain:~")


def test_commands_show_the_words_while_the_key_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Signals, lines, what stands behind them and quarantines are told by their words, and so is an export; erased, none is."""

    async def fill() -> None:
        async with running(config(tmp_path)) as runtime:
            await talk(runtime, ADA, MESSAGES[-1])
            await talk(runtime, ADA, MESSAGES[-1])
            await talk(runtime, "eve", MESSAGES[-1])

    anyio.run(fill)
    monkeypatch.chdir(tmp_path)
    gate = "ho3_gate_count_threshold = 2\nho3_gate_session_threshold = 2\n"
    (tmp_path / "kitchener.toml").write_text(
        f'plane_root = "plane"\n[ledger]\nkeyring = "keys"\n[agents.ADMIN]\nho3_enabled = true\n{gate}'
    )

    def told(*arguments: str, code: int = 0) -> str:
        capfd.readouterr()
        assert invoke(list(arguments)) == code
        return capfd.readouterr().out

    assert f"domain:{DOMAIN}" in told("memory", "signals", "--subject", ADA)
    learned = json.loads(told("memory", "export", "--subject", ADA).splitlines()[0])
    assert "~" not in learned["signal_id"] + "".join(learned["source_signal_ids"])
    listed = json.loads(told("memory", "biases", "--subject", ADA, "--json"))
    assert f"domain:{DOMAIN}" in json.dumps(listed)
    told("memory", "quarantine", f"domain:{DOMAIN}", "--reason", "wrong", "--subject", ADA)
    assert f"domain:{DOMAIN}" in told("memory", "signals", "--subject", "eve")
    told("subject", "erase", ADA, "--yes")
    assert not any(word in told("memory", "signals", "--subject", ADA) for word in WORDS)
    assert f"domain:{DOMAIN}" in told("memory", "signals", "--subject", "eve")
