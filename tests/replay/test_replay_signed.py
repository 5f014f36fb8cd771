"""A replay checks the signatures of recorded projections with the public keys on record, and has no private key."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kitchener.actors.assembly import SharedResources
from kitchener.actors.executor.executor import HO1Executor
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.work.budget import TokenBudgeter
from kitchener.canonical import canonical_bytes
from kitchener.clock import SystemClock
from kitchener.config import HO2Config, RouterConfig, RuntimeConfig
from kitchener.gateway import LLMGateway
from kitchener.ledger import open_ledgers
from kitchener.ledger.verify.checkpoint import sign_ledger
from kitchener.replaying import replay_session
from kitchener.runtime import open_runtime
from kitchener.signing import Signer, load_signer, make_key
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUICK, places, scripted_config
from tests.replay.shared.recorded_sessions import KEY, TOOLS, model, record, say_all
from tests.replay.test_replay_diverges import CONTEXT, ENFORCE, HO2M, forge, found_in
from tests.replay.test_replay_identical import MODES

pytestmark = pytest.mark.timeout(60)
SIGNED: tuple[Any, ...] = ("hello", "new: the garden", "and now?")
Forgery = Callable[[dict[str, Any], Signer], None]


def signed_by(payload: dict[str, Any], signer: Signer) -> None:
    """Signs a projection's payload as it stands."""
    rest = {key: value for key, value in payload.items() if key != "authority"}
    payload["authority"] = {"tier": "HO2", "signer": signer.signer, "sig": signer.sign(canonical_bytes(rest))}


def without_declaration(entry: dict[str, Any]) -> None:
    """Makes `SIGNER_DECLARED` an entry of no known type, as if an older version had recorded the root."""
    if entry["entry_type"] == "SIGNER_DECLARED":
        entry["entry_type"] = "SOMETHING_ELSE"


async def further(root: Path, key: Path | None, session_id: str, message: str) -> RuntimeConfig:
    """One more turn of a session in a runtime of its own, under another key or none, and the settings."""
    ledger = QUICK.model_copy(update={"signing_key": str(key) if key is not None else None})
    config = scripted_config(root, ledger=ledger, **ENFORCE)
    async with open_runtime(config, providers={"scripted": ScriptedProvider(model)}, tools=TOOLS) as runtime:
        await say_all(runtime, session_id, [message])
    return config


@pytest.mark.parametrize("mode", MODES[1:], ids=["shadow", "bridge", "classified"])
async def test_signed_projections_replay_without_the_private_key(tmp_path: Path, mode: dict[str, Any]) -> None:
    config, (session_id,) = await record(tmp_path, SIGNED, **mode)
    assert b'"sig":"' in (tmp_path / CONTEXT).read_bytes()
    (tmp_path / KEY).unlink()
    report = await replay_session(session_id, config=config, tools=TOOLS)
    assert report.is_identical, report.text()
    assert len(report.turns) == len(SIGNED)


def changed_signature(payload: dict[str, Any], stranger: Signer) -> None:
    payload["authority"]["sig"] = payload["authority"]["sig"][:-1] + ("0" if payload["authority"]["sig"][-1] != "0" else "1")


def no_authority(payload: dict[str, Any], stranger: Signer) -> None:
    del payload["authority"]


def unsigned(payload: dict[str, Any], stranger: Signer) -> None:
    payload["authority"] = {"tier": "HO2", "signer": None, "sig": None}


def missing_signature(payload: dict[str, Any], stranger: Signer) -> None:
    payload["authority"]["sig"] = None


def own_signer_foreign_signature(payload: dict[str, Any], stranger: Signer) -> None:
    signer = payload["authority"]["signer"]
    signed_by(payload, stranger)
    payload["authority"]["signer"] = signer


def not_compared(payload: dict[str, Any], stranger: Signer) -> None:
    payload["authority"]["more"] = 1


@pytest.mark.parametrize(
    ("forgery", "field"),
    [
        (changed_signature, "authority.sig"),
        (missing_signature, "authority.sig"),
        (own_signer_foreign_signature, "authority.sig"),
        (signed_by, "authority.signer"),
        (unsigned, "authority.signer"),
        (no_authority, "authority"),
        (not_compared, "authority"),
    ],
)
async def test_wrong_signature_is_a_divergence(tmp_path: Path, forgery: Forgery, field: str) -> None:
    """All hashes are made right again, so only the signature tells."""
    config, (session_id,) = await record(tmp_path, SIGNED, **ENFORCE)
    stranger = make_key(tmp_path / "stranger.pem")

    def change(entry: dict[str, Any]) -> None:
        if entry["entry_type"] == "PROJECTION_COMPUTED" and entry["payload"]["turn_id"].endswith("1"):
            forgery(entry["payload"], stranger)

    forge(tmp_path, CONTEXT, change)
    report = await replay_session(session_id, config=config, tools=TOOLS)
    assert found_in(report) == ("PROJECTION_COMPUTED", field, 1)
    assert "SIGNER_DECLARED" in report.text()


