"""Whatever tools or models do in the tool loop, the turn ends with a reply of the model, and its replay is identical."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kitchener.actors.tools.tool import tool
from kitchener.errors import TurnTimeout
from kitchener.records import events
from kitchener.records.prompt import PromptRequest, ToolUse
from kitchener.records.turn import ToolProgress, ToolStarted
from kitchener.replaying import replay_session
from kitchener.runtime import Runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.conftest import OpenRuntime
from tests.acceptance.stack import QUESTION, read_all, scripted_config
from tests.actors.time_control import in_stopped_time, pass_time_after
from tests.shared.shown_results import result_in


class Persistent:
    """A model that is given its calls round by round, repeats the last round for ever, and replies once it has no tools.

    With `until`, it replies after so many rounds although it has tools.
    """

    def __init__(self, *rounds: Sequence[ToolUse], until: int | None = None) -> None:
        self.requests: list[PromptRequest] = []
        self._rounds, self._until = rounds, until
        self.provider = ScriptedProvider(self._answer)

    def _answer(self, request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            return QUESTION
        self.requests.append(request)
        made = len(self.requests) - 1
        if not request.may_call_tools or (self._until is not None and made >= self._until):
            return "That is all."
        return tuple(self._rounds[min(made, len(self._rounds) - 1)])

    @property
    def told(self) -> list[Any]:
        """What the calls gave, in order."""
        return [result_in(message.content) for message in self.requests[-1].messages if message.role == "tool"]


def asking(*calls: tuple[str, dict[str, Any]]) -> list[ToolUse]:
    return [ToolUse(f"u{number}", tool_id, arguments) for number, (tool_id, arguments) in enumerate(calls)]


def raising() -> None:
    """Raises what is no Exception."""
    raise SystemExit("I am out")


def raising_group() -> None:
    """Raises several at once."""
    raise BaseExceptionGroup("two", [GeneratorExit(), ValueError("b")])


async def leaving() -> None:
    """Raises what ends a generator."""
    raise GeneratorExit


def nothing_json() -> object:
    """Returns what has no JSON form."""
    return object()


def not_a_number() -> float:
    """Returns what JSON cannot say."""
    return float("nan")


def endless() -> object:
    """Returns what has no end."""
    return iter(int, 1)


def in_itself() -> object:
    """Returns what holds itself."""
    found: list[Any] = []
    found.append(found)
    return found


async def forgotten() -> object:
    """Returns what nobody awaited."""
    return anyio.lowlevel.checkpoint()


async def hangs() -> None:
    """Hangs."""
    await anyio.sleep_forever()


async def breaks_while_stopped() -> None:
    """Hangs, and fails while it is stopped."""
    try:
        await anyio.sleep_forever()
    finally:
        raise ValueError("no connection to close")


async def exits_while_stopped() -> None:
    """Hangs, and wants to end the process while it is stopped."""
    try:
        await anyio.sleep_forever()
    finally:
        raise SystemExit(3)


async def parts_break_while_stopped() -> None:
    """Hangs in two tasks, which fail while they are stopped."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(breaks_while_stopped)
        tasks.start_soon(breaks_while_stopped)


STOPPED: tuple[Callable[..., object], ...] = (hangs, breaks_while_stopped, exits_while_stopped, parts_break_while_stopped)
"""Tools that their time limit stops."""
FAULTY: dict[Callable[..., object], str] = {
    raising: "SystemExit: I am out",
    raising_group: "BaseExceptionGroup: two (2 sub-exceptions)",
    leaving: "GeneratorExit: ",
    nothing_json: "the tool has run, but its result has no JSON form: ",
    not_a_number: "the tool has run, but its result has no JSON form: ",
    endless: "the tool has run, but its result is or holds an iterator",
    in_itself: "the tool has run, but its result has ",
    forgotten: "the tool gave an awaitable instead of a result",
    **{each: f"tool {each.__name__!r} did not end within its time limit of 0.05 s" for each in STOPPED},
}
"""What a faulty tool does, and how the error begins that the model is told."""


