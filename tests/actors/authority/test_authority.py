"""The Context Authority's choices in a turn: conflicts, unclear messages, impossible entries, recall, budgets, users' calls."""

import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from kitchener.actors.tools.tool import tool
from kitchener.context import base_ref
from kitchener.errors import CallerError, InvalidLifecycle, ReentrantTurn, SessionEnded, UnknownSession
from kitchener.ledger import LedgerEntry, open_ledgers
from kitchener.records import events
from kitchener.replaying import replay_session
from kitchener.testing import FakeClock, ScriptedProvider
from tests.acceptance.context.context_kit import BRIDGE, ENFORCE, OTHER, SHADOW, SID, Talk, actions, talk, talking
from tests.acceptance.memory.memory_kit import EASY
from tests.acceptance.stack import QUICK, open_scripted, places, read_all, scripted_config
from tests.shared.payloads import payload_of

THIRD = "SES-0000000c"


def asked(ada: Talk) -> int:
    return len(ada.provider.requests)


# --- several threads ---------------------------------------------------------------------------------------------------------


async def two_threads(ada: Talk) -> tuple[str, str]:
    first = await ada.supervisor.declare_intent(SID, "Plan the trip")
    second = await ada.supervisor.declare_intent(SID, "Fix the bike")
    return first, second


@pytest.mark.parametrize(("answer", "number"), [("2", 1), ("1.", 0), ("let's fix the bike", 1), ("PLAN THE TRIP", 0)])
async def test_a_conflict_is_asked_about_and_settled_without_a_model(tmp_path: Path, answer: str, number: int) -> None:
    async with talking(tmp_path, **ENFORCE) as ada:
        both = await two_threads(ada)
        question = await ada.say("hello")
        assert asked(ada) == 0
        assert question.error is not None
        assert question.error.kind == "CONFLICT"
        assert question.intent_id is None
        assert question.response.splitlines()[1:] == ["1. Plan the trip", "2. Fix the bike"]
        assert await ada.flags() == ["COMPETING_INTENTS"]
        assert await ada.decisions(events.PROJECTION_COMPUTED) == []
        settled = await ada.say(answer)
        assert asked(ada) == 0
        assert (settled.error, settled.intent_id) == (None, both[number])
        for result in (question, settled):
            mine = [
                e.entry_type
                for e in await read_all(ada.ledgers.ho2m, session_id=SID)
                if e.payload.get("turn_id") == result.turn_id
            ]
            assert (mine[0], mine[-1]) == ("TURN_STARTED", "TURN_COMPLETED")
            assert "WO_PLANNED" not in mine
        last = (await ada.intents())[-1]
        assert (last.entry_type, last.entity_id) == ("INTENT_SUPERSEDED", both[1 - number])
        assert last.payload["superseded_by_intent_id"] == both[number]
        went_on = await ada.say("which way?")
        assert went_on.intent_id == both[number]
        assert "echo: hello" not in ada.text()  # what was said while nobody knew about what


async def test_a_conflict_is_settled_by_call(tmp_path: Path) -> None:
    async with talking(tmp_path, **ENFORCE) as ada:
        first, second = await two_threads(ada)
        with pytest.raises(InvalidLifecycle, match="is not a competing intent"):
            await ada.supervisor.resolve_conflict(SID, keep="INT-0000000000000000")
        await ada.supervisor.resolve_conflict(SID, keep=first)
        assert (await ada.say("hello")).intent_id == first
        with pytest.raises(InvalidLifecycle, match="no intents compete"):
            await ada.supervisor.resolve_conflict(SID, keep=second)
        assert await ada.flags() == []


async def test_most_recent_wins_goes_on(tmp_path: Path) -> None:
    async with talking(tmp_path, intent_conflict_policy="most_recent_wins", **ENFORCE) as ada:
        _, second = await two_threads(ada)
        result = await ada.say("hello")
        assert (result.error, result.intent_id) == (None, second)
        assert await ada.flags() == ["COMPETING_INTENTS"]
        assert "\nGoal: Fix the bike\n" in ada.text()


