"""What was recorded comes out again: in every mode, with memory, tools, failures, retries, aborted turns and restarts."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, cast

import anyio
import pytest

from kitchener.actors.executor.executor import HO1Executor
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.work.budget import TokenBudgeter
from kitchener.clock import SystemClock
from kitchener.config import HO2Config, HO3MemoryConfig, RouterConfig, RuntimeConfig
from kitchener.gateway import LLMGateway
from kitchener.ledger import LedgerReader, open_ledgers
from kitchener.memory import HO3Memory
from kitchener.records import events
from kitchener.replaying import open_replays, replay_session
from kitchener.runtime import open_runtime
from kitchener.sealing import Keyring
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUICK, Hold, places
from tests.replay.shared.recorded_sessions import MESSAGES, TOOLS, cut_off, model, record, say_all


@pytest.fixture(params=["asyncio", "trio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both, unlike in the other tests of this folder."""
    backend: str = request.param
    return backend


LEARNING: dict[str, Any] = {"ho3_enabled": True, "ho3_gate_count_threshold": 3, "ho3_gate_session_threshold": 1}
MODES: list[dict[str, Any]] = [
    {"context_mode": "off"},
    {"context_mode": "shadow", "intent_mode": "classified"},
    {"context_mode": "enforce"},
    {"context_mode": "enforce", "intent_mode": "classified", "recall_scope": "subject", "newest_turns": 1},
]


