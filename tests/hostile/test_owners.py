"""What is one subject's is nobody else's: sessions, names of sessions, keys of messages, memory (docs/sessions.md)."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import orjson
import pytest

from kitchener import HO2Config, Runtime, RuntimeConfig, open_runtime
from kitchener.cli.app import invoke
from kitchener.config import LedgerConfig, RouterConfig
from kitchener.errors import CallerError, SessionMismatch, SubjectErased, UnknownSubject
from kitchener.ids import memory_namespace
from kitchener.ledger import LedgerEntry
from kitchener.memory import HO3Memory, MemoryReader
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.sealing import Keyring, Sealer
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo
from tests.hostile.kit import bystander, unless_bystander


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop is enough: whose something is does not depend on it."""
    return "trio"


ADA, MALLORY = "ada", "mallory"
FEW: Final = (
    "ada",
    "Ada",
    "ada ",
    "a/da",
    "a%2Fda",
    "../ada",
    "*",
    "\u00e9",
    "e\u0301",
    "anon-ada",
    "\u0430da",
    "\U00010348" * 256,
)
"""Ids that some encoding, comparison or shortening could take for one another: each is somebody else's."""
MORE: Final = ("ad", " ada", "a%2fda", "..", "ADMIN/ada", "default", "%", "a|da", "1:a|b")
"""The same, for `make soak`."""
NOBODIES: Final = ("", "a\0b", "a\nb", "\ud800", "\u202eada", "a\u200bda", "x" * 257)
"""No ids."""


def config(root: Path) -> RuntimeConfig:
    """One agent class that learns and recalls, everything sealed."""
    agent = HO2Config(ho3_enabled=True, context_mode="enforce", intent_mode="classified", recall_scope="subject")
    return RuntimeConfig(
        plane_root=str(root / "plane"),
        ledger=LedgerConfig(durability="os", linger_ms=0, keyring=str(root / "keys")),
        router=RouterConfig(default_provider="scripted"),
        agents={"ADMIN": agent},
    )


@asynccontextmanager
async def running(root: Path, seen: list[PromptRequest] | None = None) -> AsyncIterator[Runtime]:
    """A runtime around a model that repeats the message, and keeps what it was shown."""

    def answer(request: PromptRequest) -> Any:
        if seen is not None:
            seen.append(request)
        return echo(request)

    async with open_runtime(config(root), providers={"scripted": ScriptedProvider(unless_bystander(answer))}) as runtime:
        yield runtime


async def test_nobody_can_be_the_anonymous_subject_of_anothers_session(tmp_path: Path) -> None:
    """`anon-SES-…` is refused wherever a caller says who they are, except together with that very session."""
    async with running(tmp_path) as runtime, bystander(runtime):
        supervisor = runtime.supervisor()
        mine = await supervisor.handle_turn("my diagnosis is secret")
        stolen = f"anon-{mine.session_id}"
        other = await supervisor.start_session(subject_id=MALLORY)
        with pytest.raises(CallerError, match="anonymous"):
            await supervisor.handle_turn("what did I say?", subject_id=stolen)
        with pytest.raises(CallerError, match="anonymous"):
            await supervisor.handle_turn("what did I say?", subject_id=stolen, idempotency_key="one")
        with pytest.raises(CallerError, match="anonymous"):
            await supervisor.start_session(subject_id=stolen, external_id="chat")
        with pytest.raises(CallerError, match="anonymous"):
            await supervisor.handle_turn("what did I say?", session_id=other, subject_id=stolen)
        with pytest.raises(CallerError, match="anonymous"):
            async for _ in supervisor.stream_turn("what did I say?", subject_id=stolen):
                pass
        own = await supervisor.handle_turn("hello again", session_id=mine.session_id, subject_id=stolen)
        assert own.session_id == mine.session_id
        assert (await runtime.erase_subject(stolen)).turns == 2, "an operator may name them"


async def test_whose_a_session_is_is_not_told(tmp_path: Path) -> None:
    """Neither in words nor in attributes, whether its owner is there or erased; and nothing of theirs changes."""
    async with running(tmp_path) as runtime, bystander(runtime):
        supervisor = runtime.supervisor()
        owner = "ada.lovelace"
        session_id = await supervisor.start_session(subject_id=owner)
        for is_erased in (False, True):
            if is_erased:
                await runtime.erase_subject(owner)
            for call in (
                supervisor.handle_turn("hello", session_id=session_id, subject_id=MALLORY),
                supervisor.handle_turn("hello", session_id=session_id, subject_id=MALLORY, idempotency_key="one"),
                supervisor.start_session(session_id, subject_id=MALLORY),
            ):
                with pytest.raises(SessionMismatch) as refused:
                    await call
                assert owner not in f"{refused.value} {refused.value.args} {vars(refused.value)}"
            if not is_erased:
                assert (await supervisor.handle_turn("hello", session_id=session_id, subject_id=owner)).error is None
        with pytest.raises(SubjectErased):
            await supervisor.handle_turn("hello", session_id=session_id, subject_id=owner)