async def test_a_conflict_survives_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    async with talking(tmp_path, clock, **ENFORCE) as ada:
        both = await two_threads(ada)
        await ada.say("hello")
    async with talking(tmp_path, clock, **ENFORCE) as ada:
        assert (await ada.say("2")).intent_id == both[1]


async def test_a_shadow_decides_nothing_while_threads_compete(tmp_path: Path) -> None:
    """It has nobody to ask; opening another thread with each message would only make it worse."""
    clock = FakeClock()
    async with talking(tmp_path, clock, **ENFORCE) as ada:
        both = await two_threads(ada)
    async with talking(tmp_path, clock, **SHADOW) as ada:
        for n in range(3):
            assert (await ada.say(f"message {n}")).error is None
        thread = (await ada.supervisor.session(SID)).thread
        assert thread is not None
        assert tuple(thread.state.live_intents) == both
        assert await ada.flags() == ["COMPETING_INTENTS"] * 3
        assert await ada.decisions(events.INTENT_SHADOW_DECISION) == []


# --- unclear, uncertain, invented --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", ["[unclear] hm", "[vague] hm", "[silent] hm", "[invent] hm"])
@pytest.mark.parametrize(
    ("policy", "happens", "flags"),
    [
        ("continue_and_flag", [], ["UNCLEAR_INTENT"]),
        ("continue", [], []),
        ("declare", ["DECLARED", "SUPERSEDED"], []),
        ("ask", [], []),
    ],
)
async def test_unclear_messages(tmp_path: Path, message: str, policy: str, happens: list[str], flags: list[str]) -> None:
    async with talking(tmp_path, unclear_policy=policy, **ENFORCE) as ada:
        first = await ada.say("apples")
        result = await ada.say(message)
        assert actions(await ada.intents())[1:] == happens
        assert await ada.flags() == flags
        assert (result.intent_id == first.intent_id) == (not happens)
        if policy == "ask":
            assert result.error is not None
            assert result.error.kind == "UNCLEAR_INTENT"
            assert "apples" in result.response
            assert [request.wo_type for request in ada.provider.requests][-1] == "classify"
        else:
            assert result.error is None


async def test_asking_is_no_failure(tmp_path: Path) -> None:
    """A turn that asks back ran as it should, and is not held against its intent."""
    async with talking(tmp_path, unclear_policy="ask", intent_max_failures=1, **ENFORCE) as ada:
        await ada.say("apples", "[unclear] hm", "[unclear] hm")
        assert await ada.flags() == []


async def test_a_turn_that_asks_neither_counts_as_a_failure_nor_ends_a_row_of_them(tmp_path: Path) -> None:
    async with talking(tmp_path, unclear_policy="ask", intent_max_failures=2, **ENFORCE) as ada:
        await ada.say("apples", "[unclear] hm", "[fail] a")
        assert await ada.flags() == []
        await ada.say("[unclear] hm", "[fail] b")
        assert await ada.flags() == ["REPEATED_FAILURE"]


async def test_an_invented_intent_is_not_followed(tmp_path: Path) -> None:
    async with talking(tmp_path, **ENFORCE) as ada:
        first = await ada.say("apples")
        second = await ada.say("[ghost] pears")
        assert second.intent_id not in (first.intent_id, "INT-ffffffffffffffff", None)
        assert actions(await ada.intents()) == ["DECLARED", "DECLARED", "SUPERSEDED"]
        # An intent that is live again, or was never left, is not offered to go back to.
        assert first.intent_id is not None
        await ada.supervisor.reopen_intent(SID, first.intent_id, "both")
        await ada.supervisor.resolve_conflict(SID, keep=first.intent_id)
        await ada.supervisor.reopen_intent(SID, str(second.intent_id), "both")
        await ada.supervisor.abandon_intent(SID, first.intent_id, "no more")
        await ada.supervisor.reopen_intent(SID, first.intent_id, "after all")
        await ada.supervisor.close_intent(SID, str(second.intent_id), "done")
        await ada.supervisor.reopen_intent(SID, str(second.intent_id), "still")
        await ada.supervisor.resolve_conflict(SID, keep=first.intent_id)
        await ada.say("on")
        classified = [request for request in ada.provider.requests if request.wo_type == "classify"][-1]
        assert classified.variables["prior_intent_id"] == second.intent_id
        assert classified.variables["active_objective"] == "apples"


