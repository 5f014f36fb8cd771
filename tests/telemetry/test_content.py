"""Content stands in no span, event, metric or log unless the standard variable asks for it, whatever goes wrong."""

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from kitchener import tool
from kitchener.errors import ProviderError
from kitchener.records.prompt import PromptRequest
from kitchener.telemetry import names
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import QUESTION, open_scripted
from tests.shared.logs import captured_logs
from tests.telemetry.watch import Watch, facts

SECRET = "xyzzy-4711"
CONTENT = {names.SYSTEM_INSTRUCTIONS, names.INPUT_MESSAGES, names.OUTPUT_MESSAGES, names.TOOL_ARGUMENTS, names.TOOL_RESULT}
FAULTS = ["none", "tool", "arguments", "model", "output", "listener"]


@tool
def note(text: str) -> str:
    """Writes something down."""
    if text.startswith("bad"):
        raise RuntimeError(f"cannot write {text}")
    return f"wrote {text}"


def said(fault: str, request: PromptRequest) -> Any:
    """What the model answers; the marker is in all of it."""
    if request.wo_type == "classify":
        return {**QUESTION, "labels": {"domain": SECRET}, "candidate_objective": SECRET}
    if fault == "model":
        return ProviderError("scripted", "server_error", f"cannot say {SECRET}")
    if fault == "output":
        return {"response": SECRET}
    if request.messages[-1].role == "tool":
        return {"response_text": f"Done with {SECRET}."}
    text = f"bad {SECRET}" if fault == "tool" else SECRET
    return use_tool("note", words=text) if fault == "arguments" else use_tool("note", text=text)


async def told(root: Path, fault: str = "none") -> Watch:
    """What is told of a turn with the marker everywhere, in which this goes wrong."""
    watch, provider = Watch(), ScriptedProvider(lambda request: said(fault, request))
    lane = {"max_retries": 0}
    async with open_scripted(root, provider, tools=[note], lane=lane, telemetry=watch.telemetry) as runtime:
        updates = runtime.supervisor().stream_turn(f"Note {SECRET}.", subject_id=f"subject {SECRET}")
        async for _ in updates:
            if fault == "listener":
                break
        await updates.aclose()
    assert watch.named("invoke_agent")
    return watch


@pytest.mark.parametrize("fault", FAULTS)
async def test_nothing_that_was_said_is_told(tmp_path: Path, fault: str) -> None:
    with captured_logs() as logs:
        watch = await told(tmp_path, fault)
    assert SECRET not in watch.words()
    assert watch.events == []
    assert SECRET not in repr([each for each in logs if each["log_level"] != "debug"])


async def test_a_value_that_is_wrong_is_warned_of_and_means_no_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.CAPTURE_CONTENT, "true")
    with captured_logs() as logs:
        watch = await told(tmp_path)
    (warned,) = [each for each in logs if each.get("variable") == names.CAPTURE_CONTENT]
    assert warned["log_level"] == "warning"
    assert "SPAN_ONLY" in warned["expected"]
    assert SECRET not in watch.words()


@pytest.mark.parametrize(
    ("value", "in_spans", "in_events"),
    [
        ("", False, False),
        ("NO_CONTENT", False, False),
        ("SPAN_ONLY", True, False),
        ("event_only", False, True),
        ("SPAN_AND_EVENT", True, True),
    ],
)
async def test_content_stands_where_the_variable_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, in_spans: bool, in_events: bool
) -> None:
    monkeypatch.setenv(names.CAPTURE_CONTENT, value)
    watch = await told(tmp_path)
    assert any(CONTENT & facts(each).keys() for each in watch.spans) is in_spans
    assert {name for name, _ in watch.events} == ({names.INFERENCE_DETAILS} if in_events else set())
    assert (SECRET in watch.words()) is (in_spans or in_events)
    assert SECRET not in repr(watch.metrics())


async def test_content_without_a_form_changes_nothing_in_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider of the program asks for a tool with lists that are too deep for JSON, which no ledger takes either."""
    monkeypatch.setenv(names.CAPTURE_CONTENT, "SPAN_AND_EVENT")

    def answer(request: PromptRequest) -> Any:
        deep: list[Any] = []
        for _ in range(5_000):
            deep = [deep]
        return use_tool("note", text=deep)

    ends, watch = [], Watch()
    with captured_logs() as logs:
        for name, telemetry in (("with", watch.telemetry), ("without", None)):
            provider = ScriptedProvider(answer)
            root = tmp_path / name
            async with open_scripted(root, provider, classify="off", tools=[note], telemetry=telemetry) as runtime:
                result = await runtime.supervisor().handle_turn("Note it.")
                ends.append((result.response, result.error.kind if result.error is not None else None))
    assert ends[0] == ends[1]
    assert [each["event"] for each in logs if "telemetry failed" in each["event"]] != []
    assert watch.named("chat")


async def test_a_span_tells_the_arguments_as_the_model_gave_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A converted argument may be any object, and a default is the author's own, such as a key: neither is for a span."""
    monkeypatch.setenv(names.CAPTURE_CONTENT, "SPAN_ONLY")

    @tool
    def plan(day: date, steps: list[str], key: str = SECRET) -> str:
        """Plans a day."""
        steps.append(f"{day:%d} {key}")
        return "planned"

    def answer(request: PromptRequest) -> Any:
        is_done = request.messages[-1].role == "tool"
        return {"response_text": "Done."} if is_done else use_tool("plan", day="2026-12-01", steps=["rest"])

    watch = Watch()
    provider = ScriptedProvider(answer)
    async with open_scripted(tmp_path, provider, classify="off", tools=[plan], telemetry=watch.telemetry) as runtime:
        await runtime.supervisor().handle_turn("Plan it.")
    assert json.loads(facts(watch.one("execute_tool"))[names.TOOL_ARGUMENTS]) == {"day": "2026-12-01", "steps": ["rest"]}


async def test_content_has_the_form_of_the_conventions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(names.CAPTURE_CONTENT, "SPAN_AND_EVENT")
    watch = await told(tmp_path)
    last = facts(watch.named("chat")[-1])
    inputs, outputs = json.loads(last[names.INPUT_MESSAGES]), json.loads(last[names.OUTPUT_MESSAGES])
    assert json.loads(last[names.SYSTEM_INSTRUCTIONS])[0]["type"] == "text"
    assert inputs[0]["role"] == "user"
    assert [part for each in inputs for part in each["parts"] if part["type"] == "tool_call"] == [
        {"type": "tool_call", "id": inputs[-1]["parts"][0]["id"], "name": "note", "arguments": {"text": SECRET}}
    ]
    assert inputs[-1]["role"] == "tool"
    assert inputs[-1]["parts"][0]["type"] == "tool_call_response"
    assert outputs[0]["parts"] == [{"type": "text", "content": f"Done with {SECRET}."}]
    assert outputs[0]["finish_reason"] == "stop"
    assert watch.events[-1][1][names.OUTPUT_MESSAGES][0]["role"] == "assistant"
    ran, turn = facts(watch.one("execute_tool")), facts(watch.one("invoke_agent"))
    assert json.loads(ran[names.TOOL_ARGUMENTS]) == {"text": SECRET}
    assert json.loads(ran[names.TOOL_RESULT]) == f"wrote {SECRET}"
    assert json.loads(turn[names.INPUT_MESSAGES])[0]["parts"][0]["content"] == f"Note {SECRET}."