async def test_the_same_external_id_is_another_session_for_each_subject(tmp_path: Path) -> None:
    """Nobody's name of a session displaces another's, also after a restart; those without a subject have one of their own."""
    async with running(tmp_path) as runtime, bystander(runtime):
        supervisor = runtime.supervisor()
        ada = await supervisor.start_session(subject_id=ADA, external_id="chat")
        anonymous = await supervisor.start_session(external_id="chat")
        mallory = [await supervisor.start_session(subject_id=MALLORY, external_id="chat") for _ in range(3)]
        tricky = await supervisor.start_session(subject_id="ad", external_id="a|chat")
    async with running(tmp_path) as runtime:
        supervisor = runtime.supervisor()
        assert await supervisor.find_external("chat", subject_id=ADA) == ada
        assert await supervisor.find_external("chat", subject_id=MALLORY) == mallory[-1]
        assert await supervisor.find_external("chat") == anonymous
        assert await supervisor.find_external("chat", subject_id="eve") is None
        assert await supervisor.find_external("a|chat", subject_id="ad") == tricky


async def test_the_same_key_of_a_message_is_another_turn_for_each_subject(tmp_path: Path) -> None:
    """What was answered to one is never the answer to another, whatever stands in ids and keys."""
    async with running(tmp_path) as runtime, bystander(runtime):
        supervisor = runtime.supervisor()
        pairs = ((ADA, "k"), (MALLORY, "k"), ("ad", "a|k"), ("1:a", "k"))
        once = {who: await supervisor.handle_turn("hello", subject_id=who, idempotency_key=key) for who, key in pairs}
        assert len({each.session_id for each in once.values()}) == len(pairs)
        for who, key in pairs:
            assert await supervisor.handle_turn("hello", subject_id=who, idempotency_key=key) == once[who]
        with pytest.raises(SessionMismatch):
            await supervisor.handle_turn("hello", session_id=once[ADA].session_id, subject_id=MALLORY, idempotency_key="k")


@pytest.mark.parametrize("ids", [FEW, pytest.param((*FEW, *MORE), marks=pytest.mark.soak)], ids=["few", "all"])
async def test_ids_that_look_alike_are_different_subjects(tmp_path: Path, ids: Sequence[str]) -> None:
    """Each sees what it said itself, has a memory of its own, and is erased alone."""
    seen: list[PromptRequest] = []
    secrets = {each: f"password{number:02d}x" for number, each in enumerate(ids)}
    async with running(tmp_path, seen) as runtime, bystander(runtime):
        supervisor = runtime.supervisor()
        for subject_id, secret in secrets.items():
            await supervisor.handle_turn(f"my password is {secret}", subject_id=subject_id)
        seen.clear()
        for subject_id in secrets:
            await supervisor.handle_turn("what is my password?", subject_id=subject_id)
        for request in seen:
            shown = str(request.variables)
            assert {name for name, secret in secrets.items() if secret in shown} <= {request.subject_id}
        assert {request.subject_id for request in seen if secrets[request.subject_id] in str(request.variables)} == set(secrets)
        left = dict.fromkeys(secrets)
        while left:
            gone, _ = left.popitem()
            namespace = memory_namespace("ADMIN", gone)
            (signal,) = await runtime.memory("ADMIN").read_signals("intent:question", namespace=namespace)
            assert signal.count == 2, f"{gone} was erased with another one"
            report = await runtime.erase_subject(gone)
            assert (report.sessions, report.turns, report.was_erased_before) == (2, 2, False), gone