async def test_repeated_failure_is_flagged_whatever_failed(tmp_path: Path) -> None:
    async with talking(tmp_path, intent_max_failures=3, **ENFORCE) as ada:
        await ada.say("apples", "[fail] a", "[empty] b")
        assert await ada.flags() == []
        await ada.say("[fail] c")
        assert await ada.flags() == ["REPEATED_FAILURE"]
        await ada.say("good", "[fail] d")
        assert await ada.flags() == ["REPEATED_FAILURE"]


async def test_a_repeated_failure_defers_the_intent_until_a_message_continues_it(tmp_path: Path) -> None:
    async with talking(tmp_path, intent_max_failures=2, repeated_failure_policy="defer", **ENFORCE) as ada:
        first = await ada.say("apples", "[fail] a", "[fail] b")
        assert await ada.flags() == ["REPEATED_FAILURE"]
        assert actions(await ada.intents()) == ["DECLARED", "DEFERRED"]
        again = await ada.say("on")
        assert again.intent_id == first.intent_id
        assert actions(await ada.intents())[2:] == ["REOPENED"]
        await ada.say("[fail] c", "[fail] d")
        other = await ada.say("[switch] pears")
        assert other.intent_id != first.intent_id
        assert actions(await ada.intents())[3:] == ["DEFERRED", "DECLARED"]
        later = await ada.say("on")
        assert later.intent_id == other.intent_id
        back = await ada.say("[back] apples")
        assert back.intent_id == first.intent_id
    policy = {"intent_max_failures": 2, "repeated_failure_policy": "defer", **ENFORCE}
    report = await replay_session(SID, config=scripted_config(tmp_path, **policy))
    assert report.is_identical, report.text()


async def test_a_conversation_of_one_intent_is_never_deferred(tmp_path: Path) -> None:
    async with talking(tmp_path, intent_max_failures=1, repeated_failure_policy="defer", **BRIDGE) as ada:
        await ada.say("apples", "[fail] a", "on")
        assert await ada.flags() == ["REPEATED_FAILURE"]
        assert actions(await ada.intents()) == ["DECLARED"]


async def test_failing_before_anything_is_decided_counts_too(tmp_path: Path) -> None:
    async with talking(tmp_path, intent_max_failures=2, budget_ceiling=1_200, **BRIDGE) as ada:
        for n in range(12):
            await ada.say(f"message {n}")
        completed = [
            e.payload["quality_gate_passed"] for e in await read_all(ada.ledgers.ho2m, entry_type=events.TURN_COMPLETED)
        ]
        failed = completed.count(False)
        assert failed > 2
        assert (await ada.flags()).count("REPEATED_FAILURE") == failed - 1


async def test_a_reply_completes_no_intent(tmp_path: Path) -> None:
    """A model that says `completes_intent` closes nothing, so the next message sees its history."""
    async with talking(tmp_path, **ENFORCE) as ada:
        first = await ada.say("apples", "[done] all eaten")
        assert (await ada.say("pears")).intent_id == first.intent_id
        assert "all eaten" in ada.text()
        assert actions(await ada.intents()) == ["DECLARED"]


# --- entries that cannot be --------------------------------------------------------------------------------------------------


async def append(root: Path, clock: FakeClock, entry_type: str, entity_id: str, **fields: Any) -> None:
    """What another program wrote into HO2m while nobody else was there."""
    payload = {"v": 1, "session_id": SID, "subject_id": "ada", "intent_id": entity_id, **fields}
    async with open_ledgers(**places(root), config=QUICK, clock=clock) as ledgers:
        await ledgers.ho2m.write(LedgerEntry(entry_type, entity_id, payload))
        await ledgers.commit()