def files(root: Path) -> dict[Path, bytes]:
    """All that is under a root."""
    return {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("memory", [{}, LEARNING], ids=["forgetful", "learning"])
@pytest.mark.parametrize("mode", MODES, ids=["off", "shadow", "bridge", "classified"])
async def test_sessions_replay_identical(tmp_path: Path, mode: dict[str, Any], memory: dict[str, Any]) -> None:
    """Each of several sessions of one subject, whose later ones show what was learned in the earlier ones."""
    config, sessions = await record(tmp_path, sessions=2, standing_rules=("Be brief.",), **mode, **memory)
    before = files(tmp_path)
    for session_id in sessions:
        report = await replay_session(session_id, config=config, tools=TOOLS)
        assert report.is_identical, report.text()
        assert len(report.turns) == len(MESSAGES)
        assert report.policy is None
    assert files(tmp_path) == before
    assert any(any(each.startswith("ART-") for each in items) for items in report.visible.values()) == bool(memory)


@pytest.mark.parametrize("mode", MODES, ids=["off", "shadow", "bridge", "classified"])
async def test_failures_and_retries_replay_identical(tmp_path: Path, mode: dict[str, Any]) -> None:
    """Tools that work and fail, a model that fails, a reply that the quality gate rejects, and what comes after each."""
    messages = ("tool please", "tool, broken", "outage", "unstorable", "hello", "empty at first", "thanks")
    config, (session_id,) = await record(tmp_path, messages, **mode, **LEARNING)
    report = await replay_session(session_id, config=config, tools=TOOLS)
    assert report.is_identical, report.text()
    assert len(report.turns) == len(messages)


@pytest.mark.parametrize("mode", MODES, ids=["off", "shadow", "bridge", "classified"])
async def test_aborted_turn_is_skipped(tmp_path: Path, mode: dict[str, Any]) -> None:
    """A turn that was cut off is taken as given, and so is a restart: what follows rests on both."""
    config, (session_id,) = await record(tmp_path, MESSAGES[:3], **mode, **LEARNING)
    await cut_off(tmp_path, config, session_id, "cut off")
    async with open_runtime(config, providers={"scripted": ScriptedProvider(model)}, tools=TOOLS) as runtime:
        await say_all(runtime, session_id, MESSAGES[3:])
        beside = await replay_session(session_id, config=config, tools=TOOLS)
    report = await replay_session(session_id, config=config, tools=TOOLS)
    assert report.is_identical, report.text()
    assert list(report.skipped.values()) == ["aborted: cancelled"]
    assert report.turns == beside.turns == tuple(f"T-{session_id[4:]}-{n:06d}" for n in (1, 2, 3, 5, 6))


async def test_intents_of_a_user_are_taken_as_given(tmp_path: Path) -> None:
    """What a user declared between two turns was nobody's decision; the turns after it rest on it."""
    config, (session_id,) = await record(tmp_path, MESSAGES[:2], context_mode="enforce")
    async with open_runtime(config, providers={"scripted": ScriptedProvider(model)}, tools=TOOLS) as runtime:
        supervisor = runtime.supervisor()
        other = await supervisor.declare_intent(session_id, "the garden")
        await say_all(runtime, session_id, ["which of them?"])
        await supervisor.resolve_conflict(session_id, keep=other)
        await say_all(runtime, session_id, ["and now?"])
    report = await replay_session(session_id, config=config, tools=TOOLS)
    assert report.is_identical, report.text()
    assert other in report.visible[report.turns[-1]]


async def test_decisions_about_lines_that_are_dated_back_or_ahead_replay_identical(tmp_path: Path) -> None:
    """Each turn sees the lines that were active at its moment, by the decisions that were written before it."""
    config, (session_id,) = await record(tmp_path, **MODES[2], **LEARNING)
    shown = []
    async with open_runtime(config, providers={"scripted": ScriptedProvider(model)}, tools=TOOLS) as runtime:
        memory, namespace = runtime.memory(), "ADMIN/ada"
        learned = [each.key for each in await memory.read_active_biases(namespace=namespace)]
        assert len(learned) >= 2
        now = datetime.now(UTC)
        for days in (1, -30):
            for key in learned:
                await memory.deactivate_overlay(key, "tested", now + timedelta(days=days), namespace=namespace)
            await say_all(runtime, session_id, ["again", "and again"])
            shown.append(bool(await memory.read_active_biases(namespace=namespace)))
        await memory.update_overlay_weight(learned[0], 0.9, "tested", now - timedelta(days=10), namespace=namespace)
        await say_all(runtime, session_id, ["once more"])
    report = await replay_session(session_id, config=config, tools=TOOLS)
    assert report.is_identical, report.text()
    assert (len(report.turns), shown[0]) == (len(MESSAGES) + 5, True)


async def test_bug_in_a_provider_fails_the_step_again(tmp_path: Path) -> None:
    """A step for which the provider raised what it should not, after all its attempts."""

    def broken(request: Any) -> Any:
        if request.wo_type == "synthesize" and request.variables["user_message"] == "break":
            raise RuntimeError("a bug in a provider")
        return model(request)

    config, (session_id,) = await record(tmp_path, ("hello", "break", "thanks"), provider=ScriptedProvider(broken))
    report = await replay_session(session_id, config=config, tools=TOOLS)
    assert report.is_identical, report.text()
    assert len(report.turns) == 3


@pytest.mark.parametrize("mode", ["off", "enforce"])
async def test_offline_model_replays_identical(tmp_path: Path, mode: Literal["off", "enforce"]) -> None:
    """The built-in model, by path of a settings file, without saying whose session it is."""
    agent = HO2Config(agent_class="RESIDENT:bo", context_mode=mode, intent_mode="classified", ho3_enabled=True)
    config = RuntimeConfig(plane_root=str(tmp_path), agents={"ADMIN": HO2Config(), "RESIDENT:bo": agent})
    async with open_runtime(config) as runtime:
        supervisor = runtime.supervisor("RESIDENT:bo")
        session_id = await supervisor.start_session()
        for message in MESSAGES:
            await supervisor.handle_turn(message, session_id=session_id, idempotency_key=message)
            await runtime.drain()
    report = await replay_session(session_id, config=config)
    assert report.is_identical, report.text()
    assert (report.agent_class, len(report.turns)) == ("RESIDENT:bo", len(MESSAGES))


async def test_sealed_session_replays_identical(tmp_path: Path) -> None:
    """Content that is encrypted, and whose digests are keyed; once the subject's key is gone there is nothing to replay."""
    ledger = QUICK.model_copy(update={"keyring": str(tmp_path / "keys")})
    config, (session_id,) = await record(tmp_path / "root", ledger=ledger, **MODES[3], **LEARNING)
    before = files(tmp_path)
    report = await replay_session(session_id, config=config, tools=TOOLS)
    assert report.is_identical, report.text()
    assert files(tmp_path) == before
    assert b"which packages are there?" not in (tmp_path / "root" / "HO2" / "ADMIN" / "ho2m.jsonl").read_bytes()
    Keyring(tmp_path / "keys").destroy("ada")
    without = files(tmp_path)
    gone = await replay_session(session_id, config=config, tools=TOOLS)
    assert (gone.is_identical, gone.divergence, gone.turns, gone.erased) == (False, None, (), 0)
    why = "the key of 'ada' is missing here and no erasure is on record: restore the keys from their backup"
    assert gone.as_json()["unreadable"] == gone.unreadable == why
    count = len(MESSAGES)
    assert gone.text() == (
        f"{session_id}  not readable: {why}\n"
        f"{session_id}  not all compared, 0 turns identical, {count} skipped ({count} unreadable)"
    )
    assert files(tmp_path) == without


@pytest.mark.parametrize("half", [12, pytest.param(24, marks=pytest.mark.soak)])
async def test_long_session_replays_identical(tmp_path: Path, half: int) -> None:
    """Projections that are recorded as changes of earlier ones, across a restart and threads that come and go."""
    messages = [f"{'new: ' if n % half == half - 1 else ''}message {n}" for n in range(2 * half)]
    config, (session_id,) = await record(tmp_path, messages[:-6], **MODES[2] | {"intent_mode": "classified"})
    async with open_runtime(config, providers={"scripted": ScriptedProvider(model)}, tools=TOOLS) as runtime:
        await say_all(runtime, session_id, messages[-6:])
    assert b'"edits"' in (tmp_path / "HO2" / "ADMIN" / "context.jsonl").read_bytes()
    report = await replay_session(session_id, config=config, tools=TOOLS)
    assert report.is_identical, report.text()
    assert len(report.turns) == len(messages)


async def test_only_the_turns_that_had_ended(tmp_path: Path) -> None:
    """While a turn runs, the session replays as far as it is; a session without a turn is identical too."""
    config, (empty,) = await record(tmp_path, ())
    hold = Hold("wait")
    async with open_runtime(config, providers={"scripted": ScriptedProvider(model, gate=hold)}, tools=TOOLS) as runtime:
        session_id = await runtime.supervisor().start_session()
        await say_all(runtime, session_id, ["hello"])
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(say_all, runtime, session_id, ["wait"])
            await hold.arrived["wait"].wait()
            await runtime.ledgers().commit()
            running = await replay_session(session_id, config=config, tools=TOOLS)
            hold.released["wait"].set()
    assert (running.is_identical, len(running.turns), list(running.skipped.values())) == (True, 1, ["open"])
    assert (await replay_session(empty, config=config, tools=TOOLS)).is_identical


class Forgetful:
    """A memory that fails where it is told to; everything else it passes on."""

    def __init__(self, memory: HO3Memory, fails_in: str) -> None:
        self._memory, self._fails_in = memory, fails_in

    def __getattr__(self, name: str) -> Any:
        if name == self._fails_in:
            raise OSError("the disk is gone")
        return getattr(self._memory, name)


@pytest.mark.parametrize("fails_in", ["read_active_biases", "log_turn", "check_gate"])
async def test_failing_memory_fails_again(tmp_path: Path, fails_in: str) -> None:
    """A turn that went on without its memory does so again, at the same place."""
    agent = HO2Config(ho3_enabled=True, consolidation="manual")
    router = RouterConfig(default_provider="scripted")
    config = RuntimeConfig(plane_root=str(tmp_path), agents={"ADMIN": agent}, router=router)
    async with (
        HO3Memory.open(tmp_path, HO3MemoryConfig()) as memory,
        open_ledgers(**places(tmp_path), config=QUICK, also=memory.ledgers) as ledgers,
        LLMGateway(router, {"scripted": ScriptedProvider(model)}).open() as gateway,
    ):
        executor = HO1Executor(
            ledgers=ledgers,
            gateway=gateway,
            prompts=PromptLibrary.load(),
            tools=ToolRegistry(),
            clock=SystemClock(),
            config=agent,
        )
        supervisor = HO2Supervisor(
            agent_class="ADMIN",
            ho1_executor=executor,
            ledgers=ledgers,
            token_budgeter=TokenBudgeter(),
            config=agent,
            ho3_memory=cast(HO3Memory, Forgetful(memory, fails_in)),
        )
        session_id = await supervisor.start_session()
        for message in MESSAGES[:3]:
            await supervisor.handle_turn(message, session_id=session_id)
        degraded = [entry async for entry in ledgers.ho2m.read(entry_type="DEGRADATION")]

    assert len(degraded) == 3
    report = await replay_session(session_id, config=config)
    assert report.is_identical, report.text()


async def test_what_a_subjects_sessions_may_show_is_read_once_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: each session of a subject read the turns of all its sessions."""
    settings: dict[str, Any] = {"context_mode": "enforce", "intent_mode": "classified", "recall_scope": "subject"}
    config, sessions = await record(tmp_path, MESSAGES[:1], sessions=3, **settings)
    reads, read = Counter[str](), LedgerReader.read

    def counted(reader: LedgerReader, **conditions: Any) -> Any:
        if conditions.get("entry_type") == events.TURN_STARTED:
            reads[conditions["session_id"]] += 1
        return read(reader, **conditions)

    monkeypatch.setattr(LedgerReader, "read", counted)
    async with open_replays(config, "ADMIN", tools=TOOLS) as replays:
        reports = [await replays.replay(each) for each in await replays.sessions()]
    assert [report.is_identical for report in reports] == [True] * 3
    assert reads == dict.fromkeys(sessions, 1)
