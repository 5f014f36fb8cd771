"""Intents that belong to a subject: above the intents of any of its sessions, seen as they stood when a turn began.

The claims stand in `docs/context.md`.
"""

from functools import partial
from pathlib import Path

import anyio
import pytest

from kitchener.errors import InvalidLifecycle
from kitchener.ledger import LedgerReader
from kitchener.records import events
from kitchener.records.entries import IntentScope
from kitchener.records.index_keys import SHARED_INTENTS_KEY
from kitchener.replaying import replay_session
from kitchener.runtime import open_runtime
from kitchener.testing import FakeClock, ScriptedProvider
from tests.acceptance.context.context_kit import ENFORCE, OTHER, SID, Talk, actions, talking
from tests.acceptance.stack import Hold, read_all
from tests.replay.shared.recorded_sessions import TOOLS, model, record, say_all
from tests.shared.event_loops import ON_ASYNCIO, ON_TRIO

THIRD = "SES-0000000c"


async def two_sessions(ada: Talk) -> tuple[str, str]:
    """A project that one session declared, and the intent of another session below it."""
    await ada.start(OTHER)
    project = await ada.supervisor.declare_intent(SID, "Open the shop", scope="PROJECT")
    ada.clock.advance(1)
    child = await ada.supervisor.declare_intent(OTHER, "Compare the prices", parent_intent_id=project)
    return project, child


async def check(ada: Talk, session_id: str) -> None:
    """What a session keeps is the fold of its own entries and of those about shared intents that it has taken."""
    thread = (await ada.supervisor.session(session_id)).thread
    assert thread is not None
    assert await ada.kept(session_id) == (await ada.state(session_id, shared_to=thread.shared_to)).snapshot()


async def test_an_intent_of_another_session_is_above_this_ones(tmp_path: Path) -> None:
    async with talking(tmp_path, **ENFORCE) as ada:
        project, child = await two_sessions(ada)
        result = await ada.say("what do lamps cost?", session_id=OTHER)
        assert result.intent_id == child
        assert "Goal: Compare the prices" in ada.text()
        assert "Wider goal: Open the shop" in ada.text()
        assert (await ada.lists(OTHER)).eligible[0].entry_id in {e.entry_id for e in await ada.intents(SID)}
        # It is nobody's own: it neither competes nor becomes active where it was declared.
        mine = await ada.say("hello")
        assert mine.intent_id not in (project, child, None)
        assert await ada.flags() == []


async def test_whoever_closes_it_closes_it_for_all(tmp_path: Path) -> None:
    async with talking(tmp_path, **ENFORCE) as ada:
        project, _ = await two_sessions(ada)
        below = await ada.supervisor.declare_intent(SID, "Find a place", parent_intent_id=project)
        await ada.say("where?")
        assert "Open the shop" in ada.text()
        await ada.supervisor.close_intent(OTHER, project, "opened")
        result = await ada.say("and now?")
        assert result.intent_id == below
        assert "Open the shop" not in ada.text()
        with pytest.raises(InvalidLifecycle, match="closed before"):
            await ada.supervisor.close_intent(SID, project, "again")
        await ada.supervisor.reopen_intent(SID, project, "not yet")
        await ada.say("still?", session_id=OTHER)
        assert "Open the shop" in ada.text()
        assert await ada.flags() == []


async def test_another_subject_knows_nothing_of_it(tmp_path: Path) -> None:
    async with talking(tmp_path, **ENFORCE) as ada:
        project, _ = await two_sessions(ada)
        await ada.start(THIRD, subject_id="bo")
        with pytest.raises(InvalidLifecycle, match="never declared"):
            await ada.supervisor.declare_intent(THIRD, "Spy", parent_intent_id=project)
        with pytest.raises(InvalidLifecycle, match="never declared"):
            await ada.supervisor.close_intent(THIRD, project, "mine now")