@pytest.mark.parametrize("policy", ["ignore_event", "block"])
async def test_an_impossible_entry_never_bricks_the_session(tmp_path: Path, policy: str) -> None:
    clock, config = FakeClock(), {**ENFORCE, "invalid_lifecycle_policy": policy}
    async with talking(tmp_path, clock, **config) as ada:
        first = await ada.say("apples")
    clock.advance(1)
    await append(tmp_path, clock, events.INTENT_CLOSED, "INT-ffffffffffffffff", outcome="never begun")
    async with talking(tmp_path, clock, **config) as ada:
        result = await ada.say("[back] go on")
        assert (await ada.flags())[0] == "INVALID_LIFECYCLE"
        if policy == "block":
            assert result.error is not None
            assert result.error.kind == "INVALID_LIFECYCLE"
            assert result.intent_id is None
            assert len(await ada.decisions(events.PROJECTION_COMPUTED)) == 1
        else:
            assert result.error is None
            assert "echo: apples" in ada.text() or result.intent_id != first.intent_id
            classified = [request for request in ada.provider.requests if request.wo_type == "classify"][-1]
            assert classified.variables["prior_intent_id"] is None
        thread = (await ada.supervisor.session(SID)).thread
        assert thread is not None
        bad = next(iter(thread.state.invalid))
    await append(tmp_path, clock, events.LIFECYCLE_VOIDED, "x", ref=bad.as_mapping(), reason="repair")
    async with talking(tmp_path, clock, **config) as ada:
        again = await ada.say("and on")
        assert (again.error, (await ada.flags()).count("INVALID_LIFECYCLE")) == (None, 1)


# --- recall ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "shown", "hidden"),
    [
        ("intent", [], ["harbour opens", "harbour is blue", "harbour secret", "resident harbour"]),
        ("session", ["harbour opens"], ["harbour is blue", "harbour secret", "resident harbour"]),
        ("subject", ["harbour opens", "harbour is blue"], ["harbour secret", "resident harbour"]),
    ],
)
async def test_recall_goes_as_far_as_its_scope(tmp_path: Path, scope: str, shown: list[str], hidden: list[str]) -> None:
    provider, clock = ScriptedProvider(talk), FakeClock()
    agents = {"RESIDENT:bo": {**ENFORCE, "recall_scope": scope}}
    async with open_scripted(tmp_path, provider, clock=clock, agents=agents, recall_scope=scope, **ENFORCE) as runtime:
        ada = Talk(runtime, provider, clock)
        resident = runtime.supervisor("RESIDENT:bo")
        await resident.start_session("SES-0000000d", subject_id="ada")
        await resident.handle_turn("the resident harbour", session_id="SES-0000000d")
        await ada.start()
        await ada.start(OTHER)
        await ada.start(THIRD, "eve")
        await ada.say("the harbour is blue", session_id=OTHER)
        await ada.say("the harbour secret", session_id=THIRD)
        await ada.say("the harbour opens at nine", "[switch] museums", "what about the harbour?")
        text = ada.text()
        assert [each for each in shown if each not in text] == []
        assert [each for each in hidden if each in text] == []
        lists = await ada.lists()
        recalled = [key for key, reasons in lists.reasons.items() if "RECALLED" in reasons]
        assert len(recalled) == 2 * len(shown)  # the message and its reply
        eligible = {ref.entry_id for ref in lists.eligible}
        assert not eligible & {key.partition("/")[2] for key in recalled}


@pytest.mark.parametrize("scope", ["session", "subject"])
async def test_nothing_is_recalled_that_has_no_word_of_the_message_in_or_beside_it(tmp_path: Path, scope: str) -> None:
    async with talking(tmp_path, recall_scope=scope, **ENFORCE) as ada:
        far = [f"lamp {n}" for n in range(4)]
        await ada.say("I never eat meat", *far, "the harbour opens at nine", "[switch] museums", "how late is it?")
        reasons = [reason for e in await ada.decisions(events.PROJECTION_COMPUTED) for reason in reasons_of(e.payload)]
        assert "RECALLED" not in reasons
        await ada.say("and the harbour?")
        assert "opens at nine" in ada.text()
        assert "never eat meat" not in ada.text()


