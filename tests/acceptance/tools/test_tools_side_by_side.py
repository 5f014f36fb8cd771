"""Read-only calls of one round run side by side; the record, the replay and the cost are those of calls in a row.

The claims stand in docs/tools.md.
"""

from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest

from kitchener.actors.tools.tool import Tool, tool
from kitchener.model_usage import Usage
from kitchener.records import events
from kitchener.records.entries import NestedCost
from kitchener.records.prompt import PromptRequest, PromptResponse, ToolUse
from kitchener.records.turn import ToolRan, ToolStarted, TurnCompleted, TurnResult
from kitchener.records.work_order import Cost
from kitchener.replaying import replay_session
from kitchener.runtime import Runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.conftest import OpenRuntime
from tests.acceptance.stack import QUESTION, Hold, outcome, read_all, scripted_config
from tests.actors.time_control import in_stopped_time, pass_time_after
from tests.shared.payloads import payload_of

ONE_BY_ONE = {"parallel_tools": 1}


def asking_for(*uses: tuple[str, str]) -> ScriptedProvider:
    """A model that calls these tools, each with `place`, in one round, and then says what it was told."""

    def answer(request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            return QUESTION
        if request.messages[-1].role == "tool":
            told = [message.content for message in request.messages if message.role == "tool"]
            return {"response_text": " | ".join(told)}
        asked = tuple(ToolUse(f"u{number}", tool_id, {"place": place}) for number, (tool_id, place) in enumerate(uses))
        return PromptResponse(provider_id="scripted", model_id="m", text="", usage=Usage(5, 5), tool_uses=asked)

    return ScriptedProvider(answer)


class Meeting:
    """Tools that note what runs at the same time; `together` of them meet before any of them goes on."""

    def __init__(self, together: int = 1) -> None:
        self.running, self.most, self.cancelled = 0, 0, list[str]()
        self.met, self._together, self._arrived = anyio.Event(), together, 0
        self.order: list[str] = []
        self.last_first: dict[str, anyio.Event] = {}

        @tool(read_only=True)
        async def look(place: str) -> str:
            """Looks somewhere."""
            return await self._run(place)

        @tool
        async def move(place: str) -> str:
            """Moves somewhere."""
            return await self._run(place)

        self.tools: list[Tool[..., Any]] = [look, move]

    async def _run(self, place: str) -> str:
        self.running += 1
        self.most = max(self.most, self.running)
        self._arrived += 1
        if self._arrived == self._together:
            self.met.set()
        try:
            await self.met.wait()
            await anyio.lowlevel.checkpoint()
            if place in self.last_first:
                await self.last_first[place].wait()
            if place == "nowhere":
                raise LookupError("no such place")
            self.order.append(place)
            for each in self.last_first.values():
                each.set()
            return f"at {place}"
        except anyio.get_cancelled_exc_class():
            self.cancelled.append(place)
            raise
        finally:
            self.running -= 1


async def calls(runtime: Runtime) -> list[tuple[str, int]]:
    """The tool entries on record, in order, with their numbers."""
    found = await read_all(runtime.ledgers().ho1m, entry_type=(events.TOOL_STARTED, events.TOOL_CALL))
    return [(entry.entry_type, payload_of(entry)["call"]) for entry in found]


STARTED, CALL = events.TOOL_STARTED, events.TOOL_CALL


async def test_read_only_calls_of_one_round_run_at_the_same_time(tmp_path: Path, scripted: OpenRuntime) -> None:
    """The first ends last; record, messages to the model and updates keep the order of the calls, and it replays."""
    meeting = Meeting(together=2)
    meeting.last_first["A"] = anyio.Event()
    provider = asking_for(("look", "A"), ("look", "B"))
    with anyio.fail_after(10):
        async with scripted(provider, tools=meeting.tools) as runtime:
            updates = [each async for each in runtime.supervisor().stream_turn("look around")]
            on_record = await calls(runtime)
    result = updates[-1].result if isinstance(updates[-1], TurnCompleted) else None
    assert result is not None
    assert meeting.order == ["B", "A"]
    assert result.response == "at A | at B"
    assert on_record == [(STARTED, 1), (STARTED, 2), (CALL, 1), (CALL, 2)]
    told = [(type(each), each.call, each.arguments["place"]) for each in updates if isinstance(each, ToolStarted | ToolRan)]
    assert told == [(ToolStarted, 1, "A"), (ToolStarted, 2, "B"), (ToolRan, 1, "A"), (ToolRan, 2, "B")]
    assert [each.result for each in updates if isinstance(each, ToolRan)] == ["at A", "at B"]
    report = await replay_session(result.session_id, config=scripted_config(tmp_path), tools=meeting.tools)
    assert report.is_identical, report.text()


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (2, 2), (4, 3)])
async def test_a_setting_bounds_how_many_run_at_the_same_time(scripted: OpenRuntime, limit: int, most: int) -> None:
    meeting = Meeting(together=most)
    provider = asking_for(("look", "A"), ("look", "B"), ("look", "C"))
    with anyio.fail_after(10):
        async with scripted(provider, tools=meeting.tools, parallel_tools=limit) as runtime:
            result = await runtime.supervisor().handle_turn("look around")
    assert meeting.most == most
    assert result.response == "at A | at B | at C"


