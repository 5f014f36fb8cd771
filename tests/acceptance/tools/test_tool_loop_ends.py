"""The tool loop always ends with a reply: the model reads why it cannot continue, and answers (docs/tools.md)."""

from pathlib import Path
from typing import Any

import pytest

from kitchener.actors.tools.tool import tool
from kitchener.errors import CallerError
from kitchener.gateway.providers.offline import OfflineProvider
from kitchener.records import events
from kitchener.records.prompt import PromptRequest, ToolUse
from kitchener.replaying import replay_session
from kitchener.testing import ScriptedProvider
from tests.acceptance.conftest import OpenRuntime
from tests.acceptance.stack import QUESTION, read_all, scripted_config


@tool(read_only=True)
def look(place: str) -> str:
    """Looks."""
    return f"nothing at {place}"


@tool(read_only=True)
def count() -> int:
    """Counts."""
    return 3


class Stubborn:
    """A model that calls tools as long as it is offered any: each round the next of these calls, the last one for ever."""

    def __init__(self, *rounds: tuple[ToolUse, ...]) -> None:
        self.requests: list[PromptRequest] = []
        self._rounds = rounds
        self.provider = ScriptedProvider(self._answer)

    def _answer(self, request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            return QUESTION
        self.requests.append(request)
        if not request.tools:
            return "That is all I found."
        return self._rounds[min(len(self.requests), len(self._rounds)) - 1]

    @property
    def told(self) -> list[str]:
        """What the tools told the model, in order."""
        return [message.content for message in self.requests[-1].messages if message.role == "tool"]


def looking(*places: str) -> tuple[ToolUse, ...]:
    return tuple(ToolUse(f"u-{number}-{place}", "look", {"place": place}) for number, place in enumerate(places))


async def run(tmp_path: Path, scripted: OpenRuntime, model: Stubborn, **config: Any) -> list[str]:
    """A turn, which ends in the model's own reply and is replayed the same; what its tools told."""
    async with scripted(model.provider, tools=[look, count], **config) as runtime:
        result = await runtime.supervisor().handle_turn("look around")
    assert (result.response, result.error) == ("That is all I found.", None)
    assert [bool(request.tools) for request in model.requests] == [True] * (len(model.requests) - 1) + [False]
    report = await replay_session(result.session_id, config=scripted_config(tmp_path, **config), tools=[look, count])
    assert report.is_identical, report.text()
    return model.told


async def test_a_model_that_repeats_a_call_is_told_once_and_then_has_to_answer(tmp_path: Path, scripted: OpenRuntime) -> None:
    told = await run(tmp_path, scripted, Stubborn(looking("A")), max_equal_calls=2)
    assert told[:2] == ["nothing at A"] * 2
    assert len(told) == 4
    assert all("was called 2 times with these arguments in this reply, and is not run again" in each for each in told[2:])


async def test_other_arguments_are_another_call_and_the_number_of_calls_is_bounded(
    tmp_path: Path, scripted: OpenRuntime
) -> None:
    model = Stubborn(looking("A", "B"), looking("C", "D", "E"), looking("F"))
    told = await run(tmp_path, scripted, model, max_tool_calls=4)
    assert told[:4] == [f"nothing at {place}" for place in "ABCD"]
    assert "this reply has made all of its 4 tool calls" in told[4]
    assert len(told) == 5


async def test_a_call_that_is_refused_counts_too(tmp_path: Path, scripted: OpenRuntime) -> None:
    unknown = (ToolUse("u1", "nope", {}), ToolUse("u2", "look", {"wrong": 1}), ToolUse("u3", "look", {"place": "A"}))
    told = await run(tmp_path, scripted, Stubborn(unknown), max_tool_calls=2)
    assert "all of its 2 tool calls" in told[2]


async def test_the_rounds_are_bounded(tmp_path: Path, scripted: OpenRuntime) -> None:
    rounds = [looking(str(number)) for number in range(9)]
    told = await run(tmp_path, scripted, Stubborn(*rounds), tool_turn_limit=3)
    assert len(told) == 3


async def test_a_budget_that_runs_out_ends_in_a_reply(tmp_path: Path, scripted: OpenRuntime) -> None:
    rounds = [looking(str(number)) for number in range(9)]
    told = await run(tmp_path, scripted, Stubborn(*rounds), results_budget=10)
    assert 0 < len(told) < 8


# What the model must call


class Obedient(Stubborn):
    """A model that calls what it must, and otherwise answers."""

    def _answer(self, request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            return QUESTION
        self.requests.append(request)
        choice = request.tool_choice
        if choice in (None, "none"):
            return "That is all I found."
        return ToolUse("u1", "count", {}) if choice == "required" else ToolUse("u1", choice, {"place": "A"})


@pytest.mark.parametrize(
    ("choice", "asked", "ran"),
    [
        ("auto", [None], []),
        ("none", ["none"], []),
        ("required", ["required", None], ["count"]),
        ("look", ["look", None], ["look"]),
    ],
)
async def test_the_caller_says_what_the_first_answer_must_call(
    tmp_path: Path, scripted: OpenRuntime, choice: str, asked: list[str | None], ran: list[str]
) -> None:
    model = Obedient()
    async with scripted(model.provider, tools=[look, count]) as runtime:
        result = await runtime.supervisor().handle_turn("go", tool_choice=choice)
        streamed = [each async for each in runtime.supervisor().stream_turn("go", tool_choice=choice)]
        (start, _) = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_STARTED)
        calls = await read_all(runtime.ledgers().ho1m, entry_type=events.TOOL_CALL)
    assert streamed
    assert [request.tool_choice for request in model.requests] == asked * 2
    assert all(len(request.tools) == 2 for request in model.requests)
    assert [entry.payload["tool_id"] for entry in calls] == ran * 2
    assert start.payload.get("tool_choice") == (None if choice == "auto" else choice)
    report = await replay_session(result.session_id, config=scripted_config(tmp_path), tools=[look, count])
    assert report.is_identical, report.text()


async def test_a_choice_is_part_of_the_requests_hash(scripted: OpenRuntime) -> None:
    """The same request with another choice may get another answer, so it has another hash."""
    hashes = set[str]()
    async with scripted(Obedient().provider, tools=[look, count]) as runtime:
        for choice in ("auto", "required", "look"):
            result = await runtime.supervisor().handle_turn("go", tool_choice=choice)
            calls = await read_all(runtime.ledgers().ho1m, session_id=result.session_id, entry_type=events.LLM_CALL)
            first = next(each for each in calls if each.entity_id.endswith("-002"))
            hashes.add(str(first.payload["request_hash"]))
    assert len(hashes) == 3


@pytest.mark.parametrize(("request_", "ran"), [("look", ["look"]), ("count", ["look"])])
async def test_a_tool_that_the_classification_asks_for_runs_only_if_it_is_the_chosen_one(
    scripted: OpenRuntime, request_: str, ran: list[str]
) -> None:
    arguments = {"place": "A"} if request_ == "look" else {}

    def answer(request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            return {**QUESTION, "speech_act": "command", "tool_request": {"tool_id": request_, "arguments": arguments}}
        return ToolUse("u1", "look", {"place": "A"}) if request.tool_choice == "look" else "done"

    async with scripted(ScriptedProvider(answer), tools=[look, count]) as runtime:
        await runtime.supervisor().handle_turn("go", tool_choice="look")
        calls = await read_all(runtime.ledgers().ho1m, entry_type=events.TOOL_CALL)
    assert [entry.payload["tool_id"] for entry in calls] == ran


@pytest.mark.parametrize(
    ("tools", "choice", "problem"),
    [
        ([look, count], "nope", "tool_choice = 'nope': expected 'auto', 'none', 'required' or one of look, count"),
        ([look], 3, "tool_choice = 3: expected 'auto', 'none', 'required' or one of look"),
        ([], "required", "tool_choice = 'required': this class has no tools"),
    ],
)
async def test_a_choice_that_nobody_can_make_is_refused_before_anything_starts(
    scripted: OpenRuntime, tools: list[Any], choice: Any, problem: str
) -> None:
    async with scripted(Obedient().provider, tools=tools) as runtime:
        with pytest.raises(CallerError) as refused:
            await runtime.supervisor().handle_turn("go", tool_choice=choice)
        assert await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_STARTED) == []
    assert str(refused.value) == problem


async def test_the_offline_model_calls_what_it_must(scripted: OpenRuntime) -> None:
    async with scripted(OfflineProvider("scripted"), tools=[look, count]) as runtime:
        result = await runtime.supervisor().handle_turn("Good day to you", tool_choice="count")
        calls = await read_all(runtime.ledgers().ho1m, entry_type=events.TOOL_CALL)
    assert [entry.payload["tool_id"] for entry in calls] == ["count"]
    assert "count: 3" in result.response