async def ends_well(
    runtime: Runtime, tmp_path: Path, tools: Sequence[Any], message: str = "go", **config: Any
) -> list[dict[str, Any]]:
    """One turn that ends in the model's own words and is replayed the same. Returns its calls on record."""
    with anyio.fail_after(20):
        result = await runtime.supervisor().handle_turn(message)
    assert (result.response, result.error, result.degraded) == ("That is all.", None, False)
    calls = await read_all(runtime.ledgers().ho1m, entry_type=events.TOOL_CALL)
    report = await replay_session(result.session_id, config=scripted_config(tmp_path, **config), tools=tools)
    assert report.is_identical, report.text()
    return [entry.payload for entry in calls]


@pytest.mark.parametrize("side_by_side", [True, False])
async def test_every_fault_of_a_tool_is_an_error_for_the_model_and_no_neighbours(
    tmp_path: Path, scripted: OpenRuntime, *, side_by_side: bool
) -> None:
    """All faults in one round, a sound tool between any two of them."""

    @tool(read_only=side_by_side)
    def sound() -> str:
        """Works."""
        return "fine"

    faulty = [tool(read_only=side_by_side, timeout_s=0.05 if each in STOPPED else 20)(each) for each in FAULTY]
    calls: list[tuple[str, dict[str, Any]]] = [(name, {}) for each in faulty for name in (each.tool_id, "sound")]
    model = Persistent(asking(*calls), until=1)
    config: dict[str, Any] = {"max_equal_calls": 99}
    async with scripted(model.provider, tools=[*faulty, sound], **config) as runtime:
        recorded = await ends_well(runtime, tmp_path, [*faulty, sound], **config)
    assert model.told[1::2] == ["fine"] * len(FAULTY)
    errors = [each["error"] for each in model.told[::2]]
    assert [error.startswith(begins) for error, begins in zip(errors, FAULTY.values(), strict=True)] == [True] * len(FAULTY), (
        errors
    )
    assert [each["call"] for each in recorded] == list(range(1, len(calls) + 1))


async def test_two_hundred_calls_in_one_round_are_answered_each_and_mostly_refused(
    tmp_path: Path, scripted: OpenRuntime
) -> None:
    ran = list[int]()

    @tool(read_only=True)
    async def look(place: int) -> int:
        """Looks."""
        ran.append(place)
        return place

    model = Persistent(asking(*[("look", {"place": place}) for place in range(200)]))
    async with scripted(model.provider, tools=[look]) as runtime:
        recorded = await ends_well(runtime, tmp_path, [look])
    assert sorted(ran) == list(range(64))
    assert len(model.requests) == 2
    assert model.told[:64] == list(range(64))
    assert len(model.told) == len(recorded) == 200
    assert all("has made all of its 64 tool calls" in each["error"] for each in model.told[64:])


async def test_a_model_that_alternates_two_calls_for_ever_has_to_answer(tmp_path: Path, scripted: OpenRuntime) -> None:
    @tool(read_only=True)
    def look(place: str) -> str:
        """Looks."""
        return place

    rounds = [asking(("look", {"place": "AB"[number % 2]})) for number in range(40)]
    model = Persistent(*rounds)
    config: dict[str, Any] = {"tool_turn_limit": 50}
    async with scripted(model.provider, tools=[look], **config) as runtime:
        recorded = await ends_well(runtime, tmp_path, [look], **config)
    assert [each.get("result") for each in recorded] == ["A", "B"] * 3 + [None, None]


async def test_unknown_tools_and_wrong_arguments_for_ever_end_in_a_reply(tmp_path: Path, scripted: OpenRuntime) -> None:
    """Calls that cannot run are bounded by the rounds, and by the number of calls."""

    @tool(read_only=True)
    def look(place: str) -> str:
        """Looks."""
        return place

    broken = ToolUse("broken", "look", {}, problem="the arguments are not a JSON object")
    model = Persistent([*asking(("nope", {}), ("look", {"wrong": [1]}), ("", {})), broken])
    config: dict[str, Any] = {"max_tool_calls": 10}
    async with scripted(model.provider, tools=[look], **config) as runtime:
        recorded = await ends_well(runtime, tmp_path, [look], **config)
    assert len(recorded) == 12
    assert all("error" in each for each in recorded)
    assert {each["tool_id"] for each in recorded} == {"(none)", "look"}
    assert [each["error"] for each in recorded[3:8:4]] == ["the arguments are not a JSON object"] * 2


