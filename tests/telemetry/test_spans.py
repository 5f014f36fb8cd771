"""Each turn is a tree of spans in its caller's trace, whatever becomes of it (docs/telemetry.md)."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import tool
from kitchener.errors import ProviderError, TurnTimeout
from kitchener.records import events
from kitchener.records.prompt import PromptRequest, ToolUse
from kitchener.telemetry import names
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.approval.kit import Desk, model, open_desk
from tests.acceptance.memory.memory_kit import EASY, student
from tests.acceptance.stack import QUESTION, Hold, echo, open_scripted, read_all
from tests.telemetry.watch import Watch, context_of, end_of, facts

MODEL = "chat scripted-1"
TURN = "invoke_agent ADMIN"


@tool(read_only=True)
def weather(city: str) -> str:
    """The weather of a city."""
    if city == "Atlantis":
        raise ValueError(f"no such city: {city}")
    return f"sunny in {city}"


def forecaster(request: PromptRequest) -> Any:
    """Looks at the weather of the city that the message names."""
    if request.wo_type == "classify":
        return QUESTION
    if request.messages[-1].role == "tool":
        return {"response_text": "Here you are."}
    return use_tool("weather", city=str(request.variables["user_message"]))


async def test_a_turn_is_a_tree_in_the_trace_of_its_caller(tmp_path: Path) -> None:
    watch = Watch()
    async with open_scripted(tmp_path, ScriptedProvider(forecaster), tools=[weather], telemetry=watch.telemetry) as runtime:
        supervisor = runtime.supervisor()
        with watch.span("request") as trace_id:
            result = await supervisor.handle_turn("Graz", subject_id="ada")
        after = await supervisor.handle_turn("Linz", session_id=result.session_id)
        ended = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_COMPLETED)
    request, (first, second) = watch.one("request"), watch.named(TURN)
    assert watch.inside(request, without=()) == {
        TURN: {MODEL: {}, f"{MODEL} 2": {}, "execute_tool weather": {}, f"{MODEL} 3": {}, names.COMMIT: {}}
    }
    assert context_of(first).trace_id == trace_id != context_of(second).trace_id
    assert second.parent is None
    assert [facts(each)[names.TURN_ID] for each in (first, second)] == [result.turn_id, after.turn_id]
    assert [facts(each)[names.LEDGER_ENTRY] for each in (first, second)] == [each.entry_id for each in ended]
    assert facts(first)[names.INPUT_TOKENS] == result.cost_summary["input_tokens"]
    for each in watch.named(MODEL)[:3] + watch.named("execute_tool")[:1]:
        told = facts(each)
        assert (told[names.SESSION_ID], told[names.TURN_ID]) == (result.session_id, result.turn_id)
        assert told[names.WORK_ORDER_ID] in {wo["wo_id"] for wo in result.wo_chain_summary}
    assert {each.kind.name for each in watch.named(MODEL)} == {"CLIENT"}
    assert {end_of(each) for each in watch.spans} == {("UNSET", None)}


async def test_each_attempt_has_a_span(tmp_path: Path) -> None:
    watch, calls = Watch(), [0]

    def answer(request: PromptRequest) -> Any:
        calls[0] += 1
        return ProviderError("scripted", "rate_limited", "wait, said the secret") if calls[0] < 3 else echo(request)

    provider, lane = ScriptedProvider(answer), {"max_retries": 2, "backoff_initial_s": 0.001}
    async with open_scripted(tmp_path, provider, classify="off", lane=lane, telemetry=watch.telemetry) as runtime:
        assert not (await runtime.supervisor().handle_turn("hello")).degraded
    attempts = watch.named(MODEL)
    assert [end_of(each) for each in attempts] == [("ERROR", "rate_limited"), ("ERROR", "rate_limited"), ("UNSET", None)]
    assert [facts(each)[names.ATTEMPT] for each in attempts] == [1, 2, 3]
    assert end_of(watch.one(TURN)) == ("UNSET", None)
    assert [end_of(each) for each in watch.spans if each.events] == []  # an exception on a span has its text


async def test_a_model_that_fails_makes_the_turn_an_error_by_its_kind(tmp_path: Path) -> None:
    watch = Watch()
    provider = ScriptedProvider(lambda request: ProviderError("scripted", "authentication", "no entry"))
    async with open_scripted(tmp_path, provider, classify="off", telemetry=watch.telemetry) as runtime:
        result = await runtime.supervisor().handle_turn("hello")
    assert result.error is not None
    assert end_of(watch.one(TURN)) == ("ERROR", result.error.kind)
    assert {end_of(each) for each in watch.named(MODEL)} == {("ERROR", "authentication")}


async def test_a_tool_that_fails_is_an_error_without_its_text(tmp_path: Path) -> None:
    watch = Watch()
    async with open_scripted(tmp_path, ScriptedProvider(forecaster), tools=[weather], telemetry=watch.telemetry) as runtime:
        await runtime.supervisor().handle_turn("Atlantis")
    assert end_of(watch.one("execute_tool")) == ("ERROR", "tool_error")
    assert end_of(watch.one(TURN)) == ("UNSET", None)
    assert "Atlantis" not in watch.words()


async def test_a_turn_that_is_cut_off_ends_its_spans(tmp_path: Path) -> None:
    watch, hold = Watch(), Hold("first", "second")
    provider = ScriptedProvider(echo, gate=hold)
    async with open_scripted(tmp_path, provider, classify="off", telemetry=watch.telemetry) as runtime:
        supervisor = runtime.supervisor()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(supervisor.handle_turn, "first")
            await hold.arrived["first"].wait()
            tasks.cancel_scope.cancel()
        with pytest.raises(TurnTimeout):
            await supervisor.handle_turn("second", deadline=0.05)
        await supervisor.handle_turn("third")
    assert [end_of(each) for each in watch.named(TURN)] == [("ERROR", "cancelled"), ("ERROR", "TurnTimeout"), ("UNSET", None)]
    assert [end_of(each)[0] for each in watch.named(MODEL)] == ["ERROR", "ERROR", "UNSET"]
    third = watch.named(TURN)[2]
    assert watch.inside(third) == {MODEL: {}}


async def test_a_stream_says_when_its_first_text_came(tmp_path: Path) -> None:
    watch = Watch()
    async with open_scripted(tmp_path, classify="off", telemetry=watch.telemetry) as runtime:
        supervisor = runtime.supervisor()
        with watch.span("request"):
            updates = [each async for each in supervisor.stream_turn("hello")]
        await supervisor.handle_turn("hello")
    assert updates
    streamed, whole = map(facts, watch.named(MODEL))
    assert streamed[names.REQUEST_STREAM] is True
    assert streamed[names.TIME_TO_FIRST_CHUNK] > 0
    assert names.REQUEST_STREAM not in whole
    assert watch.inside(watch.one("request")) == {TURN: {MODEL: {}}}
    (point,) = watch.metrics()[names.FIRST_CHUNK_DURATION]
    assert point.count == 1


async def test_the_turn_of_another_agent_is_inside_the_tool_that_asked_it(tmp_path: Path) -> None:
    watch = Watch()

    def answer(request: PromptRequest) -> Any:
        if request.messages[-1].role == "tool" or not request.tools:
            return "a finding"
        return ToolUse("u1", request.tools[0].tool_id, {"message": "look it up"})

    agents, provider = {"RESEARCHER": {"classify": "off"}}, ScriptedProvider(answer)
    async with open_scripted(
        tmp_path, provider, classify="off", agents=agents, admin_tools=("agent:RESEARCHER",), telemetry=watch.telemetry
    ) as runtime:
        result = await runtime.supervisor().handle_turn("hello", subject_id="ada")
    (asked,) = watch.inside(watch.one(TURN)).keys() - {MODEL, f"{MODEL} 2"}
    assert asked.startswith("execute_tool ")
    assert watch.inside(watch.one(TURN)) == {MODEL: {}, asked: {"invoke_agent RESEARCHER": {MODEL: {}}}, f"{MODEL} 2": {}}
    nested = facts(watch.one("invoke_agent RESEARCHER"))
    assert nested[names.SESSION_ID] != result.session_id
    assert len({context_of(each).trace_id for each in watch.spans if each.name != names.COMMIT}) == 1


async def test_a_call_that_waits_for_a_person_is_no_error_and_the_answer_names_it(tmp_path: Path) -> None:
    watch, desk = Watch(), Desk()
    provider = model([("delete", {"path": "a.txt"})])
    async with open_desk(tmp_path, desk, provider, telemetry=watch.telemetry) as runtime:
        supervisor = runtime.supervisor()
        asked = await supervisor.handle_turn("clean up", subject_id="ada")
        assert watch.named("execute_tool") == []
        await supervisor.approve(asked.pending_approval[0])
    waiting, going_on = watch.named(TURN)
    assert facts(waiting)[names.APPROVAL_PENDING] == asked.pending_approval == facts(going_on)[names.APPROVAL_ANSWERED]
    assert end_of(waiting) == end_of(going_on) == ("UNSET", None)
    assert "execute_tool delete" in watch.inside(going_on)


async def test_a_question_of_a_tool_is_no_error(tmp_path: Path) -> None:
    watch, desk = Watch(), Desk()
    async with open_desk(tmp_path, desk, model([("pay", {"amount": 5})]), telemetry=watch.telemetry) as runtime:
        asked = await runtime.supervisor().handle_turn("pay", subject_id="ada")
    assert asked.pending_approval
    assert end_of(watch.one("execute_tool pay")) == ("UNSET", None)
    assert facts(watch.one("execute_tool pay"))[names.APPROVAL_QUESTION] is True


async def test_memory_is_searched_in_the_turn_and_learned_after_it(tmp_path: Path) -> None:
    watch = Watch()
    async with open_scripted(tmp_path, student(), telemetry=watch.telemetry, **EASY) as runtime:
        first = await runtime.supervisor().handle_turn("hello", subject_id="ada-the-subject")
        await runtime.drain()
        await runtime.supervisor().handle_turn("hello", session_id=first.session_id)
        await runtime.drain()
    searches = watch.named(names.SEARCH_MEMORY)
    assert [facts(each)[names.MEMORY_LINES] for each in searches] == [0, 1]
    assert names.SEARCH_MEMORY in watch.inside(watch.named(TURN)[0])
    learned = watch.named(names.UPSERT_MEMORY)[0]
    assert watch.inside(learned) == {MODEL: {}}
    assert names.WORK_ORDER_ID in facts(learned)
    assert end_of(learned) == ("UNSET", None)
    assert (learned.start_time or 0) > (watch.named(TURN)[0].end_time or 0)
    assert "ada-the-subject" not in watch.words()


async def test_spans_of_many_sessions_never_mix(tmp_path: Path) -> None:
    watch, sessions = Watch(), 50
    arrived, go_on = [0], anyio.Event()

    async def gate(request: PromptRequest) -> None:  # every turn has begun before the first one may end
        arrived[0] += 1
        if arrived[0] == sessions:
            go_on.set()
        await go_on.wait()

    provider = ScriptedProvider(forecaster, gate=gate)
    traces: dict[int, str] = {}
    limits = {"executor_concurrency": sessions}
    async with open_scripted(
        tmp_path, provider, tools=[weather], limits=limits, lane={"max_concurrency": sessions}, telemetry=watch.telemetry
    ) as runtime:

        async def talk(number: int) -> None:
            with watch.span(f"request {number}") as trace_id:
                traces[trace_id] = (await runtime.supervisor().handle_turn(f"City {number}")).session_id

        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                for number in range(sessions):
                    tasks.start_soon(talk, number)
    assert len(traces) == len(set(traces.values())) == sessions
    of_turns = [each for each in watch.spans if names.SESSION_ID in facts(each)]
    assert len(of_turns) == sessions * 6
    assert all(traces[context_of(each).trace_id] == facts(each)[names.SESSION_ID] for each in of_turns)
    assert all(len(watch.inside(each)) == 4 for each in watch.named(TURN))