@pytest.mark.parametrize("subject_id", NOBODIES)
async def test_what_is_no_id_is_refused_at_every_door(tmp_path: Path, subject_id: str) -> None:
    """Turns, sessions and memory ask the same question, so nothing is taken that could not be used or erased."""
    async with running(tmp_path) as runtime, bystander(runtime):
        supervisor, memory = runtime.supervisor(), runtime.memory("ADMIN")
        with pytest.raises(CallerError, match="subject_id"):
            await supervisor.handle_turn("hello", subject_id=subject_id)
        with pytest.raises(CallerError, match="subject_id"):
            await supervisor.start_session(subject_id=subject_id)
        if subject_id != "\ud800":  # has no percent-encoding
            namespace = memory_namespace("ADMIN", subject_id)
            with pytest.raises(CallerError, match="subject_id"):
                await memory.log_signal("domain:x", "SES-0000000a", namespace=namespace)
            with pytest.raises(CallerError, match="subject_id"):
                await memory.import_overlays([older()], namespace=namespace)
        with pytest.raises(CallerError if subject_id in ("", "\ud800") else UnknownSubject):
            await runtime.erase_subject(subject_id)


@pytest.mark.parametrize("subject_id", [each for each in NOBODIES if each != "\ud800"])  # which no JSON can hold
def test_an_import_takes_no_id_that_a_turn_would_not(tmp_path: Path, subject_id: str) -> None:
    """Nothing is written, so nothing is there that could not be erased."""
    (tmp_path / "lines").write_bytes(orjson.dumps({**older(), "subject_id": subject_id}))
    assert invoke(["memory", "import", str(tmp_path / "lines"), "--root", str(tmp_path / "plane")]) == 2
    assert not list(tmp_path.rglob("overlays*"))


@pytest.mark.parametrize("subject_id", [*FEW[3:], *(pytest.param(each, marks=pytest.mark.soak) for each in MORE)])
def test_what_one_door_takes_all_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], subject_id: str
) -> None:
    """An imported id can talk, be looked at and be erased."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kitchener.toml").write_text(
        'plane_root = "plane"\n[ledger]\nkeyring = "keys"\n[router]\ndefault_provider = "scripted"\n'
        '[router.providers.scripted]\nkind = "offline"\n[agents.ADMIN]\nho3_enabled = true\n'
    )
    (tmp_path / "lines").write_bytes(orjson.dumps({**older(), "subject_id": subject_id}))
    assert invoke(["memory", "import", "lines"]) == 0

    async def talk() -> None:
        async with running(tmp_path) as runtime:
            await runtime.supervisor().handle_turn("hello", subject_id=subject_id)

    anyio.run(talk)
    capfd.readouterr()
    assert invoke(["memory", "biases", f"--subject={subject_id}", "--json"]) == 0
    assert "OVL-old" in capfd.readouterr().out
    assert invoke(["subject", "erase", "--yes", "--", subject_id]) == 0
    assert len(list((tmp_path / "keys").glob("*.key"))) == 1, "that of what is configured"


def test_an_older_roots_bad_id_can_still_be_erased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that an older version took from a file is named percent-encoded, because no command line can hold it."""
    subject_id = "a\0b"
    namespace = memory_namespace("ADMIN", subject_id)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kitchener.toml").write_text(
        'plane_root = "plane"\n[ledger]\nkeyring = "keys"\n[agents.ADMIN]\nho3_enabled = true\n'
    )
    sealer = Sealer(Keyring(tmp_path / "keys"), events.SEALED_FIELDS)

    async def import_as_once() -> None:
        async with HO3Memory.open(tmp_path / "plane", sealer=sealer) as memory:
            payload = {"v": 1, "namespace": namespace, "subject_id": subject_id, **older(), "unverified_event_ids": ["EVT-old"]}
            await memory.overlays.write(LedgerEntry(events.HO3_OVERLAY, "OVL-old", payload))
            await memory.import_overlays([older()], namespace="ADMIN/bo")

    async def lines() -> list[str]:
        again = Sealer(Keyring(tmp_path / "keys"), events.SEALED_FIELDS)
        async with MemoryReader.open(tmp_path / "plane", sealer=again) as memory:
            of_both = [each for name in (namespace, "ADMIN/bo") for each in await memory.read_overlays(namespace=name)]
            return [each.line for each in of_both]

    anyio.run(import_as_once)
    assert anyio.run(lines) == ["Likes rain."] * 2
    assert invoke(["subject", "erase", "--encoded", "a%00b", "--yes"]) == 0
    assert anyio.run(lines) == ["Likes rain."], "only the other one's"


def older() -> dict[str, Any]:
    """A learned line as it is imported."""
    return {
        "overlay_id": "OVL-old",
        "signal_id": "domain:weather",
        "salience_weight": 0.9,
        "decay_modifier": 1.0,
        "content": {"bias": "Likes rain.", "category": "x"},
        "source_event_ids": ["EVT-old"],
        "window_start": "2126-01-01T00:00:00+00:00",
        "window_end": "2126-01-02T00:00:00+00:00",
        "created_at": "2126-01-02T00:00:00+00:00",
    }