async def test_a_budget_that_ends_in_the_middle_of_a_round_ends_in_a_reply(tmp_path: Path, scripted: OpenRuntime) -> None:
    """Each result is a page of its own, and the second of three already passes the budget of results."""

    @tool(read_only=True)
    def look(place: int) -> str:
        """Looks."""
        return f"{place}" * 9_000

    model = Persistent(asking(*[("look", {"place": place}) for place in range(3)]))
    config: dict[str, Any] = {"results_budget": 4_000, "turn_budget": 12_000}
    async with scripted(model.provider, tools=[look], **config) as runtime:
        await ends_well(runtime, tmp_path, [look], **config)
    assert len(model.requests) == 2
    assert model.told[0] == "0" * 9_000
    assert "[cut: the result had" in model.told[1]
    assert "[cut: the result had" in model.told[2]


async def test_endless_progress_holds_nobody_up_and_ends_with_the_tools_time(tmp_path: Path, scripted: OpenRuntime) -> None:
    closed = anyio.Event()

    @tool(read_only=True, timeout_s=0.2)
    async def counts() -> AsyncIterator[int]:
        """Counts without end."""
        number = 0
        try:
            while True:
                number += 1
                yield number
        finally:
            closed.set()

    model = Persistent(asking(("counts", {})), until=1)
    async with scripted(model.provider, tools=[counts], limits={"stream_buffer": 2}) as runtime:
        with anyio.fail_after(20):
            told = [each async for each in runtime.supervisor().stream_turn("go") if isinstance(each, ToolProgress)]
    assert closed.is_set()
    assert told
    assert "did not end within its time limit of 0.2 s" in model.told[0]["error"]


@in_stopped_time
async def test_a_tool_that_hangs_to_the_turns_deadline_leaves_time_for_the_reply(scripted: OpenRuntime) -> None:
    """The tool has no earlier limit of its own. The last ten seconds of the turn are the model's."""
    begun = anyio.Event()

    @tool(read_only=True, timeout_s=1_000)
    async def stuck() -> None:
        """Hangs."""
        begun.set()
        await anyio.sleep_forever()

    model = Persistent(asking(("stuck", {})), until=1)
    async with scripted(model.provider, tools=[stuck]) as runtime, anyio.create_task_group() as tasks:
        tasks.start_soon(pass_time_after, begun.is_set, 112)
        result = await runtime.supervisor().handle_turn("go", deadline=120)
    assert (result.response, result.error) == ("That is all.", None)
    assert "did not end within its time limit of 1000 s or the turn's deadline" in model.told[0]["error"]


@pytest.mark.parametrize("stopped", STOPPED)
async def test_a_tool_that_breaks_while_its_turn_is_cancelled_harms_nobody(
    scripted: OpenRuntime, stopped: Callable[..., object]
) -> None:
    """A reader leaves a stream while the tool runs. The turn counts as cancelled, and other turns of the runtime go on."""
    model = Persistent(asking((getattr(stopped, "__name__", ""), {})), until=1)
    async with scripted(model.provider, tools=[tool(read_only=True)(stopped)]) as runtime:
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session()
        with anyio.fail_after(20):
            async with aclosing(supervisor.stream_turn("go", session_id=session_id)) as updates:
                async for update in updates:
                    if isinstance(update, ToolStarted):
                        break
            assert (await supervisor.handle_turn("and now?", session_id=session_id)).error is None
        aborted = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_ABORTED)
    assert [entry.payload["reason"] for entry in aborted] == ["cancelled"]


async def test_without_a_reserve_such_a_turn_is_aborted_and_its_session_goes_on(scripted: OpenRuntime) -> None:
    @tool(read_only=True, timeout_s=100)
    async def stuck() -> None:
        """Hangs."""
        await anyio.sleep_forever()

    model = Persistent(asking(("stuck", {})), until=1)
    async with scripted(model.provider, tools=[stuck], reply_reserve_s=0.0) as runtime:
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session()
        with anyio.fail_after(20):
            with pytest.raises(TurnTimeout):
                await supervisor.handle_turn("go", session_id=session_id, deadline=0.3)
            assert (await supervisor.handle_turn("and now?", session_id=session_id)).error is None
        aborted = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_ABORTED)
    assert [entry.payload["reason"] for entry in aborted] == ["timeout"]
