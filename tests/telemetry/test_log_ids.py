"""An event of the log names the session, the turn and the work order in which it was logged (docs/telemetry.md)."""

from pathlib import Path
from typing import Any

import anyio
from opentelemetry import trace

from kitchener.errors import ProviderError
from kitchener.lanes.askers import ids_of_turn
from kitchener.records.prompt import PromptRequest, ToolUse
from kitchener.records.turn import TurnResult
from kitchener.testing import ScriptedProvider
from tests.acceptance.memory.memory_kit import EASY, student
from tests.acceptance.stack import QUESTION, open_scripted
from tests.shared.logs import captured_logs
from tests.telemetry.watch import Watch, context_of, facts


async def test_events_of_sessions_side_by_side_name_their_own(tmp_path: Path) -> None:
    """They are logged by workers of the gateway, which serve both sessions in turn."""
    both, here = anyio.Event(), [0]
    results: dict[str, TurnResult] = {}

    async def gate(request: PromptRequest) -> None:
        here[0] += 1
        if here[0] == 2:
            both.set()
        await both.wait()

    provider = ScriptedProvider(lambda request: ValueError("a bug"), gate=gate)
    with captured_logs() as logs:
        async with open_scripted(tmp_path, provider, classify="off", lane={"max_retries": 0}) as runtime:

            async def talk(subject: str) -> None:
                results[subject] = await runtime.supervisor().handle_turn("hello", subject_id=subject)

            with anyio.fail_after(10):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(talk, "ada")
                    tasks.start_soon(talk, "bo")
    told = [(each["session_id"], each["turn_id"], each["wo_id"]) for each in logs if each["event"] == "provider failed"]
    expected = [(each.session_id, each.turn_id, each.wo_chain_summary[0]["wo_id"]) for each in results.values()]
    assert sorted(told) == sorted(expected)
    assert len(told) == 2


async def test_an_event_after_the_last_work_order_names_none(tmp_path: Path) -> None:
    odd = {**QUESTION, "labels": {"domain": "§", "task": "☃"}}
    with captured_logs() as logs:
        async with open_scripted(tmp_path, student(classification=odd), **EASY) as runtime:
            result = await runtime.supervisor().handle_turn("hello", subject_id="ada")
    dropped = [each for each in logs if each["event"] == "signal dropped"]
    assert dropped
    assert {(each["session_id"], each["turn_id"], each.get("wo_id")) for each in dropped} == {
        (result.session_id, result.turn_id, None)
    }


async def test_an_event_in_a_turn_that_a_tool_took_names_that_turn(tmp_path: Path) -> None:
    def answer(request: PromptRequest) -> Any:
        if not request.tools:
            return ProviderError("scripted", "server_error", "down")
        if request.messages[-1].role == "tool":
            return "I could not find out."
        return ToolUse("u1", request.tools[0].tool_id, {"message": "look it up"})

    agents = {"RESEARCHER": {"classify": "off"}}
    with captured_logs() as logs:
        async with open_scripted(
            tmp_path,
            ScriptedProvider(answer),
            classify="off",
            agents=agents,
            admin_tools=("agent:RESEARCHER",),
            lane={"max_retries": 0},
        ) as runtime:
            result = await runtime.supervisor().handle_turn("hello", subject_id="ada")
            nested = await runtime.sessions("RESEARCHER")
    (line,) = [each for each in logs if each["event"] == "provider does not answer"]
    assert line["session_id"] == nested[0].session_id != result.session_id
    assert line["turn_id"].startswith(f"T-{nested[0].session_id.removeprefix('SES-')}")


async def test_with_telemetry_an_event_names_its_span_too(tmp_path: Path) -> None:
    watch = Watch()
    provider = ScriptedProvider(lambda request: ValueError("a bug"))
    with captured_logs() as logs:
        async with open_scripted(
            tmp_path, provider, classify="off", lane={"max_retries": 0}, telemetry=watch.telemetry
        ) as runtime:
            await runtime.supervisor().handle_turn("hello")
    line = next(each for each in logs if each["event"] == "provider failed")
    attempt = watch.named("chat")[0]
    assert line["span_id"] == trace.format_span_id(context_of(attempt).span_id)
    assert line["trace_id"] == trace.format_trace_id(context_of(attempt).trace_id)
    assert line["wo_id"] == facts(attempt)["kitchener.work_order.id"]


async def test_outside_of_turns_there_are_no_ids() -> None:
    assert ids_of_turn() == {}