async def test_of_two_sessions_that_close_it_at_once_one_does(tmp_path: Path) -> None:
    async with talking(tmp_path, **ENFORCE) as ada:
        project, _ = await two_sessions(ada)
        refused: list[str] = []

        async def close(session_id: str) -> None:
            try:
                await ada.supervisor.close_intent(session_id, project, "done")
            except InvalidLifecycle:
                refused.append(session_id)

        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                for session_id in (SID, OTHER):
                    tasks.start_soon(close, session_id)
        closed = [e for e in await read_all(ada.ledgers.ho2m) if e.entry_type == events.INTENT_CLOSED]
        assert len(closed) == len(refused) == 1
        assert closed[0].session_id not in refused


@ON_TRIO
async def test_a_session_keeps_what_the_ledger_says_of_shared_intents_also_after_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    async with talking(tmp_path, clock, **ENFORCE) as ada:
        project, _ = await two_sessions(ada)
        await ada.say("a", "b", session_id=OTHER)
        await ada.supervisor.close_intent(SID, project, "done")
        await ada.say("c", session_id=OTHER)
        await ada.supervisor.reopen_intent(OTHER, project, "not done")
        await ada.say("mine")
        kept = await ada.kept(OTHER)
        for session_id in (SID, OTHER):
            await check(ada, session_id)
    async with talking(tmp_path, clock, **ENFORCE) as ada:
        await ada.say("d", session_id=OTHER)
        assert "Open the shop" in ada.text()
        again = await ada.kept(OTHER)
        await check(ada, OTHER)
        assert again["intents"] == kept["intents"]
        assert actions(await ada.intents(OTHER))[-1] == "REOPENED"


async def test_nothing_is_read_for_it_while_no_intent_is_shared(tmp_path: Path) -> None:
    async with talking(tmp_path, **ENFORCE) as ada:
        keys: list[str | None] = []
        ho2m = ada.ledgers.ho2m
        read = ho2m.read

        def noted(**filters: object) -> object:
            keys.append(str(filters.get("key")))
            return read(**filters)  # type: ignore[arg-type]  # passed on as it came

        ho2m.read = noted  # type: ignore[assignment,method-assign]  # only looked at
        await ada.turns(3)
        assert not [key for key in keys if key is not None and key.startswith(SHARED_INTENTS_KEY)]


@ON_ASYNCIO
async def test_turns_below_a_shared_intent_replay_identical(tmp_path: Path) -> None:
    """Each turn reads what stood in the ledger when it began, whatever the other sessions did later."""
    config, (first, second) = await record(tmp_path, ("hello",), sessions=2, context_mode="enforce", intent_mode="classified")
    async with open_runtime(config, providers={"scripted": ScriptedProvider(model)}, tools=TOOLS) as runtime:
        supervisor = runtime.supervisor()
        project = await supervisor.declare_intent(first, "the house", scope="PROJECT")
        child = await supervisor.declare_intent(second, "the garden", parent_intent_id=project)
        await supervisor.resolve_conflict(second, keep=child)
        await say_all(runtime, second, ["which of them?"])
        await supervisor.close_intent(first, project, "built")
        await say_all(runtime, second, ["and now?"])
        await supervisor.reopen_intent(first, project, "not quite")
    report = await replay_session(second, config=config, tools=TOOLS)
    assert report.is_identical, report.text()
    before, after = report.turns[-2:]
    assert project in report.visible[before]
    assert project not in report.visible[after]


ALONE = {**ENFORCE, "shared_intent_policy": "active"}


@pytest.mark.parametrize("scope", ["PROJECT", "GLOBAL"])
async def test_a_lone_shared_intent_is_active_where_it_was_declared(tmp_path: Path, scope: IntentScope) -> None:
    """Only there, and only while the session has no live intent of its own."""
    async with talking(tmp_path, **ALONE) as ada:
        await ada.start(OTHER)
        project = await ada.supervisor.declare_intent(SID, "Open the shop", scope=scope)
        assert (await ada.say("what do lamps cost?")).intent_id == project
        assert "Goal: Open the shop" in ada.text()
        assert (await ada.say("hello", session_id=OTHER)).intent_id not in (project, None)
        own = await ada.supervisor.declare_intent(SID, "Compare the prices", parent_intent_id=project)
        assert (await ada.say("which is the cheapest?")).intent_id == own
        await ada.supervisor.close_intent(SID, own, "compared")
        assert (await ada.say("and now?")).intent_id == project
        assert await ada.flags() == []
        await check(ada, SID)