def reasons_of(payload: Mapping[str, Any]) -> list[str]:
    return [reason for reasons in payload["eligibility_reasons"].values() for reason in reasons]


async def test_recall_sees_nothing_newer_than_the_turn(tmp_path: Path) -> None:
    """A turn reads up to where the ledger stood when it began, also where another turn has read further already."""
    held, release = anyio.Event(), anyio.Event()

    async def hold(request: Any) -> None:
        if request.wo_type == "classify" and request.variables["user_message"] == "what of the harbour?":
            held.set()
            await release.wait()

    async with talking(tmp_path, recall_scope="subject", gate=hold, **ENFORCE) as ada:
        await ada.start(OTHER)
        await ada.say("the old harbour", session_id=OTHER)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ada.say, "what of the harbour?")
            await held.wait()
            await ada.say("the new harbour", "the newest harbour", session_id=OTHER)
            release.set()
        assert "the old harbour" in ada.text()
        assert "new" not in ada.text()
        await ada.say("and the harbour?")
        assert "the newest harbour" in ada.text()


# --- budgets -----------------------------------------------------------------------------------------------------------------


async def test_what_must_be_shown_is_shown_at_any_budget(tmp_path: Path) -> None:
    async with talking(tmp_path, context_budget=10, standing_rules=("Never delete files.",), **ENFORCE) as ada:
        result = await ada.say("a rather long description of what is wanted " * 4)
        await ada.say("[fail] more")
        after = await ada.say("and more")
        assert (result.error, after.error) == (None, None)
        projected = [payload_of(entry) for entry in await ada.decisions(events.PROJECTION_COMPUTED)]
        assert [[flag["kind"] for flag in each["flags"]] for each in projected] == [["UNSUPPRESSIBLE_OVER_BUDGET"]] * 3
        assert ada.text().startswith("\nGoal: a rather long")
        assert "failed" in ada.text()
        assert "echo:" not in ada.text()


async def test_learned_lines_stand_once(tmp_path: Path) -> None:
    async with talking(tmp_path, ho3_enabled=True, ho3_gate_count_threshold=1, ho3_gate_session_threshold=1, **ENFORCE) as ada:
        await ada.say("apples")
        await ada.runtime.drain()
        await ada.say("[switch] pears")
        shown, line = ada.shown(), "Often asks about packages."
        assert shown["ho3_biases"] == [line]
        assert line not in shown["context_text"]
        whole = "".join(message.content for message in ada.provider.requests[-1].messages if isinstance(message.content, str))
        assert whole.count(line) == 1
        assert "OVERLAYS" in {ref.ledger_id for ref in (await ada.lists()).visible}
    async with talking(tmp_path, FakeClock(1_767_226_600_000_000), context_budget=12, **EASY, **ENFORCE) as ada:
        await ada.say("[switch] plums")
        assert "ho3_biases" not in ada.shown()
        assert all(line not in str(message.content) for message in ada.provider.requests[-1].messages)


# --- the users' say ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["off", "shadow"])
async def test_there_are_no_intents_to_speak_of_elsewhere(tmp_path: Path, mode: str) -> None:
    async with talking(tmp_path, context_mode=mode) as ada:
        for call in (
            ada.supervisor.declare_intent(SID, "x"),
            ada.supervisor.fork_intent(SID, "INT-1", ["x"]),
            ada.supervisor.close_intent(SID, "INT-1", "x"),
            ada.supervisor.abandon_intent(SID, "INT-1", "x"),
            ada.supervisor.reopen_intent(SID, "INT-1", "x"),
            ada.supervisor.resolve_conflict(SID, keep="INT-1"),
        ):
            with pytest.raises(CallerError, match="context_mode"):
                await call
        assert await ada.intents() == []