async def test_signing_that_begins_changes_and_ends_replays_identical(tmp_path: Path) -> None:
    """Each turn is held to the signer who was declared before it, or to none."""
    config, (session_id,) = await record(tmp_path, SIGNED[:1], is_signed=False, **ENFORCE)
    assert b"SIGNER_DECLARED" not in (tmp_path / HO2M).read_bytes()
    first, second = tmp_path / "first.pem", tmp_path / "second.pem"
    make_key(first)
    make_key(second)
    for key in (first, first, second, None, None, second):
        config = await further(tmp_path, key, session_id, "more")
    assert (tmp_path / HO2M).read_bytes().count(b'"SIGNER_DECLARED"') == 4
    report = await replay_session(session_id, config=config, tools=TOOLS)
    assert report.is_identical, report.text()
    assert len(report.turns) == 7


async def test_older_root_is_checked_with_the_key_of_a_signed_head(tmp_path: Path) -> None:
    """Before `SIGNER_DECLARED` was recorded, only signed heads had the key; without one, the remedy is named."""
    config, (session_id,) = await record(tmp_path, SIGNED, **ENFORCE)
    forge(tmp_path, HO2M, without_declaration)
    unknown = await replay_session(session_id, config=config, tools=TOOLS)
    assert found_in(unknown) == ("PROJECTION_COMPUTED", "authority.signer", 1)
    assert "kitchener ledger checkpoint" in unknown.text()
    sign_ledger(tmp_path / CONTEXT, load_signer(tmp_path / KEY), "2026-01-01T00:00:00.000000+00:00")
    report = await replay_session(session_id, config=config, tools=TOOLS)
    assert report.is_identical, report.text()


async def say_by_hand(config: RuntimeConfig, signer: Signer, message: str, session_id: str | None = None) -> str:
    """One turn of a supervisor that was assembled by hand, which nobody tells to `recover`; returns its session."""
    agent, root = config.agents["ADMIN"], Path(config.plane_root)
    async with LLMGateway(config.router, {"scripted": ScriptedProvider(model)}).open() as gateway:
        tools, clock = ToolRegistry(), SystemClock()
        async with open_ledgers(**places(root), config=QUICK) as ledgers:
            executor = HO1Executor(
                ledgers=ledgers, gateway=gateway, prompts=PromptLibrary.load(), tools=tools, clock=clock, config=agent
            )
            supervisor = HO2Supervisor(
                agent_class="ADMIN",
                ho1_executor=executor,
                ledgers=ledgers,
                token_budgeter=TokenBudgeter(),
                config=agent,
                host=SharedResources(signer=signer),
            )
            for each in (message, message):
                session_id = (await supervisor.handle_turn(each, session_id=session_id)).session_id
        assert session_id is not None
        return session_id


async def test_a_supervisor_assembled_by_hand_declares_its_signer_once(tmp_path: Path) -> None:
    """Before the first signed turn, also of a session that another signer began."""
    agent = HO2Config(agent_class="ADMIN", consolidation="manual", **ENFORCE)
    router = RouterConfig(default_provider="scripted")
    config = RuntimeConfig(plane_root=str(tmp_path), agents={"ADMIN": agent}, router=router)
    first, second = make_key(tmp_path / "first.pem"), make_key(tmp_path / "second.pem")
    session_id = await say_by_hand(config, first, "hello")
    assert await say_by_hand(config, first, "more", session_id) == session_id
    await say_by_hand(config, second, "and more", session_id)
    entries = [json.loads(line)["entry"] for line in (tmp_path / HO2M).read_bytes().splitlines()]
    declared = [(n, each["payload"]["signer"]) for n, each in enumerate(entries) if each["entry_type"] == "SIGNER_DECLARED"]
    assert [signer for _, signer in declared] == [first.signer, second.signer]
    assert [entries[n + 1]["entry_type"] for n, _ in declared] == ["SESSION_START", "TURN_STARTED"]
    report = await replay_session(session_id, config=config)
    assert report.is_identical, report.text()
    assert len(report.turns) == 6