async def test_two_shared_intents_compete_only_where_one_session_declared_both(tmp_path: Path) -> None:
    async with talking(tmp_path, **ALONE) as ada:
        await ada.start(OTHER)
        first = await ada.supervisor.declare_intent(SID, "Open the shop", scope="PROJECT")
        await ada.supervisor.declare_intent(OTHER, "Sell the house", scope="GLOBAL")
        assert (await ada.say("which lamps?")).intent_id == first
        ada.clock.advance(1)
        await ada.supervisor.declare_intent(SID, "Write a book", scope="GLOBAL")
        result = await ada.say("which chapter?")
        assert result.error is not None
        assert (result.error.kind, result.intent_id) == ("CONFLICT", None)
        assert await ada.flags() == ["COMPETING_INTENTS"]
        assert (await ada.say("1")).intent_id == first
        superseded = (await ada.intents(SID))[-1]
        assert (superseded.entry_type, superseded.payload["scope"]) == ("INTENT_SUPERSEDED", "GLOBAL")


async def test_leaving_an_active_shared_intent_ends_nothing_and_closing_it_ends_it_for_all(tmp_path: Path) -> None:
    """A message that switches begins an intent of the session; the shared one is there again when that is done."""
    async with talking(tmp_path, **ALONE) as ada:
        project, child = await two_sessions(ada)
        switched = await ada.say("[switch] the garden")
        assert switched.intent_id not in (project, None)
        assert actions(await ada.intents(SID)) == ["DECLARED", "DECLARED"]
        await ada.say("[close] it is done")
        assert (await ada.say("where were we?")).intent_id == project
        await ada.say("which way?", session_id=OTHER)
        assert "Open the shop" in ada.text()
        assert (await ada.say("[close] it is done")).intent_id == project, "the reply still sees it"
        closed = (await ada.intents(SID))[-1]
        assert (closed.entry_type, closed.entity_id, closed.payload["scope"]) == ("INTENT_CLOSED", project, "PROJECT")
        assert (await ada.say("and now?", session_id=OTHER)).intent_id == child
        assert "Open the shop" not in ada.text()
        for session_id in (SID, OTHER):
            await check(ada, session_id)
        assert await ada.flags() == []


@ON_TRIO
async def test_a_message_does_not_close_what_another_session_closed_meanwhile(tmp_path: Path) -> None:
    """The turn began while the shared intent was live. It writes no second closing, and replays so."""
    hold = Hold("well, that is all", wo_type="synthesize")
    config, (first, second) = await record(tmp_path, (), sessions=2, **ALONE)
    async with open_runtime(config, providers={"scripted": ScriptedProvider(model, gate=hold)}, tools=TOOLS) as runtime:
        supervisor = runtime.supervisor()
        project = await supervisor.declare_intent(first, "the house", scope="PROJECT")
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(partial(supervisor.handle_turn, "well, that is all", session_id=first))
                await hold.arrived["well, that is all"].wait()
                await supervisor.close_intent(second, project, "built")
                hold.released["well, that is all"].set()
        await say_all(runtime, first, ["hello there"])
    async with LedgerReader.open(tmp_path / "HO2" / "ADMIN" / "ho2m.jsonl") as ho2m:
        closed = [each.session_id async for each in ho2m.read(entry_type=events.INTENT_CLOSED)]
    assert closed == [second]
    report = await replay_session(first, config=config, tools=TOOLS)
    assert report.is_identical, report.text()
    assert len(report.turns) == 2