async def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    async with talking(tmp_path, **ENFORCE) as ada:
        us, live = ada.supervisor, await ada.supervisor.declare_intent(SID, "Plan the trip", targets=["Oslo"])
        dead = await us.declare_intent(SID, "Fix the bike")
        await us.close_intent(SID, dead, "fixed")
        before = len(await read_all(ada.ledgers.ho2m))
        refused: list[tuple[Any, type[Exception], str]] = [
            (us.declare_intent(SID, " "), CallerError, "objective = ' '"),
            (us.declare_intent(SID, "x" * 2_001), CallerError, "objective"),
            (us.declare_intent(SID, "x", scope=cast("Any", "WORLD")), CallerError, "scope = 'WORLD'"),
            (us.declare_intent(SID, "x", targets="Oslo"), CallerError, "targets = 'Oslo'"),
            (us.declare_intent(SID, "x", targets=["Oslo", ""]), CallerError, "targets = ''"),
            (us.declare_intent(SID, "x", parent_intent_id="INT-9"), InvalidLifecycle, "INT-9"),
            (us.fork_intent(SID, live, []), CallerError, "objectives"),
            (us.fork_intent(SID, live, ["a", ""]), CallerError, "objective = ''"),
            (us.fork_intent(SID, live, ["a"], active=1), CallerError, "active = 1"),
            (us.fork_intent(SID, "INT-9", ["a"]), InvalidLifecycle, "INT-9"),
            (us.fork_intent(SID, dead, ["a", "b"]), InvalidLifecycle, "closed before"),
            (us.close_intent(SID, dead, "again"), InvalidLifecycle, "closed before"),
            (us.close_intent(SID, "INT-9", "x"), InvalidLifecycle, "never declared"),
            (us.close_intent(SID, live, ""), CallerError, "outcome = ''"),
            (us.abandon_intent(SID, dead, "x"), InvalidLifecycle, "closed before"),
            (us.reopen_intent(SID, live, "x"), InvalidLifecycle, "is live"),
            (us.reopen_intent(OTHER, live, "x"), UnknownSession, OTHER),
        ]
        for call, error, text in refused:
            with pytest.raises(error, match=text.replace("(", r"\(")):
                await call
        assert len(await read_all(ada.ledgers.ho2m)) == before
        await us.end_session(SID)
        with pytest.raises(SessionEnded):
            await us.declare_intent(SID, "too late")


async def test_children_of_a_fork(tmp_path: Path) -> None:
    async with talking(tmp_path, **ENFORCE) as ada:
        parent = (await ada.say("a trip to Oslo")).intent_id
        assert parent is not None
        hotel, food = await ada.supervisor.fork_intent(SID, parent, ["find a hotel", "find food"], active=1)
        result = await ada.say("what is there?")
        assert result.intent_id == food
        text = ada.text()
        assert text.startswith("Wider goal: a trip to Oslo\n")
        assert "\nGoal: find food\n" in text
        assert "echo: a trip to Oslo" in ada.text()
        await ada.supervisor.close_intent(SID, food, "fed")
        assert (await ada.say("and now?")).intent_id == hotel
        assert "what is there?" not in ada.text()
        assert await ada.kept() == (await ada.state()).snapshot()


async def test_calls_wait_for_the_turn_before_them(tmp_path: Path) -> None:
    """They go through the session's queue, so a running turn keeps the intent it began with."""
    held, release = anyio.Event(), anyio.Event()

    async def hold(request: Any) -> None:
        if request.wo_type == "synthesize" and request.variables["user_message"] == "wait":
            held.set()
            await release.wait()

    async with talking(tmp_path, gate=hold, **ENFORCE) as ada:
        first = (await ada.say("apples")).intent_id
        assert first is not None
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ada.say, "wait")
                await held.wait()
                tasks.start_soon(ada.supervisor.close_intent, SID, first, "closed from outside")
                await anyio.wait_all_tasks_blocked()
                tasks.start_soon(ada.say, "after it")
                await anyio.wait_all_tasks_blocked()
                assert actions(await ada.intents()) == ["DECLARED"]
                release.set()
        done = await read_all(ada.ledgers.ho2m, entry_type=events.TURN_COMPLETED)
        assert [each.payload["intent_id"] == first for each in done] == [True, True, False]
        assert await ada.kept() == (await ada.state()).snapshot()