async def test_a_tool_with_effects_runs_alone_and_in_its_place(scripted: OpenRuntime) -> None:
    meeting = Meeting()
    provider = asking_for(("look", "A"), ("move", "B"), ("look", "C"), ("look", "D"))
    with anyio.fail_after(10):
        async with scripted(provider, tools=meeting.tools) as runtime:
            await runtime.supervisor().handle_turn("go around")
            on_record = await calls(runtime)
    assert meeting.order[:2] == ["A", "B"]
    assert sorted(meeting.order[2:]) == ["C", "D"]
    alone = [(STARTED, 1), (CALL, 1), (STARTED, 2), (CALL, 2)]
    assert on_record == [*alone, (STARTED, 3), (STARTED, 4), (CALL, 3), (CALL, 4)]


async def test_a_failed_or_refused_call_leaves_its_siblings_alone(scripted: OpenRuntime) -> None:
    meeting = Meeting(together=3)
    provider = asking_for(("look", "A"), ("look", "nowhere"), ("look", "B"), ("jump", "C"))
    with anyio.fail_after(10):
        async with scripted(provider, tools=meeting.tools) as runtime:
            updates = [each async for each in runtime.supervisor().stream_turn("look around")]
    ran = [(each.tool_id, each.call, each.result, each.error) for each in updates if isinstance(each, ToolRan)]
    assert ran[:3] == [
        ("look", 1, "at A", None),
        ("look", 2, None, "LookupError: no such place"),
        ("look", 3, "at B", None),
    ]
    assert ran[3][:3] == ("jump", 4, None)
    assert ran[3][3] is not None
    assert "not allowed here" in ran[3][3]
    assert [each.call for each in updates if isinstance(each, ToolStarted)] == [1, 2, 3]


async def test_cancelling_the_turn_cancels_every_running_call(scripted: OpenRuntime) -> None:
    """No outcome is recorded, the turn is aborted, and the session takes the next message."""
    meeting = Meeting(together=3)
    with anyio.fail_after(10):
        async with scripted(asking_for(("look", "A"), ("look", "B")), tools=meeting.tools) as runtime:
            supervisor = runtime.supervisor()
            session_id = await supervisor.start_session()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: supervisor.handle_turn("look around", session_id=session_id))
                while meeting.running < 2:
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            assert sorted(meeting.cancelled) == ["A", "B"]
            assert await calls(runtime) == [(STARTED, 1), (STARTED, 2)]
            (aborted,) = await read_all(runtime.ledgers().ho2m, entry_type=events.TURN_ABORTED)
            assert aborted.payload["reason"] == "cancelled"
            meeting.met.set()
            assert (await supervisor.handle_turn("again", session_id=session_id)).error is None


async def test_a_session_that_ran_its_calls_one_by_one_replays_under_the_new_setting(
    tmp_path: Path, scripted: OpenRuntime
) -> None:
    """Such a session has no `parallel_tools` on record, as those of an older version."""
    meeting = Meeting()
    with anyio.fail_after(10):
        async with scripted(asking_for(("look", "A"), ("look", "B")), tools=meeting.tools, **ONE_BY_ONE) as runtime:
            result = await runtime.supervisor().handle_turn("look around")
            assert await calls(runtime) == [(STARTED, 1), (CALL, 1), (STARTED, 2), (CALL, 2)]
            planned = await read_all(runtime.ledgers().ho2m, entry_type=events.WO_PLANNED)
    assert not any("parallel_tools" in payload_of(entry)["constraints"] for entry in planned)
    report = await replay_session(result.session_id, config=scripted_config(tmp_path), tools=meeting.tools)
    assert report.is_identical, report.text()