async def test_a_tool_cannot_change_the_intents_of_its_own_turn(tmp_path: Path) -> None:
    found: list[Exception] = []

    @tool
    async def meddle() -> str:
        try:
            await ada.supervisor.declare_intent(SID, "another")
        except ReentrantTurn as error:
            found.append(error)
        return "done"

    def command(request: Any) -> Any:
        if request.wo_type == "classify":
            return {**talk(request), "speech_act": "command", "tool_request": {"tool_id": "meddle", "arguments": {}}}  # type: ignore[dict-item]
        return talk(request)

    provider, clock = ScriptedProvider(command), FakeClock()
    async with open_scripted(tmp_path, provider, clock=clock, tools=[meddle], **ENFORCE) as runtime:
        ada = Talk(runtime, provider, clock)
        await ada.start()
        await ada.say("do it")
        assert len(found) == 1
        assert actions(await ada.intents()) == ["DECLARED"]


# --- aborted turns and costs -------------------------------------------------------------------------------------------------


async def test_a_turn_that_is_cut_off_leaves_its_decision(tmp_path: Path) -> None:
    """What a message decided was decided, whatever became of its reply; the state is the ledger's."""

    async def hang(request: Any) -> None:
        if request.wo_type == "synthesize" and "hang" in request.variables["user_message"]:
            await anyio.sleep_forever()

    clock = FakeClock()
    async with talking(tmp_path, clock, gate=hang, **ENFORCE) as ada:
        first = await ada.say("apples")
        for message in ("[switch] hang", "[close] hang"):
            async with anyio.create_task_group() as tasks:
                seen = asked(ada)
                tasks.start_soon(ada.say, message)
                with anyio.fail_after(10):
                    while asked(ada) == seen or ada.provider.requests[-1].wo_type != "synthesize":
                        await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
        assert actions(await ada.intents()) == ["DECLARED", "DECLARED", "SUPERSEDED"]
        result = await ada.say("still here")
        assert result.intent_id != first.intent_id
        assert "apples" not in ada.text()
        assert await ada.kept() == (await ada.state()).snapshot()


async def calls_of_turn(ada: Talk, message: str) -> int:
    """Python functions called in one turn."""
    count = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"

    ada.clock.advance(1)
    sys.setprofile(note)
    try:
        await ada.supervisor.handle_turn(message, session_id=SID)
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.soak
async def test_a_turn_costs_the_same_in_a_long_session(tmp_path: Path) -> None:
    # A budget that is full by the twentieth turn: what is shown stops growing, and so must everything else.
    async with talking(tmp_path, admission="newest_first", context_budget=200, **ENFORCE) as ada:
        early, late = list[int](), list[int]()
        for n in range(203):
            message = f"message {n:03d}"
            if n in (20, 21, 22, 200, 201, 202):
                (early if n < 100 else late).append(await calls_of_turn(ada, message))
            else:
                await ada.say(message)
        assert min(late) <= 1.2 * min(early), (early, late)


async def test_a_long_session_is_read_back_in_one_pass(tmp_path: Path) -> None:
    """However long the line of projections that refer to one another: none of them is looked up by itself."""
    clock = FakeClock()
    async with talking(tmp_path, clock, admission="newest_first", context_budget=200, **BRIDGE) as ada:
        await ada.turns(60)
        intent = (await ada.say("the last")).intent_id
        last = (await ada.decisions(events.PROJECTION_COMPUTED))[-1]
        assert base_ref(last.payload) is not None
    async with talking(tmp_path, clock, admission="newest_first", context_budget=200, **BRIDGE) as ada:
        looked_up: list[int] = []
        kept = ada.ledgers.context.get
        ada.ledgers.context.get = lambda seq: looked_up.append(seq) or kept(seq)  # type: ignore[method-assign,func-returns-value]
        thread = (await ada.supervisor.session(SID)).thread
        assert thread is not None
        assert looked_up == []
        assert thread.bases[intent].ref == last.ref
        assert thread.bases[intent].size == 121  # the goal, and a message and a reply of each turn