async def test_the_tool_that_runs_before_the_reply_is_told_too(scripted: OpenRuntime) -> None:
    def answer(request: PromptRequest) -> Any:
        if request.wo_type == "classify":
            ask = {"tool_id": "look", "arguments": {"place": "A"}}
            return {**QUESTION, "speech_act": "command", "tool_request": ask}
        return {"response_text": "Done."}

    with anyio.fail_after(10):
        async with scripted(ScriptedProvider(answer), tools=Meeting().tools) as runtime:
            updates = [each async for each in runtime.supervisor().stream_turn("look")]
    told = [each for each in updates if isinstance(each, ToolStarted | ToolRan)]
    assert [(each.tool_id, each.arguments) for each in told] == [("look", {"place": "A"})] * 2
    assert isinstance(told[1], ToolRan)
    assert told[1].result == "at A"


class Asker:
    """A tool that asks another agent, which in turn may ask one more."""

    def __init__(self) -> None:
        self.runtime: Runtime
        self.inner: list[Any] = []

        @tool(read_only=True)
        async def ask(place: str) -> str:
            """Asks another agent."""
            result = await outcome(self.runtime.supervisor().handle_turn(place, deadline=5))
            self.inner.append(result)
            return "asked"

        self.tool: Tool[..., Any] = ask


def passing(request: PromptRequest) -> Any:
    """Asks two agents on `ask…`, one of which asks one more."""
    message = str(request.variables["user_message"])
    if request.wo_type == "classify":
        return QUESTION
    if request.messages[-1].role == "tool" or not message.startswith("ask"):
        return {"response_text": "ok"}
    uses = {"ask both": ("ask one", "end"), "ask one": ("end",)}[message]
    asked = tuple(ToolUse(f"u{number}", "ask", {"place": place}) for number, place in enumerate(uses))
    return PromptResponse(provider_id="scripted", model_id="m", text="", usage=Usage(5, 5, cached_tokens=2), tool_uses=asked)


async def test_the_cost_of_nested_agents_is_in_the_outer_ones(tmp_path: Path, scripted: OpenRuntime) -> None:
    """Two nested turns, one of which runs a third: each is counted once, shown as `nested`, and the replay finds the same."""
    asker = Asker()
    with anyio.fail_after(10):
        async with scripted(ScriptedProvider(passing), tools=[asker.tool]) as runtime:
            asker.runtime = runtime
            result = await runtime.supervisor().handle_turn("ask both")
    assert len(asker.inner) == 3
    results: list[TurnResult] = asker.inner
    (middle,) = [each for each in results if "nested" in each.cost_summary]
    leaf = next(each for each in results if each is not middle)
    assert middle.cost_summary.get("nested") == leaf.cost_summary
    inner = [Cost.of(each.cost_summary) for each in (middle, leaf)]
    nested = inner[0].plus(inner[1])
    assert Cost.of(result.cost_summary.get("nested") or leaf.cost_summary) == nested
    own = [Cost.of(cast(NestedCost, wo["cost"])) for wo in result.wo_chain_summary]
    assert Cost.of(result.cost_summary) == own[0].plus(own[1]).plus(nested)
    cached = [each.get("cached_tokens") for each in (result.cost_summary, middle.cost_summary, leaf.cost_summary)]
    assert cached == [4, 2, None], "two calls asked, and a cache served two tokens of each"
    for each in (result, middle):
        report = await replay_session(each.session_id, config=scripted_config(tmp_path), tools=[asker.tool])
        assert report.is_identical, report.text()


@in_stopped_time
async def test_what_an_aborted_nested_turn_used_counts_too(scripted: OpenRuntime) -> None:
    """The nested turn classifies, then passes its deadline while the reply is made."""
    asker, hold = Asker(), Hold("end", wo_type="synthesize")

    @tool(read_only=True)
    async def ask(place: str) -> str:
        """Asks another agent, and does not wait for ever."""
        asker.inner.append(await outcome(asker.runtime.supervisor().handle_turn(place, deadline=7)))
        return "asked"

    async with scripted(ScriptedProvider(passing, gate=hold), tools=[ask]) as runtime:
        asker.runtime = runtime
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pass_time_after, hold.arrived["end"].is_set, 7)
            result = await runtime.supervisor().handle_turn("ask one")
    assert type(asker.inner[0]).__name__ == "TurnTimeout"
    nested = result.cost_summary.get("nested")
    assert nested is not None
    assert nested["llm_calls"] == 1
